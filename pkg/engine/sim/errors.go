package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

var (
	errNoTokenizer = errors.New("this engine was started without a tokenizer")
	errNoPrompt    = errors.New("a prompt is needed")
	errNotJSON     = errors.New("Content-Type must be application/json")
	errNoVersion   = errors.New("new_version is needed")
)

// statusError is a refusal with SGLang's status and error type.
type statusError struct {
	status  int
	errType string // set = the flat body, else {"error":{"message"}}
	message string
}

func (e *statusError) Error() string { return e.message }

// invalid is a request that breaks a rule, SGLang's ValueError.
func invalid(format string, args ...any) error {
	return &statusError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

// malformed is a body that the request model does not take.
func malformed(err error) error {
	return &statusError{status: http.StatusBadRequest, errType: "Bad Request", message: err.Error()}
}

// writeError answers with err in the shape that SGLang gives it.
func writeError(w http.ResponseWriter, err error) {
	var refusal *statusError
	switch {
	case errors.As(err, &refusal) && refusal.errType == "":
		writeJSON(w, refusal.status, map[string]any{"error": map[string]any{"message": refusal.message}})
	case errors.As(err, &refusal):
		writeJSON(w, refusal.status, map[string]any{
			"object": "error", "message": refusal.message, "type": refusal.errType, "param": nil, "code": refusal.status,
		})
	case errors.Is(err, errStopped):
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		// An exception that no handler of SGLang expects is plain text.
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(data)
}
