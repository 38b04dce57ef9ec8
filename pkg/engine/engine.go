package engine

import (
	"context"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Request is one generation: one prompt, one answer.
type Request struct {
	// ID is 32 random hex digits, new for every attempt: engines refuse an id
	// that is live (hazard 29) and abort by prefix (hazard 11).
	ID        string
	PromptIDs []int32
	Sampling  rollout.Sampling
	// VocabSize is one more than the highest token id that can be decoded; 0 says
	// that any id will do. A generation with a higher one is not for training.
	VocabSize int
	// Seed is sent when set, which callers do only for an engine that is
	// deterministic.
	Seed *int64
	// RoutingKey keeps the turns of one conversation on one engine; at most 128
	// bytes.
	RoutingKey string
	// Turn and Attempt are copied to the generation's record.
	Turn    int
	Attempt int
}

// Generator makes generations. Implementations are safe for concurrent use.
type Generator interface {
	// Generate makes one call, which ends when ctx does. The generation's record
	// is filled in either case; an error is always an [*Error] and also stands in
	// the record as its failure. An aborted generation is no error: its fate and
	// finish reason say so (hazard 10).
	Generate(ctx context.Context, req Request) (rollout.Generation, error)
}

// Chunk is what one event of a stream adds. Its slices are valid until the
// function they are handed to returns.
type Chunk struct {
	IDs []int32
	// LogProbs has one entry per id, NaN for one that is null; it is empty where
	// the engine sent none.
	LogProbs []float32
}

// Streamer makes generations whose tokens are seen as they arrive.
type Streamer interface {
	// Stream is Generate that hands new tokens to emit, on the calling goroutine.
	// An error from emit ends the call as canceled.
	Stream(ctx context.Context, req Request, emit func(Chunk) error) (rollout.Generation, error)
}

// Stream is gen's own stream, or one chunk at the end where it has none.
func Stream(ctx context.Context, gen Generator, req Request, emit func(Chunk) error) (rollout.Generation, error) {
	if s, ok := gen.(Streamer); ok {
		return s.Stream(ctx, req, emit)
	}
	g, err := gen.Generate(ctx, req)
	if err == nil && len(g.OutputIDs) > 0 {
		// The reply is whole: a reader that gave up changes nothing about it.
		_ = emit(Chunk{IDs: g.OutputIDs, LogProbs: g.LogProbs})
	}
	return g, err
}

// Info is what an engine says of itself.
type Info struct {
	// Version is the engine software's version, "" when it does not say.
	Version string
	// Model is the path or name of the model served.
	Model string
	// WeightVersion is nil when the engine does not report one.
	WeightVersion *string
	// Deterministic says that sampling_seed is honoured.
	Deterministic bool
	// Speculative says that the engine runs speculative decoding; nil = unknown.
	Speculative *bool
	// ContextLen is the longest sequence served, 0 = unknown.
	ContextLen int
	// NoTokenizer says that the engine keeps none: it takes and gives ids only.
	NoTokenizer bool
}

// Counters are an engine's own totals, in tokens and verify passes; nil where it
// keeps none, or does not show it.
type Counters struct {
	Prompt     *int64
	Cached     *int64
	Completion *int64
	Verify     *int64
	Proposed   *int64
	Correct    *int64
	// Started is the time, as a number that two starts do not share, at which the
	// totals began at 0.
	Started *int64
}

// Admin is what a controller does to one engine.
type Admin interface {
	Info(ctx context.Context) (Info, error)
	Health(ctx context.Context) error
	// Counters returns the engine's own totals since it started.
	Counters(ctx context.Context) (Counters, error)
	// Abort asks for the end of the request with exactly this id. It returns
	// before that happened (hazard 12).
	Abort(ctx context.Context, id string) error
}

// Tokenizer is an engine's own tokenizer.
type Tokenizer interface {
	// Tokenize returns the engine's ids of the text, without special tokens
	// added, or ErrNoTokenizer.
	Tokenize(ctx context.Context, text string) ([]int32, error)
}
