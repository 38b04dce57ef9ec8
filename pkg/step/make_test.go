package step

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"pgregory.net/rapid"
)

// ids returns n token ids that follow each other.
func ids(first, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(first + i)
	}
	return out
}

func logProbs(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = -float32(i%7+1) / 8
	}
	return out
}

// call makes a generation of n tokens after a prompt of p.
func call(id string, p, n int, meta rollout.EngineMeta) rollout.Generation {
	if meta.Finish.Type == "" {
		meta.Finish.Type = rollout.FinishStop
	}
	return rollout.Generation{
		GenerationRecord: rollout.GenerationRecord{
			ID: id, Engine: "e0", PromptLen: p, OutputLen: n, Meta: meta, Fate: rollout.FateFinished,
		},
		PromptIDs: ids(100, p), OutputIDs: ids(100+p, n), LogProbs: logProbs(n),
	}
}

// episode makes an episode of one sample of the given generations.
func episode(t testing.TB, group int64, index int, reward *float64, gens ...rollout.Generation) rollout.Episode {
	t.Helper()
	s := &rollout.Sample{SampleInfo: rollout.SampleInfo{
		GroupIndex: group, Index: group*100 + int64(index), RolloutID: group*100 + int64(index), Reward: reward,
		Prompt: "p", Response: "r",
	}}
	e := rollout.Episode{ID: rollout.EpisodeID{Group: group, Index: index}, RolloutID: s.RolloutID, Samples: []*rollout.Sample{s}}
	for _, g := range gens {
		if err := s.Append(g); err != nil {
			t.Fatal(err)
		}
		e.Generations = append(e.Generations, g.GenerationRecord)
	}
	e.Outcome = rollout.OutcomeOf(s.Status())
	return e
}

// answers makes a group of one-call episodes with the given rewards.
func answers(t testing.TB, index int64, rewards ...float64) rollout.Group {
	t.Helper()
	g := rollout.Group{Index: index, Want: len(rewards)}
	for i, r := range rewards {
		id := fmt.Sprintf("g%d-%d", index, i)
		g.Episodes = append(g.Episodes, episode(t, index, i, &r, call(id, 3, 4+i, rollout.EngineMeta{})))
	}
	return g
}

func window(seconds float64) Window {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return Window{Started: start, Finished: start.Add(time.Duration(seconds * float64(time.Second)))}
}

// drawGroups draws groups with every kind of episode in them.
func drawGroups(t *rapid.T) []rollout.Group {
	groups := make([]rollout.Group, rapid.IntRange(0, 5).Draw(t, "groups"))
	for i := range groups {
		g := &groups[i]
		g.Index, g.Wave = int64(i), int64(i/2)
		g.Want = rapid.IntRange(1, 4).Draw(t, "want")
		g.Prompt.Source = rapid.SampledFrom([]string{"", "math", "code"}).Draw(t, "source")
		for j := range g.Want {
			g.Episodes = append(g.Episodes, drawEpisode(t, int64(i), j))
		}
	}
	return groups
}

func drawEpisode(t *rapid.T, group int64, index int) rollout.Episode {
	e := rollout.Episode{
		ID: rollout.EpisodeID{Group: group, Index: index}, RolloutID: group*10 + int64(index),
		Timing: rollout.Timing{Total: rapid.Float64Range(0, 9).Draw(t, "total")},
	}
	reward := rapid.SampledFrom([]*float64{nil, rollout.Ptr(0.0), rollout.Ptr(1.0), rollout.Ptr(0.25), rollout.Ptr(-1.0)}).Draw(t, "reward")
	leaves := rapid.IntRange(0, 2).Draw(t, "leaves")
	for leaf := range leaves {
		s := &rollout.Sample{SampleInfo: rollout.SampleInfo{
			GroupIndex: group, Index: e.RolloutID*10 + int64(leaf), RolloutID: e.RolloutID, Reward: reward,
			Prompt: "2+2=\u2028", Response: rapid.SampledFrom([]string{"4", "\"é\"\n", ""}).Draw(t, "response"),
			Label: json.RawMessage(`"4"`), Remove: rapid.Bool().Draw(t, "remove"),
			Metadata: drawMetadata(t), NonGenerationTime: rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "tools"),
		}}
		prompt := ids(0, rapid.IntRange(1, 5).Draw(t, "prompt"))
		for turn := range rapid.IntRange(1, 3).Draw(t, "turns") {
			g := drawGeneration(t, fmt.Sprintf("%d-%d-%d-%d", group, index, leaf, turn), prompt)
			if err := s.Append(g); err != nil {
				t.Fatal(err)
			}
			e.Generations = append(e.Generations, g.GenerationRecord)
			prompt = append(append([]int32{}, s.Tokens()...), ids(900, rapid.IntRange(0, 3).Draw(t, "gap"))...)
		}
		e.Samples = append(e.Samples, s)
		e.Outcome = rollout.OutcomeOf(s.Status())
	}
	if leaves == 0 {
		e.Outcome = rollout.OutcomeFailed
		e.Failure = rollout.NewFailure(rollout.BoundaryEngine, "timeout", true, nil)
		g := drawGeneration(t, fmt.Sprintf("%d-%d-x", group, index), ids(0, 2))
		g.Fate = rollout.FateFailed
		e.Generations = append(e.Generations, g.GenerationRecord)
	}
	return e
}

