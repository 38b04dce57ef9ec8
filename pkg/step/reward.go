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
	rewards := make([]float64, len(v.samples))
	for i, s := range v.samples {
		if s.Reward != nil {
			rewards[i] = *s.Reward
		}
	}
	center, scale := cfg.Estimator.normalizes()
	if !center || !cfg.Normalize {
		return rewards, nil
	}
	var votes []float64
	for _, g := range v.kept {
		votes = votes[:0]
		for _, e := range v.episodes[g.firstEpisode:g.lastEpisode] {
			r := v.reward(e)
			for _, s := range v.samples[e.start:e.end] {
				if !sameReward(r, s.Reward) {
					return nil, fmt.Errorf("normalise rewards: group %d, rollout %d: %w", g.Index, e.RolloutID, ErrSiblings)
				}
			}
			if r != nil {
				votes = append(votes, *r)
			}
		}
		if len(votes) == 0 {
			continue
		}
		m, div := mean(votes), 1.0
		if scale && cfg.StdNormalize && len(votes) > 1 {
			if std := sampleStd(votes); std > 0 {
				div = std + stdEpsilon
			}
		}
		for i := g.start; i < g.end; i++ {
			if v.samples[i].Reward != nil {
				rewards[i] = (rewards[i] - m) / div
			}
		}
	}
	return rewards, nil
}

func sameReward(a, b *float64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
