package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// parseRow reads one JSON object. Of a key that is given twice the last counts.
func parseRow(raw []byte, cfg Config) (rollout.Prompt, error) {
	var columns map[string]json.RawMessage
	if err := json.Unmarshal(raw, &columns); err != nil {
		if typeErr := (*json.UnmarshalTypeError)(nil); errors.As(err, &typeErr) {
			return rollout.Prompt{}, fmt.Errorf("must be a JSON object, is a JSON %s", typeErr.Value)
		}
		return rollout.Prompt{}, fmt.Errorf("is not JSON: %w", err)
	}
	if columns == nil {
		return rollout.Prompt{}, errors.New("must be a JSON object, is null")
	}
	return parseColumns(columns, cfg)
}

// parseColumns makes a prompt of a row's columns.
func parseColumns(columns map[string]json.RawMessage, cfg Config) (rollout.Prompt, error) {
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
		if err = json.Unmarshal(input, &p.Messages); err == nil && len(p.Messages) == 0 {
			err = errors.New("it is an empty list")
		}
	default:
		err = errors.New("it must be a text or a list of messages")
	}
	if err != nil {
		return p, fmt.Errorf("%q: %w", cfg.InputKey, err)
	}

	p.Label = column(cfg.LabelKey)
	if p.Metadata = column(cfg.MetadataKey); p.Metadata != nil && kind(p.Metadata) != '{' {
		return p, fmt.Errorf("%q: it must be an object", cfg.MetadataKey)
	}
	if p.Tools, err = parseTools(column(cfg.ToolsKey)); err != nil {
		return p, fmt.Errorf("%q: %w", cfg.ToolsKey, err)
	}
	return p, nil
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
