package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Status is how a sample's last generation left it.
type Status string

// Sample statuses.
const (
	StatusPending   Status = "pending"
	StatusCompleted Status = "completed"
	StatusTruncated Status = "truncated"
	StatusAborted   Status = "aborted"
	StatusFailed    Status = "failed"
)

// Errors of the merger. The sample is left as it was.
var (
	// ErrMisaligned reports log-probs that are not one to one with tokens.
	ErrMisaligned = errors.New("log-probs and tokens differ in number")
	// ErrLogProb reports a log-prob that is not a finite number. One of them would
	// turn a whole batch's loss into NaN, also where it is masked out.
	ErrLogProb = errors.New("log-prob is not a finite number")
	// ErrPrefix reports a prompt that does not begin with the sample's tokens.
	ErrPrefix = errors.New("prompt does not continue the sample")
	// ErrRange reports a range outside the response, or across another.
	ErrRange = errors.New("range outside the response")
	// ErrFinish reports a finish reason that nobody knows.
	ErrFinish = errors.New("unknown finish reason")
	// ErrEmptyPrompt reports a first generation without a prompt.
	ErrEmptyPrompt = errors.New("empty prompt")
)

// SampleInfo is what is known of a sample beside its tokens. Its fields are free
// to set; none of them must stay aligned with another.
type SampleInfo struct {
	// GroupIndex, Index and RolloutID identify the sample in the run. Samples of
	// one episode share a RolloutID.
	GroupIndex int64
	Index      int64
	RolloutID  int64
	// Prompt is the prompt as people read it: the rendered text.
	Prompt string
	// Response is Decode of the response tokens, in every mode.
	Response string
	// Label is the prompt's label as JSON; nil when it had none.
	Label json.RawMessage
	// Reward is nil when nothing scored the sample. Nil is never 0.
	Reward *float64
	// Metadata and TrainMetadata are JSON objects, or nil.
	Metadata      json.RawMessage
	TrainMetadata json.RawMessage
	// NonGenerationTime is time spent outside engine calls, in seconds.
	NonGenerationTime float64
	// Remove keeps the sample in statistics and out of the loss.
	Remove bool
}

// SpecInfo sums the speculative counters over a sample's generations. A sum is
// nil when no generation reported it.
type SpecInfo struct {
	Verify     *int64
	Correct    *int64
	Proposed   *int64
	Completion *int64
}

// PrefixInfo sums the prefix-cache counters over a sample's generations.
type PrefixInfo struct {
	Cached *int64
	Prompt *int64
}

// Sample is what the trainer gets. Its token-aligned slices are unexported: they
// change only through Append, Trim, Cut and Mask, which keep them aligned.
//
//	tokens:            [prompt ............][response .....................]
//	lossMask,logProbs:                      [one entry per response token ]
//
// The zero value is an empty, pending sample.
type Sample struct {
	SampleInfo

	promptLen   int
	tokens      []int32
	lossMask    []byte
	logProbs    []float32
	versions    []VersionSpan
	status      Status
	spec        SpecInfo
	prefix      PrefixInfo
	untrainable string
	generations []string
}

// Append merges one generation. The first sets the prompt. A later one must have
// a prompt that begins with all tokens so far; what it adds (tool results, the
// next user turn) becomes part of the response, masked out.
//
// The generation's counters are added once, here. On error the sample is
// unchanged; whatever is accepted can be restored by [RestoreSample].
func (s *Sample) Append(g Generation) error {
	if len(g.LogProbs) != len(g.OutputIDs) {
		return fmt.Errorf("append generation %s: %w: %d log-probs, %d tokens", g.ID, ErrMisaligned, len(g.LogProbs), len(g.OutputIDs))
	}
	if g.Untrainable == "" {
		if i := slices.IndexFunc(g.LogProbs, notFinite); i >= 0 {
			return fmt.Errorf("append generation %s: %w: number %d of %d", g.ID, ErrLogProb, i, len(g.LogProbs))
		}
	}
	status, ok := g.Meta.Finish.Status()
	if !ok {
		return fmt.Errorf("append generation %s: %w: %q", g.ID, ErrFinish, g.Meta.Finish.Type)
	}
	if err := CheckSpans(g.Meta.WeightVersions, len(g.OutputIDs)); err != nil {
		return fmt.Errorf("append generation %s: %w", g.ID, err)
	}
	var gap []int32
	if len(s.tokens) == 0 {
		if len(g.PromptIDs) == 0 {
			return fmt.Errorf("append generation %s: %w", g.ID, ErrEmptyPrompt)
		}
		s.tokens = append(slices.Grow(s.tokens, len(g.PromptIDs)+len(g.OutputIDs)), g.PromptIDs...)
		s.promptLen = len(g.PromptIDs)
	} else {
		if i := firstDifference(s.tokens, g.PromptIDs); i < len(s.tokens) {
			return fmt.Errorf("append generation %s: %w: they differ at token %d of %d", g.ID, ErrPrefix, i, len(s.tokens))
		}
		gap = g.PromptIDs[len(s.tokens):]
	}

	s.tokens = append(append(s.tokens, gap...), g.OutputIDs...)
	s.lossMask = append(s.lossMask, make([]byte, len(gap))...)
	s.logProbs = append(s.logProbs, make([]float32, len(gap))...)
	start := int64(len(s.lossMask))
	if g.Untrainable == "" {
		for range g.OutputIDs {
			s.lossMask = append(s.lossMask, 1)
		}
		s.logProbs = append(s.logProbs, g.LogProbs...)
	} else {
		s.lossMask = append(s.lossMask, make([]byte, len(g.OutputIDs))...)
		s.logProbs = append(s.logProbs, make([]float32, len(g.OutputIDs))...)
		if s.untrainable == "" {
			s.untrainable = g.Untrainable
		}
	}
	s.addVersions(g.Meta, start, int64(len(g.OutputIDs)))
	s.addCounters(g.Meta)
	s.status = status
	s.generations = append(s.generations, g.ID)
	return nil
}

