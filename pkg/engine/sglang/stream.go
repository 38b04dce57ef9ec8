package sglang

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Stream implements [engine.Streamer] over a stream of events. It calls emit with the new tokens
// as they arrive, on the calling goroutine; an error from emit ends the call as
// canceled. The generation it returns is the same as that of Generate. It never
// sends twice.
//
// Engines send either everything so far in each event or only what is new; the
// count of tokens in the event tells which.
func (c *Client) Stream(ctx context.Context, req engine.Request, emit func(engine.Chunk) error) (rollout.Generation, error) {
	return c.call(req, func(g *rollout.Generation, req *engine.Request) *engine.Error {
		var t trace
		fault := c.stream(ctx, &t, req, g, emit)
		if fault != nil && t.wrote.Load() && gaveUp(fault) {
			c.abortBehind(req.ID)
		}
		return fault
	})
}

func (c *Client) stream(ctx context.Context, t *trace, req *engine.Request, g *rollout.Generation, emit func(engine.Chunk) error) *engine.Error {
	body, err := appendRequest(make([]byte, 0, 1024+7*len(req.PromptIDs)), req, true)
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
	r.scanner.reset(resp.Body, c.maxReply)

	var sum tally
	for {
		// The limit is that of one event: everything-so-far streams are
		// quadratic in all.
		r.scanner.left = c.maxReply
		more, err := r.scanner.nextEvent()
		if err != nil {
			return c.bodyError(ctx, err)
		}
		if !more { // hazard 32
			return c.fail(engine.BadReply, http.StatusOK, errors.New("the stream ended without a finish reason"))
		}
		if err := r.value(); err != nil {
			return c.bodyError(ctx, err)
		}
		if r.fault == nil {
			chunk, err := sum.add(r)
			if err != nil {
				return c.fail(engine.BadReply, http.StatusOK, err)
			}
			if len(chunk.IDs) > 0 {
				if err := emit(chunk); err != nil {
					return c.fail(engine.Canceled, http.StatusOK, fmt.Errorf("the reader of the stream gave up: %w", err))
				}
			}
		}
		if r.fault != nil || r.meta.Finish != nil {
			r.ids, r.probs, r.probIDs, r.hasIDs = sum.ids, sum.probs, sum.probIDs, true
			return judge(r, req, g)
		}
	}
}

// tally adds up the events of a stream.
type tally struct {
	ids     []int32
	probs   []float32
	probIDs []int32
}

// add takes an event's tokens and returns the new ones.
func (t *tally) add(r *reply) (engine.Chunk, error) {
	ids, have := r.ids, len(t.ids)
	if !r.hasIDs {
		ids = r.probIDs
	}
	from := 0
	switch n := r.meta.Completion; {
	case len(ids) == 0:
		return engine.Chunk{}, nil
	case n == nil || *n == int64(len(ids)):
		if len(ids) < have || !slices.Equal(ids[:have], t.ids) {
			return engine.Chunk{}, errors.New("an event of the stream contradicts those before it")
		}
		from = have
	case *n == int64(have+len(ids)):
	case r.meta.Finish != nil && r.meta.Finish.Type == string(rollout.FinishAbort):
		// An abort in the engine's queue repeats the last id only.
		return engine.Chunk{}, nil
	default:
		return engine.Chunk{}, fmt.Errorf("an event of the stream brings %d token ids and counts %d, after %d", len(ids), *n, have)
	}
	t.ids = append(t.ids, ids[from:]...)
	chunk := engine.Chunk{IDs: t.ids[have:]}
	if len(r.probs) == len(ids) {
		t.probs = append(t.probs, r.probs[from:]...)
		t.probIDs = append(t.probIDs, r.probIDs[from:]...)
		chunk.LogProbs = r.probs[from:]
	}
	return chunk, nil
}

// nextEvent moves to the JSON of the next event. It returns false at the end of
// the stream, marked or not.
func (s *scanner) nextEvent() (bool, error) {
	for {
		if _, err := s.peek(); err != nil {
			if s.err == io.EOF {
				return false, nil
			}
			return false, err
		}
		data, err := s.prefix("data:")
		if err != nil {
			return false, err
		}
		if !data { // a comment, or a field that says nothing to us
			if err := s.line(); err != nil {
				return false, err
			}
			continue
		}
		if _, err := s.peek(); err != nil {
			return false, err
		}
		done, err := s.prefix("[DONE]")
		return !done, err
	}
}

// prefix takes text where it stands next. Less than text before the end of the
// source is not an error.
func (s *scanner) prefix(text string) (bool, error) {
	for s.w-s.r < len(text) {
		if err := s.more(); err != nil {
			if s.err == io.EOF {
				return false, nil
			}
			return false, err
		}
	}
	if string(s.buf[s.r:s.r+len(text)]) != text {
		return false, nil
	}
	s.r += len(text)
	return true, nil
}

// line takes what is left of a line.
func (s *scanner) line() error {
	for {
		for s.r < s.w {
			s.r++
			if s.buf[s.r-1] == '\n' {
				return nil
			}
		}
		if err := s.more(); err != nil {
			if s.err == io.EOF {
				return nil
			}
			return err
		}
	}
}
