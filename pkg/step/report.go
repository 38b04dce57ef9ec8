package step

import (
	"fmt"
	"math"
	"time"
)

// Schema is the version of the report's and the batch files' layout.
const Schema = 1

// Report is a step's report.json. Encoding it with encoding/json gives keys in a
// fixed order and every number in its shortest exact form.
type Report struct {
	Schema int    `json:"schema"`
	Run    string `json:"run"`
	Step   int64  `json:"step"`
	// WeightVersion is the version that the step trains; null when unmanaged.
	WeightVersion *uint64 `json:"weight_version"`
	// Metrics holds finite numbers by key; Unavailable the reason for each key
	// that has none.
	Metrics     map[string]float64 `json:"metrics"`
	Unavailable map[string]string  `json:"unavailable"`
	Ledger      Ledger             `json:"ledger"`
	Timing      Timing             `json:"timing"`
}

// Timing is what a clock said of the step.
type Timing struct {
	Started        *time.Time `json:"started,omitempty"`
	Finished       *time.Time `json:"finished,omitempty"`
	RolloutSeconds float64    `json:"rollout_seconds,omitempty"`
}

func timing(w Window) Timing {
	t := Timing{RolloutSeconds: w.Seconds()}
	if !w.Started.IsZero() {
		t.Started = &w.Started
	}
	if !w.Finished.IsZero() {
		t.Finished = &w.Finished
	}
	return t
}

// metrics collects values and the reasons for missing ones. It is the only way
// into a report, so that no number that is not finite gets there.
type metrics struct {
	values  map[string]float64
	missing map[string]string
}

func newMetrics() *metrics {
	return &metrics{values: map[string]float64{}, missing: map[string]string{}}
}

func (m *metrics) set(key string, x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		m.miss(key, "not a finite number")
		return
	}
	m.values[key] = x
}

func (m *metrics) miss(key, reason string) { m.missing[key] = reason }

// ratio sets num/den, and names the key unavailable when den is 0.
func (m *metrics) ratio(key string, num, den float64, reason string) {
	if den == 0 {
		m.miss(key, reason)
		return
	}
	m.set(key, num/den)
}

// stats sets mean, median, max and min of xs under key, in double precision; the
// median of an even number of values is the mean of the middle two.
func (m *metrics) stats(key string, xs []float64, reason string) {
	if len(xs) == 0 {
		for _, name := range [...]string{"mean", "median", "max", "min"} {
			m.miss(key+"/"+name, reason)
		}
		return
	}
	lo, hi := xs[0], xs[0]
	for _, x := range xs {
		lo, hi = min(lo, x), max(hi, x)
	}
	m.set(key+"/mean", mean(xs))
	m.set(key+"/median", quantiles(xs, 0.5)[0])
	m.set(key+"/max", hi)
	m.set(key+"/min", lo)
}

// percentiles sets p50, p90 and p99 of xs under key.
func (m *metrics) percentiles(key string, xs []float64, reason string) {
	names := [...]string{"p50", "p90", "p99"}
	if len(xs) == 0 {
		for _, name := range names {
			m.miss(key+"/"+name, reason)
		}
		return
	}
	for i, q := range quantiles(xs, 0.5, 0.9, 0.99) {
		m.set(key+"/"+names[i], q)
	}
}

// report assembles a step's report.
func (v *view) report(cfg Config, w Window) *Report {
	m := newMetrics()
	books := v.books(w)
	v.sampleMetrics(m, "rollout/", cfg)
	v.specMetrics(m, "rollout/", cfg)
	v.perfMetrics(m, cfg, w, books)
	return &Report{
		Schema: Schema, Run: cfg.Run, Step: cfg.Step, WeightVersion: cfg.WeightVersion,
		Metrics: m.values, Unavailable: m.missing,
		Ledger: v.ledger(books), Timing: timing(w),
	}
}

// Check fails when the token books do not balance.
func (r *Report) Check() error {
	if n := r.Ledger.Books.Unaccounted; n != 0 {
		return fmt.Errorf("step %d: %d completion tokens are unaccounted for", r.Step, n)
	}
	return nil
}
