package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// The run table is JSON, so that people can read it with the stock nats tool.

// RunTable is the entry of the run table that workers read first.
type RunTable struct {
	// Schema and Version are those of the controller. A worker of another schema
	// or version refuses to join.
	Schema  int
	Version string
	Spec    rollout.RunSpec
	// Ended says that the run is finished and its workers may go.
	Ended bool
	// Config is the effective config without secrets, for people.
	Config json.RawMessage `json:",omitempty"`
}

// Node is a worker as it announces itself. It expires when the worker stops
// announcing; nothing but a status page depends on it.
type Node struct {
	ID      string
	Host    string
	PID     int
	Version string
	Slots   int
}

// EncodeTable encodes a value of the run table.
func EncodeTable[T RunTable | Node | rollout.EngineEntry](v T) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode run table: %w", err)
	}
	return data, nil
}

// DecodeTable decodes a value of the run table, strictly.
func DecodeTable[T RunTable | Node | rollout.EngineEntry](data []byte) (T, error) {
	var v T
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return v, fmt.Errorf("decode run table: %w: %w", ErrFormat, err)
	}
	return v, nil
}

// DecodeRunTable decodes the run's own entry and refuses another schema before
// it looks at anything else.
func DecodeRunTable(data []byte) (RunTable, error) {
	var head struct{ Schema int }
	if err := json.Unmarshal(data, &head); err != nil {
		return RunTable{}, fmt.Errorf("decode run table: %w: %w", ErrFormat, err)
	}
	if head.Schema != Schema {
		return RunTable{}, fmt.Errorf("decode run table: %w: %d, this binary reads %d: run controller and workers of one version", ErrSchema, head.Schema, Schema)
	}
	return DecodeTable[RunTable](data)
}
