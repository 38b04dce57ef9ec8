package bpe

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The golden file is written by scripts/chatmodels/golden_bpe.py: the project's
// models and tokenizers that use what a file can ask for.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct {
		Name      string
		Tokenizer json.RawMessage
		Cases     []struct {
			Text        string
			IDs         []int32
			Decoded     string
			IDsSpecial  []int32 `json:"ids_special"`
			DecodedSkip string  `json:"decoded_skip"`
			DecodeOnly  bool    `json:"decode_only"`
		}
	}
	if err := json.Unmarshal(data, &entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Run(e.Name, func(t *testing.T) {
			tok, err := Load(e.Tokenizer)
			if e.Tokenizer == nil {
				tok, err = projectModel(t, e.Name), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range e.Cases {
				if !c.DecodeOnly {
					if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
						t.Errorf("Encode(%q) = %v, want %v", c.Text, got, c.IDs)
					}
					if got := tok.Encode(c.Text, true); !slices.Equal(got, c.IDsSpecial) {
						t.Errorf("Encode(%q) with special tokens = %v, want %v", c.Text, got, c.IDsSpecial)
					}
				}
				if got := tok.Decode(c.IDs, false); got != c.Decoded {
					t.Errorf("Decode(%v) = %q, want %q", c.IDs, got, c.Decoded)
				}
				if got := tok.Decode(c.IDs, true); got != c.DecodedSkip {
					t.Errorf("Decode(%v) without special tokens = %q, want %q", c.IDs, got, c.DecodedSkip)
				}
				d := tok.NewDecoder(false)
				var streamed strings.Builder
				for _, id := range c.IDs {
					streamed.WriteString(d.Next(id))
				}
				streamed.WriteString(d.Flush())
				if streamed.String() != c.Decoded {
					t.Errorf("streaming %v gives %q, want %q", c.IDs, streamed.String(), c.Decoded)
				}
			}
		})
	}
}

func TestLoadRefusals(t *testing.T) {
	const good = `{"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
		"post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","unk_token":null,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`
	if _, err := Load([]byte(good)); err != nil {
		t.Fatal(err)
	}
	const added = `{"id":3,"content":"<x>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false}`
	for name, c := range map[string]struct {
		old, replacement string
		kind             error
		says             string
	}{
		"WordPiece":                {`"type":"BPE"`, `"type":"WordPiece"`, ErrUnsupported, "WordPiece"},
		"Unigram":                  {`"type":"BPE"`, `"type":"Unigram"`, ErrUnsupported, "Unigram"},
		"another normalizer":       {`"normalizer":null`, `"normalizer":{"type":"Lowercase"}`, ErrUnsupported, "Lowercase"},
		"another pre-tokenizer":    {`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, `{"type":"Metaspace"}`, ErrUnsupported, "Metaspace"},
		"no byte level":            {`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, `{"type":"Digits","individual_digits":true}`, ErrUnsupported, "ByteLevel"},
		"another decoder":          {`"decoder":{"type":"ByteLevel"}`, `"decoder":{"type":"Metaspace"}`, ErrUnsupported, "Metaspace"},
		"no decoder":               {`"decoder":{"type":"ByteLevel"}`, `"decoder":null`, ErrUnsupported, "decoder"},
		"another post-processor":   {`"post_processor":null`, `"post_processor":{"type":"BertProcessing"}`, ErrUnsupported, "BertProcessing"},
		"single_word":              {`"added_tokens":[]`, `"added_tokens":[` + strings.Replace(added, `"single_word":false`, `"single_word":true`, 1) + `]`, ErrUnsupported, "single_word"},
		"dropout":                  {`"unk_token":null`, `"dropout":0.1`, ErrUnsupported, "dropout"},
		"a subword prefix":         {`"unk_token":null`, `"continuing_subword_prefix":"##"`, ErrUnsupported, "continuing_subword_prefix"},
		"unk with missing bytes":   {`"unk_token":null`, `"unk_token":"a"`, ErrUnsupported, "unk_token"},
		"a merge of unknown parts": {`"a b"`, `"a c"`, ErrInvalid, "vocabulary"},
		"a merge of three":         {`"a b"`, `"a b c"`, ErrInvalid, "pair"},
		"an id twice":              {`"ab":2`, `"ab":1`, ErrInvalid, "share"},
		"an id out of range":       {`"ab":2`, `"ab":-1`, ErrInvalid, "id -1"},
		"an added id that differs": {`"added_tokens":[]`, `"added_tokens":[` + strings.Replace(added, "<x>", "ab", 1) + `]`, ErrInvalid, "vocabulary says"},
		"no model":                 {`"model"`, `"nomodel"`, ErrInvalid, "no model"},
		"a lazy pattern":           {`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a+?b"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false}]}`, ErrUnsupported, "lazy"},
		"a script class":           {`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{Han}+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false}]}`, ErrUnsupported, `\p{Han}`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.replacement, 1)
			if text == good {
				t.Fatal("the case changes nothing")
			}
			_, err := Load([]byte(text))
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.kind, c.says)
			}
		})
	}
}

func TestTokensByName(t *testing.T) {
	tok := projectModel(t, "tiny-glm")
	for id := range int32(tok.VocabSize()) {
		name, ok := tok.Token(id)
		if !ok {
			t.Fatalf("id %d has no token", id)
		}
		if back, ok := tok.TokenID(name); !ok || back != id {
			t.Fatalf("token %q of id %d has the id %d, %v", name, id, back, ok)
		}
	}
	for _, id := range []int32{-1, int32(tok.VocabSize())} {
		if name, ok := tok.Token(id); ok {
			t.Errorf("id %d is %q", id, name)
		}
	}
	if _, ok := tok.TokenID("no such token"); ok {
		t.Error("a token that does not exist has an id")
	}
	if got := tok.Decode([]int32{-5, 1 << 30}, false); got != "" {
		t.Errorf("ids without tokens decode to %q", got)
	}
}

func TestInvalidUTF8IsReplaced(t *testing.T) {
	tok := projectModel(t, "tiny")
	if got := tok.Decode(tok.Encode("a\xff\xfeb\xe2\x82", false), false); got != "a\uFFFDb\uFFFD" {
		t.Errorf("got %q", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := projectModel(t, "tiny-glm")
	texts := []string{"What is the weather in Paris?", "日本語 text with numbers 12345", strings.Repeat("long ", 300)}
	want := make([][]int32, len(texts))
	for i, s := range texts {
		want[i] = projectModel(t, "tiny-glm").Encode(s, true)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				for i, s := range texts {
					if got := tok.Encode(s, true); !slices.Equal(got, want[i]) {
						t.Errorf("%q gives %v", s, got)
					}
				}
			}
		})
	}
	wg.Wait()
}

// A word of a megabyte must cost little more than a thousand words of a kilobyte.
func TestLongWordIsNotQuadratic(t *testing.T) {
	tok := projectModel(t, "tiny-glm")
	word := strings.Repeat("weatherfunction", 1<<20/15)
	ids := tok.Encode(word, false)
	if tok.Decode(ids, false) != word {
		t.Error("the word does not come back")
	}
}
