package chat

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// randomTalk makes conversations: what clients and models might say.
type randomTalk struct{ r *rand.Rand }

func (g randomTalk) text() string {
	pieces := []string{"hello", " world", "\n", "\n\n", " ", "42", "<think>", "x < y && z", "日本語", "naïve", "\"quoted\"", "😀", "\t",
		"{\"a\": 1}", "don't", "ſ", "e\u0301", "</tool_response>", "...", "\r\n", "<|im", "|>", "a\u00a0b", "`code`", "%", "\\n", "أهلا", "１２"}
	var b strings.Builder
	for range g.r.IntN(8) {
		b.WriteString(pieces[g.r.IntN(len(pieces))])
	}
	return b.String()
}

func (g randomTalk) maybe(p float64) bool { return g.r.Float64() < p }

func (g randomTalk) value(depth int) any {
	switch n := g.r.IntN(7); {
	case n == 0:
		return g.r.IntN(1000)
	case n == 1:
		return g.r.Float64() * 1e3
	case n == 2:
		return g.maybe(0.5)
	case n == 3:
		return nil
	case n == 4 && depth < 3:
		return []any{g.value(depth + 1), g.value(depth + 1)}
	case n == 5 && depth < 3:
		return map[string]any{"k": g.value(depth + 1), "é": g.value(depth + 1)}
	}
	return g.text()
}

func (g randomTalk) message(role string) map[string]any {
	m := map[string]any{"role": role, "content": g.text()}
	if g.maybe(0.1) {
		m["content"] = []any{map[string]any{"type": "text", "text": g.text()}, map[string]any{"type": "text", "text": g.text()}}
	}
	return m
}

// reply is what a model says; with calls it asks for tools.
func (g randomTalk) reply(calls bool) map[string]any {
	m := map[string]any{"role": "assistant", "content": strings.Trim(g.text(), " \t\r\n\u00a0")}
	if g.maybe(0.7) {
		m["reasoning_content"] = g.text()
	}
	if calls {
		var list []any
		for range 1 + g.r.IntN(2) {
			var arguments any = map[string]any{"city": g.text(), "n": g.value(0)}
			if g.maybe(0.5) {
				text, _ := json.Marshal(arguments) // such a value always encodes
				arguments = string(text)
			}
			list = append(list, map[string]any{"id": "call_1", "type": "function",
				"function": map[string]any{"name": "get_weather", "arguments": arguments}})
		}
		m["tool_calls"] = list
		if g.maybe(0.3) {
			m["content"] = nil
		}
	}
	return m
}

func (g randomTalk) options() RenderOptions {
	opt := RenderOptions{AddGenerationPrompt: true}
	if g.maybe(0.5) {
		opt.Tools = []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"get_weather","description":"the weather <here>",
			"parameters":{"type":"object","properties":{"city":{"type":"string"},"n":{}},"required":["city"]}}}`)}
	}
	if g.maybe(0.3) {
		opt.Kwargs = map[string]json.RawMessage{"enable_thinking": json.RawMessage([]string{"true", "false"}[g.r.IntN(2)])}
	}
	return opt
}

func toMessage(t testing.TB, m map[string]any) rollout.Message {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out rollout.Message
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
