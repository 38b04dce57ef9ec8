package sim

import (
	"encoding/json"
	"net/http"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// version is what the engine calls itself: the release it imitates, and that it
// only imitates it.
func (e *Engine) version() string { return e.config.Dialect.Name + "+sheaf.sim" }

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
			message: "This release reports the weight version in /model_info."})
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
			"effective_max_running_requests_per_dp": e.config.MaxRunning,
			"last_gen_throughput":                   0.0,
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

// serveLoads says how much runs and waits. The newest releases leave sums to the
// reader.
func (e *Engine) serveLoads(w http.ResponseWriter, _ *http.Request) {
	l, err := e.load()
	if err != nil {
		writeError(w, err)
		return
	}
	busy := min(1, float64(l.running)/float64(e.config.MaxRunning))
	rank := map[string]any{
		"dp_rank": 0, "num_running_reqs": l.running, "num_waiting_reqs": l.waiting,
		"num_used_tokens": l.used, "max_total_num_tokens": e.config.CacheTokens, "max_running_requests": e.config.MaxRunning,
		"token_usage": l.usage, "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": busy,
	}
	answer := map[string]any{
		"timestamp": e.config.Clock.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"),
		"version":   e.version(),
		"loads":     []any{rank},
	}
	if e.config.Dialect.loadPending {
		rank["num_total_tokens"] = l.total
	}
	if e.config.Dialect.loadTotals {
		rank["num_total_reqs"] = l.running + l.waiting
		answer["dp_rank_count"] = 1
		answer["aggregate"] = map[string]any{
			"total_running_reqs": l.running, "total_waiting_reqs": l.waiting, "total_reqs": l.running + l.waiting,
			"avg_token_usage": l.usage, "avg_throughput": 0.0, "avg_utilization": busy,
		}
	}
	writeJSON(w, http.StatusOK, answer)
}

// serveOldLoad is the older form.
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
	case body.Messages != nil && e.config.Conversations != nil && e.config.Dialect.tokenizeMessages:
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
