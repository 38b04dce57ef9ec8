"""Writes random cases and what the reference implementations answer, in the shape of the vectors.

    differential.py OUT SEED STRINGS TEMPLATES [MODEL=FOLDER ...] [--templates FOLDER ...]

OUT gets vectors/tokenizer/*.json, vectors/chat/... and models/*, so that the vector tests run on them with
SHEAF_VECTORS=OUT/vectors and SHEAF_MODELS=OUT/models.
"""

import argparse
import json
import pathlib
import random
import shutil
import sys
import unicodedata
import warnings

import tokenizers

import random_jinja
import random_tokenizers
from jinja_env import environment, render

INTERESTING = [
    "it's", "WE'LL", "'ſ", "don’t", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "a", "Z", "hello",
    " world", "12", "3", "１２", "²", "½", "٣", "日本", "語", "한국", "\u1112\u1161\u11ab", "é", "e\u0301", "\u0327\u0301", "ﬁ", "Å", "\u212b", "क्षि", "ไทย", "😀", "👨‍👩‍👧",
    "🇺🇸", "!", "...", "://", "_x", "</", "{}", "\"", "`", "~", "ß", "İ", "ı", "ǅ", "\ufeff", "\ufffd", "\U000e0001", "<|im_end|>", "<|im_start|>", "<think>",
    "</think>", "<|eot_id|>", "<｜User｜>", "<|", "|>", "[gMASK]", "<sop>", "<x>", " <x> ", "<norm>", "İ<NORM>", "\u0344", "\u0958", "\uac00\u11a8", "\U0001d15e", "\u2126",
]


def assigned():
    """Code points by plane, half of them near a change of category."""
    points, edges, before = [], [], None
    for point in range(0x110000):
        if 0xD800 <= point <= 0xDFFF:
            continue
        category = unicodedata.category(chr(point))
        if category != before:
            edges += [p for p in (point - 1, point) if p >= 0 and not 0xD800 <= p <= 0xDFFF]
            before = category
        if category not in ("Cn", "Co"):
            points.append(point)
    return points, edges


def text(rng, points, edges):
    out = []
    for _ in range(rng.randrange(1, 24)):
        kind = rng.random()
        if kind < 0.55:
            out.append(rng.choice(INTERESTING))
        elif kind < 0.7:
            out.append(chr(rng.choice(points)))
        elif kind < 0.85:
            out.append(chr(rng.choice(edges)))
        elif kind < 0.86:  # more marks in a row than the Stream-Safe Text Process lets stand
            marks = rng.sample("\u0301\u0308\u0323\u0345\u0344\u05b0\u094d\u3099", 2)
            out.append(rng.choice("exqAか") + "".join(rng.choice(marks) for _ in range(rng.randrange(25, 45))))
        elif kind < 0.9:
            point = rng.randrange(0x110000)
            out.append(chr(point) if not 0xD800 <= point <= 0xDFFF else "?")
        else:
            out.append("".join(rng.choice("abcdefgh ijk.LMN019\n") for _ in range(rng.randrange(30))))
    return "".join(out)


def tokenizer_cases(tok, rng, points, edges, count):
    cases = []
    for _ in range(count):
        s = text(rng, points, edges)
        plain = tok.encode(s, add_special_tokens=False).ids
        cases.append({"text": s, "ids": plain, "decoded": tok.decode(plain, skip_special_tokens=False),
                      "ids_special": tok.encode(s).ids, "decoded_skip": tok.decode(plain, skip_special_tokens=True)})
    size = tok.get_vocab_size()
    for _ in range(count // 10):  # ids that no text has: broken characters
        ids = [rng.randrange(size) for _ in range(rng.randrange(1, 12))]
        ids = [i for i in ids if tok.id_to_token(i) is not None]
        cases.append({"decode_only": True, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False),
                      "decoded_skip": tok.decode(ids, skip_special_tokens=True)})
    return cases


def write_tokenizers(out, rng, models, count):
    points, edges = assigned()
    (out / "vectors/tokenizer").mkdir(parents=True)
    total = 0
    for name, folder in models.items():
        target = out / "models" / name
        target.mkdir(parents=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            if (folder / file).exists():
                shutil.copy(folder / file, target / file)
        tok = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
        tok.no_truncation()
        tok.no_padding()
        cases = tokenizer_cases(tok, rng, points, edges, count)
        total += len(cases)
        (out / f"vectors/tokenizer/{name}.json").write_text(json.dumps(cases))
    return total


def value(rng, depth=0):
    kind = rng.randrange(12)
    if kind == 0:
        return rng.randrange(-10, 10**rng.randrange(1, 25))
    if kind == 1:
        return rng.choice([0.0, -0.0, 1.0, 0.1, 1e16, 1e-7, 123456.789, rng.uniform(-1e6, 1e6), 1e22])
    if kind == 2:
        return rng.choice([True, False])
    if kind == 3:
        return None
    if kind == 4 and depth < 3:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5 and depth < 3:
        return {words(rng): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return words(rng)


def words(rng):
    pieces = ["hello", " ", "\n", "\n\n", "x < y & 'z'", "日本語", "\"q\"", "\\", "<think>", "</think>", "<tool_response>", "</tool_response>", "\t", "é", "😀",
              "\u2028", "\x00", "\x7f", "42", "{% x %}", "{{ y }}", "<|im_end|>", " trailing ", "\u00a0"]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(5)))


