package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// row is one row by its columns, whose JSON is [strict].
type row map[string]json.RawMessage

// parseRow reads one JSON object.
func parseRow(raw []byte) (row, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("is not UTF-8 text; save the file as UTF-8")
	}
	var columns row
	if err := json.Unmarshal(raw, &columns); err != nil {
		if typeErr := (*json.UnmarshalTypeError)(nil); errors.As(err, &typeErr) {
			return nil, fmt.Errorf("must be a JSON object, is a JSON %s", typeErr.Value)
		}
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	if columns == nil {
		return nil, errors.New("must be a JSON object, is null")
	}
	return columns, strict(raw)
}

// strict refuses what decoders let pass and change: of a key that is given twice
// they take one, and half of a surrogate pair becomes another character. The JSON
// is valid.
func strict(raw []byte) error {
	var open []map[string]bool // the keys so far of each object that is open; nil for a list
	isKey := false             // the next text is a key
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{':
			open, isKey = append(open, map[string]bool{}), true
		case '[':
			open, isKey = append(open, nil), false
		case '}', ']':
			open = open[:len(open)-1]
		case ',':
			isKey = open[len(open)-1] != nil
		case '"':
			end := i + 1
			for ; raw[end] != '"'; end++ {
				if raw[end] != '\\' {
					continue
				}
				if end++; raw[end] != 'u' {
					continue
				}
				pair, ok := surrogate(raw[end-1:])
				if !ok {
					return fmt.Errorf("holds %s, half of a character; write both halves, or the character itself", raw[end-1:end+5])
				}
				if pair {
					end += 6
				}
			}
			if isKey {
				key := rollout.RawText(raw[i : end+1])
				if open[len(open)-1][key] {
					return fmt.Errorf("has the key %q twice; remove one", key)
				}
				open[len(open)-1][key] = true
				isKey = false
			}
			i = end
		}
	}
	return nil
}

// surrogate looks at an escape \uXXXX of valid JSON: whether it begins a pair of
// surrogates, and whether it is right where it stands.
func surrogate(text []byte) (pair, ok bool) {
	half := func(at int) uint64 {
		if len(text) < at+6 || text[at] != '\\' || text[at+1] != 'u' {
			return 0
		}
		v, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
		if err != nil {
			return 0
		}
		return v
	}
	const high, low, end = 0xd800, 0xdc00, 0xe000
	switch first, second := half(0), half(6); {
	case first < high || first >= end:
		return false, true
	case first < low && second >= low && second < end:
		return true, true
	default:
		return false, false
	}
}

// parseColumns makes a prompt of a row's columns.
func parseColumns(columns row, cfg Config) (rollout.Prompt, error) {
	var p rollout.Prompt
	column := func(key string) json.RawMessage {
		raw := columns[key]
		if key == "" || bytes.Equal(raw, []byte("null")) {
			return nil
		}
		return raw
	}
	input := column(cfg.InputKey)
	var err error
	switch kind(input) {
	case 0:
		return p, fmt.Errorf("has no %q; name the prompt's column by data.input_key", cfg.InputKey)
	case '"':
		if err = json.Unmarshal(input, &p.Text); err == nil && p.Text == "" {
			err = errors.New("it is empty")
		}
	case '[':
		p.Messages, err = parseMessages(input)
	default:
		err = errors.New("it must be a text or a list of messages")
	}
	if err != nil {
		return p, fmt.Errorf("%q: %w", cfg.InputKey, err)
	}

	p.Label = column(cfg.LabelKey)
	if cfg.NeedLabel && strings.TrimSpace(p.LabelText()) == "" {
		return p, fmt.Errorf("has no %q to score against; name the label's column by data.label_key", cfg.LabelKey)
	}
	if p.Metadata = column(cfg.MetadataKey); p.Metadata != nil && kind(p.Metadata) != '{' {
		return p, fmt.Errorf("%q: it must be an object", cfg.MetadataKey)
	}
	if p.Tools, err = parseTools(column(cfg.ToolsKey)); err != nil {
		return p, fmt.Errorf("%q: %w", cfg.ToolsKey, err)
	}
	if n := p.Size(); n > cfg.maxRow() {
		return p, tooLong(n, cfg.maxRow())
	}
	return p, nil
}

func tooLong(size, most int) error {
	return fmt.Errorf("has %d bytes of prompt, label, metadata and tools, at most %d can travel as a job", size, most)
}

func parseMessages(raw json.RawMessage) ([]rollout.Message, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("it is an empty list")
	}
	messages := make([]rollout.Message, len(list))
	for i, m := range list {
		if err := messages[i].UnmarshalJSON(m); err != nil {
			return nil, fmt.Errorf("entry %d is %w", i, err)
		}
	}
	return messages, nil
}

// parseTools reads a list of objects, or a text that holds the JSON of one.
func parseTools(raw json.RawMessage) ([]json.RawMessage, error) {
	if kind(raw) == '"' {
		raw = json.RawMessage(rollout.RawText(raw))
	}
	if len(raw) == 0 {
		return nil, nil
	}
	var tools []json.RawMessage
	if err := json.Unmarshal(raw, &tools); err != nil {
		return nil, errors.New("it must be a list of tool definitions")
	}
	if err := strict(raw); err != nil { // it may have been text inside the row's JSON
		return nil, fmt.Errorf("it %w", err)
	}
	for i, tool := range tools {
		if kind(tool) != '{' {
			return nil, fmt.Errorf("entry %d must be an object", i)
		}
	}
	return tools, nil
}

// kind is the first byte of a JSON value, 0 of none.
func kind(raw json.RawMessage) byte {
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) > 0 {
		return raw[0]
	}
	return 0
}
