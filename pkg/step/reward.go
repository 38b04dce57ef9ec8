package step

import (
	"errors"
	"fmt"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
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
// and stays out of the loss. ends[i] is the end of group i in samples.
func normalized(cfg Config, samples []*rollout.Sample, ends []int) ([]float64, error) {
	rewards := make([]float64, len(samples))
	for i, s := range samples {
		if s.Reward != nil {
			rewards[i] = *s.Reward
		}
	}
	center, scale := cfg.Estimator.normalizes()
	if !center || !cfg.Normalize {
		return rewards, nil
	}
	var votes []float64
	start := 0
	for _, end := range ends {
		votes = votes[:0]
		for i := start; i < end; i++ {
			s := samples[i]
			if i > start && samples[i-1].RolloutID == s.RolloutID {
				if !sameReward(samples[i-1].Reward, s.Reward) {
					return nil, fmt.Errorf("normalise rewards: group %d, rollout %d: %w", s.GroupIndex, s.RolloutID, ErrSiblings)
				}
				continue
			}
			if s.Reward != nil {
				votes = append(votes, *s.Reward)
			}
		}
		if len(votes) > 0 {
			m, div := mean(votes), 1.0
			if scale && cfg.StdNormalize && len(votes) > 1 {
				if std := sampleStd(votes); std > 0 {
					div = std + stdEpsilon
				}
			}
			for i := start; i < end; i++ {
				if samples[i].Reward != nil {
					rewards[i] = (rewards[i] - m) / div
				}
			}
		}
		start = end
	}
	return rewards, nil
}

func sameReward(a, b *float64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
