package engine

import (
	"errors"
	"fmt"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Reason is how a call failed: a word for metrics, reports and branching.
type Reason string

// Reasons. The comment says when an adapter returns it.
const (
	// Unreachable: no connection; the engine never saw the request.
	Unreachable Reason = "unreachable"
	// Reset: the connection broke after the request was sent.
	Reset Reason = "reset"
	// Timeout: the deadline of the call passed.
	Timeout Reason = "timeout"
	// Canceled: the caller gave up.
	Canceled Reason = "canceled"
	// Rejected: the engine refused the request as wrong (4xx).
	Rejected Reason = "rejected"
	// Overloaded: the engine refused for lack of room (429, 503).
	Overloaded Reason = "overloaded"
	// Faulty: the engine failed (other 5xx, NaN in the logits).
	Faulty Reason = "engine_error"
	// BadReply: 200 with a body that is not a reply, or contradicts itself.
	BadReply Reason = "bad_reply"
	// TooLarge: the reply is larger than the limit.
	TooLarge Reason = "reply_too_large"
	// NoEngine: no engine serves.
	NoEngine Reason = "no_engine"
)

// Retryable says that the same request may succeed later or elsewhere.
func (r Reason) Retryable() bool {
	switch r {
	case Rejected, TooLarge, Canceled:
		return false
	default:
		return true
	}
}

// ErrNoTokenizer reports an engine that cannot tokenize for us.
var ErrNoTokenizer = errors.New("the engine does not tokenize")

// Error is a failed engine call.
type Error struct {
	Reason Reason
	// Engine is the id of the engine, Status the HTTP status, 0 when none came.
	Engine string
	Status int
	Err    error
}

func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("engine %s: %s (HTTP %d): %v", e.Engine, e.Reason, e.Status, e.Err)
	}
	return fmt.Sprintf("engine %s: %s: %v", e.Engine, e.Reason, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Failure is the error as an episode records it.
func (e *Error) Failure() *rollout.Failure {
	return rollout.NewFailure(rollout.BoundaryEngine, string(e.Reason), e.Reason.Retryable(), e)
}

// ReasonOf returns the reason of an engine error, "" for any other error.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}
