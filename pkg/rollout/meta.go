package rollout

import (
	"fmt"
	"math"
)

// EngineMeta is what an engine said about one generation, in our words. Every
// count is a pointer: nil means the engine did not say, which is not zero.
//
// Only pkg/engine/sglang makes one from an engine's JSON.
type EngineMeta struct {
	Finish Finish

	// PromptTokens counts the tokens of the prompt, CachedTokens those of them
	// that the prefix cache held.
	PromptTokens *int64
	CachedTokens *int64
	// CompletionTokens counts generated tokens, the matched stop token included.
	CompletionTokens *int64
	ReasoningTokens  *int64
	// Retractions counts how often the scheduler took the request off the GPU.
	Retractions *int64

	// WeightVersion is the version as the engine wrote it when the reply left;
	// nil when it wrote none.
	WeightVersion *string
	// WeightVersions are the versions by span of output tokens, where the engine
	// reports them. They win over WeightVersion, which only knows the last one
	// (hazard 15).
	WeightVersions []VersionSpan

	Spec SpecMeta

	// Seconds, as the engine measured them.
	E2ELatency *float64
	QueueTime  *float64
	DPRank     *int64

	// Implausible names the numbers that the engine did send and that cannot be:
	// they are absent here (hazard 41).
	Implausible []string
}

// SpecMeta holds the speculative counters of one generation.
type SpecMeta struct {
	// Verify counts the target model's verify passes.
	Verify *int64
	// Correct counts accepted draft tokens, Proposed those offered. Both are nil
	// when Verify is reported by an engine whose names for them we do not know:
	// unknown, not zero (hazard 1).
	Correct  *int64
	Proposed *int64
	// Histogram counts verify passes by number of accepted drafts.
	Histogram []int64
	// Dialect is the name under which the engine reported Correct; "" for none.
	Dialect string
}

// VersionSpan says which weights made tokens Start (inclusive) to End (exclusive).
// In an [EngineMeta] positions count output tokens, in a [Sample] response tokens.
type VersionSpan struct {
	Version string
	Start   int64
	End     int64
}

// CheckSpans fails with ErrRange unless the spans are in order, hold at least one
// token each, and lie apart from each other within n tokens.
func CheckSpans(spans []VersionSpan, n int) error {
	last := int64(0)
	for _, v := range spans {
		if v.Start < last || v.End <= v.Start || v.End > int64(n) {
			return fmt.Errorf("version span %d to %d of %d tokens: %w", v.Start, v.End, n, ErrRange)
		}
		last = v.End
	}
	return nil
}

// FinishType is an engine's reason for ending a generation.
type FinishType string

// Finish types. Anything else an engine writes is kept as it is and ends the
// generation as failed.
const (
	FinishStop      FinishType = "stop"
	FinishLength    FinishType = "length"
	FinishAbort     FinishType = "abort"
	FinishToolCalls FinishType = "tool_calls"
)

// Finish is why a generation ended.
type Finish struct {
	Type FinishType
	// MatchedToken or MatchedText is the stop that hit, where the engine says so.
	MatchedToken *int64
	MatchedText  string
	// Message and StatusCode explain an abort; StatusCode is nil for one that a
	// client asked for.
	Message    string
	StatusCode *int64
}

// Ptr returns a pointer to v: presence for an optional field.
func Ptr[T any](v T) *T { return &v }

// sumPresent adds b to a; nil when neither is there.
func sumPresent(a, b *int64) *int64 {
	switch {
	case b == nil:
		return a
	case a == nil:
		return Ptr(*b)
	default:
		return Ptr(Add(*a, *b))
	}
}

// Add is a + b, or the number nearest to it that 64 bits hold: a sum of counts
// that is too large must not look small, or negative.
func Add(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	default:
		return a + b
	}
}
