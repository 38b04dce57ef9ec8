package rollout

import (
	"fmt"
	"strings"
)

// Boundary names the place where an episode failed.
type Boundary string

// Boundaries, in the order a sample meets them.
const (
	BoundaryPrompt  Boundary = "prompt"
	BoundaryEngine  Boundary = "engine"
	BoundarySession Boundary = "session"
	BoundaryAgent   Boundary = "agent"
	BoundaryReward  Boundary = "reward"
	BoundaryWorker  Boundary = "worker"
)

// Failure is why an episode has nothing to train on. It is data: it travels in
// the result and is counted, and never ends a run.
type Failure struct {
	Boundary Boundary
	// Reason is a short snake_case word, safe as a metric label.
	Reason string
	// Retryable says that the same episode may well succeed if run again.
	Retryable bool
	// Detail is for people: about [MaxFailureDetail] bytes of valid UTF-8.
	Detail string
}

// MaxFailureDetail bounds Failure.Detail, so that an engine's error page does
// not travel in every result.
const MaxFailureDetail = 512

// NewFailure returns a failure whose detail is err's text.
func NewFailure(b Boundary, reason string, retryable bool, err error) *Failure {
	f := &Failure{Boundary: b, Reason: reason, Retryable: retryable}
	if err != nil {
		f.Detail = err.Error()
		f.Detail = strings.ToValidUTF8(f.Detail[:min(len(f.Detail), MaxFailureDetail)], "\uFFFD")
	}
	return f
}

// Key is boundary and reason as one label: "engine/timeout".
func (f *Failure) Key() string { return string(f.Boundary) + "/" + f.Reason }

func (f *Failure) Error() string {
	if f.Detail == "" {
		return f.Key()
	}
	return fmt.Sprintf("%s: %s", f.Key(), f.Detail)
}
