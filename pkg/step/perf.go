package step

// perfMetrics sets the keys that depend on a clock.
func (v *view) perfMetrics(m *metrics, cfg Config, w Window, generated int64) {
	seconds := w.Seconds()
	if seconds > 0 {
		m.set("perf/rollout_time", seconds)
	} else {
		m.miss("perf/rollout_time", noClock)
	}
	m.ratio("perf/generated_tokens_per_sec", float64(generated), seconds, noClock)

	m.stats("perf/non_generation_time", v.column(m, func(r *row) (float64, bool) { return r.tools, true }), noSamples)
	v.throughput(m, "", cfg.GPUs, seconds, func(r *row) int64 { return r.response })
	v.throughput(m, "effective_", cfg.GPUs, seconds, func(r *row) int64 { return r.effective })
	v.waiting(m, w, seconds)
}

// throughput sets tokens per second for one way of counting a sample's length.
// The longest samples set the pace of a synchronous step, so their own speed is
// set too, with and without the time that tools took of it.
func (v *view) throughput(m *metrics, name string, gpus int, seconds float64, length func(*row) int64) {
	var total int64
	longest, used, count, anyTools := int64(-1), 0.0, 0.0, false
	for r := range v.rows {
		n := length(r)
		total += n
		anyTools = anyTools || r.tools > 0
		if n > longest {
			longest, used, count = n, 0, 0
		}
		if n == longest {
			used += r.tools
			count++
		}
	}
	if gpus > 0 {
		m.ratio("perf/"+name+"tokens_per_gpu_per_sec", float64(total)/float64(gpus), seconds, noClock)
	} else {
		m.miss("perf/"+name+"tokens_per_gpu_per_sec", "the number of GPUs is not known")
	}
	key := "perf/longest_" + name + "sample"
	if v.samples == 0 {
		m.miss(key+"_tokens_per_sec", noSamples)
		return
	}
	m.ratio(key+"_tokens_per_sec", float64(longest), seconds, noClock)
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
	busy := sum(v.durations)
	m.tail("perf/tail_ratio", v.durations, "no episode was timed")
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
	const unreported = "no engine reported it"
	if len(v.queued) > 0 {
		m.set("perf/queue_p99", summarize(v.queued).quantiles(v.queued, 0.99)[0])
	} else {
		m.miss("perf/queue_p99", unreported)
	}
	m.stats("perf/request/queue_time", v.queued, unreported)
	m.stats("perf/request/e2e_latency", v.latencies, unreported)
}

// tail sets the longest duration over the median one.
func (m *metrics) tail(key string, durations []float64, reason string) {
	if len(durations) == 0 {
		m.miss(key, reason)
		return
	}
	s := summarize(durations)
	m.set(key, s.hi/s.quantiles(durations, 0.5)[0])
}
