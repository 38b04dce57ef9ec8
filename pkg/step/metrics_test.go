package step

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"pgregory.net/rapid"
)

// wantMetrics checks some keys of a report: numbers among the metrics, text
// (a part of the reason) among the unavailable.
func wantMetrics(t *testing.T, r *Report, want map[string]any) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		got, known := r.Metrics[key]
		switch want := want[key].(type) {
		case float64:
			if !known || math.Abs(got-want) > 1e-12 {
				t.Errorf("%s = %v (%v, %q), want %v", key, got, known, r.Unavailable[key], want)
			}
		case string:
			if known || !strings.Contains(r.Unavailable[key], want) || r.Unavailable[key] == "" {
				t.Errorf("%s = %v (%v), unavailable %q, want %q", key, got, known, r.Unavailable[key], want)
			}
		case nil:
			if known || r.Unavailable[key] != "" {
				t.Errorf("%s = %v, unavailable %q, want neither", key, got, r.Unavailable[key])
			}
		}
	}
}

// reduced disposes and reduces groups.
func reduced(t *testing.T, cfg Config, w Window, groups ...rollout.Group) *Report {
	t.Helper()
	r, err := Reduce(cfg, Dispose(cfg, groups), w)
	if err != nil {
		t.Fatal(err)
	}
	return r.Report
}

// engineCall is a one-call episode on an engine that reported meta.
func engineCall(t *testing.T, index int, engine string, n int, meta rollout.EngineMeta) rollout.Episode {
	t.Helper()
	g := call(string(rune('a'+index)), 4, n, meta)
	g.Engine = engine
	return episode(t, 0, index, rollout.Ptr(1.0), g)
}

func p(x int64) *int64 { return &x }

func TestSpeculation(t *testing.T) {
	spec := func(verify, correct, proposed *int64) rollout.EngineMeta {
		return rollout.EngineMeta{Spec: rollout.SpecMeta{Verify: verify, Correct: correct, Proposed: proposed}}
	}
	const none = "no call reported"
	tests := []struct {
		name       string
		speculates map[string]bool
		episodes   []rollout.Episode
		want       map[string]any
	}{
		{"sum over sum, not mean of ratios", nil, []rollout.Episode{
			engineCall(t, 0, "e", 10, spec(p(5), p(4), p(15))),
			engineCall(t, 1, "e", 2, spec(p(1), p(3), p(3))),
		}, map[string]any{
			"rollout/spec_accept_length": 2.0, "rollout/spec_accept_rate": 7.0 / 18,
			"rollout/spec_length_calls_reported": 2.0, "rollout/spec_rate_calls_reported": 2.0, "rollout/spec_calls_unreported": 0.0,
			"rollout/spec_accept_length/engine/e": 2.0, "rollout/spec_accept_rate/engine/e": 7.0 / 18,
		}},
		{"each ratio over its own calls", nil, []rollout.Episode{
			engineCall(t, 0, "old", 10, spec(p(5), nil, nil)),
			engineCall(t, 1, "new", 8, spec(p(2), p(3), p(6))),
		}, map[string]any{
			"rollout/spec_accept_length": 18.0 / 7, "rollout/spec_accept_rate": 0.5,
			"rollout/spec_length_calls_reported": 2.0, "rollout/spec_rate_calls_reported": 1.0,
			"rollout/spec_accept_length/engine/old": 2.0, "rollout/spec_accept_rate/engine/old": none, "rollout/spec_accept_rate/engine/new": 0.5,
		}},
		{"nothing reported is not zero", nil, []rollout.Episode{engineCall(t, 0, "e", 10, spec(nil, nil, nil))}, map[string]any{
			"rollout/spec_accept_length": none, "rollout/spec_accept_rate": none,
			"rollout/spec_calls_unknown": 1.0, "rollout/spec_accept_length/engine/e": nil,
		}},
		{"why nothing was reported", map[string]bool{"spec": true, "plain": false}, []rollout.Episode{
			engineCall(t, 0, "spec", 10, spec(nil, nil, nil)),
			engineCall(t, 1, "spec", 1, spec(nil, nil, nil)),
			engineCall(t, 2, "plain", 10, spec(nil, nil, nil)),
			engineCall(t, 3, "new", 10, spec(nil, nil, nil)),
		}, map[string]any{
			"rollout/spec_calls_unreported": 1.0, "rollout/spec_calls_no_verify": 1.0,
			"rollout/spec_calls_not_speculative": 1.0, "rollout/spec_calls_unknown": 1.0,
			"rollout/spec_accept_length/engine/spec": none, "rollout/spec_accept_length/engine/plain": nil,
		}},
		{"an engine that reported once speculates", nil, []rollout.Episode{
			engineCall(t, 0, "e", 10, spec(p(5), p(4), p(15))),
			engineCall(t, 1, "e", 10, spec(nil, nil, nil)),
		}, map[string]any{"rollout/spec_calls_unreported": 1.0, "rollout/spec_calls_unknown": 0.0, "rollout/spec_accept_length": 2.0}},
		{"a verify count of 0 is none", map[string]bool{"e": true}, []rollout.Episode{engineCall(t, 0, "e", 1, spec(p(0), p(0), p(0)))}, map[string]any{
			"rollout/spec_accept_length": none, "rollout/spec_accept_rate": "every call that reported it had nothing proposed", "rollout/spec_calls_no_verify": 1.0,
		}},
		{"a rate of 0 is a number", nil, []rollout.Episode{engineCall(t, 0, "e", 3, spec(p(2), p(0), p(6)))}, map[string]any{
			"rollout/spec_accept_rate": 0.0, "rollout/spec_accept_length": 1.5,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := rollout.Group{Want: len(tt.episodes), Episodes: tt.episodes}
			wantMetrics(t, reduced(t, Config{Speculates: tt.speculates}, Window{}, g), tt.want)
		})
	}
}

