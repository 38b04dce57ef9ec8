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
	// Calls without a verify count, by the reason.
	unreported, noVerify, notSpeculative, unknown int64
}

// reported says that the call carries a verify count. 0 is no count: some engine
// versions write it when they do not speculate or have not come to it.
func reported(g *rollout.GenerationRecord) bool {
	return g.Meta.Spec.Verify != nil && *g.Meta.Spec.Verify > 0
}

// add counts one call, apart from the reason for a missing verify count.
func (c *counters) add(g *rollout.GenerationRecord) {
	if p := &g.Meta; p.CachedTokens != nil && p.PromptTokens != nil {
		c.cached += *p.CachedTokens
		c.prompt += *p.PromptTokens
		c.cacheCalls++
	}
	spec := &g.Meta.Spec
	if spec.Correct != nil && spec.Proposed != nil {
		c.correct += *spec.Correct
		c.proposed += *spec.Proposed
		c.rateCalls++
	}
	if reported(g) {
		c.completion += g.Completion()
		c.verify += *spec.Verify
		c.lengthCalls++
	}
}

// silent classifies a call without a verify count: the engine speculates and made
// two tokens or more, so that it should have one; the first token ended the
// answer, before any verify pass; the engine does not speculate; or nobody knows
// whether it does.
func (c *counters) silent(g *rollout.GenerationRecord, speculates, known bool) {
	switch {
	case !known:
		c.unknown++
	case !speculates:
		c.notSpeculative++
	case g.Completion() < 2:
		c.noVerify++
	default:
		c.unreported++
	}
}

// countable says that a call's counters describe work: it is none of the calls that
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
	m.ratio(prefix+"spec_accept_length"+suffix, float64(c.completion), float64(c.verify), "no call reported a verify count")
	m.ratio(prefix+"spec_accept_rate"+suffix, float64(c.correct), float64(c.proposed), "no call reported accepted and proposed drafts")
}

// counterMetrics sets the speculation and prefix-cache keys over the calls of
// the accepted episodes: each call once, also when several samples share its
// turn or none kept it.
func (v *view) counterMetrics(m *metrics, prefix string, cfg Config) {
	var all counters
	engines, versions := byName{}, byName{}
	var quiet []*rollout.GenerationRecord
	for _, e := range v.episodes {
		calls := unique(e.Generations)
		for i := range calls {
			g := &calls[i]
			if !countable(g) {
				continue
			}
			all.add(g)
			engine := engines.of(g.Engine)
			engine.add(g)
			versions.of(versionOf(&g.Meta)).add(g)
			if !reported(g) {
				quiet = append(quiet, g)
			}
		}
	}
	// An engine that reported a verify count in this step speculates, whatever was
	// known of it before.
	for _, g := range quiet {
		engine := engines.of(g.Engine)
		speculates, known := cfg.Speculates[g.Engine]
		if engine.lengthCalls > 0 {
			speculates, known = true, true
		}
		all.silent(g, speculates, known)
		engine.silent(g, speculates, known)
	}

	all.ratios(m, prefix, "")
	for name, c := range engines.all {
		if name != "" && c.lengthCalls+c.rateCalls+c.unreported > 0 {
			c.ratios(m, prefix, "/engine/"+name)
		}
	}
	for name, c := range versions.all {
		if name != "" && c.lengthCalls+c.rateCalls > 0 {
			c.ratios(m, prefix, "/version/"+name)
		}
	}
	m.set(prefix+"spec_length_calls_reported", float64(all.lengthCalls))
	m.set(prefix+"spec_rate_calls_reported", float64(all.rateCalls))
	m.set(prefix+"spec_calls_unreported", float64(all.unreported))
	m.set(prefix+"spec_calls_no_verify", float64(all.noVerify))
	m.set(prefix+"spec_calls_not_speculative", float64(all.notSpeculative))
	m.set(prefix+"spec_calls_unknown", float64(all.unknown))

	const uncounted = "no call reported cached and prompt tokens"
	m.ratio(prefix+"prefix_cache_hit_rate", float64(all.cached), float64(all.prompt), uncounted)
	m.set(prefix+"prefix_cache_calls_reported", float64(all.cacheCalls))
	if all.cacheCalls == 0 {
		m.miss(prefix+"avg_cached_tokens_per_sample", uncounted)
	} else {
		m.ratio(prefix+"avg_cached_tokens_per_sample", float64(all.cached), float64(len(v.samples)), noSamples)
	}
}

// byName keeps counters by name. It remembers the last name asked for: calls of
// one engine or version come in long runs.
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
