package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// tiny is the model of the simulated engine: 256 bytes and 16 added tokens, no
// merges, so that its policy can be small. It speaks ChatML.
func tiny(root string, files map[string][]byte) error {
	names := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
		"<tool_response>", "</tool_response>"}
	for len(names) < 16 {
		names = append(names, fmt.Sprintf("<|reserved_%d|>", len(names)-9))
	}
	t := tokenizerJSON{
		Version:      "1.0",
		PreTokenizer: newByteLevel(),
		Decoder:      newByteLevel(),
		Model:        bpeModel{Type: "BPE", Vocab: byteVocab(), Merges: [][2]string{}},
	}
	for i, name := range names {
		if name[1] == '|' {
			t.AddedTokens = append(t.AddedTokens, special(256+i, name))
		} else {
			t.AddedTokens = append(t.AddedTokens, tag(256+i, name))
		}
	}
	var err error
	if files["tiny/tokenizer.json"], err = pretty(t); err != nil {
		return err
	}
	files["tiny/tokenizer_config.json"], err = pretty(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
		"clean_up_tokenization_spaces": false, "model_max_length": 4096,
	})
	if err != nil {
		return err
	}
	// Engines read from here which tokens end a response.
	files["tiny/generation_config.json"], err = pretty(map[string]any{"eos_token_id": []int{258, 256}, "pad_token_id": 256})
	if err != nil {
		return err
	}
	files["tiny/chat_template.jinja"], err = os.ReadFile(filepath.Join(root, "pkg", "chat", "templates", "qwen3.jinja"))
	return err
}
