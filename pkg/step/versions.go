package step

import (
	"strconv"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// parseVersion reads a decimal weight version; ok is false for any other text.
func parseVersion(text string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// parsedVersions remembers the last version read: in a step nearly all are equal.
type parsedVersions struct {
	text string
	n    uint64
	ok   bool
}

func (p *parsedVersions) parse(text string) (uint64, bool) {
	if text != p.text {
		p.text = text
		p.n, p.ok = parseVersion(text)
	}
	return p.n, p.ok
}

// versionRange sums up the weight versions of a sample.
type versionRange struct {
	first    string
	any      bool
	mixed    bool   // more than one version, numbered or not
	numbered bool   // at least one is a number
	oldest   uint64 // the least number
}

func (r *versionRange) add(text string, numbers *parsedVersions) {
	if !r.any {
		r.any, r.first = true, text
	} else if text != r.first {
		r.mixed = true
	}
	if n, ok := numbers.parse(text); ok && (!r.numbered || n < r.oldest) {
		r.numbered, r.oldest = true, n
	}
}

// addMeta adds what one call reported: its spans, or its only version.
func (r *versionRange) addMeta(meta *rollout.EngineMeta, numbers *parsedVersions) {
	for i := range meta.WeightVersions {
		r.add(meta.WeightVersions[i].Version, numbers)
	}
	if len(meta.WeightVersions) == 0 && meta.WeightVersion != nil {
		r.add(*meta.WeightVersion, numbers)
	}
}

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

func (m *metrics) averageAndMax(average, greatest string, xs []float64, reason string) {
	m.average(average, xs, reason)
	if len(xs) == 0 {
		m.miss(greatest, reason)
		return
	}
	hi := xs[0]
	for _, x := range xs {
		hi = max(hi, x)
	}
	m.set(greatest, hi)
}

// staleness sets the async/ keys. A sample's staleness is the distance from the
// trained version to the oldest numbered one among its tokens.
func (v *view) staleness(m *metrics, cfg Config) {
	const mean, oldestAge, share = "async/staleness/mean", "async/oldest_age", "async/off_policy_token_share"
	if cfg.WeightVersion == nil {
		for _, key := range []string{mean, oldestAge, share} {
			m.miss(key, "no trainer posted a weight version")
		}
		return
	}
	current := *cfg.WeightVersion
	var numbers parsedVersions
	var ages []float64
	var trained, known, off int64
	histogram := map[int64]int{}
	for i, s := range v.samples {
		var r versionRange
		trained += v.trained(i)
		for _, span := range s.Versions() {
			r.add(span.Version, &numbers)
			if v.excluded[i] {
				continue
			}
			n, numbered := numbers.parse(span.Version)
			if !numbered {
				continue
			}
			tokens := ones(s.LossMask()[span.Start:span.End])
			known += tokens
			if n != current {
				off += tokens
			}
		}
		if r.numbered {
			age := int64(current) - int64(r.oldest)
			ages = append(ages, float64(age))
			histogram[age]++
		}
	}
	const unnumbered = "no token has a weight version that is a number"
	m.count("async/staleness/samples", len(ages))
	m.averageAndMax(mean, oldestAge, ages, unnumbered)
	m.ratio(share, float64(off), float64(known), unnumbered)
	for age, n := range histogram {
		m.count("async/staleness/count_"+strconv.FormatInt(age, 10), n)
	}
}