def message(rng, role):
    m = {"role": role}
    kind = rng.random()
    if kind < 0.75:
        m["content"] = words(rng)
    elif kind < 0.85:
        parts = [{"type": "text", "text": words(rng)}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "video"}, {"text": "t"}, "s"]
        m["content"] = [rng.choice(parts) for _ in range(rng.randrange(3))]
    elif kind < 0.93:
        m["content"] = None
    if role == "assistant":
        if rng.random() < 0.4:
            m["reasoning_content"] = rng.choice([words(rng), None, ""])
        if rng.random() < 0.2:
            m["thinking"] = words(rng)
        if rng.random() < 0.5:
            m["tool_calls"] = []
            for _ in range(rng.randrange(3)):
                arguments = {words(rng) or "k": value(rng) for _ in range(rng.randrange(3))}
                call = {"name": rng.choice(["f", "get_weather", "a&b"]), "arguments": rng.choice([arguments, json.dumps(arguments)])}
                m["tool_calls"].append(rng.choice([{"id": "c1", "type": "function", "function": call}, call]))
    if role == "tool" and rng.random() < 0.5:
        m["tool_call_id"] = "c1"
        m["name"] = "f"
    items = list(m.items())
    rng.shuffle(items)
    return dict(items)


def conversation(rng, index):
    messages = []
    if rng.random() < 0.5:
        messages.append(message(rng, rng.choice(["system", "system", "developer"])))
    if rng.random() < 0.6:  # an orderly one
        for _ in range(rng.randrange(1, 4)):
            messages.append(message(rng, "user"))
            messages.append(message(rng, "assistant"))
            if messages[-1].get("tool_calls"):
                for _ in range(rng.randrange(1, 3)):
                    messages.append(message(rng, "tool"))
                messages.append(message(rng, "assistant"))
        if rng.random() < 0.6:
            messages.append(message(rng, "user"))
    else:
        for _ in range(rng.randrange(5)):
            messages.append(message(rng, rng.choice(["user", "assistant", "tool", "system", "odd"])))
    tools = None
    if rng.random() < 0.4:
        tools = []
        for _ in range(rng.randrange(3)):
            properties = {words(rng) or "p": {"type": rng.choice(["string", "integer", "array", "object", ["string", "null"]]), "description": words(rng),
                                              "default": value(rng), "enum": [words(rng)]} for _ in range(rng.randrange(3))}
            fn = {"name": "f", "description": words(rng), "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}
            tools.append(rng.choice([{"type": "function", "function": fn}, fn]))
    kw = {"add_generation_prompt": rng.choice([True, False])}
    for name in ("enable_thinking", "clear_thinking", "add_vision_id", "preserve_thinking"):
        if rng.random() < 0.2:
            kw[name] = rng.choice([True, False])
    if rng.random() < 0.1:
        kw["reasoning_effort"] = rng.choice(["low", "high"])
    return {"name": f"random-{index}", "messages": messages, "tools": tools, "kw": kw}


def unstable(s):
    """Whether Python printed an address or a class, which nothing else can."""
    return " at 0x" in s or "<class '" in s or "<function" in s or "<built-in" in s


def write_chat(out, rng, folders, conversations, count):
    chat = out / "vectors/chat"
    (chat / "templates").mkdir(parents=True)
    env = environment()
    talks = [conversation(rng, i) for i in range(conversations)]
    expected, total = {}, 0
    for folder in folders:
        for file in sorted(folder.glob("*.jinja")):
            source = file.read_text()
            shutil.copy(file, chat / "templates" / file.name)
            expected[file.stem] = {}
            for talk in talks:
                variables = json.loads(json.dumps({"messages": talk["messages"], "tools": talk["tools"], **talk["kw"]}))
                result, error = render(env, source, {"bos_token": "<BOS>", "eos_token": "<EOS>", "documents": None, **variables})
                if not unstable(result):
                    expected[file.stem][talk["name"]] = {"error": True} if error else {"text": result}
                    total += 1
    talks.append({"name": "grammar", "messages": [], "tools": None, "kw": random_jinja.VARIABLES})
    made = 0
    while made < count:
        source = random_jinja.template(rng)
        variables = json.loads(json.dumps(random_jinja.VARIABLES))
        result, error = render(env, source, {"bos_token": "<BOS>", "eos_token": "<EOS>", "documents": None, "messages": [], "tools": None, **variables})
        if unstable(result) or unstable(error):
            continue
        name = f"grammar-{made}"
        (chat / "templates" / f"{name}.jinja").write_text(source)
        expected[name] = {"grammar": {"error": True} if error else {"text": result}}
        made += 1
    (chat / "conversations.json").write_text(json.dumps(talks))
    (chat / "expected.json").write_text(json.dumps(expected))
    return total + made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("strings", type=int)
    parser.add_argument("grammar", type=int)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--templates", nargs="*", type=pathlib.Path, default=[])
    args = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)  # of templates that subscript a number on purpose
    shutil.rmtree(args.out, ignore_errors=True)
    rng = random.Random(args.seed)
    models = {name: pathlib.Path(folder) for name, folder in (m.split("=", 1) for m in args.models)}
    made = args.out / "made"
    for name, source in random_tokenizers.make(rng):
        (made / name).mkdir(parents=True)
        (made / name / "tokenizer.json").write_text(source)
        models[name] = made / name
    strings = write_tokenizers(args.out, rng, models, args.strings)
    chats = write_chat(args.out, rng, args.templates, 150, args.grammar)
    print(f"{strings} strings for {len(models)} tokenizers, {chats} renderings", file=sys.stderr)


if __name__ == "__main__":
    main()
