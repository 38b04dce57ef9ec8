package rollout_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// gen is a generation that reports everything.
func gen(prompt, output []int32, finish rollout.FinishType) rollout.Generation {
	g := rollout.Generation{PromptIDs: prompt, OutputIDs: output, LogProbs: make([]float32, len(output))}
	for i := range g.LogProbs {
		g.LogProbs[i] = -float32(output[i])
	}
	g.ID = "g"
	g.Meta = rollout.EngineMeta{
		Finish: rollout.Finish{Type: finish}, PromptTokens: rollout.Ptr(int64(len(prompt))), CachedTokens: rollout.Ptr(int64(1)),
		CompletionTokens: rollout.Ptr(int64(len(output))), WeightVersion: rollout.Ptr("7"),
		Spec: rollout.SpecMeta{Verify: rollout.Ptr(int64(2)), Correct: rollout.Ptr(int64(3)), Proposed: rollout.Ptr(int64(6))},
	}
	return g
}

func TestAppendTwoTurns(t *testing.T) {
	var s rollout.Sample
	if err := s.Append(gen([]int32{1, 2}, []int32{3, 4}, rollout.FinishStop)); err != nil {
		t.Fatal(err)
	}
	second := gen([]int32{1, 2, 3, 4, 5, 6, 7}, []int32{8}, rollout.FinishLength)
	second.Meta.WeightVersion = rollout.Ptr("8")
	if err := s.Append(second); err != nil {
		t.Fatal(err)
	}
	want := rollout.SampleState{
		PromptLen: 2, Tokens: []int32{1, 2, 3, 4, 5, 6, 7, 8}, LossMask: []byte{1, 1, 0, 0, 0, 1},
		LogProbs: []float32{-3, -4, 0, 0, 0, -8},
		Versions: []rollout.VersionSpan{{Version: "7", Start: 0, End: 2}, {Version: "8", Start: 5, End: 6}},
		Status:   rollout.StatusTruncated,
		Spec:     rollout.SpecInfo{Verify: rollout.Ptr(int64(4)), Correct: rollout.Ptr(int64(6)), Proposed: rollout.Ptr(int64(12)), Completion: rollout.Ptr(int64(3))},
		Prefix:   rollout.PrefixInfo{Cached: rollout.Ptr(int64(2)), Prompt: rollout.Ptr(int64(9))}, Generations: []string{"g", "g"},
	}
	if got := s.State(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if got := s.EffectiveLen(); got != 3 {
		t.Errorf("effective length %d, want 3", got)
	}
}

func TestAppendRefusesAndChangesNothing(t *testing.T) {
	cases := []struct {
		name string
		gen  func() rollout.Generation
		want error
	}{
		{"fewer log-probs than tokens", func() rollout.Generation {
			g := gen([]int32{1, 2, 3}, []int32{4, 5}, rollout.FinishStop)
			g.LogProbs = g.LogProbs[:1]
			return g
		}, rollout.ErrMisaligned},
		{"an infinite log-prob", func() rollout.Generation {
			g := gen([]int32{1, 2, 3}, []int32{4, 5}, rollout.FinishStop)
			g.LogProbs[1] = float32(math.Inf(-1))
			return g
		}, rollout.ErrLogProb},
		{"a prompt that goes elsewhere", func() rollout.Generation { return gen([]int32{1, 9, 3}, []int32{4}, rollout.FinishStop) }, rollout.ErrPrefix},
		{"a prompt that is too short", func() rollout.Generation { return gen([]int32{1, 2}, []int32{4}, rollout.FinishStop) }, rollout.ErrPrefix},
		{"a finish reason nobody knows", func() rollout.Generation { return gen([]int32{1, 2, 3}, []int32{4}, "melted") }, rollout.ErrFinish},
		{"version spans that overlap", spans(0, 2, 1, 3), rollout.ErrRange},
		{"version spans out of order", spans(1, 2, 0, 1), rollout.ErrRange},
		{"a version span beyond the output", spans(0, 99), rollout.ErrRange},
		{"a version span before the output", spans(-4, 1), rollout.ErrRange},
		{"a version span that ends before it begins", spans(2, 1), rollout.ErrRange},
		{"a version span without a token", spans(1, 1), rollout.ErrRange},
		{"no finish reason", func() rollout.Generation { return gen([]int32{1, 2, 3}, []int32{4}, "") }, rollout.ErrFinish},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var s rollout.Sample
			if err := s.Append(gen([]int32{1, 2}, []int32{3}, rollout.FinishStop)); err != nil {
				t.Fatal(err)
			}
			before := clone(s.State())
			if err := s.Append(tc.gen()); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if got := s.State(); !reflect.DeepEqual(got, before) {
				t.Errorf("the sample changed to\n%+v\nfrom\n%+v", got, before)
			}
		})
	}
	t.Run("no prompt at all", func(t *testing.T) {
		var s rollout.Sample
		if err := s.Append(gen(nil, []int32{1}, rollout.FinishStop)); !errors.Is(err, rollout.ErrEmptyPrompt) {
			t.Errorf("got %v", err)
		}
	})
}

