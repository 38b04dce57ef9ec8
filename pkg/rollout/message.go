package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Message is one chat message. It is kept as the JSON object it arrived as,
// because chat templates see the order of keys and keys we do not know.
type Message struct {
	// Role is the object's "role".
	Role string
	// Raw is the whole object, compacted, keys in their original order.
	Raw json.RawMessage
}

// ErrNotMessage reports JSON that is not a chat message.
var ErrNotMessage = errors.New("not a chat message")

// NewMessage returns a message of one role with plain text content.
func NewMessage(role, content string) Message {
	raw := []byte(`{"role":`)
	raw = appendJSONString(raw, role)
	raw = append(raw, `,"content":`...)
	raw = appendJSONString(raw, content)
	return Message{Role: role, Raw: append(raw, '}')}
}

// UnmarshalJSON keeps the object as it stands and reads its role.
func (m *Message) UnmarshalJSON(data []byte) error {
	var head struct {
		Role *string `json:"role"`
	}
	err := json.Unmarshal(data, &head)
	wrong := (*json.UnmarshalTypeError)(nil)
	switch {
	case errors.As(err, &wrong) && wrong.Field == "role":
		return fmt.Errorf("%w: its role must be text, is a JSON %s", ErrNotMessage, wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("%w: it must be an object with a role, is a JSON %s", ErrNotMessage, wrong.Value)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotMessage, err)
	case head.Role == nil:
		return fmt.Errorf("%w: it has no role", ErrNotMessage)
	}
	var raw bytes.Buffer
	if err := json.Compact(&raw, data); err != nil {
		return fmt.Errorf("%w: %w", ErrNotMessage, err)
	}
	m.Role, m.Raw = *head.Role, raw.Bytes()
	return nil
}

// MarshalJSON writes the object back as it arrived.
func (m Message) MarshalJSON() ([]byte, error) {
	if m.Raw == nil {
		return nil, fmt.Errorf("%w: it is empty", ErrNotMessage)
	}
	return m.Raw, nil
}

// ToolCall is one call that a model asked for, as an output parser read it.
type ToolCall struct {
	ID   string
	Name string
	// Arguments is the JSON text of the arguments, as the model wrote it.
	Arguments string
}

// appendJSONString appends s as a JSON string without HTML escapes, which would
// change what a chat template sees.
func appendJSONString(dst []byte, s string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil { // a string always encodes
		return append(dst, `""`...)
	}
	return append(dst, bytes.TrimRight(buf.Bytes(), "\n")...)
}
