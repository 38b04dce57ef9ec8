package step

import (
	"maps"
	"math"
	"slices"
)

// Reasons for missing metrics that several keys share.
const (
	noSamples = "the step has no samples"
	noRewards = "no sample has a reward"
	noClock   = "the length of the step is not known"
)

// metrics collects values and the reasons for missing ones. It is the only way
// into a report, so that no number that is not finite gets there.
type metrics struct {
	values  map[string]float64
	missing map[string]string

	work []float64 // see scratch
}

func newMetrics() *metrics {
	return &metrics{values: map[string]float64{}, missing: map[string]string{}}
}

// scratch returns an empty slice with room for n values. It is the same memory
// each time: what the last call returned must not be needed any more.
func (m *metrics) scratch(n int) []float64 {
	if cap(m.work) < n {
		m.work = make([]float64, n)
	}
	return m.work[:0]
}

// compute runs independent families of metrics on all processors, and collects
// what they set. No two families set the same key.
func compute(families ...func(*metrics)) *metrics {
	parts := make([]*metrics, len(families))
	parallel(len(families), func(i int) {
		parts[i] = newMetrics()
		families[i](parts[i])
	})
	all := newMetrics()
	for _, part := range parts {
		maps.Copy(all.values, part.values)
		maps.Copy(all.missing, part.missing)
	}
	return all
}

func (m *metrics) set(key string, x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		m.miss(key, "not a finite number")
		return
	}
	m.values[key] = x
}

func (m *metrics) count(key string, n int) { m.set(key, float64(n)) }

func (m *metrics) miss(key, reason string) { m.missing[key] = reason }

// ratio sets num/den, and names the key unavailable when den is 0.
func (m *metrics) ratio(key string, num, den float64, reason string) {
	if den == 0 {
		m.miss(key, reason)
		return
	}
	m.set(key, num/den)
}

// average sets the mean of xs.
func (m *metrics) average(key string, xs []float64, reason string) {
	m.ratio(key, sum(xs), float64(len(xs)), reason)
}

// stats sets mean, median, max and min of xs under key, in double precision; the
// median of an even number of values is the mean of the middle two.
func (m *metrics) stats(key string, xs []float64, reason string) {
	if len(xs) == 0 {
		m.missEach(key, reason, "/mean", "/median", "/max", "/min")
		return
	}
	s := summarize(xs)
	m.set(key+"/mean", s.sum/s.n)
	m.set(key+"/median", s.quantiles(xs, 0.5)[0])
	m.set(key+"/max", s.hi)
	m.set(key+"/min", s.lo)
}

// percentiles sets p50, p90 and p99 of xs under key.
func (m *metrics) percentiles(key string, xs []float64, reason string) {
	if len(xs) == 0 {
		m.missEach(key, reason, "/p50", "/p90", "/p99")
		return
	}
	q := summarize(xs).quantiles(xs, 0.5, 0.9, 0.99)
	m.set(key+"/p50", q[0])
	m.set(key+"/p90", q[1])
	m.set(key+"/p99", q[2])
}

func (m *metrics) missEach(key, reason string, names ...string) {
	for _, name := range names {
		m.miss(key+name, reason)
	}
}

// averageAndMax sets the mean and the greatest of xs.
func (m *metrics) averageAndMax(average, greatest string, xs []float64, reason string) {
	m.average(average, xs, reason)
	if len(xs) == 0 {
		m.miss(greatest, reason)
		return
	}
	m.set(greatest, slices.Max(xs))
}

func sum(xs []float64) float64 {
	total := 0.0
	for _, x := range xs {
		total += x
	}
	return total
}

// mean is the arithmetic mean; NaN for no values.
func mean(xs []float64) float64 { return sum(xs) / float64(len(xs)) }

// sampleStd is the standard deviation with n − 1 in the denominator; NaN for
// fewer than two values.
func sampleStd(xs []float64) float64 {
	m, squares := mean(xs), 0.0
	for _, x := range xs {
		squares += (x - m) * (x - m)
	}
	return math.Sqrt(squares / float64(len(xs)-1))
}

// floats converts to double precision.
func floats[T int | int64](xs []T) []float64 {
	out := make([]float64, len(xs))
	for i, x := range xs {
		out[i] = float64(x)
	}
	return out
}
