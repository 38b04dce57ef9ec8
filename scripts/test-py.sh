#!/bin/sh
# Tests with the real Python clients, in a virtual environment of their own (.venv).
set -eu
cd "$(dirname "$0")/.."
if [ ! -x .venv/bin/python ]; then
	python3 -m venv .venv
fi
.venv/bin/python -c 'import openai' 2>/dev/null || .venv/bin/pip install --quiet 'openai>=3,<4'
.venv/bin/python -c 'import openai; print("openai", openai.__version__)'
SHEAF_PYTHON="$PWD/.venv/bin/python" "${GO:-go}" test -tags py -count=1 -run Python ./pkg/session/server
