package reward

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Input is what is scored.
type Input struct {
	// Prompt is the row that was answered; its Label is the truth.
	Prompt rollout.Prompt
	// Response is the text of the answer, without special tokens.
	Response string
}

// Result is a verdict.
type Result struct {
	// Reward is nil where the verifier judged the answer and gives no number.
	Reward *float64
}

// Scorer scores one response. Implementations are safe for concurrent use.
type Scorer interface {
	Score(ctx context.Context, in Input) (Result, error)
}

// Errors of scorers.
var (
	// ErrNoLabel reports a prompt without the label that the verifier needs.
	ErrNoLabel = errors.New("the prompt has no label to score against; see data.label_key")
	// ErrType reports a verifier that does not exist.
	ErrType = errors.New("unknown reward type")
)

// Types names the verifiers of [New].
func Types() []string { return []string{"exact", "math"} }

// NeedsLabel says that the verifier of the type cannot score a prompt without a
// label.
func NeedsLabel(kind string) bool { return kind == "exact" || kind == "math" }

// New returns the verifier of the spec.
func New(spec rollout.RewardSpec) (Scorer, error) {
	switch spec.Type {
	case "exact":
		return local(Exact), nil
	case "math":
		return local(Math), nil
	default:
		return nil, fmt.Errorf("%w %q: use one of %s", ErrType, spec.Type, strings.Join(Types(), ", "))
	}
}

// local is a verifier that compares a response with a label and needs nothing
// else.
type local func(response, label string) bool

func (l local) Score(_ context.Context, in Input) (Result, error) {
	label := in.Prompt.LabelText()
	if strings.TrimSpace(label) == "" {
		return Result{}, ErrNoLabel
	}
	score := 0.0
	if l(in.Response, label) {
		score = 1
	}
	return Result{Reward: &score}, nil
}
