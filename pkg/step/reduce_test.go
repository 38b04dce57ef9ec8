package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/internal/safetensors"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"pgregory.net/rapid"
)

// files renders everything that must not depend on the order of arrival.
func files(t interface{ Fatal(...any) }, cfg Config, groups []rollout.Group, w Window) (samples, batch, report []byte) {
	r, err := Reduce(cfg, Dispose(cfg, groups), w)
	if err != nil {
		t.Fatal(err)
	}
	var s, b bytes.Buffer
	if err := WriteSamples(&s, r.Samples); err != nil {
		t.Fatal(err)
	}
	if err := NewBatch(cfg, r, Whole(r)).WriteRank(&b, 0); err != nil {
		t.Fatal(err)
	}
	r.Report.Timing = Timing{}
	maps.DeleteFunc(r.Report.Metrics, func(key string, _ float64) bool { return strings.HasPrefix(key, "perf/") })
	text, err := json.Marshal(r.Report)
	if err != nil {
		t.Fatal(err)
	}
	return s.Bytes(), b.Bytes(), text
}

func TestAnyOrderGivesTheSameFiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, groups := drawConfig(t), drawGroups(t)
		samples, batch, report := files(t, cfg, groups, window(2))
		shuffled := rapid.Permutation(groups).Draw(t, "order")
		for i := range shuffled {
			shuffled[i].Episodes = rapid.Permutation(shuffled[i].Episodes).Draw(t, "episodes")
		}
		samples2, batch2, report2 := files(t, cfg, shuffled, window(3))
		if !bytes.Equal(samples, samples2) || !bytes.Equal(batch, batch2) || !bytes.Equal(report, report2) {
			t.Errorf("another order gave other files:\n%s\n%s\n%s\n%s", samples, samples2, report, report2)
		}
	})
}

func TestDispositionsAndBooksSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, groups := drawConfig(t), drawGroups(t)
		before, err := json.Marshal(groups)
		if err != nil {
			t.Fatal(err)
		}
		disposed := Dispose(cfg, groups)
		episodes, generated := 0, int64(0)
		for _, g := range disposed {
			if len(g.Dispositions) != len(g.Episodes) {
				t.Fatalf("group %d: %d dispositions for %d episodes", g.Index, len(g.Dispositions), len(g.Episodes))
			}
			episodes += len(g.Episodes)
			for i, d := range g.Dispositions {
				if d.Verdict == "" {
					t.Errorf("episode %v has no verdict", g.Episodes[i].ID)
				}
				generated += g.Episodes[i].CompletionTokens()
			}
		}
		r, err := Reduce(cfg, disposed, window(1))
		if err != nil {
			t.Fatal(err)
		}
		sum := func(counts map[string]int) int {
			n := 0
			for _, c := range counts {
				n += c
			}
			return n
		}
		l := r.Report.Ledger
		if sum(l.Dispositions) != episodes || sum(l.Outcomes) != episodes || l.Episodes != episodes {
			t.Errorf("%d episodes, ledger %+v", episodes, l)
		}
		if l.Books.Generated != generated || l.Books.Unaccounted != 0 {
			t.Errorf("generated %d, books %+v", generated, l.Books)
		}
		if err := r.Report.Check(); err != nil {
			t.Error(err)
		}
		for key := range r.Report.Metrics {
			if _, both := r.Report.Unavailable[key]; both {
				t.Errorf("%s is both known and unavailable", key)
			}
		}
		if after, _ := json.Marshal(groups); !bytes.Equal(before, after) {
			t.Error("the input was changed")
		}
	})
}

func TestEmptyStep(t *testing.T) {
	samples, batch, report := files(t, Config{Run: "r"}, nil, Window{})
	if len(samples) != 0 {
		t.Errorf("samples.jsonl of an empty step: %q", samples)
	}
	f, err := safetensors.Parse(batch)
	if err != nil {
		t.Fatal(err)
	}
	if offsets, err := safetensors.Values[int64](f, "tokens_offsets"); err != nil || len(offsets) != 1 {
		t.Errorf("tokens_offsets %v, %v", offsets, err)
	}
	var r Report
	if err := json.Unmarshal(report, &r); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"rollout/raw_reward/mean", "rollout/truncated_ratio", "perf/rollout_time", "rollout/spec_accept_rate"} {
		if _, there := r.Metrics[key]; there || r.Unavailable[key] == "" {
			t.Errorf("%s: metrics %v, unavailable %q", key, r.Metrics[key], r.Unavailable[key])
		}
	}
}

