package step

import (
	"math"
	"slices"
)

// quantiles returns the quantiles of xs at the fractions qs, linear between
// neighbouring values (the default of numpy). xs must not be empty.
//
// It counts the values into equal bins, and looks closer only at the bins that
// hold the wanted ranks: two passes without a branch to mispredict, where sorting
// or selecting among all values has one at nearly each comparison.
func quantiles(xs []float64, qs ...float64) []float64 {
	const bins = 2048
	lo, hi := slices.Min(xs), slices.Max(xs)
	scale := (bins - 1) / (hi - lo)
	if !(scale > 0 && scale <= math.MaxFloat64) {
		scale = 0 // all in one bin: equal values, or too far apart for a double
	}
	bin := func(x float64) int { return int((x - lo) * scale) }
	var counts [bins]int
	for _, x := range xs {
		counts[bin(x)]++
	}
	out := make([]float64, len(qs))
	near := make([]float64, 0, len(xs)/4)
	for i, q := range qs {
		at := q * float64(len(xs)-1)
		k := int(at)
		next := min(k+1, len(xs)-1)
		// The bins from first to last hold the ranks k and next; before them come
		// below values.
		first, below := 0, 0
		for below+counts[first] <= k {
			below += counts[first]
			first++
		}
		last := first
		for end := below + counts[first]; end <= next; end += counts[last] {
			last++
		}
		near = near[:0]
		for _, x := range xs {
			if b := bin(x); b >= first && b <= last {
				near = append(near, x)
			}
		}
		slices.Sort(near)
		a, b := near[k-below], near[next-below]
		out[i] = a
		if b > a {
			out[i] += (at - float64(k)) * (b - a)
		}
	}
	return out
}
