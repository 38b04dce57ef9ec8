//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-12*math.Max(1, math.Abs(b)) }

// wantMetric checks one metric of a step.
func wantMetric(t *testing.T, rep report, key string, want float64) {
	t.Helper()
	if got, ok := rep.Metrics[key]; !ok || !near(got, want) {
		t.Errorf("%s is %v (%t), want %v; unavailable: %q", key, got, ok, want, rep.Unavailable[key])
	}
}

// wantUnavailable checks that a key is no number, and says why.
func wantUnavailable(t *testing.T, rep report, key string) {
	t.Helper()
	if got, ok := rep.Metrics[key]; ok || rep.Unavailable[key] == "" {
		t.Errorf("%s is %v (%t), want it unavailable with a reason; it has %q", key, got, ok, rep.Unavailable[key])
	}
}

// TestDialects runs engines of every dialect side by side. Each ratio is that of
// the engines' own totals, over those calls whose engine reported it.
func TestDialects(t *testing.T) {
	flags := [][]string{
		append([]string{"--dialect", "0.5.10"}, eagle...),
		append([]string{"--dialect", "0.5.11"}, eagle...),
		append([]string{"--dialect", "0.5.12"}, eagle...),
		{"--dialect", "0.5.12"},                          // does not speculate
		append([]string{"--dialect", "0.5.3"}, eagle...), // reports verify counts alone
	}
	const plain, verifyOnly = 3, 4
	const groups, episodes = 40, 8
	engines := make([]string, len(flags))
	for i, f := range flags {
		engines[i] = startSimengine(t, f...)
	}
	r := startRig(t, "dialects", engines, 1, 1,
		"rollout: {batch_size: 40, n_samples_per_prompt: 8, max_context_len: 512, sampling: {max_new_tokens: 24}}",
		"worker: {embedded: false, slots: 32}",
	)
	r.finish(60 * time.Second)

	rep := checkStep(t, r.step(0), groups*episodes)
	if n := rep.Ledger.Dispositions["accepted"]; n != groups*episodes {
		t.Fatalf("%d episodes accepted: the engines' totals are not the batch's", n)
	}
	calls := map[string][]call{}
	for _, c := range readCalls(t, r.step(0)) {
		calls[c.Engine] = append(calls[c.Engine], c)
	}
	var length struct{ completion, verify int64 }
	var rated totals
	var lengthCalls, rateCalls, first, silent int
	for i := range flags {
		id := fmt.Sprintf("engine-%d", i)
		theirs, ours := r.grown(i), sum(calls[id])
		if len(calls[id]) == 0 {
			t.Errorf("%s had no calls", id)
		}
		var completion int64
		for _, c := range calls[id] {
			switch {
			case c.verified():
				completion += *c.Meta.CompletionTokens
				lengthCalls++
			case i == plain:
				silent++
			default:
				first++
				if *c.Meta.CompletionTokens != 1 {
					t.Errorf("%s: a call of %d tokens without a verify count", id, *c.Meta.CompletionTokens)
				}
			}
			if c.Meta.Spec.Correct != nil && c.Meta.Spec.Proposed != nil {
				rateCalls++
			}
		}
		length.completion += completion
		length.verify += theirs.Verify
		switch i {
		case plain:
			for _, key := range []string{"rollout/spec_accept_rate/engine/" + id, "rollout/spec_accept_length/engine/" + id} {
				if got, ok := rep.Metrics[key]; ok {
					t.Errorf("%s is %v, and the engine does not speculate", key, got)
				}
			}
		case verifyOnly:
			wantMetric(t, rep, "rollout/spec_accept_length/engine/"+id, float64(completion)/float64(theirs.Verify))
			wantUnavailable(t, rep, "rollout/spec_accept_rate/engine/"+id)
			theirs.Proposed, theirs.Correct = 0, 0 // which it does not report
		default:
			wantMetric(t, rep, "rollout/spec_accept_length/engine/"+id, float64(completion)/float64(theirs.Verify))
			wantMetric(t, rep, "rollout/spec_accept_rate/engine/"+id, float64(theirs.Correct)/float64(theirs.Proposed))
			rated = rated.plus(theirs)
		}
		if ours != theirs {
			t.Errorf("%s counted %+v, the records say %+v", id, theirs, ours)
		}
	}
	wantMetric(t, rep, "rollout/spec_accept_length", float64(length.completion)/float64(length.verify))
	wantMetric(t, rep, "rollout/spec_accept_rate", float64(rated.Correct)/float64(rated.Proposed))
	wantMetric(t, rep, "rollout/spec_length_calls_reported", float64(lengthCalls))
	wantMetric(t, rep, "rollout/spec_rate_calls_reported", float64(rateCalls))
	wantMetric(t, rep, "rollout/spec_calls_no_verify", float64(first))
	wantMetric(t, rep, "rollout/spec_calls_not_speculative", float64(silent))
	wantMetric(t, rep, "rollout/spec_calls_unreported", 0)
	wantMetric(t, rep, "rollout/spec_calls_unknown", 0)
	if lengthCalls+first+silent != groups*episodes || rateCalls >= lengthCalls {
		t.Errorf("%d calls with a length, %d on their first token, %d of the engine that does not speculate; %d with a rate", lengthCalls, first, silent, rateCalls)
	}
	all := r.allGrown()
	wantMetric(t, rep, "rollout/prefix_cache_hit_rate", float64(all.Cached)/float64(all.Prompt))
	wantMetric(t, rep, "rollout/prefix_cache_calls_reported", groups*episodes)
	t.Logf("%d calls with a length, %d with a rate, %d on their first token, %d not speculative", lengthCalls, rateCalls, first, silent)
}

