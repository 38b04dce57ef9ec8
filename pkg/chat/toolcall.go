package chat

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/jsonscan"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// callSyntax is how a family writes tool calls.
type callSyntax uint8

const (
	noCalls   callSyntax = iota
	jsonCalls            // {"name": …, "arguments": {…}}
	xmlCalls             // <function=…><parameter=…>…</parameter></function>
	argCalls             // name<arg_key>…</arg_key><arg_value>…</arg_value>
)

// callResult is what a text between call marks is.
type callResult uint8

const (
	callWhole  callResult = iota
	callBroken            // no call, whatever follows
	callOpened            // a call whose end is still to come
)

// callReader reads tool calls of one syntax.
type callReader struct {
	syntax callSyntax
	tools  []json.RawMessage
	types  map[string]paramTypes // by tool, filled when it is first needed
}

// read reads the text between two call marks.
func (r *callReader) read(body string) (rollout.ToolCall, callResult) {
	switch r.syntax {
	case jsonCalls:
		return readJSONCall(body)
	case xmlCalls:
		return r.readXMLCall(body)
	case argCalls:
		return r.readArgCall(body)
	}
	return rollout.ToolCall{}, callBroken
}

var errNoCall = errors.New("not a tool call")

// readJSONCall reads an object with a name and arguments. The arguments stay as
// the model wrote them.
func readJSONCall(body string) (rollout.ToolCall, callResult) {
	call := rollout.ToolCall{Arguments: "{}"}
	data := []byte(strings.Trim(body, " \t\r\n"))
	reader := jsonscan.NewReader(data)
	err := reader.Object(func(key string) (err error) {
		switch key {
		case "name":
			call.Name, err = reader.String()
		case "arguments", "parameters":
			kind := reader.Kind()
			var text []byte
			if text, err = reader.Raw(); err != nil {
				return err
			}
			if kind == jsonscan.String { // some models quote the object
				text, err = quotedObject(text)
			} else if kind != jsonscan.Object {
				err = errNoCall
			}
			call.Arguments = string(text)
		case "id", "type":
			err = reader.Skip()
		default:
			err = errNoCall
		}
		return err
	})
	if err == nil {
		err = reader.End()
	}
	var syntax *jsonscan.SyntaxError
	switch {
	case errors.As(err, &syntax) && syntax.Offset >= len(data):
		return call, callOpened
	case err != nil || call.Name == "":
		return call, callBroken
	}
	return call, callWhole
}

func quotedObject(text []byte) ([]byte, error) {
	inner, err := jsonscan.NewReader(text).String()
	if err != nil {
		return nil, err
	}
	reader := jsonscan.NewReader([]byte(inner))
	if reader.Kind() != jsonscan.Object || reader.Skip() != nil || reader.End() != nil {
		return nil, errNoCall
	}
	return []byte(inner), nil
}

// between cuts s after open and before the next closing; what is missing tells
// how far it got.
func between(s, open, closing string) (inside, rest string, result callResult) {
	rest, ok := strings.CutPrefix(s, open)
	if !ok {
		if strings.HasPrefix(open, s) {
			return "", "", callOpened
		}
		return "", "", callBroken
	}
	inside, rest, ok = strings.Cut(rest, closing)
	if !ok {
		return "", "", callOpened
	}
	return inside, rest, callWhole
}

const blank = " \t\r\n"

// readXMLCall reads a function element with parameter elements.
func (r *callReader) readXMLCall(body string) (rollout.ToolCall, callResult) {
	const endFunction, parameter, endParameter = "</function>", "<parameter=", "</parameter>"
	name, rest, result := between(strings.TrimLeft(body, blank), "<function=", ">")
	if result != callWhole {
		return rollout.ToolCall{}, result
	}
	if !isCallName(name) {
		return rollout.ToolCall{}, callBroken
	}
	args := newArguments(r.typesOf(name), false)
	for {
		rest = strings.TrimLeft(rest, blank)
		if after, ok := strings.CutPrefix(rest, endFunction); ok {
			if strings.Trim(after, blank) != "" {
				return rollout.ToolCall{}, callBroken
			}
			return rollout.ToolCall{Name: name, Arguments: args.text()}, callWhole
		}
		var key string
		if key, rest, result = between(rest, parameter, ">"); result != callWhole {
			if result == callBroken && strings.HasPrefix(endFunction, rest) {
				result = callOpened
			}
			return rollout.ToolCall{}, result
		}
		// A value ends where another parameter or the end of the function follows.
		end := -1
		for at := 0; end < 0; {
			i := strings.Index(rest[at:], endParameter)
			if i < 0 {
				return rollout.ToolCall{}, callOpened
			}
			at += i + len(endParameter)
			next := strings.TrimLeft(rest[at:], blank)
			if next == "" {
				return rollout.ToolCall{}, callOpened
			}
			if strings.HasPrefix(next, parameter) || strings.HasPrefix(next, endFunction) {
				end = at
			}
		}
		value := strings.TrimSuffix(strings.TrimPrefix(rest[:end-len(endParameter)], "\n"), "\n")
		rest = rest[end:]
		if key == "" || !args.add(key, value) {
			return rollout.ToolCall{}, callBroken
		}
	}
}

