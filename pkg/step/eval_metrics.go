package step

// evalMetrics sets the keys that only an evaluation has, name being
// eval/<data set>.
func (v *view) evalMetrics(m *metrics, name string, cfg Config, w Window) {
	n := float64(v.samples)
	total, scored := 0.0, 0.0
	for r := range v.rows {
		if r.scored {
			total += r.reward
			scored++
		}
	}
	m.ratio(name, total, scored, v.unscored())
	m.ratio(name+"-none_reward_ratio", n-scored, n, noSamples)
	m.ratio(name+"-truncated_ratio", float64(v.truncated), n, noSamples)
	v.passRate(m, name+"-pass@", cfg.SamplesPerPrompt)
	m.set("eval/step", float64(cfg.Step))
	if seconds := w.Seconds(); seconds > 0 {
		m.set("eval/duration_seconds", seconds)
	} else {
		m.miss("eval/duration_seconds", noClock)
	}
}
