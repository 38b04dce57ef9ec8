package controller

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sheaf-rl/sheaf/pkg/step"
)

// metricsFile is metrics.jsonl: a line per step, and one per event.
type metricsFile struct{ path string }

// event is a line that is no step.
type event struct {
	Kind  string `json:"kind"`
	Event string `json:"event"`
	Epoch uint64 `json:"epoch"`
	Step  int64  `json:"step"`
	Count int    `json:"count,omitempty"`
}

// stepLine is a step's line.
type stepLine struct {
	Kind          string             `json:"kind"`
	Step          int64              `json:"step"`
	WeightVersion *uint64            `json:"weight_version"`
	Metrics       map[string]float64 `json:"metrics"`
	Unavailable   map[string]string  `json:"unavailable"`
}

// openMetrics prepares the file for a run that goes on at step next: lines of
// that step and later ones come from a step whose commit did not happen, and a
// last line without an end from a write that was cut; both go.
func openMetrics(dir string, next int64) (*metricsFile, error) {
	m := &metricsFile{path: filepath.Join(dir, "metrics.jsonl")}
	f, err := os.OpenFile(m.path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, outputError(err)
	}
	keep, err := keptLines(f, next)
	if err == nil {
		err = f.Truncate(keep)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, outputError(fmt.Errorf("prepare %s: %w", m.path, err))
	}
	return m, nil
}

// keptLines is the length of the whole lines at the front that are of steps
// before next, and of events.
func keptLines(r io.Reader, next int64) (int64, error) {
	br := bufio.NewReader(r)
	var keep int64
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return keep, nil
		}
		if err != nil {
			return 0, err
		}
		var head struct {
			Kind string `json:"kind"`
			Step int64  `json:"step"`
		}
		if json.Unmarshal(line, &head) != nil || head.Kind == "step" && head.Step >= next {
			return keep, nil
		}
		keep += int64(len(line))
	}
}

func (m *metricsFile) event(e event) error { return m.append(e) }

func (m *metricsFile) step(r *step.Report) error {
	return m.append(stepLine{Kind: "step", Step: r.Step, WeightVersion: r.WeightVersion, Metrics: r.Metrics, Unavailable: r.Unavailable})
}

func (m *metricsFile) append(v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode metrics: %w", err)
	}
	f, err := os.OpenFile(m.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return outputError(err)
	}
	_, err = f.Write(buf.Bytes())
	return outputError(errors.Join(err, f.Close()))
}
