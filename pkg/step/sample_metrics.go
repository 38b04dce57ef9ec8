package step

// lengthMetrics sets the lengths of the batch's samples and episodes.
func (v *view) lengthMetrics(m *metrics, prefix string) {
	m.count(prefix+"num_training_samples", v.samples)
	effective := v.column(m, func(r *row) (float64, bool) { return float64(r.effective), true })
	m.stats(prefix+"response_len", effective, noSamples)
	m.percentiles(prefix+"response_len", effective, noSamples)
	m.percentiles(prefix+"prompt_len", v.column(m, func(r *row) (float64, bool) { return float64(r.prompt), true }), noSamples)
	m.percentiles(prefix+"total_len", v.column(m, func(r *row) (float64, bool) { return float64(r.total()), true }), noSamples)

	var right, wrong, rights, wrongs, responses, tokens float64
	for r := range v.rows {
		length := float64(r.effective)
		responses += float64(r.response)
		tokens += length
		switch {
		case !r.scored:
		case r.reward == 1:
			right += length
			rights++
		default:
			wrong += length
			wrongs++
		}
	}
	m.ratio(prefix+"response_len/right", right, rights, "no sample has reward 1")
	m.ratio(prefix+"response_len/wrong", wrong, wrongs, "no sample has another reward than 1")
	m.ratio(prefix+"neg_logprob", -v.logprob, tokens, "no token is trained on")

	lengths := v.episodeColumn(m, func(e *accepted) float64 {
		length := int64(0)
		for i := range e.rows {
			length += e.rows[i].effective
		}
		return float64(length)
	})
	m.stats(prefix+"episode_response_length", lengths, noSamples)
	m.ratio(prefix+"episode_total_response_length/mean", responses, float64(v.episodes), noSamples)
}

// rewardMetrics sets the raw rewards: of samples, of episodes, by data set. A
// sample without a reward is counted and enters no mean.
func (v *view) rewardMetrics(m *metrics, prefix string) {
	n := float64(v.samples)
	rewards := v.column(m, func(r *row) (float64, bool) { return r.reward, r.scored })
	m.stats(prefix+"raw_reward", rewards, v.unscored())
	m.ratio(prefix+"none_reward_ratio", n-float64(len(rewards)), n, noSamples)

	total, scored := 0.0, 0.0
	for e := range v.eachEpisode {
		if sum, n := sumRewards(e.rows); n > 0 {
			total += sum / n
			scored++
		}
	}
	m.ratio(prefix+"episode_raw_reward", total, scored, v.unscored())

	type tally struct{ sum, n float64 }
	sources := map[string]*tally{}
	for _, g := range v.kept {
		if g.source == "" {
			continue
		}
		if sources[g.source] == nil {
			sources[g.source] = &tally{}
		}
		sum, n := sumRewards(g.rows)
		sources[g.source].sum += sum
		sources[g.source].n += n
	}
	for source, t := range sources {
		m.ratio(prefix+"raw_reward/source/"+source, t.sum, t.n, noRewards)
	}
}

// sumRewards sums the rewards of samples; n counts those that have one.
func sumRewards(rows []row) (sum, n float64) {
	for i := range rows {
		if rows[i].scored {
			sum += rows[i].reward
			n++
		}
	}
	return sum, n
}

// unscored is why there may be no reward to take a mean of.
func (v *view) unscored() string {
	if v.samples == 0 {
		return noSamples
	}
	return noRewards
}

// endMetrics sets how the samples ended.
func (v *view) endMetrics(m *metrics, prefix string) {
	n := float64(v.samples)
	m.ratio(prefix+"truncated_ratio", float64(v.truncated), n, noSamples)
	for end, name := range endingNames {
		m.ratio(prefix+"finish/"+name, float64(v.ends[end]), n, noSamples)
	}
}

const noVersion = "no engine reported a weight version that is a number"

// versionMetrics sets the weight versions of the samples: of a sample the oldest
// numbered one over its calls.
func (v *view) versionMetrics(m *metrics, prefix string) {
	oldest := v.column(m, func(r *row) (float64, bool) { return float64(r.oldest), r.numbered })
	m.stats(prefix+"weight_version", oldest, noVersion)
	// Numbers are not needed to see that two versions differ.
	if v.named == 0 {
		m.miss(prefix+"weight_version/mixed_version_ratio", "no engine reported a weight version")
		return
	}
	m.set(prefix+"weight_version/mixed_version_ratio", float64(v.mixed)/float64(v.samples))
}