func TestCountersOfCalls(t *testing.T) {
	// Two leaves share a call, a third call was kept by no sample, a fourth was
	// refused by the scheduler, whose prompt_tokens of 1 stands for nothing.
	shared := call("a", 4, 4, rollout.EngineMeta{
		PromptTokens: p(4), CachedTokens: p(2), CompletionTokens: p(4), WeightVersion: rollout.Ptr("7"),
		Spec: rollout.SpecMeta{Verify: p(2), Correct: p(1), Proposed: p(6)},
	})
	e := episode(t, 0, 0, rollout.Ptr(1.0), shared)
	leaf := episode(t, 0, 0, rollout.Ptr(1.0), shared)
	leaf.Samples[0].Index = 1
	e.Samples = append(e.Samples, leaf.Samples[0])
	dropped := shared.GenerationRecord
	dropped.ID = "b"
	refused := rollout.GenerationRecord{ID: "c", Fate: rollout.FateAborted, Meta: rollout.EngineMeta{
		Finish: rollout.Finish{Type: rollout.FinishAbort, StatusCode: p(400)}, PromptTokens: p(1), CachedTokens: p(0),
	}}
	e.Generations = append(e.Generations, shared.GenerationRecord, dropped, refused)
	r := reduced(t, Config{}, Window{}, rollout.Group{Want: 1, Episodes: []rollout.Episode{e}})
	wantMetrics(t, r, map[string]any{
		"rollout/prefix_cache_hit_rate": 0.5, "rollout/prefix_cache_calls_reported": 2.0, "rollout/avg_cached_tokens_per_sample": 2.0,
		"rollout/spec_accept_length": 2.0, "rollout/spec_accept_length/version/7": 2.0,
	})
	if c := r.Ledger.Counters; *c.Completion != 8 || *c.Verify != 4 || *c.Proposed != 12 || *c.Correct != 2 {
		t.Errorf("counters %v %v %v %v", *c.Completion, *c.Verify, *c.Proposed, *c.Correct)
	}
	if b := r.Ledger.Books; b.Generated != 8 || b.Trained != 8 || b.Unaccounted != 0 {
		t.Errorf("books %+v", b)
	}
}

