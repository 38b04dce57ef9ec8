package step

// Reasons for missing performance keys.
const (
	noClock = "the length of the step is not known"
	noGPUs  = "the number of GPUs is not known"
)

// perfMetrics sets the keys that need a clock.
func (v *view) perfMetrics(m *metrics, cfg Config, w Window, books Books) {
	seconds := w.Seconds()
	if seconds > 0 {
		m.set("perf/rollout_time", seconds)
	} else {
		m.miss("perf/rollout_time", noClock)
	}
	m.ratio("perf/generated_tokens_per_sec", float64(books.Generated), seconds, noClock)
	lengths := make([]int64, len(v.samples))
	for i, s := range v.samples {
		lengths[i] = int64(s.ResponseLen())
	}
	v.throughput(m, "", lengths, cfg.GPUs, seconds)
	v.throughput(m, "effective_", v.effective, cfg.GPUs, seconds)
}

// throughput sets tokens per second for one way of counting a sample's length.
func (v *view) throughput(m *metrics, name string, lengths []int64, gpus int, seconds float64) {
	var total, longest int64
	for _, n := range lengths {
		total += n
		longest = max(longest, n)
	}
	if gpus > 0 {
		m.ratio("perf/"+name+"tokens_per_gpu_per_sec", float64(total)/float64(gpus), seconds, noClock)
	} else {
		m.miss("perf/"+name+"tokens_per_gpu_per_sec", noGPUs)
	}
	key := "perf/longest_" + name + "sample_tokens_per_sec"
	if len(lengths) == 0 {
		m.miss(key, noSamples)
		return
	}
	m.ratio(key, float64(longest), seconds, noClock)
}
