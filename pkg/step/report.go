package step

import (
	"fmt"
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

// report assembles a train step's report.
func (v *view) report(cfg Config, w Window) *Report {
	ledger := v.ledger(w)
	families := append(v.sampleMetrics("rollout/", cfg),
		func(m *metrics) { v.perfMetrics(m, cfg, w, ledger.Books.Generated) },
		func(m *metrics) { v.asyncMetrics(m, cfg, w) },
		func(m *metrics) { v.passRate(m, "passrate/pass@", cfg.SamplesPerPrompt) },
		v.filterMetrics,
		ledger.Books.metrics,
		func(m *metrics) {
			if cfg.SkippedRows != nil {
				m.count("data/skipped_rows", *cfg.SkippedRows)
			}
		},
	)
	if cfg.Sessions {
		families = append(families, v.agentMetrics)
	}
	return assemble(compute(families...), ledger, cfg, w)
}

// sampleMetrics are the families that training steps and evaluations share.
func (v *view) sampleMetrics(prefix string, cfg Config) []func(*metrics) {
	return []func(*metrics){
		func(m *metrics) { v.lengthMetrics(m, prefix) },
		func(m *metrics) { v.rewardMetrics(m, prefix) },
		func(m *metrics) { v.endMetrics(m, prefix) },
		func(m *metrics) { v.textMetrics(m, prefix, cfg) },
		func(m *metrics) { v.versionMetrics(m, prefix) },
		func(m *metrics) { v.spreadMetrics(m, prefix, cfg) },
		func(m *metrics) { v.counterMetrics(m, prefix, cfg) },
	}
}

func assemble(m *metrics, ledger Ledger, cfg Config, w Window) *Report {
	t := Timing{RolloutSeconds: w.Seconds()}
	if !w.Started.IsZero() {
		t.Started = &w.Started
	}
	if !w.Finished.IsZero() {
		t.Finished = &w.Finished
	}
	return &Report{
		Schema: Schema, Run: cfg.Run, Step: cfg.Step, WeightVersion: cfg.WeightVersion,
		Metrics: m.values, Unavailable: m.missing, Ledger: ledger, Timing: t,
	}
}

// Check fails when the token books do not balance.
func (r *Report) Check() error {
	if n := r.Ledger.Books.Unaccounted; n != 0 {
		return fmt.Errorf("step %d: %d completion tokens are unaccounted for", r.Step, n)
	}
	return nil
}
