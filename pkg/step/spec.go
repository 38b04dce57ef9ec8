package step

import "github.com/sheaf-rl/sheaf/pkg/rollout"

// counters sums what engines counted, each sum over the calls that reported it.
// Ratios are formed of them and of nothing else, sum over sum: averaging the
// ratios of single calls would give a short answer the weight of a long one.
type counters struct {
	// completion and verify sum over the lengthCalls that reported a verify count.
	completion, verify, lengthCalls int64
	// correct and proposed sum over the rateCalls that reported both.
	correct, proposed, rateCalls int64
	// cached and prompt sum over the cacheCalls that reported both.
	cached, prompt, cacheCalls int64
	// Calls without a verify count, by whether they made two tokens or more: the
	// first token comes before any verify pass.
	silentShort, silentLong int64
}

// add counts one call. A verify count of 0 is none: some engine versions write
// it when they do not speculate or have not come to it.
func (c *counters) add(g *rollout.GenerationRecord) {
	meta, spec := &g.Meta, &g.Meta.Spec
	if meta.CachedTokens != nil && meta.PromptTokens != nil {
		c.cached = rollout.Add(c.cached, *meta.CachedTokens)
		c.prompt = rollout.Add(c.prompt, *meta.PromptTokens)
		c.cacheCalls++
	}
	if spec.Correct != nil && spec.Proposed != nil {
		c.correct = rollout.Add(c.correct, *spec.Correct)
		c.proposed = rollout.Add(c.proposed, *spec.Proposed)
		c.rateCalls++
	}
	switch completion := g.Completion(); {
	case spec.Verify != nil && *spec.Verify > 0:
		c.completion = rollout.Add(c.completion, completion)
		c.verify = rollout.Add(c.verify, *spec.Verify)
		c.lengthCalls++
	case completion < 2:
		c.silentShort++
	default:
		c.silentLong++
	}
}

func (c *counters) merge(o *counters) {
	c.completion = rollout.Add(c.completion, o.completion)
	c.verify = rollout.Add(c.verify, o.verify)
	c.lengthCalls += o.lengthCalls
	c.correct = rollout.Add(c.correct, o.correct)
	c.proposed = rollout.Add(c.proposed, o.proposed)
	c.rateCalls += o.rateCalls
	c.cached = rollout.Add(c.cached, o.cached)
	c.prompt = rollout.Add(c.prompt, o.prompt)
	c.cacheCalls += o.cacheCalls
	c.silentShort += o.silentShort
	c.silentLong += o.silentLong
}

// countable says that a call's counters describe work: it is none of those that
// ended in an error before any token, and none that the scheduler refused with a
// status, whose counts are stand-ins (hazard 35).
func countable(g *rollout.GenerationRecord) bool {
	if g.Meta.Finish.Type == rollout.FinishAbort && g.Meta.Finish.StatusCode != nil {
		return false
	}
	return g.Fate != rollout.FateFailed || g.Completion() > 0
}

// ratios sets accept length and accept rate under the given suffix.
func (c *counters) ratios(m *metrics, prefix, suffix string) {
	length, rate := "no call reported a verify count", "no call reported accepted and proposed drafts"
	if c.lengthCalls > 0 {
		length = "every call that reported it had no verify pass"
	}
	if c.rateCalls > 0 {
		rate = "every call that reported it had nothing proposed"
	}
	m.ratio(prefix+"spec_accept_length"+suffix, float64(c.completion), float64(c.verify), length)
	m.ratio(prefix+"spec_accept_rate"+suffix, float64(c.correct), float64(c.proposed), rate)
}

// counterMetrics sets the speculation and prefix-cache keys over the calls of
// the accepted episodes: each call once, also when several samples share its
// turn or none kept it.
func (v *view) counterMetrics(m *metrics, prefix string, cfg Config) {
	all := &v.tally.all
	all.ratios(m, prefix, "")
	var unreported, noVerify, notSpeculative, unknown int64
	for name, c := range v.engines.all {
		speculates, known := cfg.Speculates[name]
		if c.lengthCalls > 0 { // whatever was known of it before
			speculates, known = true, true
		}
		switch {
		case !known:
			unknown += c.silentShort + c.silentLong
		case !speculates:
			notSpeculative += c.silentShort + c.silentLong
		default:
			noVerify += c.silentShort
			unreported += c.silentLong
		}
		if name != "" && (speculates || c.rateCalls > 0) {
			c.ratios(m, prefix, "/engine/"+name)
		}
	}
	for name, c := range v.versions.all {
		if name != "" && c.lengthCalls+c.rateCalls > 0 {
			c.ratios(m, prefix, "/version/"+name)
		}
	}
	m.set(prefix+"spec_length_calls_reported", float64(all.lengthCalls))
	m.set(prefix+"spec_rate_calls_reported", float64(all.rateCalls))
	m.set(prefix+"spec_calls_unreported", float64(unreported))
	m.set(prefix+"spec_calls_no_verify", float64(noVerify))
	m.set(prefix+"spec_calls_not_speculative", float64(notSpeculative))
	m.set(prefix+"spec_calls_unknown", float64(unknown))

	const uncounted = "no call reported cached and prompt tokens"
	m.ratio(prefix+"prefix_cache_hit_rate", float64(all.cached), float64(all.prompt), uncounted)
	m.set(prefix+"prefix_cache_calls_reported", float64(all.cacheCalls))
	if all.cacheCalls == 0 {
		m.miss(prefix+"avg_cached_tokens_per_sample", uncounted)
	} else {
		m.ratio(prefix+"avg_cached_tokens_per_sample", float64(all.cached), float64(v.samples), noSamples)
	}
}

// byName keeps counters by name. It remembers the last name asked for: calls of
// one engine or version come in runs.
type byName struct {
	all  map[string]*counters
	name string
	last *counters
}

func (b *byName) of(name string) *counters {
	if b.last != nil && b.name == name {
		return b.last
	}
	if b.all == nil {
		b.all = map[string]*counters{}
	}
	if b.all[name] == nil {
		b.all[name] = &counters{}
	}
	b.name, b.last = name, b.all[name]
	return b.last
}

func (b *byName) merge(o *byName) {
	for name, c := range o.all {
		b.of(name).merge(c)
	}
}

// versionOf is the one weight version of a call, "mixed" when it spans several,
// "" when the engine reported none.
func versionOf(meta *rollout.EngineMeta) string {
	switch {
	case len(meta.WeightVersions) == 0 && meta.WeightVersion == nil:
		return ""
	case len(meta.WeightVersions) == 0:
		return *meta.WeightVersion
	}
	first := meta.WeightVersions[0].Version
	for _, span := range meta.WeightVersions[1:] {
		if span.Version != first {
			return "mixed"
		}
	}
	return first
}