func TestReduceRefuses(t *testing.T) {
	cfg := Config{Estimator: GRPO, Normalize: true}
	tests := []struct {
		name   string
		want   error
		groups func() []rollout.Group
	}{
		{"no dispositions", ErrDispositions, func() []rollout.Group { return []rollout.Group{answers(t, 0, 1)} }},
		{"a group twice", ErrIdentity, func() []rollout.Group {
			return Dispose(cfg, []rollout.Group{answers(t, 0, 1), answers(t, 0, 1)})
		}},
		{"an episode twice", ErrIdentity, func() []rollout.Group {
			g := answers(t, 0, 1)
			g.Episodes = append(g.Episodes, g.Episodes[0])
			return Dispose(cfg, []rollout.Group{g})
		}},
		{"a rollout id twice", ErrIdentity, func() []rollout.Group {
			g := answers(t, 0, 1, 0)
			g.Episodes[1].RolloutID = 0
			g.Episodes[1].Samples[0].RolloutID = 0
			return Dispose(cfg, []rollout.Group{g})
		}},
		{"a sample of another group", ErrIdentity, func() []rollout.Group {
			g := answers(t, 0, 1)
			g.Episodes[0].Samples[0].GroupIndex = 7
			return Dispose(cfg, []rollout.Group{g})
		}},
		{"siblings with two rewards", ErrSiblings, func() []rollout.Group {
			g, other := answers(t, 0, 1), answers(t, 0, 0)
			other.Episodes[0].Samples[0].Index = 1
			g.Episodes[0].Samples = append(g.Episodes[0].Samples, other.Episodes[0].Samples[0])
			return Dispose(cfg, []rollout.Group{g})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Reduce(cfg, tt.groups(), Window{}); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestDispose(t *testing.T) {
	failed := func(g rollout.Group) rollout.Group {
		g.Episodes[0].Outcome, g.Episodes[0].Samples = rollout.OutcomeFailed, nil
		g.Episodes[0].Failure = rollout.NewFailure(rollout.BoundaryEngine, "timeout", true, nil)
		return g
	}
	aborted := func(g rollout.Group) rollout.Group {
		g.Episodes[0].Outcome = rollout.OutcomeAborted
		return g
	}
	empty := func(g rollout.Group) rollout.Group {
		g.Episodes[0].Samples = nil
		return g
	}
	tests := []struct {
		name   string
		cfg    Config
		groups []rollout.Group
		want   []string
	}{
		{"all accepted", Config{}, []rollout.Group{answers(t, 1, 0, 1)}, []string{"accepted", "accepted"}},
		{"a failure costs the group when all are needed", Config{}, []rollout.Group{failed(answers(t, 1, 0, 1))},
			[]string{"discarded(engine/timeout)", "discarded(group_incomplete)"}},
		{"a failure costs the episode when fewer are needed", Config{MinValid: 1}, []rollout.Group{failed(answers(t, 1, 0, 1))},
			[]string{"discarded(engine/timeout)", "accepted"}},
		{"aborted", Config{MinValid: 1}, []rollout.Group{aborted(answers(t, 1, 0, 1))}, []string{"discarded(aborted)", "accepted"}},
		{"aborted in a partial run", Config{MinValid: 1, Partial: true}, []rollout.Group{aborted(answers(t, 1, 0, 1))}, []string{"recycled", "accepted"}},
		{"filter no_aborted", Config{MinValid: 1, Filter: FilterNoAborted}, []rollout.Group{aborted(answers(t, 1, 0, 1))},
			[]string{"discarded(aborted)", "filtered(group_has_aborted)"}},
		{"no samples", Config{MinValid: 1}, []rollout.Group{empty(answers(t, 1, 0, 1))}, []string{"discarded(no_samples)", "accepted"}},
		{"filter nonzero_std", Config{Filter: FilterNonzeroStd}, []rollout.Group{answers(t, 1, 1, 1), answers(t, 2, 0, 1)},
			[]string{"filtered(zero_std_1.0)", "filtered(zero_std_1.0)", "accepted", "accepted"}},
		{"one answer has no spread", Config{Filter: FilterNonzeroStd}, []rollout.Group{answers(t, 1, 0.25)}, []string{"filtered(zero_std_0.2)"}},
		{"surplus by index", Config{BatchSize: 1}, []rollout.Group{answers(t, 2, 1), answers(t, 1, 1)}, []string{"accepted", "surplus"}},
		{"a dropped group takes no place", Config{BatchSize: 1}, []rollout.Group{failed(answers(t, 1, 1)), answers(t, 2, 1)},
			[]string{"discarded(engine/timeout)", "accepted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, g := range Dispose(tt.cfg, tt.groups) {
				for _, d := range g.Dispositions {
					got = append(got, d.String())
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestRewardNormalisation(t *testing.T) {
	// Two samples of one episode have one vote: (1, 1 | 0) has mean 0.5, not 2/3.
	fanOut := func() rollout.Group {
		g, leaf := answers(t, 0, 1, 0), answers(t, 0, 1)
		leaf.Episodes[0].Samples[0].Index = 50
		g.Episodes[0].Samples = append(g.Episodes[0].Samples, leaf.Episodes[0].Samples[0])
		return g
	}
	unscored := func() rollout.Group {
		g := answers(t, 0, 1, 0, 9)
		g.Episodes[2].Samples[0].Reward = nil
		return g
	}
	half := math.Sqrt(0.5) + 1e-6 // sample standard deviation of (0, 1)
	tests := []struct {
		name   string
		cfg    Config
		groups []rollout.Group
		want   []float64
	}{
		{"grpo", Config{Estimator: GRPO, Normalize: true, StdNormalize: true}, []rollout.Group{answers(t, 0, 1, 0)}, []float64{0.5 / half, -0.5 / half}},
		{"grpo without std", Config{Estimator: GRPO, Normalize: true}, []rollout.Group{answers(t, 0, 1, 0)}, []float64{0.5, -0.5}},
		{"off", Config{Estimator: GRPO, StdNormalize: true}, []rollout.Group{answers(t, 0, 1, 0)}, []float64{1, 0}},
		{"baseline never divides", Config{Estimator: ReinforceBaseline, Normalize: true, StdNormalize: true}, []rollout.Group{answers(t, 0, 1, 0)}, []float64{0.5, -0.5}},
		{"ppo keeps raw rewards", Config{Estimator: PPO, Normalize: true, StdNormalize: true}, []rollout.Group{answers(t, 0, 1, 0)}, []float64{1, 0}},
		{"uneven groups", Config{Estimator: GRPO, Normalize: true}, []rollout.Group{answers(t, 0, 1, 0, 2), answers(t, 1, 4, 8)}, []float64{0, -1, 1, -2, 2}},
		{"a single answer", Config{Estimator: GSPO, Normalize: true, StdNormalize: true}, []rollout.Group{answers(t, 0, 7)}, []float64{0}},
		{"equal rewards are not divided", Config{Estimator: GRPO, Normalize: true, StdNormalize: true}, []rollout.Group{answers(t, 0, 7, 7)}, []float64{0, 0}},
		{"siblings share a vote", Config{Estimator: GRPO, Normalize: true}, []rollout.Group{fanOut()}, []float64{0.5, 0.5, -0.5}},
		{"an unscored one has none", Config{Estimator: GRPO, Normalize: true}, []rollout.Group{unscored()}, []float64{0.5, -0.5, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Reduce(tt.cfg, Dispose(tt.cfg, tt.groups), Window{})
			if err != nil {
				t.Fatal(err)
			}
			near := func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }
			if !slices.EqualFunc(r.Rewards, tt.want, near) {
				t.Errorf("rewards %v, want %v", r.Rewards, tt.want)
			}
		})
	}
}
