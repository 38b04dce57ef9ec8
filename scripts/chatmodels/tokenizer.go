package main

import (
	"encoding/json"
	"fmt"
)

// The shape of tokenizer.json, as far as these models need it.
type (
	tokenizerJSON struct {
		Version       string       `json:"version"`
		Truncation    any          `json:"truncation"`
		Padding       any          `json:"padding"`
		AddedTokens   []addedToken `json:"added_tokens"`
		Normalizer    any          `json:"normalizer"`
		PreTokenizer  any          `json:"pre_tokenizer"`
		PostProcessor any          `json:"post_processor"`
		Decoder       any          `json:"decoder"`
		Model         bpeModel     `json:"model"`
	}
	addedToken struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	}
	bpeModel struct {
		Type                    string      `json:"type"`
		Dropout                 any         `json:"dropout"`
		UnkToken                any         `json:"unk_token"`
		ContinuingSubwordPrefix any         `json:"continuing_subword_prefix"`
		EndOfWordSuffix         any         `json:"end_of_word_suffix"`
		FuseUnk                 bool        `json:"fuse_unk"`
		ByteFallback            bool        `json:"byte_fallback"`
		IgnoreMerges            bool        `json:"ignore_merges"`
		Vocab                   vocab       `json:"vocab"`
		Merges                  [][2]string `json:"merges"`
	}
	byteLevel struct {
		Type           string `json:"type"`
		AddPrefixSpace bool   `json:"add_prefix_space"`
		TrimOffsets    bool   `json:"trim_offsets"`
		UseRegex       bool   `json:"use_regex"`
	}
)

// vocab is written in the order of its ids.
type vocab []string

// MarshalJSON writes the tokens as keys with their ids.
func (v vocab) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for id, token := range v {
		key, err := json.Marshal(token)
		if err != nil {
			return nil, err
		}
		if id > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, "%s:%d", key, id)
	}
	return append(out, '}'), nil
}

// byteVocab is the byte-level alphabet in the order of the bytes: byte b is token b.
func byteVocab() vocab {
	var v vocab
	next := rune(256)
	for b := range 256 {
		c := rune(b)
		if b < '!' || '~' < b && b < 0xA1 || b == 0xAD {
			c = next
			next++
		}
		v = append(v, string(c))
	}
	return v
}

// special is a token in angle brackets with bars; tag is one without, which models
// treat as ordinary text that happens to be one token.
func special(id int, content string) addedToken {
	return addedToken{ID: id, Content: content, Special: true}
}

func tag(id int, content string) addedToken {
	return addedToken{ID: id, Content: content}
}

func newByteLevel() byteLevel { return byteLevel{Type: "ByteLevel"} }
