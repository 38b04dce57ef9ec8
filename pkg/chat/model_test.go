package chat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func loadModel(t testing.TB, name string) *chat.Model {
	t.Helper()
	m, err := chat.Load(filepath.Join("..", "..", "configs", "models", name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTinyModel(t *testing.T) {
	m := loadModel(t, "tiny")
	if n := m.Tokenizer().VocabSize(); n != 272 {
		t.Errorf("vocabulary of %d, want 272", n)
	}
	if eos, ok := m.EOS(); !ok || eos != 258 {
		t.Errorf("eos is %d %v, want 258", eos, ok)
	}
	got, err := m.Render([]rollout.Message{rollout.NewMessage("user", "3+4=")}, chat.RenderOptions{AddGenerationPrompt: true})
	want := "<|im_start|>user\n3+4=<|im_end|>\n<|im_start|>assistant\n"
	if err != nil || got != want {
		t.Fatalf("rendered %q, %v, want %q", got, err, want)
	}
	ids, err := m.EncodeChat([]rollout.Message{rollout.NewMessage("user", "3+4=")}, chat.RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	wantIDs := []int32{257, 'u', 's', 'e', 'r', '\n', '3', '+', '4', '=', 258, '\n', 257,
		'a', 's', 's', 'i', 's', 't', 'a', 'n', 't', '\n'}
	if !slices.Equal(ids, wantIDs) {
		t.Errorf("ids %v, want %v", ids, wantIDs)
	}
	if back := m.Tokenizer().Decode(ids, false); back != want {
		t.Errorf("decoded %q", back)
	}
	for b := range 256 {
		if got := m.Tokenizer().Decode([]int32{int32(b)}, false); b < 0x80 && got != string(rune(b)) {
			t.Errorf("token %d is %q", b, got)
		}
	}
}

func TestHashCoversEveryFile(t *testing.T) {
	src := filepath.Join("..", "..", "configs", "models", "tiny")
	files := []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
	first := loadModel(t, "tiny").Hash()
	for _, changed := range files {
		dir := t.TempDir()
		for _, name := range files {
			data, err := os.ReadFile(filepath.Join(src, name))
			if err != nil {
				t.Fatal(err)
			}
			if name == changed {
				data = append(data, '\n', '\n')
			}
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		m, err := chat.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if m.Hash() == first {
			t.Errorf("a change of %s does not change the hash", changed)
		}
	}
}

func TestLoadSaysWhatIsMissing(t *testing.T) {
	empty := t.TempDir()
	half := t.TempDir()
	if err := os.WriteFile(filepath.Join(half, "tokenizer.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ dir, want string }{
		"no folder":    {filepath.Join(empty, "absent"), "does not exist: set model.path"},
		"no tokenizer": {empty, "has no tokenizer.json: copy it"},
		"no config":    {half, "has no tokenizer_config.json: copy it"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := chat.Load(c.dir)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestRenderTakesToolsAndArguments(t *testing.T) {
	m := loadModel(t, "tiny")
	var messages []rollout.Message
	if err := json.Unmarshal([]byte(`[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[
		{"id":"1","type":"function","function":{"name":"add","arguments":"{\"b\":1,\"a\":2}"}}]},
		{"role":"tool","content":"3"},{"role":"tool","content":"4"}]`), &messages); err != nil {
		t.Fatal(err)
	}
	got, err := m.Render(messages, chat.RenderOptions{
		Tools:               []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"add"}}`)},
		AddGenerationPrompt: true,
		Kwargs:              map[string]json.RawMessage{"enable_thinking": json.RawMessage("false")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"add\"}}\n</tools>",
		"<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call><|im_end|>\n",
		"<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n",
		"<|im_start|>assistant\n<think>\n\n</think>\n\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}
