package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// TestRequestLog: the log says what the replies say, and is there before them.
func TestRequestLog(t *testing.T) {
	var log bytes.Buffer
	engine := newEngine(t, func(c *sim.Config) {
		speculate(c)
		c.RequestLog, c.WeightVersion = &log, "7"
	})
	for seed := range 4 {
		body := fmt.Sprintf(`{"rid":"r%d","text":%q,"return_logprob":true,"sampling_params":{"max_new_tokens":8,"sampling_seed":%d}}`, seed, question(1, 2), seed)
		status, reply := call(t, engine, "POST", "/generate", body)
		if status != 200 {
			t.Fatalf("status %d: %s", status, reply)
		}
		var said struct {
			Output []int32 `json:"output_ids"`
			Meta   struct {
				Verify  int     `json:"spec_verify_ct"`
				Tuples  [][]any `json:"output_token_logprobs"`
				Prompt  int     `json:"prompt_tokens"`
				Version string  `json:"weight_version"`
			} `json:"meta_info"`
		}
		if err := json.Unmarshal(reply, &said); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
		if len(lines) != seed+1 {
			t.Fatalf("%d lines after %d requests", len(lines), seed+1)
		}
		var line struct {
			RID      string
			Seed     *int      `json:"sampling_seed"`
			Prompt   []int32   `json:"prompt_ids"`
			Output   []int32   `json:"output_ids"`
			LogProbs []float64 `json:"logprobs"`
			Verify   int       `json:"spec_verify_ct"`
			Versions []struct{ Version string }
		}
		if err := json.Unmarshal(lines[seed], &line); err != nil {
			t.Fatal(err)
		}
		if line.RID != fmt.Sprintf("r%d", seed) || line.Seed == nil || *line.Seed != seed || !slices.Equal(line.Output, said.Output) ||
			len(line.Prompt) != said.Meta.Prompt || line.Verify != said.Meta.Verify || len(line.Versions) != 1 || line.Versions[0].Version != said.Meta.Version {
			t.Errorf("the log says\n%s\nand the reply\n%s", lines[seed], reply)
		}
		for i, tuple := range said.Meta.Tuples {
			if tuple[0] != line.LogProbs[i] {
				t.Errorf("log-prob %d is %v in the log and %v in the reply", i, line.LogProbs[i], tuple[0])
			}
		}
	}
}
