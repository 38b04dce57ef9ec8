//go:build e2e

package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestDamagedStore damages the end of the stored results of a killed run, as a
// disk does. The server starts without a word and with results missing; the run
// makes them anew and completes.
func TestDamagedStore(t *testing.T) {
	cases := []struct {
		name   string
		damage func(block []byte) []byte
	}{
		{"cut", func(b []byte) []byte { return b[:len(b)-min(len(b)/2, 3000)] }},
		{"a byte flipped near the end", func(b []byte) []byte {
			b[len(b)-min(len(b)/4, 500)] ^= 0xff
			return b
		}},
		{"zeroed tail", func(b []byte) []byte {
			n := min(len(b)/2, 2000)
			return append(b[:len(b)-n], bytes.Repeat([]byte{0}, n)...)
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			out := t.TempDir()
			cfg := config(t,
				"run: {name: damaged, steps: 2, out: "+out+"}",
				"model: {path: configs/models/tiny}",
				"data: {prompts: configs/data/arithmetic.jsonl}",
				"engines: [{url: '"+startSimengine(t, "--latency-scale", "1")+"'}]",
				"rollout: {batch_size: 128, n_samples_per_prompt: 16, max_context_len: 512, sampling: {max_new_tokens: 24}}",
				"reward: {type: exact}",
				"worker: {slots: 8}",
			)
			p := start(t, "controller", "run", cfg)
			p.until(`\d+ of 2048 episodes`, 30*time.Second) // in the middle of a step
			p.kill()
			blocks, err := filepath.Glob(filepath.Join(out, "damaged", ".state", "jetstream", "*", "streams", "SHEAF_RESULTS_damaged", "msgs", "*.blk"))
			if err != nil || len(blocks) == 0 {
				t.Fatalf("no blocks of stored results: %v", err)
			}
			last := blocks[len(blocks)-1]
			data, err := os.ReadFile(last)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(last, tc.damage(data), 0o644); err != nil {
				t.Fatal(err)
			}
			code, text := start(t, "controller", "run", cfg, "--set", "worker.slots=512").wait(60 * time.Second)
			if code != 0 {
				t.Fatalf("exit code %d\n%s", code, text)
			}
			seen := map[int64]bool{}
			for n := range 2 {
				dir := stepDir(out, "damaged", n)
				checkStep(t, dir, 2048)
				for _, s := range readSamples(t, dir) {
					if seen[s.Index] {
						t.Errorf("sample %d twice", s.Index)
					}
					seen[s.Index] = true
				}
			}
			if len(seen) != 2*2048 {
				t.Errorf("%d samples, want %d", len(seen), 2*2048)
			}
		})
	}
}
