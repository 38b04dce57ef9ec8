package step

import (
	"errors"
	"fmt"
)

// ErrSiblings reports samples of one episode that have different rewards, which
// a group-relative estimator cannot weigh.
var ErrSiblings = errors.New("samples of one episode differ in reward")

// stdEpsilon keeps the division by a small standard deviation finite; the value
// that slime, miles and verl share.
const stdEpsilon = 1e-6

// normalizes says whether the estimator works on group-relative rewards, and
// whether it divides them by their standard deviation. Sources: slime and miles'
// reward post-processing.
func (e Estimator) normalizes() (center, scale bool) {
	switch e {
	case GRPO, GSPO:
		return true, true
	case CISPO, ReinforceBaseline:
		return true, false
	default:
		return false, false
	}
}

// normalized returns one reward per sample: the raw one, or its distance from
// the mean of its group, in which every episode has one vote however many
// samples it yielded. An episode that nothing scored has no vote and reward 0,
// and stays out of the loss.
func (v *view) normalized(cfg Config) ([]float64, error) {
	rewards := make([]float64, 0, v.samples)
	center, scale := cfg.Estimator.normalizes()
	var votes []float64
	for _, g := range v.kept {
		if !center || !cfg.Normalize {
			for i := range g.rows {
				rewards = append(rewards, g.rows[i].reward)
			}
			continue
		}
		votes = votes[:0]
		for _, e := range g.episodes {
			for i := range e.rows {
				if e.rows[i].scored != e.rows[0].scored || e.rows[i].reward != e.rows[0].reward {
					return nil, fmt.Errorf("normalise rewards: group %d, rollout %d: %w", g.index, e.rolloutID, ErrSiblings)
				}
			}
			if r, scored := e.reward(); scored {
				votes = append(votes, r)
			}
		}
		m, div := mean(votes), 1.0
		if scale && cfg.StdNormalize && len(votes) > 1 {
			if std := sampleStd(votes); std > 0 {
				div = std + stdEpsilon
			}
		}
		for i := range g.rows {
			if r := &g.rows[i]; r.scored {
				rewards = append(rewards, (r.reward-m)/div)
			} else {
				rewards = append(rewards, 0)
			}
		}
	}
	return rewards, nil
}
