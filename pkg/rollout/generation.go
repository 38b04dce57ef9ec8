package rollout

// Fate is what became of one engine call.
type Fate string

// Fates. A call that ended in an error has no tokens we know of.
const (
	FateFinished Fate = "finished"
	FateAborted  Fate = "aborted"
	FateFailed   Fate = "failed"
)

// GenerationRecord is the part of a generation that counting needs. Results
// carry one for every engine call of an episode, failed ones included.
type GenerationRecord struct {
	// ID is the request id we gave the engine: 32 random hex digits. It is the
	// identity that counts are kept by.
	ID string
	// Turn numbers the calls of an episode from 0; Attempt is the lease attempt.
	Turn    int
	Attempt int
	// Engine is the id of the engine in the run's engine table.
	Engine string
	// PromptLen and OutputLen count the token ids sent and received.
	PromptLen int
	OutputLen int
	Meta      EngineMeta
	Fate      Fate
	// Failure is set for FateFailed.
	Failure *Failure
	// Untrainable says why these tokens must not be trained on (for example
	// "null_logprob", hazard 8); "" when they may.
	Untrainable string
	// Seconds is the duration of the call as we saw it.
	Seconds float64
}

// Generation is one engine call with its tokens.
type Generation struct {
	GenerationRecord
	// PromptIDs are the ids the engine saw, OutputIDs those it made; LogProbs
	// belong to OutputIDs, one each.
	PromptIDs []int32
	OutputIDs []int32
	LogProbs  []float32
}

// Status decides, for the whole project, how a finish reason ends a sample.
// ok is false for a reason that we do not know.
func (f Finish) Status() (status Status, ok bool) {
	switch f.Type {
	case FinishStop, FinishToolCalls:
		return StatusCompleted, true
	case FinishLength:
		return StatusTruncated, true
	case FinishAbort:
		return StatusAborted, true
	default:
		return StatusFailed, false
	}
}
