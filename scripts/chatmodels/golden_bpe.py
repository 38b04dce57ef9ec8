"""Writes pkg/chat/bpe/testdata/golden.json: small tokenizers with strings and the ids that Hugging Face tokenizers give them.

    .venv/bin/python scripts/chatmodels/golden_bpe.py
"""

import json
import pathlib
import random

import tokenizers

import random_tokenizers
from differential import assigned, tokenizer_cases

ROOT = pathlib.Path(__file__).parents[2]
OUT = ROOT / "pkg/chat/bpe/testdata/golden.json"


def main():
    rng = random.Random(5)
    points, edges = assigned()
    entries = []
    for name in ("tiny", "tiny-glm"):
        source = (ROOT / "configs/models" / name / "tokenizer.json").read_text()
        entries.append({"name": name, "cases": tokenizer_cases(tokenizers.Tokenizer.from_str(source), rng, points, edges, 60)})
    for name, source in random_tokenizers.make(rng):
        tok = tokenizers.Tokenizer.from_str(source)
        entries.append({"name": name, "tokenizer": json.loads(source), "cases": tokenizer_cases(tok, rng, points, edges, 15)})
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries) + "\n]\n")
    print(OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