func TestBooks(t *testing.T) {
	filtered, surplus := answers(t, 1, 1, 1), answers(t, 3, 0, 1)
	mixed := answers(t, 2, 0, 1, 0)
	mixed.Episodes[0].Outcome, mixed.Episodes[0].Failure = rollout.OutcomeFailed, rollout.NewFailure(rollout.BoundaryReward, "timeout", true, nil)
	mixed.Episodes[1].Samples[0].Remove = true
	cfg := Config{Filter: FilterNonzeroStd, BatchSize: 1, MinValid: 1}
	fenced := rollout.GenerationRecord{ID: "fenced", OutputLen: 9, Fate: rollout.FateFinished, Untrainable: "null_logprob"}
	fenced.Meta.PromptTokens = p(7)
	w := Window{
		Waste: []Waste{
			{Reason: "fenced", Generations: []rollout.GenerationRecord{fenced, fenced, mixed.Episodes[0].Generations[0]}},
		},
		ProbeTokens: 8, EngineTokens: p(9 + 9 + 15 + 9 + 8 + 3),
	}
	ledger := reduced(t, cfg, w, filtered, mixed, surplus).Ledger
	books := ledger.Books
	if c := ledger.Counters; ledger.Untrainable["null_logprob"] != 1 || len(ledger.Untrainable) != 1 || c.Verify != nil || c.Reported != (Reported{Prompt: 1}) {
		t.Errorf("untrainable %v, counters over %+v", ledger.Untrainable, c.Reported)
	}
	want := Books{
		Generated: 9 + 9 + 15 + 9, Trained: 6, Masked: 5, Filtered: 9, Surplus: 9,
		Discarded: map[string]int64{"reward/timeout": 4, "fenced": 9}, Probe: 8, EngineUnclaimed: p(3),
	}
	got, _ := json.Marshal(books)
	expected, _ := json.Marshal(want)
	if string(got) != string(expected) {
		t.Errorf("books\n%s, want\n%s", got, expected)
	}
}

func TestBooksThatDoNotBalance(t *testing.T) {
	g := answers(t, 0, 1)
	g.Episodes[0].Generations[0].Meta.CompletionTokens = p(1) // of 4 that came
	r := reduced(t, Config{}, Window{}, g)
	if r.Ledger.Books.Unaccounted != -3 || r.Check() == nil {
		t.Errorf("books %+v, check %v", r.Ledger.Books, r.Check())
	}
}

func TestGroupMetrics(t *testing.T) {
	unscored := answers(t, 4, 1, 0)
	unscored.Episodes[1].Samples[0].Reward = nil
	nan := answers(t, 5, 1, 0)
	nan.Episodes[1].Samples[0].Reward = rollout.Ptr(math.NaN())
	groups := []rollout.Group{answers(t, 0, 0, 0), answers(t, 1, 1, 1), answers(t, 2, 1, 0), answers(t, 3, 0.25, 0.25), unscored, nan}
	groups[0].Prompt.Source, groups[2].Prompt.Source = "a", "b"
	r := reduced(t, Config{Estimator: GRPO, SamplesPerPrompt: 2}, Window{}, groups...)
	wantMetrics(t, r, map[string]any{
		"rollout/effective_groups": 1.0, "rollout/solve_none": 0.5, "rollout/solve_all": 0.25, "rollout/solve_partial": 0.25,
		"rollout/zero_std/count_0.0": 1.0, "rollout/zero_std/count_1.0": 3.0, "rollout/zero_std/count_0.2": 1.0,
		"rollout/zero_std/all_zero_percentage": 1.0 / 6, "rollout/zero_std/all_one_percentage": 0.5,
		"rollout/none_reward_ratio": 2.0 / 12, "rollout/raw_reward/mean": 5.5 / 10,
		"rollout/raw_reward/source/a": 0.0, "rollout/raw_reward/source/b": 0.5,
		"passrate/pass@1": 0.375, "passrate/pass@2": 0.5, "passrate/pass@4": nil,
		"rollout/response_len/right": (4.0 + 5 + 4 + 4 + 4) / 5, "rollout/response_len/wrong": (4.0 + 5 + 5 + 4 + 5) / 5,
	})
	wantMetrics(t, reduced(t, Config{Estimator: PPO}, Window{}, groups[0]), map[string]any{
		"rollout/zero_std/count_0.0": nil, "rollout/zero_std/all_zero_percentage": nil, "passrate/pass@1": nil,
	})
	wantMetrics(t, reduced(t, Config{SamplesPerPrompt: 3}, Window{}, groups[0]), map[string]any{"passrate/pass@1": "exactly 3"})
}

