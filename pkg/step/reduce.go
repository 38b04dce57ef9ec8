package step

import (
	"errors"
	"fmt"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Errors of a reduction. They report groups that contradict themselves, which
// only a bug upstream can make; nothing is reduced then.
var (
	// ErrDispositions reports a group without one disposition for each episode.
	ErrDispositions = errors.New("dispositions and episodes differ in number")
	// ErrIdentity reports a sample under a group or episode that it does not name,
	// or a group or episode that occurs twice.
	ErrIdentity = errors.New("contradicting identities")
)

// Result is a reduced step. Samples and the slices beside it have one entry for
// each accepted sample, in order of group index, rollout id and sample index.
type Result struct {
	Samples []*rollout.Sample
	// Rewards are normalised as the estimator asks.
	Rewards []float64
	// Excluded says that a sample stays out of the loss: it was removed, nothing
	// scored it, or it was truncated and the run masks those.
	Excluded []bool
	// MaskSums counts, for each sample, the tokens in the loss over all samples of
	// its rollout id.
	MaskSums []int64

	Report *Report
}

// Reduce reduces disposed groups to a batch and its report. The groups given are
// not changed; samples are shared with them.
func Reduce(cfg Config, groups []rollout.Group, w Window) (*Result, error) {
	v, err := read(cfg, groups)
	if err != nil {
		return nil, fmt.Errorf("reduce step %d: %w", cfg.Step, err)
	}
	rewards, err := v.normalized(cfg)
	if err != nil {
		return nil, fmt.Errorf("reduce step %d: %w", cfg.Step, err)
	}
	r := &Result{
		Samples: make([]*rollout.Sample, 0, v.samples), Rewards: rewards,
		Excluded: make([]bool, 0, v.samples), MaskSums: make([]int64, 0, v.samples),
	}
	for _, g := range v.kept {
		r.Samples = append(r.Samples, g.samples...)
		for _, e := range g.episodes {
			var sum int64
			for i := range e.rows {
				sum += e.rows[i].trained()
			}
			for i := range e.rows {
				r.Excluded, r.MaskSums = append(r.Excluded, e.rows[i].excluded), append(r.MaskSums, sum)
			}
		}
	}
	r.Report = v.report(cfg, w)
	return r, nil
}

// Evaluate reduces the disposed groups of one evaluation data set to a report
// with the eval/ keys. [Config.SamplesPerPrompt] is the data set's own.
func Evaluate(cfg Config, dataset string, groups []rollout.Group, w Window) (*Report, error) {
	v, err := read(cfg, groups)
	if err != nil {
		return nil, fmt.Errorf("reduce evaluation %s at step %d: %w", dataset, cfg.Step, err)
	}
	ledger := v.ledger(w)
	name := "eval/" + dataset
	families := append(v.sampleMetrics(name+"/", cfg), func(m *metrics) { v.evalMetrics(m, name, cfg, w) })
	return assemble(compute(families...), ledger, cfg, w), nil
}

// Lengths returns prompt plus response of each sample, in tokens.
func (r *Result) Lengths() []int64 {
	lengths := make([]int64, len(r.Samples))
	for i, s := range r.Samples {
		lengths[i] = int64(len(s.Tokens()))
	}
	return lengths
}
