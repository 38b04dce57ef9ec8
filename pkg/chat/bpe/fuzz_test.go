package bpe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func projectModel(t testing.TB, name string) *Tokenizer {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "configs", "models", name, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// FuzzEncode checks what must hold for any text: it comes back, in one piece or
// streamed, and both ways of merging and of splitting agree.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "Hello, world", "a\r\n b\t\n\n  c", "it's THEY'LL 'ſ", "日本語 안녕 हिन्दी", "<|user|>hi<|assistant|><think>",
		"e\u0301 \u1E9B\u0323 \uFB01", "12345 ١٢٣", "\x00\xff\xfe", "<<|user|><|use", strings.Repeat("ab ", 60), strings.Repeat("x", 200)} {
		f.Add(s)
	}
	plain, merged := projectModel(f, "tiny"), projectModel(f, "tiny-glm")
	scanners := map[string]*scanner{}
	patterns := map[string]*pattern{}
	for _, source := range splitPatterns {
		scan, ok := scannerFor(source)
		if !ok {
			f.Fatalf("no scanner for %s", source)
		}
		p, err := compilePattern(source, false)
		if err != nil {
			f.Fatal(err)
		}
		scanners[source], patterns[source] = scan, p
	}
	f.Fuzz(func(t *testing.T, text string) {
		valid := strings.ToValidUTF8(text, "\uFFFD")
		for name, tok := range map[string]*Tokenizer{"tiny": plain, "tiny-glm": merged} {
			ids := tok.Encode(text, false)
			want := valid
			if name == "tiny-glm" {
				want = normalisedApart(tok, valid)
			}
			if got := tok.Decode(ids, false); got != want {
				t.Fatalf("%s: %q comes back as %q", name, want, got)
			}
			if again := tok.Encode(text, false); !slices.Equal(again, ids) {
				t.Fatalf("%s: the second time gives %v, the first gave %v", name, again, ids)
			}
			d := tok.NewDecoder(false)
			var streamed strings.Builder
			for _, id := range ids {
				piece := d.Next(id)
				if !utf8.ValidString(piece) {
					t.Fatalf("%s: a broken piece %q", name, piece)
				}
				streamed.WriteString(piece)
			}
			streamed.WriteString(d.Flush())
			if streamed.String() != want {
				t.Fatalf("%s: %q streams as %q", name, want, streamed.String())
			}
		}
		for source, scan := range scanners {
			for i := 0; i < len(valid); {
				end := scan.end(valid, i)
				start, stop, ok := patterns[source].find(valid, i)
				if !ok || start != i || stop != end {
					t.Fatalf("%s at %d of %q: the scanner ends at %d, the pattern says %d to %d, %v", source, i, valid, end, start, stop, ok)
				}
				i = end
			}
		}
		if word := text; len(word) > 0 && len(word) <= shortWord {
			short, long := merged.merge(nil, word), merged.mergeLong(nil, word)
			if !slices.Equal(short, long) {
				t.Fatalf("%q merges to %v and, by heap, to %v", word, short, long)
			}
		}
	})
}

// normalisedApart normalises the text between added tokens, as the model does.
func normalisedApart(tok *Tokenizer, text string) string {
	var b strings.Builder
	tok.raw.cut(text,
		func(id int32) { b.WriteString(tok.Decode([]int32{id}, false)) },
		func(plain string) { b.WriteString(tok.normalizer.apply(plain)) })
	return b.String()
}

var splitPatterns = []string{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
}

// FuzzLoad checks that a broken file is an error and that what loads can be used.
func FuzzLoad(f *testing.F) {
	small := `{"added_tokens":[{"id":3,"content":"<x>","special":true,"normalized":false,"lstrip":true,"rstrip":false,"single_word":false}],
		"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]},
		"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|[^a-z\\d]+"},"behavior":"Removed","invert":false},
		{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<x>":{"ids":[3]}}},
		"decoder":{"type":"ByteLevel"},
		"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"ignore_merges":false}}`
	f.Add([]byte(small))
	f.Add([]byte(strings.ReplaceAll(small, `"a b"`, `["a","b"]`)))
	f.Add([]byte(strings.ReplaceAll(small, "Removed", "MergedWithNext")))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Load(data)
		if err != nil {
			return
		}
		ids := tok.Encode("a b ab <x> 12 \u00e9", true)
		tok.Decode(ids, true)
		for _, id := range ids {
			if _, ok := tok.Token(id); !ok && id < int32(tok.VocabSize()) {
				t.Fatalf("id %d has no token", id)
			}
		}
	})
}
