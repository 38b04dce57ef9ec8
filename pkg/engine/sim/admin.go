package sim

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
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
		mux.HandleFunc(pattern, handler)
	}
	return mux
}

// version is what the engine calls itself: the release it imitates, and that it
// only imitates it.
func (e *Engine) version() string { return e.config.Dialect.Name + "+sheaf.sim" }

// serveHealth answers when the scheduler takes a turn. While the engine is paused
// or has released memory SGLang's probe cannot run, and it answers 503.
func (e *Engine) serveHealth(w http.ResponseWriter, _ *http.Request) {
	var stopped bool
	if err := e.sched.do(func() { stopped = e.sched.stopped() }); err != nil || stopped {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (e *Engine) serveModelInfo(w http.ResponseWriter, _ *http.Request) {
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	info := map[string]any{
		"model_path":                l.path,
		"tokenizer_path":            e.config.ModelPath,
		"is_generation":             true,
		"preferred_sampling_params": nil,
		"weight_version":            l.version,
		"has_image_understanding":   false,
		"has_audio_understanding":   false,
		"model_type":                "sheaf_ngram",
		"architectures":             []string{"SheafNGramForCausalLM"},
	}
	writeJSON(w, http.StatusOK, info)
}

func (e *Engine) serveWeightVersion(w http.ResponseWriter, _ *http.Request) {
	if !e.config.Dialect.weightVersionRoute {
		writeError(w, &statusError{status: http.StatusNotFound, errType: "404",
			message: "Endpoint '/get_weight_version' or '/weight_version' is deprecated. Please use '/model_info' instead."})
		return
	}
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"weight_version": l.version})
}

func (e *Engine) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	info := map[string]any{
		"version":                        e.version(),
		"simulation":                     true,
		"model_path":                     l.path,
		"tokenizer_path":                 e.config.ModelPath,
		"served_model_name":              l.served,
		"weight_version":                 l.version,
		"random_seed":                    e.config.RandomSeed,
		"context_length":                 e.config.ContextLength,
		"max_running_requests":           e.config.MaxRunning,
		"max_queued_requests":            e.config.MaxQueued,
		"max_total_num_tokens":           e.config.CacheTokens,
		"max_req_input_len":              e.config.ContextLength - 1,
		"skip_tokenizer_init":            e.config.Tokenizer == nil,
		"enable_metrics":                 e.config.EnableMetrics,
		"incremental_streaming_output":   e.config.IncrementalStreaming,
		"enable_deterministic_inference": true,
		"tp_size":                        1,
		"dp_size":                        1,
		"status":                         "ready",
		"speculative_algorithm":          nil,
		"speculative_num_steps":          nil,
		"speculative_eagle_topk":         nil,
		"speculative_num_draft_tokens":   nil,
		"internal_states": []map[string]any{{
			"max_running_requests_per_dp": e.config.MaxRunning,
			"weight_version":              l.version,
		}},
	}
	if s := e.config.Speculation; s != nil {
		info["speculative_algorithm"] = s.Algorithm
		info["speculative_num_steps"] = s.Steps
		info["speculative_eagle_topk"] = 1
		info["speculative_num_draft_tokens"] = s.Steps + 1
	}
	writeJSON(w, http.StatusOK, info)
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []map[string]any{{
		"id": l.served, "object": "model", "created": e.started.Unix(), "owned_by": "sheaf-sim",
		"root": l.served, "parent": nil, "max_model_len": e.config.ContextLength,
	}}})
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
		http.Error(w, "Flush cache failed: there are running or waiting requests.", http.StatusBadRequest)
	default:
		w.Write([]byte("Cache flushed.\n"))
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

// load is a reading of the scheduler.
type load struct {
	version          string
	path, served     string
	running, waiting int
	used, total      int // tokens: of running requests, and with the waiting ones
	usage            float64
}

func (e *Engine) load() (load, error) {
	var l load
	err := e.sched.do(func() {
		s := e.sched
		l.version, l.path, l.served = s.version, s.path, s.served
		l.running, l.waiting = len(s.running), len(s.waiting)
		for _, r := range s.running {
			l.used += len(r.ids)
		}
		l.total = l.used
		for _, r := range s.waiting {
			l.total += len(r.ids)
		}
	})
	l.usage = float64(l.used) / float64(e.config.CacheTokens)
	return l, err
}

func (e *Engine) serveLoads(w http.ResponseWriter, _ *http.Request) {
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	usage := min(1, float64(l.running)/float64(e.config.MaxRunning))
	writeJSON(w, http.StatusOK, map[string]any{
		"timestamp": e.config.Clock.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"), "version": e.version(), "dp_rank_count": 1,
		"loads": []map[string]any{{
			"dp_rank": 0, "num_running_reqs": l.running, "num_waiting_reqs": l.waiting, "num_total_reqs": l.running + l.waiting,
			"num_used_tokens": l.used, "num_total_tokens": l.total, "max_total_num_tokens": e.config.CacheTokens,
			"token_usage": l.usage, "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": usage,
			"max_running_requests": e.config.MaxRunning,
		}},
		"aggregate": map[string]any{
			"total_running_reqs": l.running, "total_waiting_reqs": l.waiting, "total_reqs": l.running + l.waiting,
			"total_used_tokens": l.used, "total_tokens": l.total,
			"avg_token_usage": l.usage, "avg_throughput": 0.0, "avg_utilization": usage,
		},
	})
}

func (e *Engine) serveOldLoad(w http.ResponseWriter, _ *http.Request) {
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, []map[string]any{{
		"dp_rank": 0, "num_reqs": l.running + l.waiting, "num_waiting_reqs": l.waiting, "num_tokens": l.total,
	}})
}

// serveTokenize encodes a text, or a conversation as a chat completion would.
func (e *Engine) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Prompt     *string                    `json:"prompt"`
		Messages   []rollout.Message          `json:"messages"`
		Tools      []json.RawMessage          `json:"tools"`
		Kwargs     map[string]json.RawMessage `json:"chat_template_kwargs"`
		AddSpecial *bool                      `json:"add_special_tokens"`
	}
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	tok, ids := e.config.Tokenizer, []int32{}
	switch {
	case tok == nil:
		writeError(w, malformed(errNoTokenizer))
		return
	case body.Prompt != nil:
		ids = append(ids, tok.Encode(*body.Prompt, body.AddSpecial == nil || *body.AddSpecial)...)
	case body.Messages != nil && e.config.Conversations != nil:
		rendered, err := e.config.Conversations.EncodeChat(body.Messages, chat.RenderOptions{
			Tools: body.Tools, Kwargs: body.Kwargs, AddGenerationPrompt: true, Now: e.config.Clock.Now(),
		})
		if err != nil {
			writeError(w, malformed(err))
			return
		}
		ids = append(ids, rendered...)
	default:
		writeError(w, malformed(errNoPrompt))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": e.config.ContextLength})
}
