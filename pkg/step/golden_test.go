package step

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden holds the files of a small step against testdata/golden. Readers in
// other languages test on the same files: a change here is a change of the
// layout, and wants a new [Schema] unless it only adds keys.
func TestGolden(t *testing.T) {
	scored := answers(t, 4, 1, 0)
	scored.Prompt.Source = "math"
	session := rollout.Group{Index: 5, Want: 2, Episodes: []rollout.Episode{twoTurns(t), answers(t, 5, 0.25).Episodes[0]}}
	session.Episodes[0].ID.Index = 1
	failed := answers(t, 6, 1)
	failed.Episodes[0].Outcome = rollout.OutcomeFailed
	failed.Episodes[0].Failure = rollout.NewFailure(rollout.BoundaryEngine, "timeout", true, nil)
	cfg := Config{
		Run: "golden", Step: 3, Epoch: 1, WeightVersion: rollout.Ptr(uint64(4)), SamplesPerPrompt: 2,
		Estimator: GRPO, Normalize: true, StdNormalize: true, MaskTruncated: true, Temperature: 0.5, GPUs: 2,
	}
	r, err := Reduce(cfg, Dispose(cfg, []rollout.Group{session, failed, scored}), window(2))
	if err != nil {
		t.Fatal(err)
	}
	schedule, err := r.Schedule(Layout{DPSize: 2, MaxTokensPerGPU: 16})
	if err != nil {
		t.Fatal(err)
	}
	var samples, rank0, rank1 bytes.Buffer
	batch := NewBatch(cfg, r, schedule)
	report, err := json.MarshalIndent(r.Report, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{WriteSamples(&samples, r.Samples), batch.WriteRank(&rank0, 0), batch.WriteRank(&rank1, 1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, got := range map[string][]byte{
		"samples.jsonl":                   samples.Bytes(),
		"report.json":                     append(report, '\n'),
		"rank-00000-of-00002.safetensors": rank0.Bytes(),
		"rank-00001-of-00002.safetensors": rank1.Bytes(),
	} {
		path := filepath.Join("testdata", "golden", name)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from %s; if that is meant, run go test ./pkg/step -run Golden -update", name, path)
		}
	}
}
