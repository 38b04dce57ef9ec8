package chat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat/bpe"
	"github.com/sheaf-rl/sheaf/pkg/chat/internal/vectors"
	"github.com/sheaf-rl/sheaf/pkg/chat/jinja"
)

func root() string { return filepath.Join("..", "..") }

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// tokenizerCase is a case of the tokenizer vectors. The later fields are in those
// that scripts/test-models.sh makes.
type tokenizerCase struct {
	Text        string
	IDs         []int32
	Decoded     string
	IDsSpecial  []int32 `json:"ids_special"`
	DecodedSkip *string `json:"decoded_skip"`
	DecodeOnly  bool    `json:"decode_only"` // no text has these ids
}

func TestVectorsTokenizer(t *testing.T) {
	dir, models := vectors.Dir(t, root()), vectors.Models(t, root())
	files, err := filepath.Glob(filepath.Join(dir, "tokenizer", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tokenizer vectors in %s", dir)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(models, name, "tokenizer.json"))
			if err != nil {
				t.Fatal(err)
			}
			tok, err := bpe.Load(data)
			if err != nil {
				t.Fatal(err)
			}
			var cases []tokenizerCase
			readJSON(t, file, &cases)
			for _, c := range cases {
				if got := tok.Encode(c.Text, false); !c.DecodeOnly && !slices.Equal(got, c.IDs) {
					t.Errorf("Encode(%q) = %v, want %v", c.Text, got, c.IDs)
				}
				if got := tok.Encode(c.Text, true); c.IDsSpecial != nil && !slices.Equal(got, c.IDsSpecial) {
					t.Errorf("Encode(%q) with special tokens = %v, want %v", c.Text, got, c.IDsSpecial)
				}
				if got := tok.Decode(c.IDs, true); c.DecodedSkip != nil && got != *c.DecodedSkip {
					t.Errorf("Decode(%v) without special tokens = %q, want %q", c.IDs, got, *c.DecodedSkip)
				}
				if got := tok.Decode(c.IDs, false); got != c.Decoded {
					t.Errorf("Decode(%v) = %q, want %q", c.IDs, got, c.Decoded)
				}
				d := tok.NewDecoder(false)
				streamed := ""
				for _, id := range c.IDs {
					streamed += d.Next(id)
				}
				if streamed += d.Flush(); streamed != c.Decoded {
					t.Errorf("streaming %v gives %q, want %q", c.IDs, streamed, c.Decoded)
				}
			}
			t.Logf("%d cases", len(cases))
		})
	}
}

// conversation is a case of the chat vectors.
type conversation struct {
	Name     string
	Messages json.RawMessage
	Tools    json.RawMessage
	Kw       map[string]json.RawMessage
}

func (c *conversation) vars(t testing.TB) *jinja.Dict {
	t.Helper()
	vars := jinja.NewDict(8)
	vars.Set("bos_token", "<BOS>")
	vars.Set("eos_token", "<EOS>")
	vars.Set("documents", nil)
	parts := map[string]json.RawMessage{"messages": c.Messages, "tools": c.Tools}
	for name, raw := range c.Kw {
		parts[name] = raw
	}
	for name, raw := range parts {
		v, err := jinja.FromJSON(raw)
		if err != nil {
			t.Fatal(err)
		}
		vars.Set(name, v)
	}
	return vars
}

func TestVectorsChat(t *testing.T) {
	dir := filepath.Join(vectors.Dir(t, root()), "chat")
	var conversations []conversation
	readJSON(t, filepath.Join(dir, "conversations.json"), &conversations)
	byName := map[string]*conversation{}
	for i := range conversations {
		byName[conversations[i].Name] = &conversations[i]
	}
	var expected map[string]map[string]struct {
		Text  string
		Error bool
	}
	readJSON(t, filepath.Join(dir, "expected.json"), &expected)
	now := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	for template, cases := range expected {
		t.Run(template, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(dir, "templates", template+".jinja"))
			if err != nil {
				t.Fatal(err)
			}
			tmpl, parseErr := jinja.Parse(string(source))
			for name, want := range cases {
				c := byName[name]
				if c == nil {
					t.Fatalf("there is no conversation %s", name)
				}
				got, err := "", parseErr
				if err == nil {
					got, err = tmpl.Render(c.vars(t), jinja.Options{Now: now})
				}
				switch {
				case want.Error && err == nil:
					t.Errorf("%s: rendered %q, the reference fails", name, got)
				case !want.Error && err != nil:
					t.Errorf("%s: %v", name, err)
				case !want.Error && got != want.Text:
					t.Errorf("%s:\ngot  %q\nwant %q", name, got, want.Text)
				}
			}
		})
	}
}
