package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goccy/go-yaml"
)

// FaultRule makes some generation requests go wrong. Hazards are numbered as in
// docs/sim-engine.md; faults of the transport have names.
type FaultRule struct {
	// Hazard or Fault says what goes wrong; exactly one of them is set.
	Hazard int    `yaml:"hazard"`
	Fault  string `yaml:"fault"`

	// Requests lists the generation requests that are hit, counted from 0 as they
	// arrive. Share hits that part of all requests, chosen by a hash of their ids.
	Requests []int   `yaml:"requests"`
	Share    float64 `yaml:"share"`

	// Delay is how much later a slow reply comes, as in 2s.
	Delay time.Duration `yaml:"delay"`
	// Bytes is how much a huge reply carries, 8 MiB by default.
	Bytes int `yaml:"bytes"`
}

// ParseFaults reads a fault script: a list of rules under "faults". The first rule
// that hits a request decides.
func ParseFaults(data []byte) ([]FaultRule, error) {
	var file struct {
		Faults []FaultRule `yaml:"faults"`
	}
	if err := yaml.UnmarshalWithOptions(data, &file, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("fault script: %w", err)
	}
	for i, rule := range file.Faults {
		if err := rule.validate(); err != nil {
			return nil, fmt.Errorf("fault script: rule %d: %w", i+1, err)
		}
	}
	return file.Faults, nil
}

func (r *FaultRule) validate() error {
	_, byNumber := hazards[r.Hazard]
	_, byName := transportFaults[r.Fault]
	switch {
	case (r.Hazard != 0) == (r.Fault != ""):
		return errors.New("give either hazard or fault")
	case r.Hazard != 0 && !byNumber:
		return fmt.Errorf("hazard %d cannot be scripted; these can: %v", r.Hazard, slices.Sorted(maps.Keys(hazards)))
	case r.Fault != "" && !byName:
		return fmt.Errorf("there is no fault %q; choose one of %s", r.Fault, strings.Join(slices.Sorted(maps.Keys(transportFaults)), ", "))
	case len(r.Requests) > 0 == (r.Share > 0):
		return errors.New("give either requests or a share above 0")
	case r.Share > 1 || r.Delay < 0 || r.Bytes < 0:
		return errors.New("share is at most 1, delay and bytes are not negative")
	case r.Fault == "slow" && r.Delay == 0:
		return errors.New("slow needs a delay")
	}
	return nil
}

// fault is a rule's effect on one generation.
type fault struct {
	// instead answers in place of the engine; nothing is generated then.
	instead func(e *Engine, w http.ResponseWriter, r *http.Request, gen *generation)
	// prepare changes the request before it runs.
	prepare func(gen *generation, rule *FaultRule)
	// alter changes the last snapshot before it is rendered.
	alter func(p *progress)
	// transport sits between the reply and the connection.
	transport func(w http.ResponseWriter) http.ResponseWriter
}

// hazards are the faults that have a number.
var hazards = map[int]fault{
	1: {prepare: func(gen *generation, _ *FaultRule) { // the counts have been renamed once more
		renamed := *gen.dialect
		renamed.proposed, renamed.correct, renamed.histogram = []string{"spec_next_proposed"}, []string{"spec_next_correct"}, nil
		gen.dialect = &renamed
	}},
	3: {alter: func(p *progress) { p.logprobs = p.logprobs[:min(1, len(p.logprobs))] }},
	7: {prepare: func(gen *generation, _ *FaultRule) { gen.extraReasoning = 5 }},
	8: {alter: func(p *progress) {
		if n := len(p.logprobs); n > 0 {
			p.logprobs = slices.Clone(p.logprobs)
			p.logprobs[n/2] = float32(math.NaN())
		}
	}},
	9: {instead: func(_ *Engine, w http.ResponseWriter, _ *http.Request, gen *generation) {
		writeJSON(w, http.StatusOK, map[string]any{"meta_info": map[string]any{
			"id": gen.rid, "finish_reason": map[string]any{"type": "abort", "message": "Abort before prefill"},
		}})
	}},
	10: {prepare: func(gen *generation, _ *FaultRule) {
		gen.cut = &cut{after: (gen.sampling.MaxNewTokens + 1) / 2, end: finish{kind: finishAbort, message: "Aborted by the client"}}
	}},
	11: {prepare: func(gen *generation, _ *FaultRule) { // an abort that names the beginning of every id
		gen.cut = &cut{after: 1, end: finish{kind: finishAbort, message: "Aborted by the client"}, others: true}
	}},
	14: {instead: hang},
	16: {instead: func(_ *Engine, w http.ResponseWriter, _ *http.Request, _ *generation) { _ = breakConnection(w) }},
	29: {instead: func(_ *Engine, w http.ResponseWriter, _ *http.Request, gen *generation) {
		writeError(w, invalid("Duplicate request ID detected: %s", gen.rid))
	}},
	30: {prepare: func(gen *generation, rule *FaultRule) { gen.padding = cmp.Or(rule.Bytes, 8<<20) }},
	32: {prepare: func(gen *generation, _ *FaultRule) { gen.unfinished = true }},
	35: {instead: invalidAbort},
	36: {prepare: func(gen *generation, _ *FaultRule) {
		gen.cut = &cut{after: 1, end: finish{kind: finishStop, stop: "NaN happened"}}
	}},
}

