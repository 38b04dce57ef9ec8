package sim

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

func TestExpNeg(t *testing.T) {
	for x := 0.0; x > -699; x -= 0.0137 {
		got, want := expNeg(x), math.Exp(x)
		if math.Abs(got-want) > 2e-9*want {
			t.Fatalf("expNeg(%g) = %g, want %g", x, got, want)
		}
	}
	if expNeg(-1e6) != 0 || expNeg(math.Inf(-1)) != 0 {
		t.Error("what is far below is not 0")
	}
}

// truncated is the definition of truncation, by a full sort.
func truncated(p []float64, w warp) []float64 {
	ids := make([]int, len(p))
	for i := range ids {
		ids[i] = i
	}
	sort.SliceStable(ids, func(i, j int) bool { return p[ids[i]] > p[ids[j]] })
	kept := make([]float64, len(p))
	mass := 0.0
	for rank, v := range ids {
		if mass > w.topP || (w.topK > 0 && rank >= w.topK) || p[v] < w.minP*p[ids[0]] {
			break
		}
		mass += p[v]
		kept[v] = p[v]
	}
	for v := range kept {
		kept[v] /= mass
	}
	return kept
}

func TestDistIsSoftmaxThenTruncation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Steps of 1/8: two logits are equal or clearly apart. What lies closer than
		// the rounding of a probability may be ranked either way.
		logits := make([]float32, rapid.IntRange(2, 40).Draw(t, "tokens"))
		for i := range logits {
			logits[i] = float32(rapid.IntRange(-64, 64).Draw(t, "logit")) / 8
		}
		w := warp{
			temperature: rapid.Float64Range(0.2, 2).Draw(t, "temperature"),
			topP:        rapid.SampledFrom([]float64{1, 0.9, 0.5, 0.01}).Draw(t, "topP"),
			topK:        rapid.SampledFrom([]int{-1, 1, 3, allTokens}).Draw(t, "topK"),
			minP:        rapid.SampledFrom([]float64{0, 0.1, 0.9}).Draw(t, "minP"),
		}
		var sum float64
		p := make([]float64, len(logits))
		for v, x := range logits {
			p[v] = math.Exp(float64(x) / w.temperature)
			sum += p[v]
		}
		for v := range p {
			p[v] /= sum
		}
		d := newDist(len(logits))
		d.set(logits, w)
		want := truncated(p, w)
		for v := range p {
			if math.Abs(d.prob(int32(v))-want[v]) > 1e-7 {
				t.Fatalf("probability of %d is %g, want %g", v, d.prob(int32(v)), want[v])
			}
			if got := float64(d.logprob(int32(v))); math.Abs(got-math.Log(p[v])) > 1e-5 {
				t.Fatalf("log-prob of %d is %g, want %g", v, got, math.Log(p[v]))
			}
		}
		u := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "u")
		if token := d.pick(u); want[token] == 0 {
			t.Fatalf("pick(%g) = %d, which is excluded", u, token)
		}
	})
}

func TestPickReachesEveryToken(t *testing.T) {
	d := newDist(3)
	d.set([]float32{0, float32(math.Inf(-1)), 0}, warp{temperature: 1, topP: 1})
	for _, tt := range []struct {
		u    float64
		want int32
	}{{0, 0}, {0.499, 0}, {0.5, 2}, {math.Nextafter(1, 0), 2}, {1, 2}} {
		if got := d.pick(tt.u); got != tt.want {
			t.Errorf("pick(%g) = %d, want %d", tt.u, got, tt.want)
		}
	}
}

func TestBest(t *testing.T) {
	d := newDist(5)
	d.set([]float32{1, 3, 2, 3, 0}, warp{temperature: 1, topP: 1})
	var ids []int32
	for _, r := range d.best(3) {
		ids = append(ids, r.token)
	}
	if fmt.Sprint(ids) != "[1 3 2]" {
		t.Errorf("the best three are %v, want [1 3 2]", ids)
	}
}

// TestPrefixCacheAgainstModel compares the tree with a list of all prefixes that
// were put in, as long as nothing is evicted, and checks its bound when it is.
func TestPrefixCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{1 << 20, 30, 7}).Draw(t, "limit")
		c := newPrefixCache(limit)
		var all [][]int32
		sequence := rapid.SliceOfN(rapid.Int32Range(0, 2), 1, 12)
		for range rapid.IntRange(1, 40).Draw(t, "operations") {
			ids := sequence.Draw(t, "ids")
			want := 0
			for _, have := range all {
				want = max(want, commonPrefix(have, ids))
			}
			got := c.match("", ids)
			if got > want || (limit == 1<<20 && got != want) {
				t.Fatalf("match(%v) = %d, want %d", ids, got, want)
			}
			c.insert("", ids)
			all = append(all, slices.Clone(ids))
			if tokens := c.count(t); tokens != c.tokens || tokens > limit {
				t.Fatalf("the cache says it holds %d tokens and holds %d, limit %d", c.tokens, tokens, limit)
			}
			if got := c.match("other", ids); got != 0 {
				t.Fatalf("a foreign namespace matched %d tokens", got)
			}
			if got := c.match("", ids); got != min(len(ids), limit) {
				t.Fatalf("the newest sequence of %d tokens matched %d", len(ids), got)
			}
		}
	})
}

// count walks the tree and checks its links.
func (c *prefixCache) count(t *rapid.T) int {
	ring := 0
	for n := c.ring.next; n != &c.ring; n = n.next {
		ring++
	}
	tokens, nodes := 0, 0
	var walk func(n *prefixNode)
	walk = func(n *prefixNode) {
		for first, child := range n.children {
			if child.parent != n || len(child.edge) == 0 || child.edge[0] != first {
				t.Fatalf("a broken link below %v", n.edge)
			}
			tokens += len(child.edge)
			nodes++
			walk(child)
		}
	}
	for _, root := range c.roots {
		walk(root)
	}
	if nodes != ring {
		t.Fatalf("%d nodes in the tree and %d in the ring", nodes, ring)
	}
	return tokens
}

func TestUniform(t *testing.T) {
	// A crude check that positions, purposes and seeds each matter and that the
	// numbers fill the interval.
	seen := map[float64]bool{}
	var sum float64
	for seed := range uint64(20) {
		for position := range 50 {
			for _, why := range []purpose{forToken, forDraft, forAccept, forResidual} {
				u := uniform(seed, position, why)
				if u < 0 || u >= 1 || seen[u] {
					t.Fatalf("uniform(%d, %d, %d) = %g is out of range or was seen before", seed, position, why, u)
				}
				seen[u] = true
				sum += u
			}
		}
	}
	if mean := sum / float64(len(seen)); math.Abs(mean-0.5) > 0.02 {
		t.Errorf("mean %g, want about 0.5", mean)
	}
}
