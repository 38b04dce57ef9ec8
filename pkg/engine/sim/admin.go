package sim

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// routes is the engine's HTTP face.
func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	generate := e.serveGenerate
	if e.config.Stub > 0 {
		generate = newStub(e, e.config.Stub).ServeHTTP
	}
	for pattern, handler := range map[string]http.HandlerFunc{
		"POST /generate":                  generate,
		"PUT /generate":                   generate,
		"POST /v1/chat/completions":       e.serveChat,
		"GET /ping":                       func(http.ResponseWriter, *http.Request) {},
		"GET /health":                     e.serveHealth,
		"GET /health_generate":            e.serveHealth,
		"GET /model_info":                 e.serveModelInfo,
		"GET /get_model_info":             e.serveModelInfo,
		"GET /server_info":                e.serveServerInfo,
		"GET /get_server_info":            e.serveServerInfo,
		"GET /get_weight_version":         e.serveWeightVersion,
		"GET /weight_version":             e.serveWeightVersion,
		"GET /flush_cache":                e.serveFlush,
		"POST /flush_cache":               e.serveFlush,
		"POST /abort_request":             e.serveAbort,
		"POST /pause_generation":          e.servePause,
		"POST /continue_generation":       e.serveContinue,
		"POST /update_weights_from_disk":  e.serveUpdateWeights,
		"POST /update_weight_version":     e.serveUpdateVersion,
		"POST /release_memory_occupation": e.serveMemory(true),
		"POST /resume_memory_occupation":  e.serveMemory(false),
		"GET /v1/loads":                   e.serveLoads,
		"GET /get_load":                   e.serveOldLoad,
		"POST /tokenize":                  e.serveTokenize,
		"POST /v1/tokenize":               e.serveTokenize,
		"GET /v1/models":                  e.serveModels,
		"GET /metrics":                    promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{}).ServeHTTP,
	} {
		if path := pattern[strings.IndexByte(pattern, '/'):]; !slices.Contains(e.config.Dialect.lacks, path) {
			mux.HandleFunc(pattern, handler)
		}
	}
	if e.config.APIKey == "" {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := strings.HasPrefix(r.URL.Path, "/health") || strings.HasPrefix(r.URL.Path, "/metrics")
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !open && subtle.ConstantTimeCompare([]byte(token), []byte(e.config.APIKey)) != 1 {
			writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "Unauthorized"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serveHealth answers when the scheduler takes a turn. While the engine is paused
// or has released memory SGLang's probe cannot run, and it answers 503.
func (e *Engine) serveHealth(w http.ResponseWriter, _ *http.Request) {
	var stopped bool
	if err := e.sched.do(func() { stopped = e.sched.stopped() }); err != nil || stopped {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// serveFlush empties the prefix cache, unless a request would lose its part of it.
func (e *Engine) serveFlush(w http.ResponseWriter, _ *http.Request) {
	var busy bool
	err := e.sched.do(func() {
		if busy = len(e.sched.waiting)+len(e.sched.running) > 0; !busy {
			e.sched.cache.reset()
		}
	})
	switch {
	case err != nil:
		writeError(w, err)
	case busy:
		http.Error(w, "The cache was not flushed: requests are running or waiting.", http.StatusBadRequest)
	default:
		w.Write([]byte("The cache is empty.\n"))
	}
}

// serveAbort aborts by the beginning of an id (hazard 11) and says 200 whatever it
// found. An empty id is ignored.
func (e *Engine) serveAbort(w http.ResponseWriter, r *http.Request) {
	var body struct {
		RID      *string `json:"rid"`
		AbortAll bool    `json:"abort_all"`
	}
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	match := func(*request) bool { return true }
	if !body.AbortAll {
		if body.RID == nil || *body.RID == "" {
			return
		}
		match = func(live *request) bool { return strings.HasPrefix(live.rid, *body.RID) }
	}
	if err := e.sched.do(func() { e.sched.abort(match) }); err != nil {
		writeError(w, err)
	}
}
