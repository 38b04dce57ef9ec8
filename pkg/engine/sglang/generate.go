package sglang

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// wireSampling is sampling_params. Nothing is left to the engine's defaults: its
// max_new_tokens is 128, and it hides special tokens and cuts stops off.
type wireSampling struct {
	Temperature       float64  `json:"temperature"`
	TopP              float64  `json:"top_p"`
	TopK              int      `json:"top_k"`
	MinP              float64  `json:"min_p"`
	FrequencyPenalty  float64  `json:"frequency_penalty"`
	PresencePenalty   float64  `json:"presence_penalty"`
	RepetitionPenalty float64  `json:"repetition_penalty"`
	MaxNewTokens      int      `json:"max_new_tokens"`
	MinNewTokens      int      `json:"min_new_tokens"`
	N                 int      `json:"n"`
	Stop              []string `json:"stop"`
	StopTokenIDs      []int32  `json:"stop_token_ids"`
	IgnoreEOS         bool     `json:"ignore_eos"`
	SkipSpecial       bool     `json:"skip_special_tokens"`
	SpaceSpecial      bool     `json:"spaces_between_special_tokens"`
	NoStopTrim        bool     `json:"no_stop_trim"`
	// Seed is left out, not null, where there is none: engines that are not
	// deterministic may not know it.
	Seed *int64 `json:"sampling_seed,omitempty"`
}

// appendRequest appends the body of /generate. The ids are written by hand: there
// may be 100,000 of them.
func appendRequest(dst []byte, req *engine.Request, stream bool) ([]byte, error) {
	s := req.Sampling
	sampling, err := json.Marshal(wireSampling{
		Temperature: s.Temperature, TopP: s.TopP, TopK: s.TopK, MinP: s.MinP,
		FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty, RepetitionPenalty: s.RepetitionPenalty,
		MaxNewTokens: s.MaxNewTokens, N: 1, Stop: s.Stop, StopTokenIDs: s.StopTokenIDs, NoStopTrim: true, Seed: req.Seed,
	})
	if err != nil {
		return nil, fmt.Errorf("sampling parameters: %w", err)
	}
	rid, err := json.Marshal(req.ID)
	if err != nil {
		return nil, fmt.Errorf("request id: %w", err)
	}
	dst = append(append(dst, `{"rid":`...), rid...)
	dst = append(append(dst, `,"sampling_params":`...), sampling...)
	// -1 asks for the log-probs of output tokens only; from 0 on the engine would
	// compute the whole prompt anew (hazard 28).
	dst = append(dst, `,"return_logprob":true,"logprob_start_len":-1,"top_logprobs_num":0,"return_text_in_logprobs":false,"stream":`...)
	dst = append(strconv.AppendBool(dst, stream), `,"input_ids":[`...)
	for i, id := range req.PromptIDs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']', '}'), nil
}

// routingHeader keeps a conversation on one engine behind a router. Without a
// key the router hashes the authorization, which is one for all of us, so the
// request's own id stands in. A key that a router would ignore is hashed.
func routingHeader(req *engine.Request) http.Header {
	key := req.RoutingKey
	if key == "" {
		key = req.ID
	}
	plain := len(key) <= 128
	for i := range len(key) {
		plain = plain && key[i] > ' ' && key[i] < 0x7f
	}
	if !plain {
		sum := sha256.Sum256([]byte(key))
		key = hex.EncodeToString(sum[:])
	}
	return http.Header{"X-Smg-Routing-Key": {key}}
}

// staleWithin bounds the time in which a request on a kept connection can fail
// because the engine's server was just closing it. What fails later had begun.
const staleWithin = time.Second

// Generate implements [engine.Generator] over POST /generate.
//
// The request is sent again, once, under a new id, in one case: it went out on a
// connection that had been idle for a second or more, and that connection ended
// within a second and without one byte of reply. Then the server had most likely
// closed it as idle (hazard 16); should it have begun all the same, it is told
// to abort the first id. A connection that was in use just before ends for no
// such reason, and that is a failure. net/http itself repeats a POST only if it
// had written nothing of it.
//
// A call that ends before its reply asks the engine to abort, in the background.
func (c *Client) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	return c.call(req, func(g *rollout.Generation, req *engine.Request) *engine.Error {
		return c.generate(ctx, req, g)
	})
}

// call runs one generation by attempt and completes its record.
func (c *Client) call(req engine.Request, attempt func(*rollout.Generation, *engine.Request) *engine.Error) (rollout.Generation, error) {
	start := time.Now()
	if req.ID == "" {
		req.ID = engine.NewID()
	}
	g := rollout.Generation{PromptIDs: req.PromptIDs}
	g.Turn, g.Attempt, g.Engine, g.PromptLen = req.Turn, req.Attempt, c.id, len(req.PromptIDs)
	g.Fate = rollout.FateFinished
	var fault *engine.Error
	if len(req.PromptIDs) == 0 {
		fault = c.fail(engine.Rejected, 0, errors.New("the prompt is empty"))
	} else {
		fault = attempt(&g, &req)
	}
	g.ID = req.ID
	g.Seconds = time.Since(start).Seconds()
	if fault != nil {
		fault.Engine = c.id
		g.Fate, g.Failure = rollout.FateFailed, fault.Failure()
		g.OutputIDs, g.LogProbs = nil, nil
		return g, fault
	}
	return g, nil
}

func (c *Client) generate(ctx context.Context, req *engine.Request, g *rollout.Generation) *engine.Error {
	for retried := false; ; retried = true {
		begun := time.Now()
		var t trace
		fault := c.exchange(ctx, &t, req, g)
		if fault == nil {
			return nil
		}
		idle := time.Duration(t.idle.Load())
		stale := fault.Reason == engine.Reset && fault.Status == 0 && idle >= c.staleAfter && !t.answered.Load() && time.Since(begun) < staleWithin
		if stale || t.wrote.Load() && gaveUp(fault) {
			c.abortBehind(req.ID)
		}
		if !stale || retried {
			return fault
		}
		req.ID = engine.NewID() // the first id may be live (hazard 29)
	}
}

// exchange is one request and its reply.
func (c *Client) exchange(ctx context.Context, t *trace, req *engine.Request, g *rollout.Generation) *engine.Error {
	body, err := appendRequest(make([]byte, 0, 1024+7*len(req.PromptIDs)), req, false)
	if err != nil {
		return c.fail(engine.Rejected, 0, err)
	}
	resp, fault := c.send(ctx, t, http.MethodPost, "/generate", body, routingHeader(req))
	if fault != nil {
		return fault
	}
	defer resp.Body.Close()
	r := c.replies.Get().(*reply)
	defer c.replies.Put(r)
	if err := r.decode(resp.Body, c.maxReply); err != nil {
		return c.bodyError(ctx, err)
	}
	return judge(r, req, g)
}

// gaveUp tells the ends of a call after which the engine may still be at work.
func gaveUp(fault *engine.Error) bool {
	return fault.Reason == engine.Timeout || fault.Reason == engine.Canceled
}

// abortBehind tells the engine to abort without making the caller wait. A closed
// connection alone would let it go on for seconds, or to the end.
func (c *Client) abortBehind(id string) {
	c.aborts.Go(func() {
		// It is only a saving: the engine ends the request in any case.
		_ = c.Abort(context.Background(), id)
	})
}
