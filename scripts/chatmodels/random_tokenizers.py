"""Small tokenizers that use what tokenizer.json can ask for, made with Hugging Face tokenizers."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = ["It's what we're doing: the quick brown fox jumps over the lazy dog.", "def add(a, b):\n    return a + b  # sum\n\n\n",
          "Größe, café, naïve; e\u0301 A\u030a ﬁ ²½ 12345 ١٢٣", "日本語のテキスト 한국어 안녕하세요 हिन्दी ไทย", "https://example.org/x?y=1&z=[2] -- 'quoted' \"text\""] * 3

SPLITS = {
    "gpt4": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "possessive": r"\p{Lu}?+\p{Ll}++|\d{2,}|[^\S\n]+|[\p{P}\p{S}--]+|.",
}


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def make(rng):
    """Yields names and tokenizer.json texts."""
    stages = {
        "gpt2": [byte_level(regex=True)],
        "gpt2-prefix": [byte_level(prefix=True, regex=True)],
        "gpt4": [split(SPLITS["gpt4"]), byte_level()],
        "gpt4-prefix": [split(SPLITS["gpt4"]), byte_level(prefix=True)],
        "qwen35": [split(SPLITS["qwen35"]), byte_level()],
        "o200k": [split(SPLITS["o200k"]), byte_level()],
        "digits": [pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)],
        "digit-runs": [pre_tokenizers.Digits(individual_digits=False), byte_level()],
        "removed": [split(r"\s+", "removed"), byte_level()],
        "inverted": [split(r"\p{L}+|\p{N}", "removed", True), byte_level()],
        "with-previous": [split(r"[\p{P}\s]", "merged_with_previous"), byte_level()],
        "with-next": [split(r"[\p{P}\s]", "merged_with_next"), byte_level()],
        "contiguous": [split(r"[\p{P}\p{S}]", "contiguous"), byte_level()],
        "string": [pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.Split(".", "isolated"), byte_level()],
        "deepseek": [split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
                     split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
                     byte_level()],
        "lookahead": [split(r"\p{L}+(?=\p{N})|\p{L}+(?!\p{N})|[^\p{L}]"), byte_level()],
    }
    forms = [None, normalizers.NFC(), normalizers.Sequence([normalizers.NFC()]), normalizers.Sequence([])]
    for index, (name, parts) in enumerate(stages.items()):
        tok = Tokenizer(models.BPE(ignore_merges=index % 3 == 1))
        form = forms[index % len(forms)]
        if form is not None:
            tok.normalizer = form
        tok.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else parts[0]
        tok.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                      special_tokens=["<|endoftext|>", "<|im_start|>"])
        tok.train_from_iterator(CORPUS, trainer)
        tok.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False), AddedToken("[gMASK]", lstrip=index % 2 == 0, normalized=False)])
        tok.add_tokens([AddedToken("<x>", lstrip=index % 2 == 1, rstrip=index % 4 < 2, normalized=False), AddedToken("<think>", normalized=False),
                        AddedToken("é", normalized=True), AddedToken("<norm>", normalized=True, rstrip=index % 3 == 0), AddedToken("<|", normalized=index % 2 == 0),
                        AddedToken("hello world", normalized=False), AddedToken("<｜User｜>", normalized=True)])
        if index % 2:
            bos = tok.token_to_id("<|im_start|>")
            eos = tok.token_to_id("<|endoftext|>")
            tok.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
                single="<|im_start|> $A <|endoftext|>", special_tokens=[("<|im_start|>", bos), ("<|endoftext|>", eos)])])
        source = tok.to_str()
        if index % 5 == 0:  # the older spelling of merges
            data = json.loads(source)
            data["model"]["merges"] = [" ".join(pair) if not isinstance(pair, str) else pair for pair in data["model"]["merges"]]
            source = json.dumps(data, ensure_ascii=False)
        yield "made-" + name, source
