package sim

import (
	"context"
	"errors"
	"slices"
	"time"
)

// errStopped answers whatever reaches a scheduler that has ended.
var errStopped = errors.New("the engine is shut down")

// scheduler owns everything that changes while an engine runs. Its fields are
// touched by its own goroutine alone; others use do.
type scheduler struct {
	limits  limits
	model   weights
	version string
	path    string // of the weights
	served  string // name of the model
	tok     Tokenizer
	clock   Clock
	latency Latency
	counts  *counters
	journal requestLog
	sampler *sampler

	inbox chan func()
	ctx   context.Context // done = stop
	ended chan struct{}

	live    map[string]*request // by rid: waiting, running or held back
	held    []*request          // arrived while paused or while an update waits
	waiting []*request
	running []*request
	cache   *prefixCache

	paused   pauseMode
	released []string // tags of the memory given back
	drained  []func() // called once nothing waits or runs
}

// limits bound what an engine takes on.
type limits struct {
	running int // requests in a batch
	queued  int // requests waiting, 0 = no limit
}

// weights are what new weights replace, together and between two steps.
type weights struct {
	target *Policy
	draft  *Policy // nil = plain decoding
}

// pauseMode is "" for an engine that is not paused, else SGLang's mode.
type pauseMode string

const (
	pauseAbort   pauseMode = "abort"
	pauseRetract pauseMode = "retract"
	pauseInPlace pauseMode = "in_place"
)

// run is the scheduler's goroutine.
func (s *scheduler) run() {
	defer close(s.ended)
	for {
		if s.idle() {
			select {
			case do := <-s.inbox:
				do()
			case <-s.ctx.Done():
				s.stop()
				return
			}
		}
		for more := true; more; {
			select {
			case do := <-s.inbox:
				do()
			default:
				more = false
			}
		}
		if s.ctx.Err() != nil {
			s.stop()
			return
		}
		s.step()
		s.notifyDrained()
	}
}

// idle says that no step can be taken.
func (s *scheduler) idle() bool {
	return s.stopped() || len(s.waiting)+len(s.running) == 0
}

// stopped says that an operator has stopped generation.
func (s *scheduler) stopped() bool { return s.paused != "" || len(s.released) > 0 }

// stop ends every request, so that no handler waits for ever.
func (s *scheduler) stop() {
	for _, list := range [][]*request{s.held, s.waiting, s.running} {
		for _, r := range list {
			s.end(r, &finish{kind: finishAbort, message: errStopped.Error(), status: 503, errType: "ServiceUnavailable"})
		}
	}
	s.held, s.waiting, s.running = nil, nil, nil
	s.notifyDrained()
}

// do runs f on the scheduler's goroutine between two steps and waits for it. It
// takes no context: a step is short, and a caller that left early would not know
// whether f still runs.
func (s *scheduler) do(f func()) error {
	done := make(chan struct{})
	select {
	case s.inbox <- func() { f(); close(done) }:
	case <-s.ended:
		return errStopped
	}
	select {
	case <-done:
		return nil
	case <-s.ended:
		return errStopped
	}
}

// submit takes a request in. A refusal is the error that its caller gets.
func (s *scheduler) submit(r *request) error {
	if s.live[r.rid] != nil {
		return &statusError{status: 400, message: "Duplicate request ID detected: " + r.rid}
	}
	if s.limits.queued > 0 && len(s.waiting) >= s.limits.queued {
		return &statusError{status: 503, errType: "503", message: "The request queue is full."}
	}
	r.received = s.clock.Now()
	s.live[r.rid] = r
	s.counts.received.Inc()
	if s.stopped() || len(s.drained) > 0 {
		s.held = append(s.held, r)
		return nil
	}
	s.waiting = append(s.waiting, r)
	return nil
}

