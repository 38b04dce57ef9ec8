package step

import "slices"

// quantiles returns the quantiles of xs at the ascending fractions qs, linear
// between neighbouring values (the default of numpy). xs must not be empty and
// is left as it is.
func quantiles(xs []float64, qs ...float64) []float64 {
	work := slices.Clone(xs)
	out := make([]float64, len(qs))
	// From the top down: below a selected value lie all smaller ones, so the next
	// selection looks only there.
	end := len(work)
	for i := len(qs) - 1; i >= 0; i-- {
		at := qs[i] * float64(len(work)-1)
		k := int(at)
		selectNth(work[:end], k)
		out[i] = work[k]
		if k+1 == len(work) {
			continue
		}
		next := k + 1
		for j := next; j < end; j++ {
			if work[j] < work[next] {
				next = j
			}
		}
		work[k+1], work[next] = work[next], work[k+1]
		out[i] += (at - float64(k)) * (work[k+1] - work[k])
		end = k + 2
	}
	return out
}

// selectNth reorders xs so that xs[n] is the value that sorting would put there,
// with no greater value before it and no smaller one after it (Hoare's FIND).
func selectNth(xs []float64, n int) {
	lo, hi := 0, len(xs)-1
	for lo < hi {
		pivot := median3(xs[lo], xs[lo+(hi-lo)/2], xs[hi])
		i, j := lo, hi
		for i <= j {
			for xs[i] < pivot {
				i++
			}
			for xs[j] > pivot {
				j--
			}
			if i <= j {
				xs[i], xs[j] = xs[j], xs[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			hi = j
		case n >= i:
			lo = i
		default:
			return
		}
	}
}

func median3(a, b, c float64) float64 { return max(min(a, b), min(max(a, b), c)) }
