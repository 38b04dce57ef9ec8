package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Matcher says which differences between a stored message and the client's copy of
// it do not count. Content as text, as one part or as several is the same to all,
// and so are null, empty and absent fields and fields nobody renders.
type Matcher string

// The matchers, from the strictest on.
const (
	// Strict compares role, content, reasoning, tool calls and call ids as they are.
	Strict Matcher = "strict"
	// LooseToolCall compares arguments as the values they stand for, and lets a
	// client drop reasoning, call ids and white space around a reply.
	LooseToolCall Matcher = "loose_tool_call"
	// RoleContentOnly compares role and content.
	RoleContentOnly Matcher = "role_content_only"
)

// Matchers lists their names.
func Matchers() []Matcher { return []Matcher{Strict, LooseToolCall, RoleContentOnly} }

// plain is a message reduced to what matchers compare.
type plain struct {
	role, content, reasoning, callID string
	calls                            []rollout.ToolCall
}

// wireMessage is a chat message as clients send it.
type wireMessage struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	ReasoningContent *string         `json:"reasoning_content"`
	Reasoning        json.RawMessage `json:"reasoning"`
	ToolCallID       string          `json:"tool_call_id"`
	ToolCalls        []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// readPlain reduces a message.
func readPlain(raw []byte) (plain, error) {
	var w wireMessage
	if err := json.Unmarshal(raw, &w); err != nil {
		return plain{}, fmt.Errorf("%w: %w", rollout.ErrNotMessage, err)
	}
	p := plain{role: w.Role, callID: w.ToolCallID}
	if p.role == "" {
		return plain{}, fmt.Errorf("%w: it has no role", rollout.ErrNotMessage)
	}
	if p.role == "developer" {
		p.role = "system"
	}
	p.content = contentText(w.Content)
	switch {
	case w.ReasoningContent != nil:
		p.reasoning = *w.ReasoningContent
	default:
		var text string
		if json.Unmarshal(w.Reasoning, &text) == nil {
			p.reasoning = text
		}
	}
	for _, c := range w.ToolCalls {
		p.calls = append(p.calls, rollout.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: rollout.RawText(c.Function.Arguments)})
	}
	return p, nil
}

// contentText is content as one text. Parts that are no text stand as their JSON.
func contentText(raw json.RawMessage) string {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	var raws []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || json.Unmarshal(raw, &raws) != nil {
		return string(raw)
	}
	var b strings.Builder
	for i, part := range parts {
		if part.Type == "text" {
			b.WriteString(part.Text)
		} else {
			b.Write(raws[i])
		}
	}
	return b.String()
}

// same compares a stored message with a client's copy.
func (m Matcher) same(stored, got plain) bool {
	if stored.role != got.role {
		return false
	}
	loose := m != Strict
	if stored.content != got.content &&
		!(loose && stored.role == "assistant" && strings.TrimSpace(stored.content) == strings.TrimSpace(got.content)) {
		return false
	}
	if m == RoleContentOnly {
		return true
	}
	return m.sameReasoning(stored.reasoning, got.reasoning) && m.sameID(stored.callID, got.callID) &&
		slices.EqualFunc(stored.calls, got.calls, m.sameCall)
}

// sameReasoning: clients and templates drop old reasoning, whole or its end.
func (m Matcher) sameReasoning(stored, got string) bool {
	if m == Strict {
		return stored == got
	}
	return strings.HasPrefix(strings.TrimSpace(stored), strings.TrimSpace(got))
}

func (m Matcher) sameID(stored, got string) bool {
	return stored == got || m != Strict && (stored == "" || got == "")
}

func (m Matcher) sameCall(stored, got rollout.ToolCall) bool {
	if stored.Name != got.Name || !m.sameID(stored.ID, got.ID) {
		return false
	}
	if stored.Arguments == got.Arguments {
		return true
	}
	return m != Strict && sameArguments(stored.Arguments, got.Arguments)
}

// sameArguments compares the JSON objects that two texts stand for. No arguments
// and an empty object are the same; texts that are no objects are not.
func sameArguments(a, b string) bool {
	x, okX := arguments(a)
	y, okY := arguments(b)
	return okX && okY && sameValue(x, y)
}

func arguments(text string) (map[string]any, bool) {
	if strings.TrimSpace(text) == "" {
		return map[string]any{}, true
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v map[string]any
	if dec.Decode(&v) != nil || v == nil {
		return nil, false
	}
	return v, len(bytes.TrimSpace([]byte(text[dec.InputOffset():]))) == 0
}

func sameValue(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			if w, ok := y[k]; !ok || !sameValue(v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameValue)
	case json.Number:
		y, ok := b.(json.Number)
		return ok && sameNumber(string(x), string(y))
	default:
		return a == b
	}
}

// sameNumber compares exactly, so that 1000.0 is 1000 and 2^53+1 is not 2^53. A
// number too long for that, by its digits or its exponent, is compared as text.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	const most = 64
	if len(a) > most || len(b) > most || hugeExponent(a) || hugeExponent(b) {
		return false
	}
	x, okX := new(big.Rat).SetString(a)
	y, okY := new(big.Rat).SetString(b)
	return okX && okY && x.Cmp(y) == 0
}

func hugeExponent(s string) bool {
	i := strings.IndexAny(s, "eE")
	return i >= 0 && len(s)-i > 5
}

// inCallOrder sorts each run of tool results by the order of their call ids in
// calls, which are those of the reply before. A client may send them as they were
// ready; a template renders them as they stand. Results of unknown ids stay.
func inCallOrder[T any](items []T, calls []rollout.ToolCall, isTool func(T) bool, callID func(T) string) {
	place := map[string]int{}
	for i, c := range calls {
		place[c.ID] = i
	}
	end := 0
	for end < len(items) && isTool(items[end]) {
		if _, ok := place[callID(items[end])]; !ok {
			return
		}
		end++
	}
	slices.SortStableFunc(items[:end], func(a, b T) int { return place[callID(a)] - place[callID(b)] })
}