// step does one prefill of what waits, or else one decode of what runs.
func (s *scheduler) step() {
	if s.idle() {
		return
	}
	start := s.clock.Now()
	var took time.Duration
	if room := s.limits.running - len(s.running); room > 0 && len(s.waiting) > 0 {
		batch := s.waiting[:min(room, len(s.waiting))]
		s.waiting = s.waiting[len(batch):]
		took = s.prefill(batch, start)
	} else {
		took = s.decode()
	}
	if took > 0 {
		s.clock.Sleep(s.ctx, took-s.clock.Now().Sub(start))
	}
	s.settle(s.clock.Now())
}

// prefill computes the uncached part of the batch's prompts and samples the first
// token of each. A retracted request comes back here with its output kept; it has
// its first token already.
func (s *scheduler) prefill(batch []*request, now time.Time) time.Duration {
	uncached := 0
	for _, r := range batch {
		// At least one token has to be computed to sample from, and all whose
		// log-probs are wanted.
		limit := len(r.ids) - 1
		if r.inputStart >= 0 {
			limit = min(limit, r.inputStart)
		}
		matched := s.cache.match(r.namespace, r.ids[:limit])
		uncached += len(r.ids) - matched
		first := r.prefillStarted.IsZero()
		if first {
			r.prefillStarted = now
			r.cached = matched
			s.counts.prompt.Add(float64(r.prompt))
			s.counts.cached.Add(float64(matched))
			if r.inputStart >= 0 {
				s.sampler.scorePrompt(s.model.target, r)
			}
		}
		s.cache.insert(r.namespace, r.ids)
		if first && r.sampling.MaxNewTokens == 0 {
			r.finish = &finish{kind: finishLength}
		} else if first {
			s.emit(r, s.sampler.first(s.model, r))
		}
		s.running = append(s.running, r)
	}
	return s.latency.prefill(uncached)
}

// decode gives every running request its next token, or its next verify.
func (s *scheduler) decode() time.Duration {
	batch := len(s.running)
	for _, r := range s.running {
		if s.model.draft == nil {
			s.emit(r, s.sampler.first(s.model, r))
			continue
		}
		tokens := s.sampler.verify(s.model, r)
		r.verify++
		r.proposed += s.sampler.steps
		r.correct += len(tokens) - 1
		r.histogram = growTo(r.histogram, s.sampler.steps+1)
		r.histogram[len(tokens)-1]++
		s.counts.verify.Inc()
		s.counts.proposed.Add(float64(s.sampler.steps))
		s.counts.correct.Add(float64(len(tokens) - 1))
		for _, t := range tokens {
			// Tokens past the end of the request are cut; the counters of the
			// verify are not, as on SGLang.
			if r.finish == nil {
				s.emit(r, t)
			}
		}
	}
	drafted := 0
	if s.model.draft != nil {
		drafted = s.sampler.steps
	}
	return s.latency.decode(batch, drafted)
}

// emit adds a sampled token to a request and decides whether it is the last. The
// length is looked at first: a stop token at the limit ends as "length".
func (s *scheduler) emit(r *request, t sampled) {
	r.ids = append(r.ids, t.token)
	r.logprobs = append(r.logprobs, t.logprob)
	if r.topLogprobs > 0 {
		r.top = append(r.top, t.top)
	}
	if r.counts != nil {
		r.counts[t.token]++
	}
	if r.prior != nil {
		r.prior.said(r.generated()-1, t.token)
	}
	if n := len(r.spans); n == 0 || r.spans[n-1].version != s.version {
		r.spans = append(r.spans, span{version: s.version, start: r.generated() - 1})
	}
	s.counts.completion.Inc()
	switch {
	case r.cut != nil && r.generated() >= r.cut.after:
		r.finish = &r.cut.end
	case r.generated() >= r.sampling.MaxNewTokens:
		r.finish = &finish{kind: finishLength, length: r.generated()}
	case r.stops[t.token]:
		r.finish = &finish{kind: finishStop, matched: t.token}
	default:
		if text, ok := r.stopString(s.tok); ok {
			r.finish = &finish{kind: finishStop, stop: text}
		}
	}
}

