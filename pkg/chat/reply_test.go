package chat

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestParseReply(t *testing.T) {
	tools := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
		"n":{"type":"integer"},"s":{"type":"string"},"o":{"type":["string","null"]},"b":{"type":"boolean"},"l":{"anyOf":[{"type":"array"},{"type":"string"}]}}}}}`)}
	call := func(name, arguments string) []rollout.ToolCall {
		return []rollout.ToolCall{{Name: name, Arguments: arguments}}
	}
	for name, c := range map[string]struct {
		syntax callSyntax
		opt    ReplyOptions
		text   string
		want   Reply
	}{
		"plain":                        {jsonCalls, ReplyOptions{}, "hello", Reply{Content: "hello"}},
		"reasoning and content":        {jsonCalls, ReplyOptions{}, "<think>\nhm\n</think>\n\nyes\n", Reply{Reasoning: "hm", HasReasoning: true, Content: "yes\n"}},
		"empty reasoning":              {jsonCalls, ReplyOptions{}, "<think>\n\n</think>\n\nyes", Reply{HasReasoning: true, Content: "yes"}},
		"opened by the prompt":         {argCalls, ReplyOptions{InReasoning: true}, "hm</think>yes", Reply{Reasoning: "hm", HasReasoning: true, Content: "yes"}},
		"reasoning never ends":         {jsonCalls, ReplyOptions{}, "<think>hm", Reply{Reasoning: "hm", HasReasoning: true}},
		"a think tag later is content": {jsonCalls, ReplyOptions{}, "a <think>b</think>", Reply{Content: "a <think>b</think>"}},
		"JSON call": {jsonCalls, ReplyOptions{}, "I look\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": 1.50}}\n</tool_call>",
			Reply{Content: "I look", ToolCalls: call("f", `{"z": 1, "a": 1.50}`)}},
		"two JSON calls": {jsonCalls, ReplyOptions{}, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
			Reply{ToolCalls: append(call("f", "{}"), call("g", "{}")...)}},
		"quoted arguments": {jsonCalls, ReplyOptions{}, `<tool_call>{"name":"f","arguments":"{\"a\":1}"}</tool_call>`, Reply{ToolCalls: call("f", `{"a":1}`)}},
		"a call's end inside a value": {jsonCalls, ReplyOptions{}, `<tool_call>{"name":"f","arguments":{"s":"</tool_call>"}}</tool_call>!`,
			Reply{Content: "!", ToolCalls: call("f", `{"s":"</tool_call>"}`)}},
		"broken JSON stays": {jsonCalls, ReplyOptions{}, "<tool_call>{name: f}</tool_call>", Reply{Content: "<tool_call>{name: f}</tool_call>"}},
		"cut off":           {jsonCalls, ReplyOptions{}, "<tool_call>{\"name\": \"f\"", Reply{Content: "<tool_call>{\"name\": \"f\""}},
		"a good call after a broken one": {jsonCalls, ReplyOptions{}, "<tool_call>{\"name\"</tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call>",
			Reply{Content: "<tool_call>{\"name\"</tool_call>", ToolCalls: call("f", "{}")}},
		"arguments that are a list": {jsonCalls, ReplyOptions{}, `<tool_call>{"name":"f","arguments":[1]}</tool_call>`,
			Reply{Content: `<tool_call>{"name":"f","arguments":[1]}</tool_call>`}},
		"XML call": {xmlCalls, ReplyOptions{Tools: tools}, "<tool_call>\n<function=f>\n<parameter=n>\n42\n</parameter>\n<parameter=s>\n42\n</parameter>\n" +
			"<parameter=o>\nnull\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=l>\n[1, 2]\n</parameter>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
			Reply{ToolCalls: call("f", `{"n": 42, "s": "42", "o": null, "b": true, "l": [1, 2], "x": "1"}`)}},
		"XML value with line ends and tags": {xmlCalls, ReplyOptions{}, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter> b\n\n</parameter>\n</function>\n</tool_call>",
			Reply{ToolCalls: call("f", `{"s": "a\n</parameter> b\n"}`)}},
		"XML without parameters": {xmlCalls, ReplyOptions{}, "<tool_call><function=f></function></tool_call>", Reply{ToolCalls: call("f", "{}")}},
		"XML text beside":        {xmlCalls, ReplyOptions{}, "<tool_call>oh <function=f></function></tool_call>", Reply{Content: "<tool_call>oh <function=f></function></tool_call>"}},
		"XML parameter twice": {xmlCalls, ReplyOptions{}, "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
			Reply{Content: "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>"}},
		"argument call": {argCalls, ReplyOptions{Tools: tools}, "ok<tool_call>f<arg_key>n</arg_key><arg_value>42</arg_value><arg_key>s</arg_key><arg_value>42</arg_value></tool_call>",
			Reply{Content: "ok", ToolCalls: call("f", `{"n": 42, "s": "42"}`)}},
		"argument call of GLM 4.5": {argCalls, ReplyOptions{}, "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>{\"a\": 1}</arg_value>\n<arg_key>t</arg_key>\n<arg_value>hi \"x\"</arg_value>\n</tool_call>",
			Reply{ToolCalls: call("f", `{"n": {"a": 1}, "t": "hi \"x\""}`)}},
		"argument call without arguments": {argCalls, ReplyOptions{}, "<tool_call>f</tool_call>", Reply{ToolCalls: call("f", "{}")}},
		"argument call cut off":           {argCalls, ReplyOptions{}, "<tool_call>f<arg_key>n</arg_key></tool_call>", Reply{Content: "<tool_call>f<arg_key>n</arg_key></tool_call>"}},
		"no syntax":                       {noCalls, ReplyOptions{}, "<tool_call>f</tool_call>", Reply{Content: "<tool_call>f</tool_call>"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&Family{rules: familyRules{calls: c.syntax}}).ParseReply(c.text, c.opt)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%q is read as\n%+v, want\n%+v", c.text, got, c.want)
			}
		})
	}
}

// A reply full of openings must not be looked through once for each of them.
func TestManyOpeningsAreNotQuadratic(t *testing.T) {
	for _, opening := range []string{callOpen, callOpen + `{"name":"`, callOpen + "<function=f><parameter=", callOpen + "f<arg_key>"} {
		text := strings.Repeat(opening, 1<<18/len(opening)) + callClose
		for _, syntax := range []callSyntax{jsonCalls, xmlCalls, argCalls} {
			got := (&Family{rules: familyRules{calls: syntax}}).ParseReply(text, ReplyOptions{})
			if got.Content != text {
				t.Errorf("syntax %d, %s: %d of %d bytes are left", syntax, opening, len(got.Content), len(text))
			}
		}
	}
}

