package step

import "github.com/sheaf-rl/sheaf/pkg/rollout"

// perfMetrics sets the keys that depend on a clock.
func (v *view) perfMetrics(m *metrics, cfg Config, w Window, books Books) {
	seconds := w.Seconds()
	if seconds > 0 {
		m.set("perf/rollout_time", seconds)
	} else {
		m.miss("perf/rollout_time", noClock)
	}
	m.ratio("perf/generated_tokens_per_sec", float64(books.Generated), seconds, noClock)

	tools := make([]float64, len(v.samples))
	responses := make([]int64, len(v.samples))
	for i, s := range v.samples {
		tools[i], responses[i] = s.NonGenerationTime, int64(s.ResponseLen())
	}
	m.stats("perf/non_generation_time", tools, noSamples)
	v.throughput(m, "", responses, cfg.GPUs, seconds)
	v.throughput(m, "effective_", v.effective, cfg.GPUs, seconds)
	v.waiting(m, w, seconds)
}

// throughput sets tokens per second for one way of counting a sample's length.
// The longest samples set the pace of a synchronous step, so their own speed is
// set too, with and without the time that tools took of it.
func (v *view) throughput(m *metrics, name string, lengths []int64, gpus int, seconds float64) {
	var total, longest int64
	for _, n := range lengths {
		total += n
		longest = max(longest, n)
	}
	if gpus > 0 {
		m.ratio("perf/"+name+"tokens_per_gpu_per_sec", float64(total)/float64(gpus), seconds, noClock)
	} else {
		m.miss("perf/"+name+"tokens_per_gpu_per_sec", "the number of GPUs is not known")
	}
	key := "perf/longest_" + name + "sample"
	if len(lengths) == 0 {
		m.miss(key+"_tokens_per_sec", noSamples)
		return
	}
	m.ratio(key+"_tokens_per_sec", float64(longest), seconds, noClock)

	used, count, anyTools := 0.0, 0.0, false
	for i, n := range lengths {
		anyTools = anyTools || v.samples[i].NonGenerationTime > 0
		if n == longest {
			used += v.samples[i].NonGenerationTime
			count++
		}
	}
	if !anyTools {
		return
	}
	used /= count
	m.set(key+"_non_generation_time", used)
	// Nothing can be said of a sample that was at its tools for the whole step,
	// or, started before it, for longer.
	if seconds > used {
		m.set(key+"_tokens_per_sec_without_non_generation", float64(longest)/(seconds-used))
	} else {
		m.miss(key+"_tokens_per_sec_without_non_generation", "the longest samples were at their tools for the whole step")
	}
}

// waiting sets where time was lost, over all episodes and calls of the step.
func (v *view) waiting(m *metrics, w Window, seconds float64) {
	var durations, queued, latencies []float64
	busy := 0.0
	for i := range v.groups {
		for j := range v.groups[i].Episodes {
			e := &v.groups[i].Episodes[j]
			if e.Timing.Total > 0 {
				durations = append(durations, e.Timing.Total)
				busy += e.Timing.Total
			}
			for k := range e.Generations {
				meta := &e.Generations[k].Meta
				queued = appendPresent(queued, meta.QueueTime)
				latencies = appendPresent(latencies, meta.E2ELatency)
			}
		}
	}
	const untimed, unreported = "no episode was timed", "no engine reported it"
	m.tail("perf/tail_ratio", durations, untimed)
	switch {
	case w.Slots <= 0:
		m.miss("perf/slot_idle", "the number of slots is not known")
	case seconds <= 0:
		m.miss("perf/slot_idle", noClock)
	default:
		m.set("perf/slot_idle", max(0, 1-busy/(float64(w.Slots)*seconds)))
	}
	if w.TrainSeconds != nil && w.TrainWaitSeconds != nil {
		m.ratio("perf/wait_time_ratio", *w.TrainWaitSeconds, *w.TrainWaitSeconds+*w.TrainSeconds, "the trainer reported no time")
	} else {
		m.miss("perf/wait_time_ratio", "the trainer did not report its times")
	}
	if len(queued) > 0 {
		m.set("perf/queue_p99", quantiles(queued, 0.99)[0])
	} else {
		m.miss("perf/queue_p99", unreported)
	}
	m.stats("perf/request/queue_time", queued, unreported)
	m.stats("perf/request/e2e_latency", latencies, unreported)
}

// tail sets the longest duration over the median one.
func (m *metrics) tail(key string, durations []float64, reason string) {
	if len(durations) == 0 {
		m.miss(key, reason)
		return
	}
	q := quantiles(durations, 0.5, 1)
	m.set(key, q[1]/q[0])
}

func appendPresent(xs []float64, x *float64) []float64 {
	if x == nil {
		return xs
	}
	return append(xs, *x)
}

// evalMetrics sets the keys of one evaluation, name being eval/<data set>.
func (v *view) evalMetrics(m *metrics, name string, cfg Config, w Window) {
	v.sampleMetrics(m, name+"/", cfg)
	n, truncated, rewards := float64(len(v.samples)), 0.0, []float64(nil)
	for _, s := range v.samples {
		if s.Status() == rollout.StatusTruncated {
			truncated++
		}
		rewards = appendPresent(rewards, s.Reward)
	}
	reason := noRewards
	if n == 0 {
		reason = noSamples
	}
	m.average(name, rewards, reason)
	m.ratio(name+"-none_reward_ratio", n-float64(len(rewards)), n, noSamples)
	m.ratio(name+"-truncated_ratio", truncated, n, noSamples)
	v.passRate(m, name+"-pass@", cfg.SamplesPerPrompt)
	m.set("eval/step", float64(cfg.Step))
	if seconds := w.Seconds(); seconds > 0 {
		m.set("eval/duration_seconds", seconds)
	} else {
		m.miss("eval/duration_seconds", noClock)
	}
}
