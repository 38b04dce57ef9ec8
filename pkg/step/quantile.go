package step

import (
	"math"
	"slices"
)

// summary is what one pass over values tells.
type summary struct {
	n           float64
	sum, lo, hi float64
}

// summarize reads xs, which must not be empty.
func summarize(xs []float64) summary {
	s := summary{n: float64(len(xs)), lo: xs[0], hi: xs[0]}
	for _, x := range xs {
		s.sum += x
		s.lo, s.hi = min(s.lo, x), max(s.hi, x)
	}
	return s
}

// quantiles returns the quantiles of xs, summarized in s, at the fractions qs,
// linear between neighbouring values (the default of numpy).
//
// It counts the values into equal bins, and looks closer only at the bins that
// hold the wanted ranks: two passes without a branch to mispredict, where sorting
// or selecting among all values has one at nearly each comparison.
func (s summary) quantiles(xs []float64, qs ...float64) []float64 {
	out := make([]float64, len(qs))
	const bins = 2048
	scale := (bins - 1) / (s.hi - s.lo)
	switch {
	case s.lo == s.hi:
		for i := range out {
			out[i] = s.lo
		}
		return out
	case !(scale > 0) || math.IsInf(scale, 1): // too far apart, or too near, for a double
		sorted := slices.Clone(xs)
		slices.Sort(sorted)
		for i, q := range qs {
			out[i] = between(sorted, q*(s.n-1))
		}
		return out
	}
	bin := func(x float64) int { return int((x - s.lo) * scale) }
	var counts [bins]int
	for _, x := range xs {
		counts[bin(x)]++
	}
	var near []float64
	for i, q := range qs {
		at := q * (s.n - 1)
		next := min(int(at)+1, len(xs)-1)
		// The bins from first to last hold the ranks at and next; before them come
		// below values.
		first, below := 0, 0
		for below+counts[first] <= int(at) {
			below += counts[first]
			first++
		}
		last, end := first, below+counts[first]
		for end <= next {
			last++
			end += counts[last]
		}
		near = slices.Grow(near[:0], end-below)
		for _, x := range xs {
			if b := bin(x); b >= first && b <= last {
				near = append(near, x)
			}
		}
		slices.Sort(near)
		out[i] = between(near, at-float64(below))
	}
	return out
}

// between is the value of sorted xs at a rank that may lie between two.
func between(xs []float64, rank float64) float64 {
	k := int(rank)
	x := xs[k]
	if share := rank - float64(k); share > 0 {
		x += share * (xs[k+1] - x)
	}
	return x
}