// spans makes a generation of three tokens with version spans from each first to
// each second bound.
func spans(bounds ...int64) func() rollout.Generation {
	return func() rollout.Generation {
		g := gen([]int32{1, 2, 3}, []int32{4, 5, 6}, rollout.FinishStop)
		for i := 0; i < len(bounds); i += 2 {
			g.Meta.WeightVersions = append(g.Meta.WeightVersions, rollout.VersionSpan{Version: "1", Start: bounds[i], End: bounds[i+1]})
		}
		return g
	}
}

func clone(st rollout.SampleState) rollout.SampleState {
	st.Tokens, st.LossMask, st.LogProbs = slices.Clone(st.Tokens), slices.Clone(st.LossMask), slices.Clone(st.LogProbs)
	st.Versions, st.Generations = slices.Clone(st.Versions), slices.Clone(st.Generations)
	return st
}

func TestAbsentCountersStayAbsent(t *testing.T) {
	var s rollout.Sample
	silent := gen([]int32{1}, []int32{2}, rollout.FinishStop)
	silent.Meta.Spec, silent.Meta.CachedTokens, silent.Meta.PromptTokens, silent.Meta.WeightVersion = rollout.SpecMeta{}, nil, nil, nil
	if err := s.Append(silent); err != nil {
		t.Fatal(err)
	}
	if s.Spec().Verify != nil || s.Prefix().Cached != nil || len(s.Versions()) != 0 {
		t.Errorf("made up: %+v %+v %+v", s.Spec(), s.Prefix(), s.Versions())
	}
	if err := s.Append(gen([]int32{1, 2}, []int32{3}, rollout.FinishStop)); err != nil {
		t.Fatal(err)
	}
	if v := s.Spec().Verify; v == nil || *v != 2 {
		t.Errorf("verify after one report of two: %v, want 2", v)
	}
}

func TestUntrainableTokensAreMasked(t *testing.T) {
	var s rollout.Sample
	g := gen([]int32{1}, []int32{2, 3}, rollout.FinishStop)
	g.Untrainable = "null_logprob"
	if err := s.Append(g); err != nil {
		t.Fatal(err)
	}
	if s.EffectiveLen() != 0 || s.Untrainable() != "null_logprob" || s.ResponseLen() != 2 {
		t.Errorf("effective %d of %d, reason %q", s.EffectiveLen(), s.ResponseLen(), s.Untrainable())
	}
	if *s.Spec().Completion != 2 {
		t.Error("its counters must count all the same")
	}
}

func TestVersionSpansWinOverTheLastVersion(t *testing.T) {
	var s rollout.Sample
	g := gen([]int32{1}, []int32{2, 3, 4}, rollout.FinishStop)
	g.Meta.WeightVersions = []rollout.VersionSpan{{Version: "6", Start: 0, End: 2}, {Version: "7", Start: 2, End: 3}}
	if err := s.Append(g); err != nil {
		t.Fatal(err)
	}
	want := []rollout.VersionSpan{{Version: "6", Start: 0, End: 2}, {Version: "7", Start: 2, End: 3}}
	if !reflect.DeepEqual(s.Versions(), want) {
		t.Errorf("got %+v, want %+v", s.Versions(), want)
	}
}

