package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/chat/jinja"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Continue returns the tokens of a conversation that goes on: tokens are all of it
// up to and with the last reply, history its messages, and appended what comes
// after that reply. The history is not rendered: only its last tool calls are
// looked at, because a template may read names from them.
//
// All tokens but the last MaxTrim stand at the start of the result unchanged.
func (f *Family) Continue(tokens []int32, history, appended []rollout.Message, opt RenderOptions) ([]int32, error) {
	text, err := f.tail(history, appended, opt)
	if err != nil {
		return nil, err
	}
	kept := f.seam(tokens)
	out := make([]int32, 0, len(kept)+len(f.afterTurn)+len(text)/2+8)
	out = append(out, kept...)
	if len(kept) > 0 && kept[len(kept)-1] == f.endOfTurn {
		out = append(out, f.afterTurn...)
	}
	return f.model.tokenizer.AppendEncode(out, text, false), nil
}

// seam returns the tokens that stay when a conversation goes on.
func (f *Family) seam(tokens []int32) []int32 {
	if n := len(tokens); n > 0 && slices.Contains(f.openers, tokens[n-1]) {
		return tokens[:n-1]
	}
	return tokens
}

// tail renders the messages that are appended, with the opening of a reply if opt
// asks for it.
func (f *Family) tail(history, appended []rollout.Message, opt RenderOptions) (string, error) {
	if len(appended) == 0 {
		return "", fmt.Errorf("%w: there is no message to append", ErrRole)
	}
	for i, m := range appended {
		if !f.MayAppend(m.Role) {
			return "", f.refused(m.Role)
		}
		if i == 0 {
			continue
		}
		if reason, bad := f.pairs[[2]string{appended[i-1].Role, m.Role}]; bad {
			return "", fmt.Errorf("%w: %s after %s: %s", ErrRole, m.Role, appended[i-1].Role, reason)
		}
	}
	text, err := f.tailBehindBase(f.bases[appended[0].Role], history, appended, opt)
	if errors.Is(err, errRerenders) {
		err = fmt.Errorf("%w: %s: %w", ErrRole, appended[0].Role, err)
	}
	return text, err
}

// tailBehind renders a base with and without the messages and returns what they add.
func (f *Family) tailBehind(messages, appended []rollout.Message, opt RenderOptions) (string, error) {
	before := opt
	before.AddGenerationPrompt = false
	head, err := f.Render(messages, before)
	if err != nil {
		return "", err
	}
	whole, err := f.Render(slices.Concat(messages, appended), opt)
	if err != nil {
		return "", err
	}
	tail, ok := strings.CutPrefix(whole, head)
	if !ok {
		return "", errRerenders
	}
	return tail, nil
}

// refused says why a role cannot be appended.
func (f *Family) refused(role string) error {
	for _, r := range f.tests {
		if r.Role == role {
			return fmt.Errorf("%w: %s: %s", ErrRole, role, r.Reason)
		}
	}
	return fmt.Errorf("%w: %s: family %s does not allow it", ErrRole, role, f.name)
}

// tailBehindBase is tailBehind with the work that does not depend on the appended
// messages done once for all turns with the same options.
func (f *Family) tailBehindBase(b base, history, appended []rollout.Message, opt RenderOptions) (string, error) {
	if b.calls && len(history) > 0 {
		if calls := toolCallsOf(history[len(history)-1]); calls != nil {
			messages := slices.Clone(b.messages)
			messages[len(messages)-1] = assistantWithCalls(calls)
			return f.tailBehind(messages, appended, opt)
		}
	}
	head, err := f.head(b, opt)
	if err != nil {
		return "", err
	}
	messages := slices.Clone(head.messages)
	for i, m := range appended {
		v, err := normalised(m, f.parts(opt))
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		messages = append(messages, v)
	}
	whole, err := f.model.renderValues(f.template, &jinja.List{Items: messages}, head.vars, opt)
	if err != nil {
		return "", err
	}
	if tail, ok := strings.CutPrefix(whole, head.text); ok {
		return tail, nil
	}
	// A template that prints the time may have moved on.
	return f.tailBehind(b.messages, appended, opt)
}

// preparedHeads is how many heads are kept; a run has few kinds of conversation.
const preparedHeads = 16

// preparedHead is a base rendered with some options.
type preparedHead struct {
	base     *rollout.Message // the first message of the base, which tells bases apart
	opt      RenderOptions
	vars     *jinja.Dict // variables but for the messages
	messages []jinja.Value
	text     string
}

// head returns the base rendered without what is appended, from memory if it was
// rendered with these options before.
func (f *Family) head(b base, opt RenderOptions) (*preparedHead, error) {
	opt, err := f.options(opt)
	if err != nil {
		return nil, err
	}
	place := &f.prepared[headHash(b, opt)%preparedHeads]
	if h := place.Load(); h != nil && h.base == &b.messages[0] && sameOptions(h.opt, opt) {
		return h, nil
	}
	h := &preparedHead{base: &b.messages[0], opt: opt}
	for _, m := range b.messages {
		v, err := normalised(m, f.parts(opt))
		if err != nil {
			return nil, err
		}
		h.messages = append(h.messages, v)
	}
	if h.vars, err = f.model.variables(opt); err != nil {
		return nil, err
	}
	before := opt
	before.AddGenerationPrompt = false
	if h.text, err = f.model.renderValues(f.template, &jinja.List{Items: h.messages}, h.vars, before); err != nil {
		return nil, err
	}
	place.Store(h)
	return h, nil
}

func headHash(b base, opt RenderOptions) uint64 {
	var h maphash.Hash
	h.SetSeed(headSeed)
	h.Write(b.messages[len(b.messages)-1].Raw)
	for _, tool := range opt.Tools {
		h.Write(tool)
	}
	return h.Sum64() + uint64(len(opt.Kwargs))
}

var headSeed = maphash.MakeSeed()

func sameOptions(a, b RenderOptions) bool {
	same := func(x, y json.RawMessage) bool { return bytes.Equal(x, y) }
	return a.AddGenerationPrompt == b.AddGenerationPrompt && a.Now.Equal(b.Now) &&
		slices.EqualFunc(a.Tools, b.Tools, same) && maps.EqualFunc(a.Kwargs, b.Kwargs, same)
}

// parts tells whether the template that renders these options reads content parts.
func (f *Family) parts(opt RenderOptions) bool {
	t := f.template
	if t == nil {
		t = f.model.template(len(opt.Tools) > 0)
	}
	return t != nil && t.parts
}

// toolCallsOf returns the raw tool calls of a message, or nil.
func toolCallsOf(m rollout.Message) json.RawMessage {
	if !bytes.Contains(m.Raw, []byte(`"tool_calls"`)) {
		return nil
	}
	var fields struct {
		ToolCalls []json.RawMessage `json:"tool_calls"`
	}
	if json.Unmarshal(m.Raw, &fields) != nil || len(fields.ToolCalls) == 0 {
		return nil
	}
	out := []byte{'['}
	for i, call := range fields.ToolCalls {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, call...)
	}
	return append(out, ']')
}

func assistantWithCalls(calls json.RawMessage) rollout.Message {
	raw := []byte(`{"role":"assistant","content":"","reasoning_content":" ","tool_calls":`)
	raw = append(append(raw, calls...), '}')
	return rollout.Message{Role: "assistant", Raw: raw}
}
