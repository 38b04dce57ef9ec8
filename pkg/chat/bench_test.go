package chat

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/cputime"
	"github.com/sheaf-rl/sheaf/pkg/chat/internal/vectors"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// talkOf makes a conversation of n messages with reasoning and tool calls.
func talkOf(b *testing.B, n int) []rollout.Message {
	b.Helper()
	messages := []rollout.Message{rollout.NewMessage("system", "You are a helpful assistant.")}
	for i := 1; i < n; i++ {
		var text string
		switch i % 4 {
		case 1:
			text = fmt.Sprintf(`{"role":"user","content":"What is the weather in city %d, please?"}`, i)
		case 2:
			text = `{"role":"assistant","content":"I look.","reasoning_content":"The user wants the weather, so I call the tool.",` +
				`"tool_calls":[{"id":"c1","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Paris\", \"days\": 3}"}}]}`
		case 3:
			text = `{"role":"tool","tool_call_id":"c1","content":"{\"temperature\": 21, \"sky\": \"clear\"}"}`
		default:
			text = `{"role":"assistant","content":"It is 21 degrees and clear.","reasoning_content":"Now I can answer."}`
		}
		var m rollout.Message
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			b.Fatal(err)
		}
		messages = append(messages, m)
	}
	return messages
}

var benchTools = []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"get_weather","description":"Get the weather of a city",` +
	`"parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}`)}

func benchmarkRender(b *testing.B, f *Family) {
	messages := talkOf(b, 20)
	opt := RenderOptions{Tools: benchTools, AddGenerationPrompt: true}
	text, err := f.Render(messages, opt)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	cputime.Loop(b, func() {
		if _, err := f.Render(messages, opt); err != nil {
			b.Fatal(err)
		}
	})
}

func benchFamily(b *testing.B, model, family string) *Family {
	b.Helper()
	return projectFamily(b, model, family)
}

func BenchmarkRender20Qwen3(b *testing.B)  { benchmarkRender(b, benchFamily(b, "tiny", "qwen3")) }
func BenchmarkRender20Qwen35(b *testing.B) { benchmarkRender(b, benchFamily(b, "tiny", "qwen35")) }
func BenchmarkRender20GLM(b *testing.B)    { benchmarkRender(b, benchFamily(b, "tiny-glm", "glm47")) }

func BenchmarkRender20GLM52(b *testing.B) {
	template, err := os.ReadFile(filepath.Join(vectors.Dir(b, filepath.Join("..", "..")), "chat", "templates", "glm-5.2.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	tokenizer, err := os.ReadFile(filepath.Join("..", "..", "configs", "models", "tiny-glm", "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	m, err := newModel(tokenizer, []byte(`{}`), template)
	if err != nil {
		b.Fatal(err)
	}
	f, err := m.Family("glm47")
	if err != nil {
		b.Fatal(err)
	}
	benchmarkRender(b, f)
}

// A turn of a session: what a tool said is appended to many tokens.
func BenchmarkContinue(b *testing.B) {
	for _, size := range []int{1 << 10, 48 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			f := benchFamily(b, "tiny-glm", "glm47")
			history := talkOf(b, 3)
			opt := RenderOptions{Tools: benchTools, AddGenerationPrompt: true}
			tokens := make([]int32, 2000)
			appended := []rollout.Message{rollout.NewMessage("tool", strings.Repeat("the sky is clear today. ", size/24))}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			cputime.Loop(b, func() {
				if _, err := f.Continue(tokens, history, appended, opt); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
