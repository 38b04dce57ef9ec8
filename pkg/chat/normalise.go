package chat

import (
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/chat/jinja"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// normalised is a message as SGLang hands it to a template: null content is
// empty, other null fields are gone, the arguments of tool calls are an object
// where the client sent their JSON text, and content parts are joined to one text
// for a template that does not read parts itself.
func normalised(message rollout.Message, parts bool) (jinja.Value, error) {
	v, err := jinja.FromJSON(message.Raw)
	if err != nil {
		return nil, err
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return nil, rollout.ErrNotMessage
	}
	hasContent := false
	d.Rewrite(func(key string, v jinja.Value) (jinja.Value, bool) {
		switch key {
		case "content":
			hasContent = true
			if v == nil {
				return "", true
			}
			if list, ok := v.(*jinja.List); ok && !parts {
				return joinParts(list), true
			}
		case "tool_calls":
			parseArguments(v)
		}
		return v, v != nil
	})
	if !hasContent {
		d.Set("content", "")
	}
	return d, nil
}

// joinParts is the text of content parts; parts of other kinds have none.
func joinParts(list *jinja.List) string {
	var texts []string
	for _, item := range list.Items {
		switch part := item.(type) {
		case string:
			texts = append(texts, part)
		case *jinja.Dict:
			if text, ok := part.Get("text"); ok {
				if s, ok := text.(string); ok {
					texts = append(texts, s)
				}
			}
		}
	}
	return strings.Join(texts, " ")
}

// parseArguments replaces the JSON text of arguments by what it says. Text that is
// no JSON object stays text: templates can print that too.
func parseArguments(calls jinja.Value) {
	list, ok := calls.(*jinja.List)
	if !ok {
		return
	}
	for _, item := range list.Items {
		call, ok := item.(*jinja.Dict)
		if !ok {
			continue
		}
		if fn, ok := call.Get("function"); ok {
			if f, ok := fn.(*jinja.Dict); ok {
				call = f
			}
		}
		text, _ := call.Get("arguments")
		s, ok := text.(string)
		if !ok {
			continue
		}
		if arguments, err := jinja.FromJSON([]byte(s)); err == nil {
			if _, ok := arguments.(*jinja.Dict); ok {
				call.Set("arguments", arguments)
			}
		}
	}
}