func TestPassAtIsTheShareOfDrawsThatHit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		c := rapid.IntRange(0, n).Draw(t, "c")
		k := rapid.IntRange(1, n).Draw(t, "k")
		draws, hits := 0, 0
		for set := range 1 << n {
			size, hit := 0, false
			for i := range n {
				if set>>i&1 == 1 {
					size++
					hit = hit || i < c
				}
			}
			if size == k {
				draws++
				if hit {
					hits++
				}
			}
		}
		if want := float64(hits) / float64(draws); math.Abs(passAt(n, c, k)-want) > 1e-12 {
			t.Errorf("passAt(%d, %d, %d) = %v, want %v", n, c, k, passAt(n, c, k), want)
		}
	})
}

func TestEndings(t *testing.T) {
	finish := func(index, n int, f rollout.FinishType) rollout.Episode {
		return episode(t, 0, index, rollout.Ptr(1.0), call(string(rune('a'+index)), 4, n, rollout.EngineMeta{Finish: rollout.Finish{Type: f}}))
	}
	cut := finish(5, 6, rollout.FinishStop)
	if err := cut.Samples[0].Cut(8); err != nil {
		t.Fatal(err)
	}
	g := rollout.Group{Want: 6, Episodes: []rollout.Episode{
		finish(0, 2, rollout.FinishStop), finish(1, 2, rollout.FinishLength), finish(2, 2, rollout.FinishToolCalls),
		finish(3, 2, rollout.FinishStop), finish(4, 9, rollout.FinishLength), cut,
	}}
	wantMetrics(t, reduced(t, Config{MaxContext: 13}, Window{}, g), map[string]any{
		"rollout/finish/stop": 2.0 / 6, "rollout/finish/length": 1.0 / 6, "rollout/finish/tool": 1.0 / 6,
		"rollout/finish/context": 2.0 / 6, "rollout/finish/abort": 0.0, "rollout/finish/other": 0.0,
		"rollout/truncated_ratio": 3.0 / 6,
	})
}

func TestStalenessAndVersions(t *testing.T) {
	version := func(index int, spans ...string) rollout.Episode {
		g := call(string(rune('a'+index)), 2, 4, rollout.EngineMeta{})
		for i, v := range spans {
			g.Meta.WeightVersions = append(g.Meta.WeightVersions, rollout.VersionSpan{Version: v, Start: int64(2 * i), End: int64(2*i) + 2})
		}
		return episode(t, 0, index, rollout.Ptr(1.0), g)
	}
	g := rollout.Group{Want: 4, Episodes: []rollout.Episode{version(0, "9", "9"), version(1, "7", "9"), version(2, "default"), version(3, "8", "8")}}
	w := Window{Queue: &Queue{Size: 3, Aborted: 1, Stale: 2, Seen: []int64{0, 3}}}
	wantMetrics(t, reduced(t, Config{WeightVersion: rollout.Ptr(uint64(9))}, w, g), map[string]any{
		"rollout/weight_version/mean": 8.0, "rollout/weight_version/min": 7.0, "rollout/weight_version/mixed_version_ratio": 0.25,
		"async/staleness/mean": 1.0, "async/oldest_age": 2.0, "async/staleness/samples": 3.0,
		"async/staleness/count_0": 1.0, "async/staleness/count_1": 1.0, "async/staleness/count_2": 1.0,
		"async/off_policy_token_share":      0.5,
		"rollout/fully_async/queue_size":    3.0,
		"rollout/fully_async/avg_staleness": 1.5, "rollout/fully_async/max_staleness": 3.0,
		"rollout/fully_async/buffer_max_staleness": "no group",
	})
	wantMetrics(t, reduced(t, Config{}, Window{}, g), map[string]any{"async/oldest_age": "no trainer", "rollout/fully_async/queue_size": nil})
}