func (s *Sample) addVersions(m EngineMeta, start, n int64) {
	if n == 0 {
		return
	}
	if len(m.WeightVersions) == 0 {
		if m.WeightVersion != nil {
			s.addSpan(VersionSpan{Version: *m.WeightVersion, Start: start, End: start + n})
		}
		return
	}
	for _, span := range m.WeightVersions {
		s.addSpan(VersionSpan{Version: span.Version, Start: start + span.Start, End: start + span.End})
	}
}

// addSpan appends a span, joined to the last where both are of one version.
func (s *Sample) addSpan(span VersionSpan) {
	if k := len(s.versions) - 1; k >= 0 && s.versions[k].Version == span.Version && s.versions[k].End == span.Start {
		s.versions[k].End = span.End
		return
	}
	s.versions = append(s.versions, span)
}

func (s *Sample) addCounters(m EngineMeta) {
	s.spec.Verify = sumPresent(s.spec.Verify, m.Spec.Verify)
	s.spec.Correct = sumPresent(s.spec.Correct, m.Spec.Correct)
	s.spec.Proposed = sumPresent(s.spec.Proposed, m.Spec.Proposed)
	s.spec.Completion = sumPresent(s.spec.Completion, m.CompletionTokens)
	s.prefix.Cached = sumPresent(s.prefix.Cached, m.CachedTokens)
	s.prefix.Prompt = sumPresent(s.prefix.Prompt, m.PromptTokens)
}

// Trim removes the last n response tokens, as a chat family does whose stop
// token also opens the next message. Status and counters stay: the tokens were
// generated.
func (s *Sample) Trim(n int) error {
	if n < 0 || n > len(s.lossMask) {
		return fmt.Errorf("trim %d of %d tokens: %w", n, len(s.lossMask), ErrRange)
	}
	s.truncate(len(s.lossMask) - n)
	return nil
}

// Cut shortens the sample to at most total tokens, prompt included, and marks it
// truncated if that removed any. It fails with ErrRange, and changes nothing,
// when no response token would be left.
func (s *Sample) Cut(total int) error {
	if len(s.tokens) <= total {
		return nil
	}
	if total <= s.promptLen {
		return fmt.Errorf("cut to %d tokens after a prompt of %d: %w", total, s.promptLen, ErrRange)
	}
	s.truncate(total - s.promptLen)
	s.status = StatusTruncated
	return nil
}

// Mask takes response tokens from start (inclusive) to end (exclusive) out of
// the loss.
func (s *Sample) Mask(start, end int) error {
	if start < 0 || end > len(s.lossMask) || start > end {
		return fmt.Errorf("mask %d to %d of %d tokens: %w", start, end, len(s.lossMask), ErrRange)
	}
	clear(s.lossMask[start:end])
	return nil
}

// truncate keeps the first n response tokens.
func (s *Sample) truncate(n int) {
	s.tokens = s.tokens[:s.promptLen+n]
	s.lossMask = s.lossMask[:n]
	s.logProbs = s.logProbs[:n]
	s.versions = slices.DeleteFunc(s.versions, func(v VersionSpan) bool { return v.Start >= int64(n) })
	if k := len(s.versions) - 1; k >= 0 {
		s.versions[k].End = min(s.versions[k].End, int64(n))
	}
}

// Tokens returns prompt and response ids. The slice is the sample's own: read only.
func (s *Sample) Tokens() []int32 { return s.tokens }

// ResponseTokens returns the ids after the prompt: read only.
func (s *Sample) ResponseTokens() []int32 { return s.tokens[s.promptLen:] }

// PromptLen is the number of prompt tokens.
func (s *Sample) PromptLen() int { return s.promptLen }

// ResponseLen is the number of tokens after the prompt, masked ones included.
func (s *Sample) ResponseLen() int { return len(s.lossMask) }

// LossMask returns 1 for each response token that is trained on: read only.
func (s *Sample) LossMask() []byte { return s.lossMask }

// LogProbs returns one log-prob per response token, 0 where it is masked as a
// gap: read only.
func (s *Sample) LogProbs() []float32 { return s.logProbs }

// Versions returns the weight versions by response tokens: read only.
func (s *Sample) Versions() []VersionSpan { return s.versions }

// Status is how the last generation ended.
func (s *Sample) Status() Status {
	if s.status == "" {
		return StatusPending
	}
	return s.status
}

// Spec is the sum of the generations' speculative counters.
func (s *Sample) Spec() SpecInfo { return s.spec }

// Prefix is the sum of the generations' prefix-cache counters.
func (s *Sample) Prefix() PrefixInfo { return s.prefix }

// Untrainable is why some of the tokens are out of the loss, or "".
func (s *Sample) Untrainable() string { return s.untrainable }

// Generations lists the ids of the generations merged in: read only.
func (s *Sample) Generations() []string { return s.generations }

// EffectiveLen counts the response tokens that are trained on.
func (s *Sample) EffectiveLen() int {
	n := 0
	for _, m := range s.lossMask {
		n += int(m)
	}
	return n
}

// notFinite: NaN and the infinities are what differs from itself less itself.
func notFinite(x float32) bool { return x-x != 0 }

// firstDifference returns the first index at which want and got differ, or
// len(want) when got begins with want.
func firstDifference(want, got []int32) int {
	if len(got) >= len(want) && slices.Equal(want, got[:len(want)]) {
		return len(want)
	}
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return i
		}
	}
	return len(got)
}
