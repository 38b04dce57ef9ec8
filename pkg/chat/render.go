package chat

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat/jinja"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// RenderOptions say how a conversation is rendered.
type RenderOptions struct {
	// Tools are the tool definitions, as the request carries them.
	Tools []json.RawMessage
	// AddGenerationPrompt ends the text with the opening of a reply.
	AddGenerationPrompt bool
	// Kwargs are further variables of the template (chat_template_kwargs).
	Kwargs map[string]json.RawMessage
	// Now is the time templates see that print it; the default is the current time.
	Now time.Time
}

// Render renders a conversation with the model's chat template, after the same
// normalisation that the engine does.
func (m *Model) Render(messages []rollout.Message, opt RenderOptions) (string, error) {
	return m.render(nil, messages, opt)
}

// EncodeChat renders a conversation and encodes the text. The template writes its
// special tokens itself, so none are added.
func (m *Model) EncodeChat(messages []rollout.Message, opt RenderOptions) ([]int32, error) {
	text, err := m.Render(messages, opt)
	if err != nil {
		return nil, err
	}
	return m.tokenizer.Encode(text, false), nil
}

// render renders with a given template, or the model's own if that is nil.
func (m *Model) render(t *chatTemplate, messages []rollout.Message, opt RenderOptions) (string, error) {
	if t == nil {
		t = m.template(len(opt.Tools) > 0)
	}
	if t == nil {
		return "", ErrNoTemplate
	}
	list := &jinja.List{Items: make([]jinja.Value, len(messages))}
	for i, message := range messages {
		v, err := normalised(message, t.parts)
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		list.Items[i] = v
	}
	vars, err := m.variables(opt)
	if err != nil {
		return "", err
	}
	return m.renderValues(t, list, vars, opt)
}

// renderValues renders messages that are values already. It adds to a copy of vars
// what differs from one rendering to the next.
func (m *Model) renderValues(t *chatTemplate, messages jinja.Value, vars *jinja.Dict, opt RenderOptions) (string, error) {
	if t == nil {
		t = m.template(len(opt.Tools) > 0)
	}
	if t == nil {
		return "", ErrNoTemplate
	}
	vars = vars.Clone()
	vars.Set("messages", messages)
	vars.Set("add_generation_prompt", opt.AddGenerationPrompt)
	return t.Render(vars, jinja.Options{Now: opt.Now})
}

// template returns the template to use; a model may have one of its own for tools.
func (m *Model) template(tools bool) *chatTemplate {
	if t := m.templates["tool_use"]; t != nil && tools {
		return t
	}
	return m.templates["default"]
}

// variables are what a template sees besides the messages: the special tokens, the
// keyword arguments and the tools. An argument may hide a special token.
func (m *Model) variables(opt RenderOptions) (*jinja.Dict, error) {
	vars := jinja.NewDict(8 + len(opt.Kwargs))
	for _, s := range m.special {
		vars.Set(s.name, s.text)
	}
	vars.Set("documents", nil)
	for _, name := range slices.Sorted(maps.Keys(opt.Kwargs)) {
		v, err := jinja.FromJSON(opt.Kwargs[name])
		if err != nil {
			return nil, fmt.Errorf("chat template argument %s: %w", name, err)
		}
		vars.Set(name, v)
	}
	vars.Set("tools", nil)
	if len(opt.Tools) > 0 {
		tools := &jinja.List{Items: make([]jinja.Value, len(opt.Tools))}
		for i, raw := range opt.Tools {
			v, err := jinja.FromJSON(raw)
			if err != nil {
				return nil, fmt.Errorf("tool %d: %w", i, err)
			}
			tools.Items[i] = v
		}
		vars.Set("tools", tools)
	}
	return vars, nil
}
