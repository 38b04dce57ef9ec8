package sim

import (
	"fmt"
	"net/http"
	"slices"
)

// servePause stops generation. In abort mode every request in flight ends; in
// retract mode running requests go back to the queue with their output and are
// computed anew later; in place they keep their state. Requests that arrive while
// paused wait without a word (hazard 14).
func (e *Engine) servePause(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Mode pauseMode `json:"mode"`
	}
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	if body.Mode == "" {
		body.Mode = pauseAbort
	}
	if !slices.Contains([]pauseMode{pauseAbort, pauseRetract, pauseInPlace}, body.Mode) {
		writeError(w, malformed(fmt.Errorf("mode is %q; it must be abort, retract or in_place", body.Mode)))
		return
	}
	if err := e.sched.do(func() { e.sched.pause(body.Mode) }); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"message": "Generation is paused.", "status": "ok"})
}

func (e *Engine) serveContinue(w http.ResponseWriter, r *http.Request) {
	var body struct{}
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	err := e.sched.do(func() {
		e.sched.paused = ""
		e.sched.release()
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"message": "Generation goes on.", "status": "ok"})
}

// updateBody is SGLang's request to load weights from a folder.
type updateBody struct {
	ModelPath     string  `json:"model_path"`
	AbortAll      bool    `json:"abort_all_requests"`
	WeightVersion *string `json:"weight_version"`
	KeepPause     bool    `json:"keep_pause"`
	FlushCache    *bool   `json:"flush_cache"`
}

// serveUpdateWeights replaces the policy, and the draft when the folder has one. On
// an engine that is not paused it waits until nothing runs; on a paused one the
// requests in flight go on with the new weights.
func (e *Engine) serveUpdateWeights(w http.ResponseWriter, r *http.Request) {
	var body updateBody
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	answer := func(status int, message string, paused int) {
		writeJSON(w, status, map[string]any{"success": status == http.StatusOK, "message": message, "num_paused_requests": paused})
	}
	next, err := loadWeights(body.ModelPath, false)
	if err == nil && e.config.Speculation != nil {
		next.draft, err = loadDraft(body.ModelPath, next.target)
	}
	if err == nil && next.target.shape.Vocab != e.vocab {
		err = fmt.Errorf("the weights in %s have %d tokens, the engine serves %d", body.ModelPath, next.target.shape.Vocab, e.vocab)
	}
	if err != nil {
		answer(http.StatusBadRequest, "The weights were not replaced: "+err.Error(), 0)
		return
	}
	type result struct {
		paused  int
		refused bool
	}
	done := make(chan result, 1)
	apply := func() {
		s := e.sched
		flush := body.FlushCache == nil || *body.FlushCache
		if flush && len(s.running) > 0 {
			done <- result{refused: true}
			return
		}
		s.install(next, body.ModelPath)
		if body.WeightVersion != nil {
			s.version = *body.WeightVersion
		}
		if flush {
			s.cache.reset()
		}
		if body.KeepPause && s.paused == "" {
			s.paused = pauseInPlace
		}
		done <- result{paused: len(s.held) + len(s.waiting) + len(s.running)}
	}
	err = e.sched.do(func() {
		s := e.sched
		if body.AbortAll {
			s.abort(func(*request) bool { return true })
		}
		if s.paused != "" {
			apply()
			return
		}
		s.whenDrained(apply)
	})
	if err != nil {
		writeError(w, err)
		return
	}
	var got result
	select {
	case got = <-done:
	case <-r.Context().Done(): // the update happens all the same
		return
	}
	switch {
	case got.refused:
		answer(http.StatusBadRequest, "The weights were not replaced: the cache cannot be flushed while requests run. Send flush_cache=false, or pause with retract or abort.", 0)
	case body.WeightVersion != nil:
		e.log.Info("weights replaced", "path", body.ModelPath, "version", *body.WeightVersion)
		answer(http.StatusOK, "The weights were replaced; their version is "+*body.WeightVersion+".", got.paused)
	default:
		e.log.Info("weights replaced", "path", body.ModelPath)
		answer(http.StatusOK, "The weights were replaced.", got.paused)
	}
}

// serveUpdateVersion relabels the weights. It aborts everything in flight unless
// told not to, as SGLang does.
func (e *Engine) serveUpdateVersion(w http.ResponseWriter, r *http.Request) {
	var body struct {
		NewVersion *string `json:"new_version"`
		AbortAll   *bool   `json:"abort_all_requests"`
	}
	err := readBody(w, r, &body)
	if err == nil && body.NewVersion == nil {
		err = malformed(errNoVersion)
	}
	if err == nil {
		err = e.sched.do(func() {
			if body.AbortAll == nil || *body.AbortAll {
				e.sched.abort(func(*request) bool { return true })
			}
			e.sched.version = *body.NewVersion
		})
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"success": true, "message": "The weight version is " + *body.NewVersion, "new_version": *body.NewVersion,
	})
}

// memoryTags are the parts of an engine's memory that can be given back.
var memoryTags = []string{"weights", "kv_cache", "cuda_graph"}

// serveMemory releases or resumes parts of the memory. A real engine that is not
// idle dies of a release; this one refuses it. While anything is released nothing
// is generated, and health checks fail.
func (e *Engine) serveMemory(release bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Tags []string `json:"tags"`
		}
		if err := readBody(w, r, &body); err != nil {
			writeError(w, err)
			return
		}
		if body.Tags == nil {
			body.Tags = memoryTags
		}
		for _, tag := range body.Tags {
			if !slices.Contains(memoryTags, tag) {
				writeError(w, invalid("tags contain %q; they are weights, kv_cache and cuda_graph", tag))
				return
			}
		}
		var busy bool
		err := e.sched.do(func() {
			s := e.sched
			if busy = release && len(s.waiting)+len(s.running) > 0; !busy {
				s.occupy(body.Tags, !release)
			}
		})
		switch {
		case err != nil:
			writeError(w, err)
		case busy:
			writeError(w, invalid("the engine is not idle: pause it with abort and flush its cache first"))
		default:
			writeJSON(w, http.StatusOK, nil)
		}
	}
}
