package session

import (
	"errors"
	"fmt"
)

// Errors of a session. What an engine does wrong comes as an [engine.Error].
var (
	// ErrUnknown reports a session that is not there.
	ErrUnknown = errors.New("there is no such session")
	// ErrClosed reports a session that is closed, or closes.
	ErrClosed = errors.New("the session is closed")
	// ErrLimit reports a session that has had all the turns it may have.
	ErrLimit = errors.New("the session has reached its limit")
	// ErrBadRequest reports a request that no session could serve.
	ErrBadRequest = errors.New("bad request")
	// ErrAborted reports a generation that the engine ended before its time. It is
	// not part of the session; the same request may succeed.
	ErrAborted = errors.New("the engine aborted the generation")
	// ErrHistory reports, under the linear policy, a conversation that goes on from
	// anywhere but the last turn or the one before it.
	ErrHistory = errors.New("the conversation does not continue the last turn")
)

// ContextError reports a prompt that leaves no room for a reply.
type ContextError struct {
	// Limit is the longest sequence, Prompt the prompt's length, in tokens.
	Limit, Prompt int
}

func (e *ContextError) Error() string {
	return fmt.Sprintf("This model's maximum context length is %d tokens. However, your messages resulted in %d tokens. Please reduce the length of the messages.", e.Limit, e.Prompt)
}
