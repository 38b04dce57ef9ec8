package step

import "github.com/sheaf-rl/sheaf/pkg/rollout"

// counters sums what engines counted, each sum over the calls that reported it.
// The ratios are formed here and nowhere else, sum over sum; averaging per-sample
// ratios would weigh short answers like long ones.
type counters struct {
	// completion and verify sum over the lengthCalls that reported a verify count.
	completion, verify, lengthCalls int64
	// correct and proposed sum over the rateCalls that reported both.
	correct, proposed, rateCalls int64
	// How the other calls came to report nothing: the engine speculates and made
	// two tokens or more, so that it should have (unreported); the first token
	// ended the answer, before any verify pass (noVerify); or the engine does not
	// speculate, as far as anybody knows (notSpeculative).
	unreported, noVerify, notSpeculative int64

	cached, prompt, cacheCalls int64
}

// add counts one call. speculates is nil when nobody knows.
func (c *counters) add(g *rollout.GenerationRecord, speculates *bool) {
	if p := g.Meta; p.CachedTokens != nil && p.PromptTokens != nil {
		c.cached += *p.CachedTokens
		c.prompt += *p.PromptTokens
		c.cacheCalls++
	}
	spec := g.Meta.Spec
	if spec.Correct != nil && spec.Proposed != nil {
		c.correct += *spec.Correct
		c.proposed += *spec.Proposed
		c.rateCalls++
	}
	switch {
	case spec.Verify != nil && *spec.Verify > 0:
		c.completion += g.Completion()
		c.verify += *spec.Verify
		c.lengthCalls++
	case spec.Verify != nil || speculates != nil && *speculates && g.Completion() < 2:
		c.noVerify++
	case speculates != nil && *speculates:
		c.unreported++
	default:
		c.notSpeculative++
	}
}

// specMetrics sets speculation and prefix-cache keys over the calls of the
// accepted episodes, each call once, also when no sample kept its turn.
func (v *view) specMetrics(m *metrics, prefix string, cfg Config) {
	var all counters
	for _, e := range v.episodes {
		calls := unique(e.Generations)
		for i := range calls {
			g := &calls[i]
			if g.Fate == rollout.FateFailed {
				continue
			}
			var speculates *bool
			if known, ok := cfg.Speculates[g.Engine]; ok {
				speculates = &known
			}
			all.add(g, speculates)
		}
	}
	m.ratio(prefix+"spec_accept_length", float64(all.completion), float64(all.verify), "no call reported spec_verify_ct above 0")
	m.ratio(prefix+"spec_accept_rate", float64(all.correct), float64(all.proposed), "no call reported accepted and proposed drafts")
	m.set(prefix+"spec_length_calls_reported", float64(all.lengthCalls))
	m.set(prefix+"spec_rate_calls_reported", float64(all.rateCalls))
	m.set(prefix+"spec_calls_unreported", float64(all.unreported))
	m.set(prefix+"spec_calls_no_verify", float64(all.noVerify))
	m.set(prefix+"spec_calls_not_speculative", float64(all.notSpeculative))

	const unreported = "no call reported cached and prompt tokens"
	m.ratio(prefix+"prefix_cache_hit_rate", float64(all.cached), float64(all.prompt), unreported)
	if all.cacheCalls == 0 {
		m.miss(prefix+"avg_cached_tokens_per_sample", unreported)
	} else {
		m.ratio(prefix+"avg_cached_tokens_per_sample", float64(all.cached), float64(len(v.samples)), noSamples)
	}
}
