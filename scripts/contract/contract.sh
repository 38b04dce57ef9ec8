#!/bin/sh
# Checks the SGLang adapter and the simulated engine against SGLang's own request
# and response models, of releases on both sides of each renaming of the
# speculative counters. Wheels and tools are kept in .venv/contract.
set -eu
cd "$(dirname "$0")/../.."
releases="0.5.10 0.5.11 0.5.12 0.5.23"
python=${PYTHON:-python3}
home=.venv/contract

if [ ! -x "$home/bin/python" ]; then
	"$python" -m venv "$home"
fi
"$home/bin/pip" install --quiet --disable-pip-version-check -r scripts/contract/requirements.txt
for release in $releases; do
	if [ ! -d "$home/sglang-$release" ]; then
		# The platform is named because the wheels are for CPython on Linux; nothing
		# in them is run but the model definitions.
		"$home/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
			--python-version 3.11 --platform manylinux_2_34_x86_64 --platform any \
			--dest "$home/wheels" "sglang==$release"
		"$home/bin/python" -m zipfile -e "$home/wheels/sglang-$release"-*.whl "$home/unpack"
		mv "$home/unpack" "$home/sglang-$release"
	fi
done

${GO:-go} run ./scripts/contract $releases > "$home/record.jsonl"
status=0
for release in $releases; do
	"$home/bin/python" scripts/contract/check.py "$release" "$home/sglang-$release" "$home/record.jsonl" || status=1
done
exit $status