// readArgCall reads a name and pairs of keys and values.
func (r *callReader) readArgCall(body string) (rollout.ToolCall, callResult) {
	const key = "<arg_key>"
	name, rest := body, ""
	if i := strings.IndexByte(body, '<'); i >= 0 {
		name, rest = body[:i], body[i:]
	}
	name = strings.Trim(name, blank)
	if !isCallName(name) {
		return rollout.ToolCall{}, callBroken
	}
	args := newArguments(r.typesOf(name), true)
	for rest = strings.TrimLeft(rest, blank); rest != ""; rest = strings.TrimLeft(rest, blank) {
		var k, v string
		var result callResult
		if k, rest, result = between(rest, key, "</arg_key>"); result != callWhole {
			return rollout.ToolCall{}, result
		}
		if v, rest, result = between(strings.TrimLeft(rest, blank), "<arg_value>", "</arg_value>"); result != callWhole {
			return rollout.ToolCall{}, result
		}
		if !args.add(strings.Trim(k, blank), v) {
			return rollout.ToolCall{}, callBroken
		}
	}
	return rollout.ToolCall{Name: name, Arguments: args.text()}, callWhole
}

// isCallName tells whether a text can be the name of a tool.
func isCallName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "<>{}\"\n\r\t ")
}

// arguments builds a JSON object of values that the model wrote without quotes.
type arguments struct {
	types paramTypes
	// guess reads a value whose type is not known as JSON if it is JSON.
	guess bool
	keys  []string
	out   []byte
}

func newArguments(types paramTypes, guess bool) *arguments {
	return &arguments{types: types, guess: guess, out: []byte{'{'}}
}

// add adds an argument; one that is there already is a fault of the call.
func (a *arguments) add(key, value string) bool {
	if slices.Contains(a.keys, key) {
		return false
	}
	if len(a.keys) > 0 {
		a.out = append(a.out, ", "...)
	}
	a.keys = append(a.keys, key)
	a.out = append(appendJSONString(a.out, key), ": "...)
	if text, ok := a.typed(value, a.types[key]); ok {
		a.out = append(a.out, text...)
	} else {
		a.out = appendJSONString(a.out, value)
	}
	return true
}

func (a *arguments) text() string { return string(append(a.out, '}')) }

// typed returns a value as JSON if its type says that it is not a string.
func (a *arguments) typed(value string, types []string) (string, bool) {
	if len(types) == 0 && !a.guess || len(types) == 1 && types[0] == "string" {
		return "", false
	}
	text := strings.Trim(value, blank)
	if slices.Contains(types, "boolean") && (text == "True" || text == "False") {
		text = strings.ToLower(text)
	}
	if !json.Valid([]byte(text)) {
		return "", false
	}
	if !slices.Contains(types, "string") {
		return text, true
	}
	kinds := map[jsonscan.Kind][]string{jsonscan.Null: {"null"}, jsonscan.Bool: {"boolean"},
		jsonscan.Number: {"number", "integer"}, jsonscan.Array: {"array"}, jsonscan.Object: {"object"}}
	for _, kind := range kinds[jsonscan.NewReader([]byte(text)).Kind()] {
		if slices.Contains(types, kind) {
			return text, true
		}
	}
	return "", false
}

// paramTypes are the JSON types that the parameters of a tool may have.
type paramTypes map[string][]string

func (r *callReader) typesOf(tool string) paramTypes {
	if r.types == nil {
		r.types = map[string]paramTypes{}
		for _, raw := range r.tools {
			name, types := readTool(raw)
			r.types[name] = types
		}
	}
	return r.types[tool]
}

// readTool reads the name and the parameter types of a tool definition, which may
// be wrapped as a function.
func readTool(raw json.RawMessage) (string, paramTypes) {
	type function struct {
		Name       string `json:"name"`
		Parameters struct {
			Properties map[string]schema `json:"properties"`
		} `json:"parameters"`
	}
	var tool struct {
		function
		Function *function `json:"function"`
	}
	if json.Unmarshal(raw, &tool) != nil {
		return "", nil
	}
	f := tool.function
	if tool.Function != nil {
		f = *tool.Function
	}
	types := make(paramTypes, len(f.Parameters.Properties))
	for name, s := range f.Parameters.Properties {
		types[name] = s.types
	}
	return f.Name, types
}

// schema is the types a JSON schema allows, as far as it names them.
type schema struct{ types []string }

// UnmarshalJSON reads type, anyOf and oneOf; a schema of another shape has no types.
func (s *schema) UnmarshalJSON(data []byte) error {
	var fields struct {
		Type  json.RawMessage `json:"type"`
		AnyOf []schema        `json:"anyOf"`
		OneOf []schema        `json:"oneOf"`
	}
	if json.Unmarshal(data, &fields) != nil {
		return nil
	}
	var one string
	if json.Unmarshal(fields.Type, &one) == nil {
		s.types = []string{one}
	} else if json.Unmarshal(fields.Type, &s.types) != nil {
		s.types = nil
	}
	for _, alternative := range slices.Concat(fields.AnyOf, fields.OneOf) {
		s.types = append(s.types, alternative.types...)
	}
	return nil
}

func appendJSONString(dst []byte, s string) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(s) != nil { // a string always encodes
		return append(dst, `""`...)
	}
	return append(dst, strings.TrimSuffix(b.String(), "\n")...)
}
