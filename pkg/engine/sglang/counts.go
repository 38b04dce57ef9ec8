package sglang

import (
	"math"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

const (
	// maxDrafts is far above what a verify pass is offered, 3 to 64 in practice. It
	// also bounds what the last one makes beyond the end of the output.
	maxDrafts = 1 << 10
	// maxSeconds bounds the times of one request: 30 days.
	maxSeconds = 30 * 24 * 60 * 60
)

// believe keeps the numbers that can be, of a call with a prompt of sent tokens
// that made so many tokens, or at most so many where that is not known. The
// others become absent, with their names kept (hazard 41): a sum over them would
// be made up, and so would a zero.
func believe(m *rollout.EngineMeta, sent, made int64) {
	doubt := func(name string) { m.Implausible = append(m.Implausible, name) }
	count := func(name string, n **int64, most int64) {
		if *n != nil && (**n < 0 || **n > most) {
			*n = nil
			doubt(name)
		}
	}
	// or is what a count says, or most where it says nothing.
	or := func(n *int64, most int64) int64 {
		if n == nil {
			return most
		}
		return *n
	}
	seconds := func(name string, s **float64) {
		if *s != nil && (**s < 0 || **s > maxSeconds) {
			*s = nil
			doubt(name)
		}
	}

	count("prompt_tokens", &m.PromptTokens, sent)
	count("cached_tokens", &m.CachedTokens, or(m.PromptTokens, sent))
	count("completion_tokens", &m.CompletionTokens, made)
	count("reasoning_tokens", &m.ReasoningTokens, made+maxDrafts) // hazard 7
	count("num_retractions", &m.Retractions, math.MaxInt32)
	count("dp_rank", &m.DPRank, math.MaxInt32)
	seconds("e2e_latency", &m.E2ELatency)
	seconds("queue_time", &m.QueueTime)

	// A pass makes one token at least. What the last pass accepted may go beyond
	// the output, so correct drafts are bounded by the drafts alone.
	spec := &m.Spec
	count("spec_verify", &spec.Verify, made)
	passes := or(spec.Verify, made)
	count("spec_proposed", &spec.Proposed, passes*maxDrafts)
	count("spec_correct", &spec.Correct, min(passes*maxDrafts, made+maxDrafts))
	if spec.Correct != nil && spec.Proposed != nil && *spec.Correct > *spec.Proposed {
		spec.Correct, spec.Proposed = nil, nil // one of them, and nobody knows which
		doubt("spec_correct")
		doubt("spec_proposed")
	}
	var sum int64
	for _, n := range spec.Histogram {
		if n < 0 || n > passes-sum {
			spec.Histogram = nil
			doubt("spec_histogram")
			break
		}
		sum += n
	}
}
