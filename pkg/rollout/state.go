package rollout

import (
	"fmt"
	"slices"
)

// SampleState is a sample laid open for a codec. It is plain data; only
// [RestoreSample] makes a sample of it again, after checking it.
type SampleState struct {
	Info        SampleInfo
	PromptLen   int
	Tokens      []int32
	LossMask    []byte
	LogProbs    []float32
	Versions    []VersionSpan
	Status      Status
	Spec        SpecInfo
	Prefix      PrefixInfo
	Untrainable string
	Generations []string
}

// State lays the sample open. The slices are the sample's own: read only.
func (s *Sample) State() SampleState {
	return SampleState{
		Info: s.SampleInfo, PromptLen: s.promptLen, Tokens: s.tokens, LossMask: s.lossMask, LogProbs: s.logProbs,
		Versions: s.versions, Status: s.Status(), Spec: s.spec, Prefix: s.prefix, Untrainable: s.untrainable,
		Generations: s.generations,
	}
}

// RestoreSample makes a sample of a state and takes over its slices. It fails
// with ErrMisaligned or ErrRange when the parts do not fit each other.
func RestoreSample(st SampleState) (*Sample, error) {
	if st.PromptLen < 0 || st.PromptLen > len(st.Tokens) {
		return nil, fmt.Errorf("restore sample: prompt of %d in %d tokens: %w", st.PromptLen, len(st.Tokens), ErrRange)
	}
	n := len(st.Tokens) - st.PromptLen
	if len(st.LossMask) != n || len(st.LogProbs) != n {
		return nil, fmt.Errorf("restore sample: %d response tokens, %d mask entries, %d log-probs: %w", n, len(st.LossMask), len(st.LogProbs), ErrMisaligned)
	}
	if slices.ContainsFunc(st.LossMask, func(m byte) bool { return m > 1 }) {
		return nil, fmt.Errorf("restore sample: loss mask holds a value above 1: %w", ErrRange)
	}
	if err := CheckSpans(st.Versions, n); err != nil {
		return nil, fmt.Errorf("restore sample: %w", err)
	}
	return &Sample{
		SampleInfo: st.Info, promptLen: st.PromptLen, tokens: st.Tokens, lossMask: st.LossMask, logProbs: st.LogProbs,
		versions: st.Versions, status: st.Status, spec: st.Spec, prefix: st.Prefix, untrainable: st.Untrainable,
		generations: st.Generations,
	}, nil
}