// TestMixedVersionsNeedNoNumbers: that two versions differ can be seen of names.
func TestMixedVersionsNeedNoNumbers(t *testing.T) {
	const mixed = "rollout/weight_version/mixed_version_ratio"
	for _, tc := range []struct {
		name     string
		versions []string // of two tokens each
		want     any
	}{
		{"one name", []string{"default", "default"}, 0.0},
		{"two names", []string{"default", "patched"}, 1.0},
		{"a name and a number", []string{"default", "3"}, 1.0},
		{"none", nil, "no engine reported a weight version"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := call("a", 2, 4, rollout.EngineMeta{})
			for i, v := range tc.versions {
				g.Meta.WeightVersions = append(g.Meta.WeightVersions, rollout.VersionSpan{Version: v, Start: int64(2 * i), End: int64(2*i) + 2})
			}
			wantMetrics(t, reduced(t, Config{}, Window{}, rollout.Group{Want: 1, Episodes: []rollout.Episode{episode(t, 0, 0, rollout.Ptr(1.0), g)}}),
				map[string]any{mixed: tc.want})
		})
	}
}

// TestHugeCountsDoNotWrap: records may come from a client that checks nothing. A
// sum that does not fit is not small and not negative.
func TestHugeCountsDoNotWrap(t *testing.T) {
	huge := rollout.EngineMeta{
		CompletionTokens: rollout.Ptr(int64(1 << 62)), PromptTokens: rollout.Ptr(int64(1 << 62)), CachedTokens: rollout.Ptr(int64(1 << 62)),
		Spec:        rollout.SpecMeta{Verify: rollout.Ptr(int64(1 << 62)), Correct: rollout.Ptr(int64(1 << 62)), Proposed: rollout.Ptr(int64(1 << 62))},
		Implausible: []string{"queue_time"},
	}
	g := rollout.Group{Want: 3}
	for i := range g.Want {
		g.Episodes = append(g.Episodes, episode(t, 0, i, rollout.Ptr(1.0), call(string(rune('a'+i)), 2, 4, huge)))
	}
	engine := int64(5)
	r := reduced(t, Config{}, Window{EngineTokens: &engine}, g)
	l := r.Ledger
	for name, n := range map[string]*int64{
		"generated": &l.Books.Generated, "completion": l.Counters.Completion, "prompt": l.Counters.Prompt, "cached": l.Counters.Cached,
		"verify": l.Counters.Verify, "correct": l.Counters.Correct, "proposed": l.Counters.Proposed,
	} {
		if *n != math.MaxInt64 {
			t.Errorf("%s is %d", name, *n)
		}
	}
	if *l.Books.EngineUnclaimed != 5-math.MaxInt64 || l.Books.Unaccounted != 0 || l.Implausible["queue_time"] != 3 {
		t.Errorf("books %+v, implausible %v", l.Books, l.Implausible)
	}
	wantMetrics(t, r, map[string]any{"rollout/spec_accept_rate": 1.0, "rollout/prefix_cache_hit_rate": 1.0})
}

func TestAgentsAndMetadata(t *testing.T) {
	g := answers(t, 0, 1, 0, 1)
	texts := []string{
		`{"tito_session_mismatch":[{"type":"assistant_text"},{"type":"assistant_text"}],"exit_status":"resolved","topic":"alg\"ebra"}`,
		`{"exit_status":"agent_timeout","tito_session_mismatch": [ ],"topic":"x","topic":3}`, `[]`,
	}
	for i, text := range texts {
		g.Episodes[i].Samples[0].Metadata = json.RawMessage(text)
	}
	g.Episodes[0].Samples[0].NonGenerationTime = 3
	r := reduced(t, Config{Sessions: true, Category: "topic"}, window(10), g)
	wantMetrics(t, r, map[string]any{
		"rollout/tito_session_mismatch_rate": 0.5, "rollout/tito_session_mismatch_rate/assistant_text": 0.5,
		"rollout/tito_session_mismatch_rate/special_token_type": 0.0,
		"agent/exit_status/resolved":                            1.0, "agent/exit_status/agent_timeout": 1.0,
		"agent/turns/mean": 1.0, "agent/leaves/max": 1.0, "agent/tool_time/max": 3.0,
		`rollout/error_cat/alg"ebra`: 1.0 / 3, "rollout/error_cat/x": 1.0 / 3,
	})
	wantMetrics(t, reduced(t, Config{}, Window{}, answers(t, 0, 1)), map[string]any{
		"rollout/tito_session_mismatch_rate": nil, "agent/turns/mean": nil,
	})
}

