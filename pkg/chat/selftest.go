package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// RoleReport says whether messages of a role can be appended to a conversation.
type RoleReport struct {
	Role string
	OK   bool
	// Reason says what stands against it, in a sentence.
	Reason string
	// Notes are cases in which the continued tokens will differ from a conversation
	// that is rendered as a whole, though appending works.
	Notes []string
}

// SelfTest tells, role by role, what holds for the model and its template. It was
// run when the family was bound to the model.
func (f *Family) SelfTest() []RoleReport { return slices.Clone(f.tests) }

// String prints one line per role.
func (r RoleReport) String() string {
	if !r.OK {
		return fmt.Sprintf("%s: no (%s)", r.Role, r.Reason)
	}
	if len(r.Notes) > 0 {
		return fmt.Sprintf("%s: yes (%s)", r.Role, strings.Join(r.Notes, "; "))
	}
	return r.Role + ": yes"
}

// marker is text that must survive rendering.
const marker = "sheaf-probe-7"

// selfTest picks for every role the base to render behind, and tries it on a
// number of conversations.
func (f *Family) selfTest() {
	f.bases = map[string]base{}
	f.tests = nil
	for _, role := range f.rules.roles {
		report := RoleReport{Role: role}
		for _, messages := range basesFor(role) {
			reason, notes := f.tryBase(role, messages)
			if reason == "" {
				f.bases[role] = base{messages, role == "tool" && f.readsCalls(messages)}
				report = RoleReport{Role: role, OK: true, Notes: notes}
				break
			}
			if report.Reason == "" {
				report.Reason = reason
			}
		}
		f.tests = append(f.tests, report)
	}
	f.tryPairs()
}

// tryPairs finds roles that cannot follow each other in one append.
func (f *Family) tryPairs() {
	f.pairs = map[[2]string]string{}
	for _, first := range f.rules.roles {
		for _, second := range f.rules.roles {
			b, ok := f.bases[first]
			if !ok || !f.MayAppend(second) {
				continue
			}
			appended := []rollout.Message{rollout.NewMessage(first, "one"), rollout.NewMessage(second, marker)}
			if reason, _ := f.tryAppend(first, b.messages, appended, RenderOptions{AddGenerationPrompt: true}); reason != "" {
				f.pairs[[2]string{first, second}] = reason
			}
		}
	}
}

// raw makes a message of JSON that is written here.
func raw(text string) rollout.Message {
	var m rollout.Message
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return rollout.Message{} // renders as an error, which a test would show
	}
	return m
}

const probeCalls = `[{"id":"call_0","type":"function","function":{"name":"probe","arguments":{"x":1}}}]`

// basesFor lists conversations that messages of a role could be rendered behind.
// Templates are picky: some want a user before anything else, and a tool's answer
// wants a call before it.
func basesFor(role string) [][]rollout.Message {
	user := rollout.NewMessage("user", "hello")
	reply := raw(`{"role":"assistant","content":"hello","reasoning_content":"hello"}`)
	if role == "tool" {
		reply = assistantWithCalls(json.RawMessage(probeCalls))
	}
	return [][]rollout.Message{
		{user, reply},
		{rollout.NewMessage("system", "hello"), user, reply},
		{rollout.NewMessage("system", "hello"), reply},
	}
}

// probes are histories, each ending in a reply, that a message of the role could
// be appended to. The first ones are what a model that reasons leaves behind; the
// plain ones have replies without reasoning.
func probes(role string) (reasoned, plain [][]rollout.Message) {
	system := rollout.NewMessage("system", "be brief")
	user := rollout.NewMessage("user", "what is it?")
	tool := rollout.NewMessage("tool", "42")
	thought := raw(`{"role":"assistant","content":"forty-two","reasoning_content":"let me think\n\nhard"}`)
	thoughtCall := raw(`{"role":"assistant","content":"I look","reasoning_content":"a tool","tool_calls":` + probeCalls + `}`)
	said := rollout.NewMessage("assistant", "forty-two")
	called := raw(`{"role":"assistant","content":"","tool_calls":` + probeCalls + `}`)
	if role == "tool" {
		return [][]rollout.Message{
			{user, thoughtCall}, {system, user, thoughtCall, tool, thoughtCall}, {system, user, thought, user, thoughtCall},
		}, [][]rollout.Message{{user, called}, {system, user, said, user, called, tool, called}}
	}
	return [][]rollout.Message{
		{user, thought}, {system, user, thought, user, thought}, {system, user, thoughtCall, tool, thought},
	}, [][]rollout.Message{{user, said}, {system, user, called, tool, said}}
}

// tryBase returns why a base does not do for a role, or "" and what to note.
func (f *Family) tryBase(role string, messages []rollout.Message) (reason string, notes []string) {
	tools := []json.RawMessage{json.RawMessage(
		`{"type":"function","function":{"name":"probe","description":"probes","parameters":{"type":"object","properties":{}}}}`)}
	for _, opt := range []RenderOptions{{AddGenerationPrompt: true}, {AddGenerationPrompt: true, Tools: tools}, {}} {
		reason, more := f.tryAppend(role, messages, []rollout.Message{rollout.NewMessage(role, marker)}, opt)
		if reason != "" {
			return reason, nil
		}
		for _, note := range more {
			if !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
		}
	}
	return "", notes
}

// readsCalls tells whether what a tool said renders differently behind another call.
func (f *Family) readsCalls(messages []rollout.Message) bool {
	appended := []rollout.Message{raw(`{"role":"tool","content":"one","tool_call_id":"call_0"}`)}
	other := slices.Clone(messages)
	other[len(other)-1] = assistantWithCalls(json.RawMessage(
		`[{"id":"call_1","type":"function","function":{"name":"other","arguments":{}}},{"id":"call_0","type":"function","function":{"name":"third","arguments":{}}}]`))
	opt := RenderOptions{AddGenerationPrompt: true}
	a, err1 := f.tailBehind(messages, appended, opt)
	b, err2 := f.tailBehind(other, appended, opt)
	return err1 != nil || err2 != nil || a != b
}

// tryAppend appends messages to all probes of the first one's role.
func (f *Family) tryAppend(role string, messages, appended []rollout.Message, opt RenderOptions) (reason string, notes []string) {
	tail, err := f.tailBehind(messages, appended, opt)
	if err != nil {
		return oneLine(err), nil
	}
	if !strings.Contains(tail, marker) {
		return "the template drops such a message", nil
	}
	reasoned, plain := probes(role)
	for i, history := range slices.Concat(reasoned, plain) {
		why := f.unstable(history, appended, tail, opt)
		if why != "" && i < len(reasoned) {
			return why, nil
		}
		if note := "after a reply without reasoning " + why; why != "" && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return "", notes
}

// unstable says how a history continued by tail differs from the whole rendered.
func (f *Family) unstable(history, appended []rollout.Message, tail string, opt RenderOptions) string {
	before := opt
	before.AddGenerationPrompt = false
	head, err := f.Render(history, before)
	if err != nil {
		return oneLine(err)
	}
	whole, err := f.Render(slices.Concat(history, appended), opt)
	if err != nil {
		return oneLine(err)
	}
	if whole == head+tail {
		return ""
	}
	if strings.HasPrefix(whole, head) {
		return "the template renders it differently in other places"
	}
	return errRerenders.Error()
}

// errRerenders reports a template that is not append-only.
var errRerenders = errors.New("the template changes earlier messages when such a message follows")

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
