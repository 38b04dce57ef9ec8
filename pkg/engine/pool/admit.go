package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Candidate is an engine that asks to be admitted.
type Candidate interface {
	engine.Generator
	engine.Admin
	engine.Tokenizer
}

// Terms say what an engine must fulfil to serve.
type Terms struct {
	// CanaryIDs is the prompt of the canary, in our ids.
	CanaryIDs []int32
	Sampling  rollout.Sampling
	// WeightVersion must be the engine's; nil admits any.
	WeightVersion *string
	// Texts are those on which the engine's ids must be those of Encode.
	Texts  []string
	Encode func(text string) []int32
}

// Admission is what was learned of an engine that fulfils the terms.
type Admission struct {
	Info engine.Info
	// Canary is the record of the generation made, for the books.
	Canary rollout.GenerationRecord
	// Dialect is the name under which the canary's reply counted correct drafts,
	// "" where it did not.
	Dialect string
	// Unverified says why the engine's token ids were not compared with ours; ""
	// where they were, and are equal.
	Unverified string
}

// Reasons for which an engine is not admitted. It may be later.
var (
	ErrUntrainable = errors.New("its tokens cannot be trained on")
	ErrVersion     = errors.New("it has other weights")
	ErrTokens      = errors.New("its tokenizer is not ours")
)

// canaryTokens is the length of the canary.
const canaryTokens = 8

// Admit probes an engine: what it is, a short generation with log-probs (hazards
// 3, 4, 5 and 19), its weights, and its token ids. On an error the admission
// holds what was learned before it, the canary's record too.
func Admit(ctx context.Context, c Candidate, terms Terms) (Admission, error) {
	var a Admission
	var err error
	if a.Info, err = c.Info(ctx); err != nil {
		return a, fmt.Errorf("ask the engine what it is: %w", err)
	}
	sampling := terms.Sampling
	sampling.MaxNewTokens = canaryTokens
	canary, err := c.Generate(ctx, engine.Request{ID: engine.NewID(), PromptIDs: terms.CanaryIDs, Sampling: sampling})
	a.Canary, a.Dialect = canary.GenerationRecord, canary.Meta.Spec.Dialect
	switch {
	case err != nil:
		return a, fmt.Errorf("canary: %w", err)
	case canary.Fate != rollout.FateFinished:
		return a, fmt.Errorf("canary: the engine ended it as %s: %s", canary.Fate, canary.Meta.Finish.Message)
	case canary.Untrainable != "":
		return a, fmt.Errorf("canary: %w: %s", ErrUntrainable, canary.Untrainable)
	}
	if want := terms.WeightVersion; want != nil {
		got := canary.Meta.WeightVersion
		if got == nil {
			got = a.Info.WeightVersion
		}
		switch {
		case got == nil:
			return a, fmt.Errorf("%w: it reports no version, and %q is wanted", ErrVersion, *want)
		case *got != *want:
			return a, fmt.Errorf("%w: version %q, and %q is wanted", ErrVersion, *got, *want)
		}
	}
	a.Unverified, err = compareTokens(ctx, c, a.Info, terms)
	return a, err
}

// compareTokens compares the engine's token ids with ours. What is fed as ids
// is not what the model was trained on where they differ, and nothing else would
// show it.
func compareTokens(ctx context.Context, c Candidate, info engine.Info, terms Terms) (unverified string, err error) {
	if info.NoTokenizer {
		return "the engine keeps no tokenizer", nil
	}
	for _, text := range terms.Texts {
		theirs, err := c.Tokenize(ctx, text)
		if errors.Is(err, engine.ErrNoTokenizer) {
			return engine.ErrNoTokenizer.Error(), nil
		}
		if err != nil {
			return "", fmt.Errorf("compare token ids: %w", err)
		}
		if ours := terms.Encode(text); !slices.Equal(ours, theirs) {
			at := 0
			for at < min(len(ours), len(theirs)) && ours[at] == theirs[at] {
				at++
			}
			return "", fmt.Errorf("%w: of %q it makes %d tokens and we %d, and number %d differs; check model.path against the engine's model",
				ErrTokens, text, len(theirs), len(ours), at)
		}
	}
	return "", nil
}
