package chat

import (
	"encoding/json"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestNormalisation(t *testing.T) {
	show, err := parseTemplate("{{ messages|tojson }}")
	if err != nil {
		t.Fatal(err)
	}
	showParts, err := parseTemplate("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}{{ messages|tojson }}")
	if err != nil {
		t.Fatal(err)
	}
	m := projectFamily(t, "tiny", "qwen3").model
	for name, c := range map[string]struct {
		template *chatTemplate
		message  string
		want     string
	}{
		"null content is empty": {show, `{"role":"assistant","content":null}`, `[{"role": "assistant", "content": ""}]`},
		"no content is empty":   {show, `{"role":"assistant","x":1}`, `[{"role": "assistant", "x": 1, "content": ""}]`},
		"other nulls go":        {show, `{"name":null,"role":"user","content":"a"}`, `[{"role": "user", "content": "a"}]`},
		"keys keep their order": {show, `{"content":"a","z":[1,{"y":null}],"role":"user"}`, `[{"content": "a", "z": [1, {"y": null}], "role": "user"}]`},
		"argument text becomes an object": {show, `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"b\":1,\"a\":1e400}"}}]}`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": Infinity}}}]}]`},
		"argument text that is no object stays": {show, `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"[1"}}]}`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}]`},
		"parts are joined":                          {show, `{"role":"user","content":[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"}]}`, `[{"role": "user", "content": "a b"}]`},
		"parts stay for a template that reads them": {showParts, `{"role":"user","content":[{"type":"text","text":"a"}]}`, `[{"role": "user", "content": [{"type": "text", "text": "a"}]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			var message rollout.Message
			if err := json.Unmarshal([]byte(c.message), &message); err != nil {
				t.Fatal(err)
			}
			got, err := m.render(c.template, []rollout.Message{message}, RenderOptions{})
			if err != nil || got != c.want {
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
		})
	}
}

func TestFixedArgumentsCannotBeContradicted(t *testing.T) {
	f := projectFamily(t, "tiny-glm", "glm47")
	user := []rollout.Message{rollout.NewMessage("user", "hi")}
	for given, ok := range map[string]bool{"false": true, " false ": true, "true": false, "null": false} {
		_, err := f.Render(user, RenderOptions{Kwargs: map[string]json.RawMessage{"clear_thinking": json.RawMessage(given)}})
		if (err == nil) != ok {
			t.Errorf("clear_thinking %s: %v", given, err)
		}
	}
}

func TestStopTokensAreTrimmed(t *testing.T) {
	glm := projectFamily(t, "tiny-glm", "glm47")
	id := func(f *Family, name string) int32 {
		id, ok := f.model.tokenizer.TokenID(name)
		if !ok {
			t.Fatalf("no token %s", name)
		}
		return id
	}
	for _, name := range []string{"<|user|>", "<|observation|>", "<|endoftext|>"} {
		if got := glm.TrimStop([]int32{1, 2, id(glm, name)}); len(got) != 2 {
			t.Errorf("%s is not trimmed", name)
		}
	}
	if got := glm.TrimStop([]int32{1, 2}); len(got) != 2 {
		t.Error("an ordinary token is trimmed")
	}
	qwen := projectFamily(t, "tiny", "qwen3")
	if got := qwen.TrimStop([]int32{1, id(qwen, "<|im_end|>")}); len(got) != 1 {
		t.Error("<|im_end|> is not trimmed")
	}
}
