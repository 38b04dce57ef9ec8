package main

import (
	_ "embed"
	"fmt"
)

//go:embed glm.jinja
var glmTemplate string

// corpus is what the merges of the GLM-style model are learned from: the words of
// its own templates and of the arithmetic that the examples ask.
const corpus = `You may call one or more functions. Their signatures stand within the tags. Call a function like this.
What is the weather in Paris today? The weather in Paris is sunny, about twenty degrees. What is the sum of three and four?
The sum of three and four is seven. Let me think about it: first I add the numbers, then I check the answer, and then I say it.
{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}} {"result": 42, "ok": true, "items": [1, 2, 3]}
def add(a, b):
    return a + b

for i in range(10):
    print(i, add(i, i + 1))

It's what we're doing; they'll see that I'd done it, and you've seen it, haven't you? Don't. Won't. Can't.
1 12 123 1234 12345 2024 3.14 100 1000 10000 + - * / = == != <= >= -> => :: // /* */ # @ & | ~ ^ % $
Größe Straße café naïve façade señor København Привет мир как дела 你好 世界 今天 天气 怎么样 日本語 テキスト 한국어 안녕하세요
The quick brown fox jumps over the lazy dog, and the other dog jumps over the other fox because the answer is in the question.
`

// The split pattern of Llama 3 and GLM 4.
const splitPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// glm is a model whose messages open with <|user|>, <|observation|> and
// <|assistant|>, where the opener of the next message also ends a reply. It uses
// what tiny does not: merges, a split pattern, a normal form, ignore_merges, a
// post-processor, and named templates inside tokenizer_config.json.
func glm(files map[string][]byte) error {
	vocab, merges := learn(corpus, 300)
	t := tokenizerJSON{
		Version:    "1.0",
		Normalizer: map[string]any{"type": "NFC"},
		PreTokenizer: map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]string{"Regex": splitPattern}, "behavior": "Isolated", "invert": false},
			newByteLevel(),
		}},
		Decoder: newByteLevel(),
		Model:   bpeModel{Type: "BPE", Vocab: vocab, Merges: merges, IgnoreMerges: true},
	}
	names := []string{"<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
		"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
		"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}
	ids := map[string]int{}
	for i, name := range names {
		ids[name] = len(vocab) + i
		if i < 7 {
			t.AddedTokens = append(t.AddedTokens, special(ids[name], name))
		} else {
			t.AddedTokens = append(t.AddedTokens, tag(ids[name], name))
		}
	}
	token := func(name string) any { return map[string]any{"SpecialToken": map[string]any{"id": name, "type_id": 0}} }
	text := map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}
	specials := map[string]any{}
	for _, name := range names[1:3] {
		specials[name] = map[string]any{"id": name, "ids": []int{ids[name]}, "tokens": []string{name}}
	}
	t.PostProcessor = map[string]any{"type": "TemplateProcessing", "special_tokens": specials,
		"single": []any{token(names[1]), token(names[2]), text}, "pair": []any{token(names[1]), token(names[2]), text,
			map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}}}}
	var err error
	if files["tiny-glm/tokenizer.json"], err = pretty(t); err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	files["tiny-glm/tokenizer_config.json"], err = pretty(map[string]any{
		"tokenizer_class":              "PreTrainedTokenizerFast",
		"eos_token":                    map[string]any{"__type": "AddedToken", "content": "<|endoftext|>", "special": true},
		"pad_token":                    "<|endoftext|>",
		"clean_up_tokenization_spaces": false,
		"model_max_length":             4096,
		"chat_template":                []any{map[string]string{"name": "default", "template": glmTemplate}},
	})
	return err
}
