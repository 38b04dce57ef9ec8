package step

import (
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Reasons for missing metrics.
const (
	noSamples = "the step has no samples"
	noRewards = "no sample has a reward"
)

// sampleMetrics sets the keys that describe the samples of the batch.
func (v *view) sampleMetrics(m *metrics, prefix string, cfg Config) {
	n := float64(len(v.samples))
	effective := floats(v.effective)
	m.stats(prefix+"response_len", effective, noSamples)
	v.rewardMetrics(m, prefix, n)

	truncated := 0.0
	for _, s := range v.samples {
		if s.Status() == rollout.StatusTruncated {
			truncated++
		}
	}
	m.ratio(prefix+"truncated_ratio", truncated, n, noSamples)
}

// rewardMetrics sets raw_reward over the samples that have one.
func (v *view) rewardMetrics(m *metrics, prefix string, n float64) {
	var rewards []float64
	for _, s := range v.samples {
		if s.Reward != nil {
			rewards = append(rewards, *s.Reward)
		}
	}
	reason := noRewards
	if n == 0 {
		reason = noSamples
	}
	m.stats(prefix+"raw_reward", rewards, reason)
	m.ratio(prefix+"none_reward_ratio", n-float64(len(rewards)), n, noSamples)
}

func floats(xs []int64) []float64 {
	out := make([]float64, len(xs))
	for i, x := range xs {
		out[i] = float64(x)
	}
	return out
}
