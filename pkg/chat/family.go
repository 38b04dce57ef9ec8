package chat

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sheaf-rl/sheaf/pkg/chat/jinja"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// A family is how a kind of model continues a conversation token by token.
//
// A reply is kept as the tokens the engine sampled and is never rendered again. A
// new turn is the tokens so far, a rule for the seam, and the new messages
// rendered behind a short made-up conversation (the base) whose own text is cut
// off again. That is right only if the template renders a message the same
// wherever it stands; SelfTest finds out for which roles it does.

//go:embed templates/*.jinja
var ownTemplates embed.FS

// Errors of families.
var (
	// ErrFamily reports a family that does not exist.
	ErrFamily = errors.New("unknown family")
	// ErrRole reports a message that may not be appended to a conversation.
	ErrRole = errors.New("a message of this role cannot be appended")
	// ErrKwargs reports template arguments that the family fixes otherwise.
	ErrKwargs = errors.New("template argument contradicts the model family")
)

// familyRules are what is known of a family before it meets a model.
type familyRules struct {
	template string            // one of ours; "" is the model's own
	kwargs   map[string]string // fixed template arguments
	roles    []string          // roles a client may append
	// A reply that ends in endOfTurn gets afterTurn behind it, as templates write it.
	endOfTurn, afterTurn string
	// openers end a reply because they open the next message: the last token is
	// dropped before the next messages come, which write their own.
	openers []string
	// opener begins the assistant's own text.
	opener string
	calls  callSyntax
}

var anyRole = []string{"tool", "user", "system", "assistant"}

func rulesOf(name string) (familyRules, bool) {
	chatML := familyRules{endOfTurn: "<|im_end|>", afterTurn: "\n", opener: "<|im_start|>assistant\n", roles: anyRole}
	switch name {
	case "default":
		return familyRules{roles: anyRole}, true
	case "qwen3":
		chatML.template, chatML.calls = "qwen3.jinja", jsonCalls
		return chatML, true
	case "qwen35":
		chatML.template, chatML.calls = "qwen35.jinja", xmlCalls
		return chatML, true
	case "glm47":
		return familyRules{
			kwargs:  map[string]string{"clear_thinking": "false"},
			roles:   anyRole,
			openers: []string{"<|user|>", "<|observation|>"},
			opener:  "<|assistant|>",
			calls:   argCalls,
		}, true
	}
	return familyRules{}, false
}

// Families lists the names of all families.
func Families() []string { return []string{"default", "qwen3", "qwen35", "glm47"} }

// Family is a family bound to a model. It is safe for concurrent use.
type Family struct {
	name     string
	rules    familyRules
	model    *Model
	template *chatTemplate // nil: the model's own

	endOfTurn int32 // -1: none
	afterTurn []int32
	openers   []int32
	trailing  []int32

	bases    map[string]base // by the role of the first appended message
	prepared [preparedHeads]atomic.Pointer[preparedHead]
	pairs    map[[2]string]string // roles that cannot follow each other, and why
	tests    []RoleReport
}

// base is a conversation to render new messages behind.
type base struct {
	messages []rollout.Message
	// calls says that the template looks at the tool calls before a tool's answer,
	// so that the base has to have the real ones.
	calls bool
}

// Family binds a family to the model. A model that lacks the family's tokens is
// refused; roles that its template cannot append are found here as well and
// refused when they come up, see SelfTest.
func (m *Model) Family(name string) (*Family, error) {
	rules, ok := rulesOf(name)
	if !ok {
		return nil, fmt.Errorf("%w %q: it is one of %s", ErrFamily, name, strings.Join(Families(), ", "))
	}
	f := &Family{name: name, rules: rules, model: m, endOfTurn: -1}
	if rules.template != "" {
		source, err := ownTemplates.ReadFile("templates/" + rules.template)
		if err != nil {
			return nil, fmt.Errorf("template of family %s: %w", name, err)
		}
		if f.template, err = parseTemplate(string(source)); err != nil {
			return nil, fmt.Errorf("template of family %s: %w", name, err)
		}
	}
	id := func(token string) (int32, error) {
		id, ok := m.tokenizer.TokenID(token)
		if !ok {
			return 0, fmt.Errorf("family %s needs the token %s, which the model does not have", name, token)
		}
		return id, nil
	}
	var err error
	if rules.endOfTurn != "" {
		if f.endOfTurn, err = id(rules.endOfTurn); err != nil {
			return nil, err
		}
		f.afterTurn = m.tokenizer.Encode(rules.afterTurn, false)
		f.trailing = f.afterTurn
	}
	for _, token := range rules.openers {
		opener, err := id(token)
		if err != nil {
			return nil, err
		}
		f.openers = append(f.openers, opener)
		f.trailing = append(f.trailing, opener)
	}
	if name == "default" {
		f.findSeam()
	}
	f.selfTest()
	return f, nil
}