// answer is what a foreign engine says of one call: its number of tokens and the
// other fields of meta_info, as JSON.
type answer struct {
	tokens int
	meta   string
}

// foreignEngine is an engine that shares no code with Sheaf: it gives the answers
// in turn, whatever was asked.
func foreignEngine(t *testing.T, serverInfo, metrics string, answers []answer) string {
	t.Helper()
	var served atomic.Int64
	mux := http.NewServeMux()
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
	}
	mux.HandleFunc("GET /get_model_info", text(`{"model_path": "/models/foreign", "is_generation": true}`))
	mux.HandleFunc("GET /get_server_info", text(serverInfo))
	mux.HandleFunc("GET /health", text(""))
	if metrics != "" {
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
			if served.Load() < int64(len(answers)) {
				fmt.Fprint(w, "# nothing yet\n", `sglang:generation_tokens_total{dp_rank="0"} 100.0`, "\n")
				return
			}
			fmt.Fprint(w, metrics)
		})
	}
	mux.HandleFunc("POST /generate", func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			RID      string  `json:"rid"`
			Prompt   []int32 `json:"input_ids"`
			Sampling struct {
				Tokens int `json:"max_new_tokens"`
			} `json:"sampling_params"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a := answer{tokens: 8} // of the short one that asks whether all is well
		if req.Sampling.Tokens > a.tokens {
			a = answers[(served.Add(1)-1)%int64(len(answers))]
		}
		ids := strings.TrimSuffix(strings.Repeat("55,", a.tokens), ",")
		probs := strings.TrimSuffix(strings.Repeat("[-0.25,55,null],", a.tokens), ",")
		fmt.Fprintf(w, `{"text": "%s", "output_ids": [%s], "meta_info": {"id": %q, "finish_reason": {"type": "length", "length": %d}, "prompt_tokens": %d, "completion_tokens": %d, "output_token_logprobs": [%s]%s}}`,
			strings.Repeat("7", a.tokens), ids, req.RID, a.tokens, len(req.Prompt), a.tokens, probs, a.meta)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestForeignEngine holds the figures against sums made by hand.
func TestForeignEngine(t *testing.T) {
	const silent = "no call reported"
	cases := []struct {
		name, serverInfo, metrics string
		answers                   []answer
		want                      map[string]float64
		unavailable               []string
		unclaimed                 *int64
	}{
		{
			name:       "all names at once",
			serverInfo: `{"version": "0.5.12", "speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}`,
			// 100 at the start, and 48 + 2 that nobody asked for; over two ranks.
			metrics: "sglang:generation_tokens_total{model_name=\"f\",dp_rank=\"0\"} 90.0\nsglang:generation_tokens_total{model_name=\"f\",dp_rank=\"1\"} 60.0\n",
			answers: []answer{
				{10, `,"cached_tokens":2,"spec_verify_ct":4,"spec_num_correct_drafts":7,"spec_num_proposed_drafts":12`},
				{7, `,"cached_tokens":3,"spec_verify_ct":3,"spec_accepted_drafts":4,"spec_proposed_drafts":9`},
				{5, `,"spec_verify_ct":2,"spec_accept_token_num":3,"spec_draft_token_num":6`},
				{6, `,"cached_tokens":0,"spec_verify_ct":3`},
				{8, `,"cached_tokens":7,"spec_verify_ct":4,"spec_next_accepted":6,"spec_next_proposed":12`},
				{1, `,"cached_tokens":7`},
				{4, `,"cached_tokens":7`},
				{7, `,"cached_tokens":6,"spec_verify_ct":2,"spec_num_correct_drafts":5,"spec_num_proposed_drafts":6,"spec_accepted_drafts":99,"spec_proposed_drafts":999,"spec_accept_rate":0.9,"spec_accept_length":9.9`},
			},
			want: map[string]float64{
				"rollout/spec_accept_length":                 43.0 / 18,
				"rollout/spec_accept_rate":                   19.0 / 33,
				"rollout/spec_accept_length/engine/engine-0": 43.0 / 18,
				"rollout/spec_accept_rate/engine/engine-0":   19.0 / 33,
				"rollout/spec_length_calls_reported":         6,
				"rollout/spec_rate_calls_reported":           4,
				"rollout/spec_calls_unreported":              1,
				"rollout/spec_calls_no_verify":               1,
				"rollout/spec_calls_not_speculative":         0,
				"rollout/spec_calls_unknown":                 0,
				"rollout/prefix_cache_hit_rate":              32.0 / 56,
				"rollout/prefix_cache_calls_reported":        7,
				"rollout/avg_cached_tokens_per_sample":       4,
				"rollout/response_len/mean":                  6,
				"rollout/response_len/median":                6.5,
				"rollout/neg_logprob":                        0.25,
				"rollout/finish/length":                      1,
				"rollout/truncated_ratio":                    1,
				"rollout/prompt_len/p50":                     8,
				"rollout/episode_total_response_length/mean": 6,
				"waste/discarded_ratio":                      0,
			},
			unclaimed: ptr(2),
		},
		{
			name:       "one that does not speculate",
			serverInfo: `{"version": "0.5.12", "speculative_algorithm": null}`,
			answers:    []answer{{3, `,"cached_tokens":4`}, {5, `,"cached_tokens":0`}, {1, ""}, {3, ""}, {3, ""}, {3, ""}, {3, ""}, {3, ""}},
			want: map[string]float64{
				"rollout/spec_length_calls_reported": 0, "rollout/spec_rate_calls_reported": 0, "rollout/spec_calls_unreported": 0,
				"rollout/spec_calls_no_verify": 0, "rollout/spec_calls_not_speculative": 8, "rollout/spec_calls_unknown": 0,
				"rollout/prefix_cache_hit_rate": 4.0 / 16, "rollout/prefix_cache_calls_reported": 2, "rollout/response_len/mean": 3,
			},
			unavailable: []string{"rollout/spec_accept_length", "rollout/spec_accept_rate"},
		},
		{
			name:       "one that says nothing",
			serverInfo: `{}`,
			answers:    []answer{{2, ""}, {2, ""}, {2, ""}, {2, ""}, {1, ""}, {1, ""}, {1, ""}, {1, ""}},
			want: map[string]float64{
				"rollout/spec_length_calls_reported": 0, "rollout/spec_rate_calls_reported": 0, "rollout/spec_calls_unreported": 0,
				"rollout/spec_calls_no_verify": 0, "rollout/spec_calls_not_speculative": 0, "rollout/spec_calls_unknown": 8,
				"rollout/prefix_cache_calls_reported": 0, "rollout/response_len/mean": 1.5,
			},
			unavailable: []string{"rollout/spec_accept_length", "rollout/spec_accept_rate", "rollout/prefix_cache_hit_rate", "rollout/avg_cached_tokens_per_sample"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			out := t.TempDir()
			code, text := start(t, "controller", "run", config(t,
				"run: {name: foreign, steps: 1, out: "+out+"}",
				"model: {path: configs/models/tiny}",
				"data: {prompts: "+rows(t, `{"prompt": "abcdefgh", "label": "7"}`)+"}",
				"engines: [{url: '"+foreignEngine(t, tc.serverInfo, tc.metrics, tc.answers)+"'}]",
				"rollout: {batch_size: 2, n_samples_per_prompt: 4, sampling: {max_new_tokens: 24}}",
				"reward: {type: exact}",
			)).wait(30 * time.Second)
			if code != 0 {
				t.Fatalf("exit code %d\n%s", code, text)
			}
			rep := checkStep(t, stepDir(out, "foreign", 0), 8)
			for key, want := range tc.want {
				wantMetric(t, rep, key, want)
			}
			for _, key := range tc.unavailable {
				wantUnavailable(t, rep, key)
				if !strings.Contains(rep.Unavailable[key], silent) {
					t.Errorf("%s is unavailable because %q", key, rep.Unavailable[key])
				}
			}
			if got := rep.Ledger.Books.EngineUnclaimed; (got == nil) != (tc.unclaimed == nil) || got != nil && *got != *tc.unclaimed {
				t.Errorf("engine_unclaimed %v, want %v", show(got), show(tc.unclaimed))
			}
		})
	}
}

func ptr(n int64) *int64 { return &n }
