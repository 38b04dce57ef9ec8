package server

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/session"
)

// apiError is an error as OpenAI clients read it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// Errors of a request's body.
var (
	errTooLarge = errors.New("the body is too large")
	errEncoding = errors.New("the body's encoding is not supported")
)

// verdict is how an error is answered. A client may try again only where that can
// help: 409, 429 and 5xx are retried by every client, 401 by some.
func verdict(err error) (status int, e apiError, again bool) {
	e = apiError{Message: err.Error(), Type: "invalid_request_error"}
	var tooLong *session.ContextError
	var engineErr *engine.Error
	switch {
	case errors.Is(err, session.ErrUnknown), errors.Is(err, session.ErrClosed), errors.Is(err, session.ErrLimit), errors.Is(err, errForeignKey):
		e.Code = "session_refused"
		return http.StatusForbidden, e, false
	case errors.As(err, &tooLong):
		e.Code, e.Message = "context_length_exceeded", tooLong.Error()
		return http.StatusBadRequest, e, false
	case errors.Is(err, errTooLarge):
		e.Code = "body_too_large"
		return http.StatusRequestEntityTooLarge, e, false
	case errors.Is(err, errEncoding):
		e.Code = "unsupported_encoding"
		return http.StatusUnsupportedMediaType, e, false
	case errors.Is(err, session.ErrBadRequest), errors.Is(err, session.ErrSyntax), errors.Is(err, rollout.ErrNotMessage):
		e.Code = "bad_request"
		return http.StatusBadRequest, e, false
	case errors.Is(err, session.ErrAborted):
		e.Type, e.Code = "server_error", "aborted"
		return http.StatusServiceUnavailable, e, true
	case errors.As(err, &engineErr):
		e.Type, e.Code = "server_error", string(engineErr.Reason)
		if engineErr.Reason.Retryable() {
			return http.StatusServiceUnavailable, e, true
		}
		return http.StatusInternalServerError, e, false
	default:
		e.Type, e.Code = "server_error", "internal"
		return http.StatusInternalServerError, e, false
	}
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	status, e, again := verdict(err)
	if again {
		w.Header().Set("Retry-After", "1")
	} else {
		w.Header().Set("X-Should-Retry", "false")
	}
	writeJSON(w, status, map[string]any{"error": e})
}

// refuse answers what is not to be tried again.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Should-Retry", "false")
	writeJSON(w, status, map[string]any{"error": apiError{Message: message, Type: "invalid_request_error", Code: code}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encode(w, v)
}

// encode writes a value and a line end. Nobody is left to tell of a client that
// went away: that shows in the request's context.
func encode(w http.ResponseWriter, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

func equalSecret(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