func TestCutTrimMask(t *testing.T) {
	two := func(t *testing.T) *rollout.Sample {
		t.Helper()
		var s rollout.Sample
		for _, g := range []rollout.Generation{
			gen([]int32{1, 2}, []int32{3, 4}, rollout.FinishStop), gen([]int32{1, 2, 3, 4, 5}, []int32{6, 7}, rollout.FinishStop),
		} {
			if err := s.Append(g); err != nil {
				t.Fatal(err)
			}
		}
		return &s
	}
	cases := []struct {
		name   string
		do     func(*rollout.Sample) error
		err    error
		tokens []int32
		mask   []byte
		status rollout.Status
	}{
		{"cut inside the second answer", func(s *rollout.Sample) error { return s.Cut(6) }, nil, []int32{1, 2, 3, 4, 5, 6}, []byte{1, 1, 0, 1}, rollout.StatusTruncated},
		{"cut above the length", func(s *rollout.Sample) error { return s.Cut(7) }, nil, []int32{1, 2, 3, 4, 5, 6, 7}, []byte{1, 1, 0, 1, 1}, rollout.StatusCompleted},
		{"cut into the prompt", func(s *rollout.Sample) error { return s.Cut(2) }, rollout.ErrRange, []int32{1, 2, 3, 4, 5, 6, 7}, []byte{1, 1, 0, 1, 1}, rollout.StatusCompleted},
		{"trim one", func(s *rollout.Sample) error { return s.Trim(1) }, nil, []int32{1, 2, 3, 4, 5, 6}, []byte{1, 1, 0, 1}, rollout.StatusCompleted},
		{"trim too much", func(s *rollout.Sample) error { return s.Trim(6) }, rollout.ErrRange, []int32{1, 2, 3, 4, 5, 6, 7}, []byte{1, 1, 0, 1, 1}, rollout.StatusCompleted},
		{"mask", func(s *rollout.Sample) error { return s.Mask(0, 2) }, nil, []int32{1, 2, 3, 4, 5, 6, 7}, []byte{0, 0, 0, 1, 1}, rollout.StatusCompleted},
		{"mask backwards", func(s *rollout.Sample) error { return s.Mask(2, 1) }, rollout.ErrRange, []int32{1, 2, 3, 4, 5, 6, 7}, []byte{1, 1, 0, 1, 1}, rollout.StatusCompleted},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			s := two(t)
			if err := tc.do(s); !errors.Is(err, tc.err) {
				t.Fatalf("got %v, want %v", err, tc.err)
			}
			if !slices.Equal(s.Tokens(), tc.tokens) || !slices.Equal(s.LossMask(), tc.mask) || s.Status() != tc.status {
				t.Errorf("got %v %v %s, want %v %v %s", s.Tokens(), s.LossMask(), s.Status(), tc.tokens, tc.mask, tc.status)
			}
			if len(s.LogProbs()) != s.ResponseLen() {
				t.Errorf("%d log-probs of %d", len(s.LogProbs()), s.ResponseLen())
			}
		})
	}
}