// transportFaults are the faults that have a name.
var transportFaults = map[string]fault{
	"hang": {instead: hang},
	"error": {instead: func(_ *Engine, w http.ResponseWriter, _ *http.Request, _ *generation) {
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
	}},
	"garbage": {instead: func(_ *Engine, w http.ResponseWriter, _ *http.Request, _ *generation) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte("<html>\x00\xff not what you asked for {{{"))
	}},
	"truncated": {transport: func(w http.ResponseWriter) http.ResponseWriter { return &cutWriter{ResponseWriter: w, clean: true} }},
	"reset":     {transport: func(w http.ResponseWriter) http.ResponseWriter { return &cutWriter{ResponseWriter: w} }},
	"slow":      {prepare: func(gen *generation, rule *FaultRule) { gen.delay = rule.Delay }},
}

// hang answers nothing for as long as the client waits (hazard 14).
func hang(e *Engine, w http.ResponseWriter, r *http.Request, _ *generation) {
	select {
	case <-r.Context().Done():
	case <-e.sched.ended:
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// invalidAbort is the answer to a request that only the scheduler found invalid: it
// has replaced the prompt by one token and forgotten the log-probs (hazard 35).
func invalidAbort(e *Engine, w http.ResponseWriter, _ *http.Request, gen *generation) {
	f := &finish{kind: finishAbort, message: "Invalid request", status: http.StatusBadRequest, errType: "BadRequestError"}
	if !gen.stream {
		writeError(w, f.refusal())
		return
	}
	now := e.config.Clock.Now()
	gen.reportedPrompt, gen.wantLogprobs = 1, false
	w.Header().Set("Content-Type", "text/event-stream")
	record := e.appendReply([]byte("data: "), gen, &progress{finish: f, received: now, finished: now}, 0, "")
	w.Write(append(record, "\n\ndata: [DONE]\n\n"...))
}

// breakConnection resets the connection of a request (hazard 16).
func breakConnection(w http.ResponseWriter) error {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0) // discards what is unsent and sends a reset
	}
	return errors.Join(err, conn.Close())
}

// cut ends a request early.
type cut struct {
	after  int // tokens
	end    finish
	others bool // everything else that runs ends too
}

// cutWriter sends half of a reply. What follows is a broken connection, or, clean,
// a reply that ends there.
type cutWriter struct {
	http.ResponseWriter
	clean bool
}

func (c *cutWriter) Write(p []byte) (int, error) {
	c.Header().Del("Content-Length")
	if c.clean {
		_, err := c.ResponseWriter.Write(p[:len(p)/2])
		return len(p), err
	}
	if _, err := c.ResponseWriter.Write(p[:len(p)/2]); err != nil {
		return 0, err
	}
	if err := http.NewResponseController(c.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	if err := breakConnection(c.ResponseWriter); err != nil {
		return 0, err
	}
	return 0, net.ErrClosed
}

func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// faultScript decides which request meets which fault.
type faultScript struct {
	rules []FaultRule
	seen  atomic.Int64
}

// next is the rule that hits the request that has just arrived, nil for none.
func (s *faultScript) next(rid string) *FaultRule {
	index := int(s.seen.Add(1) - 1)
	for i := range s.rules {
		rule := &s.rules[i]
		if slices.Contains(rule.Requests, index) {
			return rule
		}
		h := fnv.New64a()
		fmt.Fprint(h, rid, i)
		if rule.Share > 0 && float64(mix(h.Sum64())>>11)*0x1p-53 < rule.Share {
			return rule
		}
	}
	return nil
}

// effect is what a rule does.
func (r *FaultRule) effect() fault {
	if r.Hazard != 0 {
		return hazards[r.Hazard]
	}
	return transportFaults[r.Fault]
}

// await is wait with a fault's delay.
func (e *Engine) await(ctx context.Context, gen *generation) (progress, bool) {
	p, ok := e.wait(ctx, gen.request)
	if ok && p.finish != nil {
		if gen.delay > 0 {
			e.config.Clock.Sleep(ctx, gen.delay)
		}
		if gen.alter != nil {
			gen.alter(&p)
		}
	}
	return p, ok
}
