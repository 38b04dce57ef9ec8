package step

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// benchStep makes groups of 8 one-call episodes with about prompt and response
// tokens each, masks with gaps, and everything an engine can report.
func benchStep(b *testing.B, samples, prompt, response int) []rollout.Group {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	groups := make([]rollout.Group, samples/8)
	version := "12"
	for i := range groups {
		g := &groups[i]
		g.Index, g.Want, g.Prompt.Source = int64(i), 8, "math"
		for j := range 8 {
			n := response/2 + rng.IntN(response)
			verify := int64(n/3 + 1)
			gen := call(fmt.Sprintf("%016x%016x", i, j), prompt, n, rollout.EngineMeta{
				PromptTokens: rollout.Ptr(int64(prompt)), CachedTokens: rollout.Ptr(int64(prompt / 2)),
				CompletionTokens: rollout.Ptr(int64(n)), WeightVersion: &version,
				QueueTime: rollout.Ptr(rng.Float64()), E2ELatency: rollout.Ptr(10 * rng.Float64()),
				Spec: rollout.SpecMeta{Verify: &verify, Correct: rollout.Ptr(2 * verify), Proposed: rollout.Ptr(3 * verify)},
			})
			gen.Engine = fmt.Sprintf("engine-%d", i%8)
			e := episode(b, int64(i), j, rollout.Ptr(float64(rng.IntN(2))), gen)
			s := e.Samples[0]
			for start := 50; start+20 < n; start += 100 {
				if err := s.Mask(start, start+20); err != nil {
					b.Fatal(err)
				}
			}
			s.RolloutID, s.Index = int64(8*i+j), int64(8*i+j)
			s.Metadata = json.RawMessage(`{"tito_session_mismatch":[],"exit_status":"resolved"}`)
			e.RolloutID, e.Timing.Total = s.RolloutID, 20*rng.Float64()
			g.Episodes = append(g.Episodes, e)
			g.Dispositions = append(g.Dispositions, rollout.Disposition{Verdict: rollout.Accepted})
		}
	}
	return groups
}

var benchConfig = Config{
	Run: "bench", WeightVersion: rollout.Ptr(uint64(12)), SamplesPerPrompt: 8, Estimator: GRPO,
	Normalize: true, StdNormalize: true, Temperature: 1, GPUs: 8, MaxContext: 1 << 20, Sessions: true,
}

// Budget: 50 ms, goal 20 ms (design 13). Texts are short: all keys but repetition.
func BenchmarkReduce100k(b *testing.B) {
	for _, response := range []int{256, 1024} {
		b.Run(fmt.Sprintf("response=%d", response), func(b *testing.B) {
			groups := benchStep(b, 100_000, 16, response)
			for b.Loop() {
				if _, err := Reduce(benchConfig, groups, window(60)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Budget: 30 ms, goal 15 ms (design 13), for 8,192 samples and 8.5M tokens:
// schedule, and conversion to what is written for each of 8 ranks.
func BenchmarkBatch8192(b *testing.B) {
	groups := benchStep(b, 8192, 512, 525)
	r, err := Reduce(benchConfig, groups, window(60))
	if err != nil {
		b.Fatal(err)
	}
	var tokens int64
	for _, n := range r.Lengths() {
		tokens += n
	}
	layout := Layout{
		DPSize: 8, CPSize: 1, VPPSize: 2, MicroBatchGroup: 4, GlobalBatchSize: 2048,
		Packing: FirstFitDecreasing, MaxTokensPerGPU: 8192, Balance: true,
	}
	for b.Loop() {
		schedule, err := r.Schedule(layout)
		if err != nil {
			b.Fatal(err)
		}
		batch := NewBatch(benchConfig, r, schedule)
		for rank := range batch.Ranks() {
			if err := batch.WriteRank(io.Discard, rank); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(tokens)/1e6, "Mtok")
}

func BenchmarkWriteSamples8192(b *testing.B) {
	groups := benchStep(b, 8192, 256, 768)
	r, err := Reduce(benchConfig, groups, window(60))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := WriteSamples(io.Discard, r.Samples); err != nil {
			b.Fatal(err)
		}
	}
}