// TestAlignment: whatever is done to a sample, in any order, its slices fit each
// other and its state can be restored.
func TestAlignment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s rollout.Sample
		ids := rapid.SliceOfN(rapid.Int32Range(0, 99), 0, 6)
		for range rapid.IntRange(1, 12).Draw(t, "operations") {
			switch rapid.IntRange(0, 4).Draw(t, "operation") {
			case 0, 1:
				prompt := append(slices.Clone(s.Tokens()), ids.Draw(t, "gap")...)
				if rapid.IntRange(0, 9).Draw(t, "elsewhere") == 0 && len(prompt) > 0 {
					prompt[0]++
				}
				g := gen(prompt, ids.Draw(t, "output"), rapid.SampledFrom([]rollout.FinishType{"stop", "length", "abort", "tool_calls", "?"}).Draw(t, "finish"))
				for range rapid.IntRange(0, 3).Draw(t, "spans") {
					g.Meta.WeightVersions = append(g.Meta.WeightVersions, rollout.VersionSpan{
						Version: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"),
						Start:   int64(rapid.IntRange(-1, 6).Draw(t, "start")), End: int64(rapid.IntRange(-1, 7).Draw(t, "end")),
					})
				}
				_ = s.Append(g)
			case 2:
				_ = s.Cut(rapid.IntRange(-1, 40).Draw(t, "total"))
			case 3:
				_ = s.Trim(rapid.IntRange(-1, 8).Draw(t, "n"))
			case 4:
				_ = s.Mask(rapid.IntRange(-1, 8).Draw(t, "from"), rapid.IntRange(-1, 9).Draw(t, "to"))
			}
			n := len(s.Tokens()) - s.PromptLen()
			if len(s.LossMask()) != n || len(s.LogProbs()) != n || s.ResponseLen() != n {
				t.Fatalf("%d response tokens, %d mask entries, %d log-probs", n, len(s.LossMask()), len(s.LogProbs()))
			}
			if _, err := rollout.RestoreSample(s.State()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRestoreRefuses(t *testing.T) {
	good := rollout.SampleState{PromptLen: 1, Tokens: []int32{1, 2, 3}, LossMask: []byte{1, 1}, LogProbs: []float32{0, 0}}
	cases := []struct {
		name   string
		change func(*rollout.SampleState)
		want   error
	}{
		{"mask of another length", func(st *rollout.SampleState) { st.LossMask = []byte{1} }, rollout.ErrMisaligned},
		{"log-probs of another length", func(st *rollout.SampleState) { st.LogProbs = nil }, rollout.ErrMisaligned},
		{"prompt longer than the tokens", func(st *rollout.SampleState) { st.PromptLen = 4 }, rollout.ErrRange},
		{"negative prompt", func(st *rollout.SampleState) { st.PromptLen = -1 }, rollout.ErrRange},
		{"mask value", func(st *rollout.SampleState) { st.LossMask = []byte{2, 1} }, rollout.ErrRange},
		{"span outside", func(st *rollout.SampleState) { st.Versions = []rollout.VersionSpan{{Start: 0, End: 3}} }, rollout.ErrRange},
		{"spans that overlap", func(st *rollout.SampleState) { st.Versions = []rollout.VersionSpan{{End: 2}, {Start: 1, End: 2}} }, rollout.ErrRange},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			st := clone(good)
			tc.change(&st)
			if _, err := rollout.RestoreSample(st); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestSamplingSeed(t *testing.T) {
	seen := map[int64]bool{}
	for group := range int64(50) {
		for episode := range 50 {
			for turn := range 4 {
				s := rollout.SamplingSeed(42, group, episode, turn)
				if s < 0 || s >= 1<<62 || seen[s] {
					t.Fatalf("seed %d of %d/%d/%d is out of range or not new", s, group, episode, turn)
				}
				seen[s] = true
			}
		}
	}
	const pinned = 919337336160335856 // of 1, 2, 3, 4: a stored run must draw the same after an upgrade
	if got := rollout.SamplingSeed(1, 2, 3, 4); got != pinned {
		t.Errorf("the seed changed to %d", got)
	}
	if rollout.SamplingSeed(1, 2, 3, 4) == rollout.SamplingSeed(2, 2, 3, 4) {
		t.Error("a seed must depend on the run's seed and on nothing unseen")
	}
}

func TestAddStopsAtTheEnds(t *testing.T) {
	for _, tc := range []struct{ a, b, want int64 }{
		{1, 2, 3}, {-1, -2, -3}, {math.MaxInt64, 1, math.MaxInt64}, {1 << 62, 1 << 62, math.MaxInt64},
		{math.MinInt64, -1, math.MinInt64}, {math.MaxInt64, math.MinInt64, -1}, {math.MaxInt64, 0, math.MaxInt64},
	} {
		if got := rollout.Add(tc.a, tc.b); got != tc.want {
			t.Errorf("%d + %d = %d, want %d", tc.a, tc.b, got, tc.want)
		}
		if got := rollout.Add(tc.b, tc.a); got != tc.want {
			t.Errorf("%d + %d = %d, want %d", tc.b, tc.a, got, tc.want)
		}
	}
}
