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
	rewards := make([]float64, len(v.rows))
	for i := range v.rows {
		rewards[i] = v.rows[i].reward // 0 when not scored
	}
	center, scale := cfg.Estimator.normalizes()
	if !center || !cfg.Normalize {
		return rewards, nil
	}
	var votes []float64
	for _, g := range v.kept {
		votes = votes[:0]
		for _, e := range v.episodes[g.firstEpisode:g.lastEpisode] {
			reward, scored := v.reward(e)
			for i := e.start; i < e.end; i++ {
				if r := &v.rows[i]; r.scored != scored || r.reward != reward {
					return nil, fmt.Errorf("normalise rewards: group %d, rollout %d: %w", g.group.Index, e.rolloutID, ErrSiblings)
				}
			}
			if scored {
				votes = append(votes, reward)
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
			if v.rows[i].scored {
				rewards[i] = (rewards[i] - m) / div
			}
		}
	}
	return rewards, nil
}