func TestPerformance(t *testing.T) {
	g := answers(t, 0, 1, 0) // 4 and 5 tokens
	g.Episodes[0].Timing.Total, g.Episodes[1].Timing.Total = 1, 3
	g.Episodes[1].Generations[0].Meta.QueueTime = rollout.Ptr(0.5)
	g.Episodes[1].Samples[0].NonGenerationTime = 4
	w := window(10)
	w.Slots, w.TrainSeconds, w.TrainWaitSeconds = 2, rollout.Ptr(3.0), rollout.Ptr(1.0)
	wantMetrics(t, reduced(t, Config{GPUs: 3}, w, g), map[string]any{
		"perf/rollout_time": 10.0, "perf/generated_tokens_per_sec": 0.9, "perf/tokens_per_gpu_per_sec": 0.3,
		"perf/longest_sample_tokens_per_sec": 0.5, "perf/longest_sample_non_generation_time": 4.0,
		"perf/longest_sample_tokens_per_sec_without_non_generation": 5.0 / 6,
		"perf/tail_ratio": 1.5, "perf/slot_idle": 0.8, "perf/wait_time_ratio": 0.25, "perf/queue_p99": 0.5,
		"perf/request/queue_time/mean": 0.5, "perf/request/e2e_latency/mean": "no engine",
	})
	short := window(4)
	wantMetrics(t, reduced(t, Config{}, short, g), map[string]any{
		"perf/longest_sample_tokens_per_sec_without_non_generation": "whole step", "perf/slot_idle": "slots",
		"perf/tokens_per_gpu_per_sec": "GPUs", "perf/wait_time_ratio": "trainer",
	})
}

func TestFilterDrops(t *testing.T) {
	r := reduced(t, Config{Filter: FilterNonzeroStd}, Window{}, answers(t, 0, 1, 1), answers(t, 1, 1, 1), answers(t, 2, 0, 1))
	wantMetrics(t, r, map[string]any{"rollout/dynamic_filter/drop_zero_std_1.0": 2.0, "waste/filtered_ratio": 2.0 / 3, "waste/discarded_ratio": 0.0})
}

func TestEvaluate(t *testing.T) {
	g := answers(t, 0, 1, 0)
	unscored := answers(t, 1, 1, 0)
	unscored.Episodes[0].Samples[0].Reward = nil
	cfg := Config{Step: 7, SamplesPerPrompt: 2}
	r, err := Evaluate(cfg, "arith", Dispose(cfg, []rollout.Group{g, unscored}), window(2))
	if err != nil {
		t.Fatal(err)
	}
	wantMetrics(t, r, map[string]any{
		"eval/arith": 1.0 / 3, "eval/arith-none_reward_ratio": 0.25, "eval/arith-truncated_ratio": 0.0,
		"eval/arith-pass@1": 0.5, "eval/arith-pass@2": 1.0, "eval/arith/response_len/mean": 4.5,
		"eval/step": 7.0, "eval/duration_seconds": 2.0, "rollout/response_len/mean": nil,
	})
	r, err = Evaluate(cfg, "none", nil, Window{})
	if err != nil {
		t.Fatal(err)
	}
	wantMetrics(t, r, map[string]any{"eval/none": noSamples, "eval/none-truncated_ratio": noSamples})
}

func TestNoMetricIsEverNaN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, groups := drawConfig(t), drawGroups(t)
		for i := range groups {
			for j := range groups[i].Episodes {
				for _, s := range groups[i].Episodes[j].Samples {
					s.Reward = rapid.SampledFrom([]*float64{nil, rollout.Ptr(math.NaN()), rollout.Ptr(math.Inf(1)), rollout.Ptr(1.0)}).Draw(t, "reward")
				}
			}
		}
		cfg.Normalize = false
		r, err := Reduce(cfg, Dispose(cfg, groups), window(rapid.SampledFrom([]float64{0, 1}).Draw(t, "seconds")))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r.Report); err != nil {
			t.Error(err)
		}
	})
}
