package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// evidence is all that a round left behind.
type evidence struct {
	shape   shape
	folders []string // of the run, one per output folder
	entries []logged
	calls   map[string][]call // by rid
	total   int64             // tokens that the engines generated, by their logs
}

// shape is what was run, from evidence.json.
type shape struct {
	Run     string   `json:"run"`
	Folders []string `json:"folders"`
	Steps   int64    `json:"steps"`
	// Batch, Samples, MinValid and MaxContext are the config's values that a
	// replay needs.
	Batch      int `json:"batch"`
	Samples    int `json:"samples"`
	MinValid   int `json:"min_valid"`
	MaxContext int `json:"max_context"`
	// Calm says that no fault was injected: then the books must be exact.
	Calm bool `json:"calm"`
}

// logged is an entry of the log with its place in the stream.
type logged struct {
	seq uint64
	entry
}

// call is a line of an engine's request log.
type call struct {
	RID      string    `json:"rid"`
	Seed     *int64    `json:"sampling_seed"`
	Prompt   []int32   `json:"prompt_ids"`
	Output   []int32   `json:"output_ids"`
	LogProbs []float32 `json:"logprobs"`
	Cached   int64     `json:"cached_tokens"`
	Verify   int64     `json:"spec_verify_ct"`
	Correct  int64     `json:"spec_correct"`
	Proposed int64     `json:"spec_proposed"`
	Versions []struct {
		Version string `json:"version"`
		Start   int    `json:"start"`
	} `json:"versions"`
	Finish string `json:"finish"`
}

func readEvidence(dir string) (*evidence, error) {
	ev := &evidence{calls: map[string][]call{}}
	text, err := os.ReadFile(filepath.Join(dir, "evidence.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &ev.shape); err != nil {
		return nil, fmt.Errorf("evidence.json: %w", err)
	}
	for _, f := range ev.shape.Folders {
		ev.folders = append(ev.folders, filepath.Join(dir, f, ev.shape.Run))
	}
	if err := ev.readLedger(filepath.Join(dir, "ledger.jsonl")); err != nil {
		return nil, err
	}
	logs, err := filepath.Glob(filepath.Join(dir, "engine-*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, path := range logs {
		if err := ev.readCalls(path); err != nil {
			return nil, err
		}
	}
	return ev, nil
}

// readLedger reads the observed log. An entry that was seen twice, because the
// observer began anew, is the same entry.
func (ev *evidence) readLedger(path string) error {
	var last uint64
	return eachLine(path, func(line []byte) error {
		var l struct {
			Seq  uint64 `json:"seq"`
			Data string `json:"data"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		if l.Seq <= last {
			return fmt.Errorf("sequence %d after %d", l.Seq, last)
		}
		last = l.Seq
		data, err := base64.StdEncoding.DecodeString(l.Data)
		if err != nil {
			return err
		}
		e := logged{seq: l.Seq}
		if err := decodeRecord(data, 'l', &e.entry); err != nil {
			return err
		}
		ev.entries = append(ev.entries, e)
		return nil
	})
}

// readCalls reads a request log. Its last line may be cut where the engine was
// killed while it wrote; the reply to it had not left.
func (ev *evidence) readCalls(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		var c call
		if err := json.Unmarshal(line, &c); err != nil {
			if bytes.HasSuffix(line, []byte("\n")) {
				return fmt.Errorf("%s: %w in %q", filepath.Base(path), err, line)
			}
			continue
		}
		ev.calls[c.RID] = append(ev.calls[c.RID], c)
		ev.total += int64(len(c.Output))
	}
	return nil
}

func eachLine(path string, f func(line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	in := bufio.NewScanner(file)
	in.Buffer(nil, 64<<20)
	for n := 1; in.Scan(); n++ {
		if err := f(in.Bytes()); err != nil {
			return fmt.Errorf("%s:%d: %w", filepath.Base(path), n, err)
		}
	}
	return in.Err()
}
