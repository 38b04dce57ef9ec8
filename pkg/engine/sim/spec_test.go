package sim

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// newScheduler makes a scheduler on the tiny model without starting it, so that a
// test can take the steps itself. Zero draft steps mean plain decoding.
func newScheduler(t testing.TB, steps int) *scheduler {
	t.Helper()
	model, err := loadWeights("../../../configs/models/tiny", steps > 0)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := newCounters(prometheus.NewRegistry(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return &scheduler{
		limits: limits{running: 256}, model: model, version: "1", clock: WallClock{}, counts: counts,
		sampler: newSampler(model.target.shape.Vocab, steps), ctx: context.Background(),
		live: map[string]*request{}, cache: newPrefixCache(1 << 20),
	}
}

// promptTokens is the quickstart's prompt.
func promptTokens(a, b int) []int32 {
	ids := []int32{257}
	for _, c := range []byte(fmt.Sprintf("user\n%d+%d=", a, b)) {
		ids = append(ids, int32(c))
	}
	ids = append(ids, 258, '\n', 257)
	for _, c := range []byte("assistant\n") {
		ids = append(ids, int32(c))
	}
	return ids
}

var ends = []int32{258, 256}

// newRequest makes a request with a seed of its own.
func newRequest(prompt []int32, params samplingParams, seed int64) *request {
	r := &request{
		rid: fmt.Sprintf("%032d", seed), sampling: params, seed: requestSeed(&seed, 0, ""),
		ids: append(make([]int32, 0, len(prompt)+params.MaxNewTokens+maxSteps+1), prompt...), prompt: len(prompt),
		updates: make(chan progress, 1),
	}
	r.inputStart = -1
	r.prepare(ends)
	return r
}

// sampleAll runs requests through the scheduler and returns their last snapshots.
func sampleAll(t testing.TB, s *scheduler, n int, draw func(i int) *request) []progress {
	t.Helper()
	results := make([]progress, n)
	for at := 0; at < n; {
		var batch []*request
		for ; at < n && len(batch) < s.limits.running; at++ {
			r := draw(at)
			if err := s.submit(r); err != nil {
				t.Fatal(err)
			}
			batch = append(batch, r)
		}
		for len(s.live) > 0 {
			s.step()
		}
		for i, r := range batch {
			results[at-len(batch)+i] = <-r.updates
		}
	}
	return results
}

// cells are whole outputs with their exact probability.
type cells map[string]float64

// enumerate finds every output that is at least as probable as floor: all its
// beginnings are as well, so a search that stops below floor misses none.
func enumerate(p *Policy, prompt []int32, params samplingParams, floor float64) cells {
	found := cells{}
	logits := make([]float32, p.shape.Vocab)
	var walk func(output []int32, probability float64)
	walk = func(output []int32, probability float64) {
		if n := len(output); n > 0 && (output[n-1] == ends[0] || output[n-1] == ends[1] || n == params.MaxNewTokens) {
			found[fmt.Sprint(output)] = probability
			return
		}
		p.Logits(logits, append(append([]int32{}, prompt...), output...))
		d := newDist(len(logits))
		d.set(logits, params.warp())
		for v := range d.weight {
			if next := probability * d.prob(int32(v)); next >= floor {
				walk(append(append([]int32{}, output...), int32(v)), next)
			}
		}
	}
	walk(nil, 1)
	return found
}

// compare returns how far counts are from n draws of want: the standardised
// chi-square, and the total variation with what noise alone would give.
func compare(want cells, counts map[string]int, n int) (z, variation, noise float64) {
	rest, restCount := 1.0, n
	var chi2 float64
	add := func(p float64, count int) {
		expected := p * float64(n)
		chi2 += (float64(count) - expected) * (float64(count) - expected) / expected
		variation += math.Abs(float64(count)/float64(n)-p) / 2
		noise += math.Sqrt(2*p*(1-p)/(math.Pi*float64(n))) / 2
	}
	for output, p := range want {
		add(p, counts[output])
		rest -= p
		restCount -= counts[output]
	}
	df := float64(len(want)) - 1
	if rest*float64(n) >= 10 {
		add(rest, restCount)
		df++
	}
	return (chi2 - df) / math.Sqrt(2*df), variation, noise
}

// TestSpeculationKeepsTheDistribution draws whole outputs with and without
// speculation and compares both with their exact probabilities.
func TestSpeculationKeepsTheDistribution(t *testing.T) {
	if underRace || testing.Short() {
		t.Skip("200,000 samples a case: run by go test without -race and -short")
	}
	params := func(temperature, topP float64) samplingParams {
		p := defaultSampling()
		p.MaxNewTokens, p.Temperature, p.TopP = 24, temperature, topP
		return p
	}
	tests := []struct {
		name   string
		params samplingParams
		steps  int
		prompt []int32
		n      int
	}{
		{"T=1", params(1, 1), 3, promptTokens(3, 4), 200_000},
		{"T=0.7, top_p=0.9", params(0.7, 0.9), 5, promptTokens(9, 8), 50_000},
	}
	for _, tt := range tests {
		for _, steps := range []int{0, tt.steps} {
			t.Run(fmt.Sprintf("%s, %d drafted", tt.name, steps), func(t *testing.T) {
				t.Parallel()
				s, n := newScheduler(t, steps), tt.n
				want := enumerate(s.model.target, tt.prompt, tt.params, 10.0/float64(n))
				counts := map[string]int{}
				for _, p := range sampleAll(t, s, n, func(i int) *request { return newRequest(tt.prompt, tt.params, int64(i)) }) {
					counts[fmt.Sprint(p.output)]++
				}
				z, variation, noise := compare(want, counts, n)
				t.Logf("%d outputs: z = %.2f, total variation %.4f where noise alone gives %.4f", len(want), z, variation, noise)
				if math.Abs(z) >= 4 || variation >= 1.3*noise {
					t.Errorf("z = %.2f, total variation %.4f, noise %.4f: not the policy's distribution", z, variation, noise)
				}
			})
		}
	}
}

// TestCompareNoticesADifference shows that the comparison has power: a policy at
// another temperature fails it.
func TestCompareNoticesADifference(t *testing.T) {
	s := newScheduler(t, 0)
	prompt, params := promptTokens(3, 4), defaultSampling()
	params.MaxNewTokens = 24
	const n = 5000
	want := enumerate(s.model.target, prompt, params, 10.0/n)
	params.Temperature = 0.8
	counts := map[string]int{}
	for _, p := range sampleAll(t, s, n, func(i int) *request { return newRequest(prompt, params, int64(i)) }) {
		counts[fmt.Sprint(p.output)]++
	}
	if z, variation, noise := compare(want, counts, n); z < 4 || variation < 1.3*noise {
		t.Errorf("sampling at 0.8 instead of 1 goes unnoticed: z = %.2f, %.4f of %.4f", z, variation, noise)
	}
}

// TestSpeculativeCounters checks the counters of every generation against each
// other and their sums against the engine's totals.
func TestSpeculativeCounters(t *testing.T) {
	for _, steps := range []int{1, 3, 7} {
		t.Run(fmt.Sprintf("%d drafted", steps), func(t *testing.T) {
			s := newScheduler(t, steps)
			var completion, verify, correct, proposed, cached, prompt float64
			results := sampleAll(t, s, 1500, func(i int) *request {
				params := defaultSampling()
				params.MaxNewTokens = 1 + i%30
				params.IgnoreEOS = i%3 == 0
				return newRequest(promptTokens(i%10, i/10%10), params, int64(i))
			})
			for i, p := range results {
				verifies, accepted := 0, 0
				for k, count := range p.histogram {
					verifies += count
					accepted += k * count
				}
				overshoot := 1 + p.correct + p.verify - len(p.output)
				if overshoot < 0 || overshoot > steps || verifies != p.verify || accepted != p.correct || p.proposed != steps*p.verify {
					t.Errorf("generation %d: completion %d, verify %d, correct %d, proposed %d, histogram %v",
						i, len(p.output), p.verify, p.correct, p.proposed, p.histogram)
				}
				completion += float64(len(p.output))
				verify += float64(p.verify)
				correct += float64(p.correct)
				proposed += float64(p.proposed)
				cached += float64(p.cached)
				prompt += 23
			}
			for _, total := range []struct {
				name    string
				counter prometheus.Counter
				want    float64
			}{
				{"prompt", s.counts.prompt, prompt}, {"cached", s.counts.cached, cached}, {"completion", s.counts.completion, completion},
				{"verify", s.counts.verify, verify}, {"proposed", s.counts.proposed, proposed}, {"correct", s.counts.correct, correct},
			} {
				if got := testutil.ToFloat64(total.counter); got != total.want {
					t.Errorf("the engine's %s total is %g, the generations' %g", total.name, got, total.want)
				}
			}
			t.Logf("1 + correct/verify = %.2f, completion/verify = %.2f", 1+correct/verify, completion/verify)
		})
	}
}
