package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// withChat gives an engine the tiny model's own tokenizer and template.
func withChat(t testing.TB, edit func(*sim.Config)) *sim.Engine {
	t.Helper()
	model, err := chat.Load(modelPath)
	if err != nil {
		t.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	return newEngine(t, func(c *sim.Config) {
		c.Tokenizer, c.Conversations, c.ServedModelName = model.Tokenizer(), family, "tiny"
		if edit != nil {
			edit(c)
		}
	})
}

// completion is the answer to a chat completion.
type completion struct {
	ID, Object, Model string
	Choices           []struct {
		Message, Delta struct {
			Role             string
			Content          *string
			ReasoningContent *string `json:"reasoning_content"`
			ToolCalls        []struct {
				ID, Type string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Logprobs *struct {
			Content []struct {
				Token       string
				Bytes       []int
				Logprob     float64
				TopLogprobs []any `json:"top_logprobs"`
			}
		}
		FinishReason   *string         `json:"finish_reason"`
		MatchedStop    any             `json:"matched_stop"`
		PromptTokenIDs []int32         `json:"prompt_token_ids"`
		MetaInfo       json.RawMessage `json:"meta_info"`
	}
	Usage *struct {
		PromptTokens     int             `json:"prompt_tokens"`
		CompletionTokens int             `json:"completion_tokens"`
		TotalTokens      int             `json:"total_tokens"`
		Details          *map[string]int `json:"prompt_tokens_details"`
	}
	Metadata map[string]any
	Message  string // of an error
}

func complete(t testing.TB, engine *sim.Engine, body object) (int, []byte) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", bytes.NewReader(data))
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	recorder := httptest.NewRecorder()
	engine.Handler().ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.Bytes()
}

func answer(t testing.TB, engine *sim.Engine, body object) completion {
	t.Helper()
	status, data := complete(t, engine, body)
	var c completion
	if err := json.Unmarshal(data, &c); err != nil || status != 200 || len(c.Choices) != 1 {
		t.Fatalf("status %d, %v, %s", status, err, data)
	}
	return c
}

func user(text string) []object { return []object{{"role": "user", "content": text}} }

// TestChatIsGenerateWithATemplate asks the same in both ways.
func TestChatIsGenerateWithATemplate(t *testing.T) {
	engine := withChat(t, func(c *sim.Config) { c.CacheReport = true })
	direct := generate(t, engine, object{"text": question(3, 4), "return_logprob": true, "sampling_params": object{"max_new_tokens": 64, "sampling_seed": 5}})
	body := object{"messages": user("3+4="), "model": "tiny", "max_tokens": 64, "seed": 5, "logprobs": true, "top_logprobs": 2,
		"return_meta_info": true, "return_prompt_token_ids": true}
	c := answer(t, engine, body)
	choice := c.Choices[0]
	meta := parse(t, []byte(`{"meta_info":`+string(choice.MetaInfo)+`}`)).Meta
	if *choice.Message.Content != direct.Text || *choice.FinishReason != "stop" || choice.MatchedStop != 258.0 {
		t.Errorf("content %q, finish %s, matched %v; want %q", *choice.Message.Content, *choice.FinishReason, choice.MatchedStop, direct.Text)
	}
	if want := (byteTokenizer{}).Encode(question(3, 4), true); !reflect.DeepEqual(choice.PromptTokenIDs, want) {
		t.Errorf("prompt %v, want %v", choice.PromptTokenIDs, want)
	}
	for i, entry := range meta.Logprobs {
		lp := choice.Logprobs.Content[i]
		if int32(entry[1].(float64)) != direct.OutputIDs[i] || entry[0] != direct.Meta.Logprobs[i][0] || lp.Logprob != entry[0] || lp.Token != entry[2] || len(lp.TopLogprobs) != 2 {
			t.Errorf("token %d: %v and %+v", i, entry, lp)
		}
	}
	u := c.Usage
	if u.PromptTokens != direct.Meta.Prompt || u.CompletionTokens != direct.Meta.Completion || u.TotalTokens != u.PromptTokens+u.CompletionTokens ||
		(*u.Details)["cached_tokens"] != u.PromptTokens-1 {
		t.Errorf("usage %+v", u)
	}
	if c.Metadata["weight_version"] != "default" || c.Model != "tiny" || c.Object != "chat.completion" || c.ID != meta.ID {
		t.Errorf("envelope %+v", c)
	}

	body["input_ids"] = (byteTokenizer{}).Encode(question(8, 8), true)
	if c := answer(t, engine, body); !reflect.DeepEqual(c.Choices[0].PromptTokenIDs, body["input_ids"]) {
		t.Errorf("input_ids were not the prompt: %v", c.Choices[0].PromptTokenIDs)
	}
	old := withChat(t, func(c *sim.Config) { c.Dialect, _ = sim.DialectNamed("0.5.12") })
	if c := answer(t, old, body); c.Choices[0].MetaInfo != nil || c.Usage.PromptTokens != direct.Meta.Prompt || c.Usage.Details != nil {
		t.Errorf("an old release honoured input_ids or return_meta_info: %+v", c)
	}
}

func TestChatRefuses(t *testing.T) {
	engine := withChat(t, nil)
	for name, body := range map[string]object{
		"no messages":                 {"messages": []object{}},
		"a stream with meta info":     {"messages": user("a"), "stream": true, "return_meta_info": true},
		"a stream with prompt ids":    {"messages": user("a"), "stream": true, "return_prompt_token_ids": true},
		"several samples":             {"messages": user("a"), "n": 2},
		"a role the template refuses": {"messages": []object{{"role": "robot", "content": "a"}}},
		"too many tokens":             {"messages": user("a"), "max_tokens": 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			status, data := complete(t, engine, body)
			var failure struct {
				Object, Message, Type string
				Code                  int
			}
			if err := json.Unmarshal(data, &failure); err != nil || status != 400 || failure.Object != "error" || failure.Type != "BadRequestError" || failure.Code != 400 {
				t.Errorf("status %d, %v, %s", status, err, data)
			}
		})
	}
	if status, body := call(t, engine, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`); status != 400 {
		t.Errorf("without a content type: %d %s", status, body)
	}
	if status, _ := complete(t, newEngine(t, nil), object{"messages": user("a")}); status != 400 {
		t.Errorf("without a template: %d", status)
	}
}

const toolScript = `
rules:
- turn: 1
  contains: weather
  texts: ["<think>\nlook it up\n</think>\n\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>"]
- texts: ["It rains."]
`

func scripted(t testing.TB) *sim.Script {
	t.Helper()
	script, err := sim.ParseScript([]byte(toolScript))
	if err != nil {
		t.Fatal(err)
	}
	return script
}

var tools = []object{{"type": "function", "function": object{"name": "get", "parameters": object{"type": "object"}}}}

// TestScriptedToolCall follows a script through two turns, without and with
// speculation.
func TestScriptedToolCall(t *testing.T) {
	for _, spec := range []bool{false, true} {
		engine := withChat(t, func(c *sim.Config) {
			c.Script, c.ParseTools, c.ParseReasoning = scripted(t), true, true
			if spec {
				speculate(c)
			}
		})
		body := object{"messages": user("the weather?"), "tools": tools, "max_tokens": 200, "seed": 1, "logprobs": true, "return_meta_info": true}
		c := answer(t, engine, body)
		m := c.Choices[0].Message
		if len(m.ToolCalls) != 1 || m.ToolCalls[0].Function.Name != "get" || !strings.Contains(m.ToolCalls[0].Function.Arguments, "Bern") ||
			*c.Choices[0].FinishReason != "tool_calls" || !strings.HasPrefix(m.ToolCalls[0].ID, "call_") || len(m.ToolCalls[0].ID) != 29 {
			t.Fatalf("speculative %v: reply %+v, finish %s", spec, m, *c.Choices[0].FinishReason)
		}
		if m.ReasoningContent == nil || strings.TrimSpace(*m.ReasoningContent) != "look it up" || strings.TrimSpace(*m.Content) != "" {
			t.Errorf("speculative %v: reasoning %v, content %q", spec, m.ReasoningContent, *m.Content)
		}
		meta := parse(t, []byte(`{"meta_info":`+string(c.Choices[0].MetaInfo)+`}`)).Meta
		if meta.FinishReason.Type != "tool_calls" || meta.FinishReason.Matched != nil || len(meta.Logprobs) != meta.Completion {
			t.Errorf("speculative %v: meta info says %+v", spec, meta.FinishReason)
		}
		if spec && (meta.Verify == 0 || meta.Correct == 0 || meta.Correct == meta.Proposed) {
			t.Errorf("verify %d, correct %d, proposed %d: not a real verification", meta.Verify, meta.Correct, meta.Proposed)
		}
		body["messages"] = append(user("the weather?"),
			object{"role": "assistant", "content": "", "tool_calls": []object{{"id": "1", "type": "function", "function": object{"name": "get", "arguments": "{}"}}}},
			object{"role": "tool", "tool_call_id": "1", "content": "rain"})
		if c := answer(t, engine, body); *c.Choices[0].Message.Content != "It rains." || *c.Choices[0].FinishReason != "stop" {
			t.Errorf("speculative %v: the second turn is %q", spec, *c.Choices[0].Message.Content)
		}
	}
}

// TestScriptGoesOnInsideAReply resumes a reply that was cut.
func TestScriptGoesOnInsideAReply(t *testing.T) {
	engine := withChat(t, func(c *sim.Config) { c.Script = scripted(t) })
	r := generate(t, engine, object{"text": question(1, 1) + "It ra", "sampling_params": object{"max_new_tokens": 20}})
	if r.Text != "ins." {
		t.Errorf("the reply goes on with %q, want %q", r.Text, "ins.")
	}
}

func TestChatStream(t *testing.T) {
	engine := withChat(t, func(c *sim.Config) { c.Script, c.ParseTools, c.ParseReasoning = scripted(t), true, true })
	for _, withTools := range []bool{false, true} {
		t.Run(fmt.Sprintf("tools %v", withTools), func(t *testing.T) {
			body := object{"messages": user("hello"), "max_tokens": 200, "seed": 1, "stream": true, "logprobs": true, "stream_options": object{"include_usage": true}}
			want := "stop"
			if withTools {
				body["messages"], body["tools"], want = user("the weather?"), tools, "tool_calls"
			}
			status, data := complete(t, engine, body)
			text, reasoning, finish, calls, logprobs := "", "", "", 0, 0
			var last completion
			for line := range strings.Lines(string(data)) {
				chunk, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
				if !ok || chunk == "[DONE]" {
					continue
				}
				last = completion{}
				if err := json.Unmarshal([]byte(chunk), &last); err != nil || last.Object != "chat.completion.chunk" {
					t.Fatalf("%v in %s", err, chunk)
				}
				for _, choice := range last.Choices {
					if choice.Delta.Content != nil {
						text += *choice.Delta.Content
					}
					if choice.Delta.ReasoningContent != nil {
						reasoning += *choice.Delta.ReasoningContent
					}
					if choice.FinishReason != nil {
						finish = *choice.FinishReason
					}
					calls += len(choice.Delta.ToolCalls)
					logprobs += len(choice.Logprobs.Content)
				}
			}
			if status != 200 || finish != want || last.Usage == nil || last.Usage.CompletionTokens != logprobs || !bytes.HasSuffix(data, []byte("data: [DONE]\n\n")) {
				t.Errorf("status %d, finish %s, usage %+v, %d log-probs", status, finish, last.Usage, logprobs)
			}
			if !withTools && text != "It rains." || withTools && (calls != 1 || strings.TrimSpace(reasoning) != "look it up") {
				t.Errorf("text %q, reasoning %q, %d calls", text, reasoning, calls)
			}
		})
	}
}

func TestTokenizeMessages(t *testing.T) {
	engine := withChat(t, nil)
	body := post(t, engine, "/v1/tokenize", `{"messages":[{"role":"user","content":"3+4="}]}`, 200)
	want, _ := json.Marshal((byteTokenizer{}).Encode(question(3, 4), true))
	if !strings.Contains(body, `"tokens":`+string(want)) {
		t.Errorf("%s, want the tokens %s", body, want)
	}
}

func TestParseScriptRefuses(t *testing.T) {
	for _, script := range []string{"", "rules: []", "rules: [{turn: 1}]", "rules: [{texts: [a], turn: -1}]", "rules: [{texts: [a]}]\nassistant: ''", "rules: [{say: a}]"} {
		if _, err := sim.ParseScript([]byte(script)); err == nil {
			t.Errorf("%q was taken", script)
		}
	}
}