func drawMetadata(t *rapid.T) json.RawMessage {
	return rapid.SampledFrom([]json.RawMessage{
		nil,
		json.RawMessage(`{"tito_session_mismatch": [], "exit_status": "resolved"}`),
		json.RawMessage("{\"tito_session_mismatch\": [{\"type\": \"assistant_text\"}],\n\"topic\": \"algebra\"}"),
	}).Draw(t, "metadata")
}

func drawGeneration(t *rapid.T, id string, prompt []int32) rollout.Generation {
	n := rapid.IntRange(0, 6).Draw(t, "n")
	g := rollout.Generation{
		GenerationRecord: rollout.GenerationRecord{
			ID: id, Engine: rapid.SampledFrom([]string{"e0", "e1"}).Draw(t, "engine"),
			PromptLen: len(prompt), OutputLen: n, Fate: rollout.FateFinished,
		},
		PromptIDs: prompt, OutputIDs: ids(500, n), LogProbs: logProbs(n),
	}
	m := &g.Meta
	m.Finish.Type = rapid.SampledFrom([]rollout.FinishType{rollout.FinishStop, rollout.FinishLength, rollout.FinishToolCalls, rollout.FinishAbort}).Draw(t, "finish")
	maybe := func(name string, x int64) *int64 {
		if rapid.Bool().Draw(t, name) {
			return nil
		}
		return &x
	}
	m.CompletionTokens = maybe("no completion", int64(n))
	m.PromptTokens = maybe("no prompt", int64(len(prompt)))
	m.CachedTokens = maybe("no cached", int64(len(prompt)/2))
	m.Spec.Verify = maybe("no verify", int64(n/2))
	m.Spec.Correct = maybe("no correct", int64(n/3))
	m.Spec.Proposed = maybe("no proposed", int64(n))
	if rapid.Bool().Draw(t, "version") {
		m.WeightVersion = rollout.Ptr(rapid.SampledFrom([]string{"1", "2", "default"}).Draw(t, "version text"))
	}
	if rapid.Bool().Draw(t, "timed") {
		m.QueueTime, m.E2ELatency = rollout.Ptr(0.25), rollout.Ptr(1.5)
	}
	if rapid.Bool().Draw(t, "untrainable") {
		g.Untrainable = "null_logprob"
	}
	return g
}

func drawConfig(t *rapid.T) Config {
	return Config{
		Run: "r", Step: 3, WeightVersion: rollout.Ptr(uint64(2)),
		BatchSize:        rapid.IntRange(0, 3).Draw(t, "batch"),
		SamplesPerPrompt: rapid.IntRange(1, 4).Draw(t, "n"),
		MinValid:         rapid.IntRange(0, 2).Draw(t, "valid"),
		Filter:           rapid.SampledFrom([]Filter{FilterNone, FilterNonzeroStd, FilterNoAborted}).Draw(t, "filter"),
		Partial:          rapid.Bool().Draw(t, "partial"),
		Estimator:        rapid.SampledFrom([]Estimator{GRPO, GSPO, CISPO, ReinforceBaseline, PPO}).Draw(t, "estimator"),
		Normalize:        true, StdNormalize: rapid.Bool().Draw(t, "std"),
		MaskTruncated: rapid.Bool().Draw(t, "mask truncated"),
		Temperature:   1, GPUs: 2, MaxContext: 12, Sessions: rapid.Bool().Draw(t, "sessions"), Category: "topic",
		Speculates: map[string]bool{"e0": true},
	}
}
