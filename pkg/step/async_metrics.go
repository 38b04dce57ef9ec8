package step

import "strconv"

// asyncMetrics sets how old the batch's tokens are against the version that the
// step trains, and the state of the queue of finished groups.
func (v *view) asyncMetrics(m *metrics, cfg Config, w Window) {
	v.staleness(m, cfg)
	q := w.Queue
	if q == nil {
		return
	}
	const prefix, empty = "rollout/fully_async/", "no group was in the queue"
	m.count(prefix+"queue_size", q.Size)
	m.count(prefix+"aborted_groups_filtered", q.Aborted)
	m.count(prefix+"stale_groups_filtered", q.Stale)
	m.averageAndMax(prefix+"avg_staleness", prefix+"max_staleness", floats(q.Seen), empty)
	m.averageAndMax(prefix+"buffer_avg_staleness", prefix+"buffer_max_staleness", floats(q.Left), empty)
}

// staleness sets the async/ keys. A sample's staleness is the distance, in weight
// versions, from the one that the step trains back to the oldest numbered one
// among its tokens.
func (v *view) staleness(m *metrics, cfg Config) {
	const mean, greatest, share = "async/staleness/mean", "async/oldest_age", "async/off_policy_token_share"
	if cfg.WeightVersion == nil {
		for _, key := range [...]string{mean, greatest, share} {
			m.miss(key, "no trainer posted a weight version")
		}
		return
	}
	var histogram counter[int64]
	ages := m.scratch(v.samples)
	for r := range v.rows {
		if r.numberedOwn {
			age := int64(*cfg.WeightVersion - r.oldestOwn)
			ages = append(ages, float64(age))
			histogram.add(age)
		}
	}
	m.count("async/staleness/samples", len(ages))
	m.averageAndMax(mean, greatest, ages, noVersion)
	m.ratio(share, float64(v.offPolicy), float64(v.versioned), noVersion)
	for age, n := range histogram.all() {
		m.count("async/staleness/count_"+strconv.FormatInt(age, 10), n)
	}
}
