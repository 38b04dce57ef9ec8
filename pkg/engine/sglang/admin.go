package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/sheaf-rl/sheaf/pkg/engine"
)

// maxControlReply bounds the body of a control call; /server_info lists every
// argument of the server.
const maxControlReply = 16 << 20

// controlCall makes one control call within a time of its own, because an engine may
// leave any of them hanging (hazards 13 and 14), and decodes its JSON into out
// unless that is nil.
func (c *Client) controlCall(ctx context.Context, method, path string, in, out any) *engine.Error {
	ctx, cancel := context.WithTimeout(ctx, c.control)
	defer cancel()
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return c.fail(engine.Rejected, 0, fmt.Errorf("%s: %w", path, err))
		}
	}
	var t trace
	resp, fault := c.send(ctx, &t, method, path, body, nil)
	if fault != nil {
		fault.Err = fmt.Errorf("%s: %w", path, fault.Err)
		return fault
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxControlReply+1))
	switch {
	case err != nil:
		return c.bodyError(ctx, err)
	case len(text) > maxControlReply:
		return c.fail(engine.TooLarge, resp.StatusCode, fmt.Errorf("%s: the reply is larger than %d bytes", path, maxControlReply))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return c.fail(engine.BadReply, resp.StatusCode, fmt.Errorf("%s: %w", path, err))
	}
	return nil
}

// first makes the call under the first path that the engine knows.
func (c *Client) first(ctx context.Context, method string, in, out any, paths ...string) *engine.Error {
	var fault *engine.Error
	for _, path := range paths {
		fault = c.controlCall(ctx, method, path, in, out)
		if fault == nil || fault.Status != http.StatusNotFound && fault.Status != http.StatusMethodNotAllowed {
			return fault
		}
	}
	return fault
}

// Info implements [engine.Admin]. It asks the HTTP process for the model and the
// scheduler for the rest.
func (c *Client) Info(ctx context.Context) (engine.Info, error) {
	var model struct {
		Path          string    `json:"model_path"`
		WeightVersion *wireText `json:"weight_version"`
	}
	if fault := c.first(ctx, http.MethodGet, nil, &model, "/model_info", "/get_model_info"); fault != nil {
		return engine.Info{}, fault
	}
	var server struct {
		Version       string          `json:"version"`
		Deterministic bool            `json:"enable_deterministic_inference"`
		Speculative   json.RawMessage `json:"speculative_algorithm"`
		ContextLen    *int            `json:"context_length"`
		NoTokenizer   bool            `json:"skip_tokenizer_init"`
	}
	if fault := c.first(ctx, http.MethodGet, nil, &server, "/server_info", "/get_server_info"); fault != nil {
		return engine.Info{}, fault
	}
	info := engine.Info{
		Version: server.Version, Model: model.Path, WeightVersion: (*string)(model.WeightVersion), Deterministic: server.Deterministic,
		NoTokenizer: server.NoTokenizer,
	}
	if server.Speculative != nil {
		on := string(server.Speculative) != "null" && string(server.Speculative) != `""`
		info.Speculative = &on
	}
	if server.ContextLen != nil {
		info.ContextLen = *server.ContextLen
	}
	return info, nil
}

// Health implements [engine.Admin]. A healthy engine takes a second to answer; a
// busy one may not (hazard 18), and a dead scheduler may (hazard 19): it is one
// sign among others.
func (c *Client) Health(ctx context.Context) error {
	if fault := c.controlCall(ctx, http.MethodGet, "/health", nil, nil); fault != nil {
		return fault
	}
	return nil
}

// Abort implements [engine.Admin]. The engine matches ids by prefix (hazard 11),
// and takes an empty one for all requests, so that is refused here.
func (c *Client) Abort(ctx context.Context, id string) error {
	if id == "" {
		return c.fail(engine.Rejected, 0, errors.New("abort needs the id of a request"))
	}
	in := struct {
		ID string `json:"rid"`
	}{id}
	if fault := c.controlCall(ctx, http.MethodPost, "/abort_request", in, nil); fault != nil {
		return fault
	}
	return nil
}

// Tokenize implements [engine.Tokenizer]. An engine that knows no endpoint for
// it, or refuses the plain request, does not tokenize.
func (c *Client) Tokenize(ctx context.Context, text string) ([]int32, error) {
	in := struct {
		Prompt     string `json:"prompt"`
		AddSpecial bool   `json:"add_special_tokens"`
	}{text, false}
	var out struct {
		Tokens *[]int32 `json:"tokens"`
	}
	fault := c.first(ctx, http.MethodPost, in, &out, "/v1/tokenize", "/tokenize")
	switch {
	case fault != nil:
		if fault.Reason == engine.Rejected && fault.Status != http.StatusUnauthorized && fault.Status != http.StatusForbidden {
			fault.Err = fmt.Errorf("%w: %w", engine.ErrNoTokenizer, fault.Err)
		}
		return nil, fault
	case out.Tokens == nil:
		return nil, c.fail(engine.BadReply, http.StatusOK, errors.New("/v1/tokenize: the reply has no tokens"))
	}
	return *out.Tokens, nil
}
