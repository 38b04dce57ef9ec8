package sim

import (
	"math"
	"slices"
)

// warp is how a request bends a distribution before it is sampled from.
type warp struct {
	temperature float64 // > 0
	topP        float64 // 1 = all
	topK        int     // <= 0 = all
	minP        float64 // 0 = all
}

// dist is a sampling distribution over the vocabulary. The weights are relative:
// a probability is weight/sum. Excluded tokens have weight 0.
type dist struct {
	weight []float64
	sum    float64
	// scores of the distribution before anything was excluded
	scaled  []float64 // logit/T - the largest
	logNorm float64   // log of the sum of exp(scaled)

	heap []int32 // scratch of truncate
}

func newDist(vocab int) *dist {
	return &dist{weight: make([]float64, vocab), scaled: make([]float64, vocab), heap: make([]int32, 0, vocab)}
}

// set makes d the distribution of logits under w.
func (d *dist) set(logits []float32, w warp) {
	top := float32(math.Inf(-1))
	for _, x := range logits {
		top = max(top, x)
	}
	weight, scaled := d.weight[:len(logits)], d.scaled[:len(logits)]
	var sum float64
	if w.temperature == 1 {
		for v, x := range logits {
			s := float64(x) - float64(top)
			e := expNeg(s)
			scaled[v], weight[v] = s, e
			sum += e
		}
	} else {
		inverse := 1 / w.temperature
		for v, x := range logits {
			s := (float64(x) - float64(top)) * inverse
			e := expNeg(s)
			scaled[v], weight[v] = s, e
			sum += e
		}
	}
	d.sum, d.logNorm = sum, math.Log(sum)
	if w.topP < 1 || w.minP > 0 || (w.topK > 0 && w.topK < len(logits)) {
		d.truncate(w)
	}
}

// logprob is the log-probability of a token before truncation.
func (d *dist) logprob(token int32) float32 { return float32(d.scaled[token] - d.logNorm) }

// prob is the probability that token is drawn.
func (d *dist) prob(token int32) float64 { return d.weight[token] / d.sum }

// truncate excludes, going down the ranks (by probability, then by id), every
// token before which more than topP of the mass has been kept, every token of rank
// topK or more, and every token less probable than minP of the first. The mass is
// the un-renormalised one. It pops a heap, because most of the mass sits on a few
// tokens and a full sort costs several times a forward pass.
func (d *dist) truncate(w warp) {
	h := d.heap[:0]
	for v, x := range d.weight {
		if x > 0 {
			h = append(h, int32(v))
		}
	}
	for i := len(h)/2 - 1; i >= 0; i-- {
		d.siftDown(h, i)
	}
	limit := len(h)
	if w.topK > 0 {
		limit = min(limit, w.topK)
	}
	floor := w.minP * d.weight[h[0]]
	mass, kept := 0.0, 0
	for len(h) > 0 && kept < limit && mass <= w.topP*d.sum && d.weight[h[0]] >= floor {
		mass += d.weight[h[0]]
		kept++
		last := len(h) - 1
		h[0] = h[last]
		h = h[:last]
		d.siftDown(h, 0)
	}
	for _, v := range h {
		d.weight[v] = 0
	}
	d.sum = 0
	for _, x := range d.weight { // in id order, as pick walks it
		d.sum += x
	}
}

// siftDown restores the heap order (largest weight on top, lower id first on a
// tie) below position i.
func (d *dist) siftDown(h []int32, i int) {
	before := func(a, b int32) bool {
		return d.weight[a] > d.weight[b] || d.weight[a] == d.weight[b] && a < b
	}
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && before(h[child+1], h[child]) {
			child++
		}
		if !before(h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// pick returns the token at quantile u in [0, 1). When rounding carries the
// quantile past the end it returns the last token that is not excluded.
func (d *dist) pick(u float64) int32 {
	target := u * d.sum
	var mass float64
	last := int32(0)
	for v, x := range d.weight {
		if x == 0 {
			continue
		}
		mass += x
		last = int32(v)
		if mass > target {
			break
		}
	}
	return last
}

// setResidual makes d the normalised positive part of p - q, from which a rejected
// proposal of q is replaced. Where nothing is left (p and q are equal but for
// rounding) d is p.
func (d *dist) setResidual(p, q *dist) {
	d.sum = 0
	for v := range d.weight {
		d.weight[v] = max(0, p.prob(int32(v))-q.prob(int32(v)))
		d.sum += d.weight[v]
	}
	if d.sum <= 1e-12 {
		copy(d.weight, p.weight)
		d.sum = p.sum
	}
}

// expNeg is e^x for x <= 0, correct to about 1e-9. It is written out because the
// standard one differs in the last bit between architectures, and is slower than
// all the rest of a distribution. Products are rounded on their own so that no
// compiler fuses them.
func expNeg(x float64) float64 {
	if x < -700 { // also -Inf; e^-700 is far below what a sum of 1 can show
		return 0
	}
	const (
		log2e = 1 / math.Ln2
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
	)
	n := math.Floor(float64(x*log2e) + 0.5)
	r := x - float64(n*ln2Hi)
	r -= float64(n * ln2Lo)
	// Taylor to r^8 on |r| <= 0.35: the first term left out is below 3e-10.
	p := float64(r*(1.0/40320)) + 1.0/5040
	p = float64(r*p) + 1.0/720
	p = float64(r*p) + 1.0/120
	p = float64(r*p) + 1.0/24
	p = float64(r*p) + 1.0/6
	p = float64(r*p) + 0.5
	p = float64(r*p) + 1
	p = float64(r*p) + 1
	return p * math.Float64frombits(uint64(1023+int64(n))<<52)
}

// best returns the n most probable tokens, before truncation.
func (d *dist) best(n int) []ranked {
	list := make([]ranked, 0, n+1)
	for v := range d.scaled {
		lp := d.logprob(int32(v))
		i := len(list)
		for i > 0 && list[i-1].logprob < lp {
			i--
		}
		if i < n {
			list = slices.Insert(list, i, ranked{token: int32(v), logprob: lp})
			list = list[:min(n, len(list))]
		}
	}
	return list
}
