package step

import (
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// lengthMetrics sets the lengths of the batch's samples and episodes.
func (v *view) lengthMetrics(m *metrics, prefix string) {
	n := len(v.samples)
	effective := floats(v.effective)
	prompts, totals := make([]float64, n), make([]float64, n)
	var right, wrong []float64
	for i, s := range v.samples {
		prompts[i], totals[i] = float64(s.PromptLen()), float64(len(s.Tokens()))
		switch {
		case s.Reward == nil:
		case *s.Reward == 1:
			right = append(right, effective[i])
		default:
			wrong = append(wrong, effective[i])
		}
	}
	m.count(prefix+"num_training_samples", n)
	m.stats(prefix+"response_len", effective, noSamples)
	m.percentiles(prefix+"response_len", effective, noSamples)
	m.percentiles(prefix+"prompt_len", prompts, noSamples)
	m.percentiles(prefix+"total_len", totals, noSamples)
	m.average(prefix+"response_len/right", right, "no sample has reward 1")
	m.average(prefix+"response_len/wrong", wrong, "every scored sample has reward 1, or none is scored")

	lengths, responses := make([]float64, 0, len(v.episodes)), 0.0
	for _, e := range v.episodes {
		length := 0.0
		for i := e.start; i < e.end; i++ {
			length += effective[i]
			responses += float64(v.samples[i].ResponseLen())
		}
		lengths = append(lengths, length)
	}
	m.stats(prefix+"episode_response_length", lengths, noSamples)
	m.ratio(prefix+"episode_total_response_length/mean", responses, float64(len(v.episodes)), noSamples)

	var tokens int64
	logprob := 0.0
	for i := range v.samples {
		tokens += v.effective[i]
		logprob += v.logprob[i]
	}
	m.ratio(prefix+"neg_logprob", -logprob, float64(tokens), "no token is trained on")
}

// rewardMetrics sets the raw rewards: of samples, of episodes, by data set. A
// sample without a reward is counted and enters no mean.
func (v *view) rewardMetrics(m *metrics, prefix string) {
	n := float64(len(v.samples))
	reason := noRewards
	if n == 0 {
		reason = noSamples
	}
	rewards := make([]float64, 0, len(v.samples))
	for _, s := range v.samples {
		if s.Reward != nil {
			rewards = append(rewards, *s.Reward)
		}
	}
	m.stats(prefix+"raw_reward", rewards, reason)
	m.ratio(prefix+"none_reward_ratio", n-float64(len(rewards)), n, noSamples)

	episodes := make([]float64, 0, len(v.episodes))
	for _, e := range v.episodes {
		total, scored := 0.0, 0
		for _, s := range v.samples[e.start:e.end] {
			if s.Reward != nil {
				total += *s.Reward
				scored++
			}
		}
		if scored > 0 {
			episodes = append(episodes, total/float64(scored))
		}
	}
	m.average(prefix+"episode_raw_reward", episodes, reason)

	sources := map[string][]float64{}
	for _, g := range v.kept {
		source := g.Prompt.Source
		if source == "" {
			continue
		}
		all := sources[source]
		for _, s := range v.samples[g.start:g.end] {
			if s.Reward != nil {
				all = append(all, *s.Reward)
			}
		}
		sources[source] = all
	}
	for source, rewards := range sources {
		m.average(prefix+"raw_reward/source/"+source, rewards, noRewards)
	}
}

// endMetrics sets how the samples ended.
func (v *view) endMetrics(m *metrics, prefix string, cfg Config) {
	n := float64(len(v.samples))
	var truncated, stop, length, abort, tool, context, other float64
	for _, e := range v.episodes {
		at := 0
		for _, s := range v.samples[e.start:e.end] {
			if s.Status() == rollout.StatusTruncated {
				truncated++
			}
			var finish rollout.FinishType
			if ids := s.Generations(); len(ids) > 0 {
				var last *rollout.GenerationRecord
				if last, at = record(e.Generations, ids[len(ids)-1], at); last != nil {
					finish = last.Meta.Finish.Type
				}
			}
			switch {
			case outOfContext(cfg, s, finish):
				context++
			case finish == rollout.FinishStop:
				stop++
			case finish == rollout.FinishLength:
				length++
			case finish == rollout.FinishAbort:
				abort++
			case finish == rollout.FinishToolCalls:
				tool++
			default:
				other++
			}
		}
	}
	m.ratio(prefix+"truncated_ratio", truncated, n, noSamples)
	m.ratio(prefix+"finish/stop", stop, n, noSamples)
	m.ratio(prefix+"finish/length", length, n, noSamples)
	m.ratio(prefix+"finish/abort", abort, n, noSamples)
	m.ratio(prefix+"finish/tool", tool, n, noSamples)
	m.ratio(prefix+"finish/context", context, n, noSamples)
	m.ratio(prefix+"finish/other", other, n, noSamples)
}

// outOfContext says that a sample was truncated because the context was full:
// it fills the context, or we cut it although the engine had not.
func outOfContext(cfg Config, s *rollout.Sample, finish rollout.FinishType) bool {
	if s.Status() != rollout.StatusTruncated {
		return false
	}
	return finish != rollout.FinishLength || cfg.MaxContext > 0 && len(s.Tokens()) >= cfg.MaxContext
}

// versionMetrics sets the weight versions of the samples: of a sample the oldest
// numbered one over its calls.
func (v *view) versionMetrics(m *metrics, prefix string) {
	oldest, mixed := make([]float64, 0, len(v.samples)), 0.0
	var numbers parsedVersions
	for _, e := range v.episodes {
		at := 0
		for _, s := range v.samples[e.start:e.end] {
			var r versionRange
			for _, id := range s.Generations() {
				var g *rollout.GenerationRecord
				if g, at = record(e.Generations, id, at); g != nil {
					r.addMeta(&g.Meta, &numbers)
				}
			}
			if r.numbered {
				oldest = append(oldest, float64(r.oldest))
			}
			if r.mixed {
				mixed++
			}
		}
	}
	const unnumbered = "no engine reported a weight version that is a number"
	m.stats(prefix+"weight_version", oldest, unnumbered)
	if len(oldest) == 0 {
		m.miss(prefix+"weight_version/mixed_version_ratio", unnumbered)
		return
	}
	m.ratio(prefix+"weight_version/mixed_version_ratio", mixed, float64(len(v.samples)), noSamples)
}