// findSeam looks at what the template writes behind a reply. Where that begins
// with the model's end token, the engine's reply ends in it and the rest is still
// to come.
func (f *Family) findSeam() {
	eos, ok := f.model.EOS()
	if !ok {
		return
	}
	text, err := f.Render([]rollout.Message{rollout.NewMessage("user", "hello"), rollout.NewMessage("assistant", marker)}, RenderOptions{})
	at := strings.LastIndex(text, marker)
	if err != nil || at < 0 {
		return // selfTest says what is wrong with such a template
	}
	if ids := f.model.tokenizer.Encode(text[at+len(marker):], false); len(ids) > 0 && ids[0] == eos {
		f.endOfTurn, f.afterTurn, f.trailing = eos, ids[1:], ids[1:]
	}
}

// Name returns the family's name.
func (f *Family) Name() string { return f.name }

// MaxTrim is how many tokens of a reply the next turn may drop.
func (f *Family) MaxTrim() int { return min(1, len(f.openers)) }

// TrailingIDs are tokens at the end of a conversation that do not count when it
// is compared with a rendered one.
func (f *Family) TrailingIDs() []int32 { return slices.Clone(f.trailing) }

// MayAppend tells whether a message of a role can be appended to a conversation.
func (f *Family) MayAppend(role string) bool {
	_, ok := f.bases[role]
	return ok
}

// options adds the family's fixed template arguments.
func (f *Family) options(opt RenderOptions) (RenderOptions, error) {
	if len(f.rules.kwargs) == 0 {
		return opt, nil
	}
	kwargs := make(map[string]json.RawMessage, len(opt.Kwargs)+len(f.rules.kwargs))
	maps.Copy(kwargs, opt.Kwargs)
	for name, value := range f.rules.kwargs {
		if given, ok := opt.Kwargs[name]; ok && !bytes.Equal(bytes.TrimSpace(given), []byte(value)) {
			return opt, fmt.Errorf("%w: %s is %s, family %s needs %s", ErrKwargs, name, given, f.name, value)
		}
		kwargs[name] = json.RawMessage(value)
	}
	opt.Kwargs = kwargs
	return opt, nil
}

// Render renders a whole conversation with the family's template.
func (f *Family) Render(messages []rollout.Message, opt RenderOptions) (string, error) {
	opt, err := f.options(opt)
	if err != nil {
		return "", err
	}
	return f.model.render(f.template, messages, opt)
}

// EncodeChat renders a whole conversation and encodes it.
func (f *Family) EncodeChat(messages []rollout.Message, opt RenderOptions) ([]int32, error) {
	text, err := f.Render(messages, opt)
	if err != nil {
		return nil, err
	}
	return f.model.tokenizer.Encode(text, false), nil
}

// chatTemplate is a parsed template and what the normalisation has to know of it.
type chatTemplate struct {
	*jinja.Template
	// parts says that the template reads lists of content parts itself.
	parts bool
}

func parseTemplate(source string) (*chatTemplate, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, err
	}
	parts := t.LoopsOver("content")
	for _, word := range []string{"image", "audio", "video", "vision"} {
		parts = parts || strings.Contains(source, word)
	}
	return &chatTemplate{t, parts}, nil
}

// NewDecoder returns a decoder of one stream of the model's tokens, special ones
// included.
func (f *Family) NewDecoder() *Decoder { return f.model.tokenizer.NewDecoder(false) }

// Decode returns the text of ids, special tokens included.
func (f *Family) Decode(ids []int32) string { return f.model.tokenizer.Decode(ids, false) }