// What a template writes for a reply, the family's parser reads back.
func TestReplyRoundTrip(t *testing.T) {
	for name, f := range map[string]*Family{
		"qwen3": projectFamily(t, "tiny", "qwen3"), "qwen35": projectFamily(t, "tiny", "qwen35"), "glm47": projectFamily(t, "tiny-glm", "glm47"),
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				g := randomTalk{rand.New(rand.NewPCG(seed, 3))}
				opt := g.options()
				opt.Kwargs = nil
				user := rollout.NewMessage("user", "hello")
				fields := g.reply(g.maybe(0.6))
				reply := toMessage(t, fields)
				prompt, err := f.Render([]rollout.Message{user}, opt)
				if err != nil {
					t.Fatal(err)
				}
				opens, err := f.OpensReasoning(opt)
				if err != nil {
					t.Fatal(err)
				}
				whole := opt
				whole.AddGenerationPrompt = false
				text, err := f.Render([]rollout.Message{user, reply}, whole)
				if err != nil {
					t.Fatal(err)
				}
				said, ok := strings.CutPrefix(text, prompt)
				if !ok {
					t.Fatalf("seed %d: %q does not start with the prompt %q", seed, text, prompt)
				}
				said = strings.TrimSuffix(strings.TrimSuffix(said, "\n"), "<|im_end|>")
				got := f.ParseReply(said, ReplyOptions{InReasoning: opens, Tools: opt.Tools})
				content, _ := fields["content"].(string)
				if strings.Contains(content, thinkOpen) || strings.Contains(content, callOpen) {
					continue
				}
				if got.Content != content {
					t.Fatalf("seed %d: content %q of %q, want %q", seed, got.Content, said, content)
				}
				calls, _ := fields["tool_calls"].([]any)
				if len(got.ToolCalls) != len(calls) {
					t.Fatalf("seed %d: %d calls of %q, want %d", seed, len(got.ToolCalls), said, len(calls))
				}
				again := toMessage(t, replyFields(got))
				back, err := f.Render([]rollout.Message{user, again}, whole)
				if err != nil {
					t.Fatal(err)
				}
				if opt.Tools != nil && back != text {
					t.Fatalf("seed %d: rendered again it is\n%q, was\n%q", seed, back, text)
				}
			}
		})
	}
}

func replyFields(r Reply) map[string]any {
	m := map[string]any{"role": "assistant", "content": r.Content}
	if r.HasReasoning {
		m["reasoning_content"] = r.Reasoning
	}
	var calls []any
	for _, c := range r.ToolCalls {
		calls = append(calls, map[string]any{"type": "function", "function": map[string]any{"name": c.Name, "arguments": c.Arguments}})
	}
	if calls != nil {
		m["tool_calls"] = calls
	}
	return m
}

func TestCompare(t *testing.T) {
	f := projectFamily(t, "tiny", "qwen3")
	talk := []rollout.Message{rollout.NewMessage("user", "hi"), rollout.NewMessage("assistant", "yo")}
	encode := func(text string) []int32 { return f.model.tokenizer.Encode(text, false) }
	for name, c := range map[string]struct {
		actual string
		want   []Mismatch
	}{
		"the same":               {"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>", nil},
		"another reply":          {"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>", []Mismatch{{MismatchAssistant, 5, "assistant\nyo", "assistant\nyes"}}},
		"another prompt":         {"<|im_start|>user\nho<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>", []Mismatch{{MismatchText, 1, "user\nhi", "user\nho"}}},
		"another special token":  {"<|im_start|>user\nhi<|endoftext|>\n<|im_start|>assistant\nyo<|im_end|>", []Mismatch{{MismatchSpecialType, 2, "<|im_end|>", "<|endoftext|>"}}},
		"a control token inside": {"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\ny<|endoftext|>o<|im_end|>", []Mismatch{{Kind: MismatchSpecialCount, Segment: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := f.Compare(talk, encode(c.actual), RenderOptions{})
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}