// settle publishes what the step did and takes out what has finished.
func (s *scheduler) settle(now time.Time) {
	left := s.running[:0]
	abortAll := false
	for _, r := range s.running {
		if r.prefillFinished.IsZero() {
			r.prefillFinished = now
		}
		if r.finish == nil {
			left = append(left, r)
			if r.stream {
				r.version = s.version
				r.publish()
			}
			continue
		}
		// The last token was sampled but never computed on, so it is not cached.
		s.cache.insert(r.namespace, r.ids[:max(r.prompt, len(r.ids)-1)])
		s.end(r, r.finish)
		abortAll = abortAll || r.cut != nil && r.cut.others
	}
	clear(s.running[len(left):])
	s.running = left
	if abortAll {
		s.abort(func(*request) bool { return true })
	}
}

// end finishes a request, whatever list it was on, and hands out its last
// snapshot. The caller takes it off the list.
func (s *scheduler) end(r *request, f *finish) {
	r.finish = f
	r.finished = s.clock.Now()
	r.version = s.version
	delete(s.live, r.rid)
	s.counts.fate(f.kind)
	s.journal.write(r)
	r.publish()
}

// abort ends the requests that match, running ones with what they have so far.
// Requests held back by a pause are not found, as on SGLang.
func (s *scheduler) abort(match func(*request) bool) {
	s.waiting = slices.DeleteFunc(s.waiting, func(r *request) bool {
		if !match(r) {
			return false
		}
		s.end(r, &finish{kind: finishAbort, message: "Abort in waiting queue", inQueue: true})
		return true
	})
	s.running = slices.DeleteFunc(s.running, func(r *request) bool {
		if !match(r) {
			return false
		}
		s.end(r, &finish{kind: finishAbort, message: "Aborted by the client"})
		return true
	})
	s.notifyDrained()
}

// drop aborts one request whose client has gone, wherever it is.
func (s *scheduler) drop(gone *request) {
	s.held = slices.DeleteFunc(s.held, func(r *request) bool {
		if r != gone {
			return false
		}
		s.end(r, &finish{kind: finishAbort, message: "Abort in waiting queue", inQueue: true})
		return true
	})
	s.abort(func(r *request) bool { return r == gone })
}

// whenDrained calls f once nothing waits or runs; new requests are held back until
// then.
func (s *scheduler) whenDrained(f func()) {
	s.drained = append(s.drained, f)
	s.notifyDrained()
}

func (s *scheduler) notifyDrained() {
	if len(s.drained) == 0 || len(s.waiting)+len(s.running) > 0 {
		return
	}
	for _, f := range s.drained {
		f()
	}
	s.drained = nil
	s.release()
}

// release lets requests in that were held back, unless the engine is paused.
func (s *scheduler) release() {
	if s.stopped() || len(s.drained) > 0 {
		return
	}
	s.waiting = append(s.waiting, s.held...)
	s.held = nil
}

// pause stops generation in one of SGLang's three ways.
func (s *scheduler) pause(mode pauseMode) {
	s.paused = mode
	switch mode {
	case pauseAbort:
		s.abort(func(*request) bool { return true })
	case pauseRetract:
		for _, r := range s.running {
			r.retractions++
		}
		s.waiting = append(s.running, s.waiting...)
		s.running = nil
	}
}

// install replaces the weights; a nil draft keeps the draft there is. The model is
// then called by its path, as on SGLang.
func (s *scheduler) install(next weights, path string) {
	if next.draft == nil {
		next.draft = s.model.draft
	}
	s.model, s.path, s.served = next, path, path
}

// occupy marks parts of the memory as there, or as given back.
func (s *scheduler) occupy(tags []string, there bool) {
	for _, tag := range tags {
		s.released = slices.DeleteFunc(s.released, func(t string) bool { return t == tag })
		if !there {
			s.released = append(s.released, tag)
		}
	}
	if !there && slices.Contains(tags, "kv_cache") {
		s.cache.reset()
	}
	s.release()
}

func growTo(s []int, n int) []int {
	for len(s) < n {
		s = append(s, 0)
	}
	return s
}
