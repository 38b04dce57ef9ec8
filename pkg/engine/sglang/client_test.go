package sglang

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// testRequest is a request of three prompt tokens with the stop "END".
func testRequest() engine.Request {
	return engine.Request{
		ID: engine.NewID(), PromptIDs: []int32{1, 2, 3}, Turn: 4, Attempt: 2,
		Sampling: rollout.Sampling{Temperature: 1, TopP: 1, TopK: -1, RepetitionPenalty: 1, MaxNewTokens: 16, Stop: []string{"END"}},
	}
}

// start serves handler as an engine and returns a client of it.
func start(t *testing.T, handler http.Handler, change ...func(*Config)) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	cfg := Config{ID: "e0", URL: server.URL, ControlTimeout: 5 * time.Second}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return c
}

// answer replies to /generate with body, in which @RID@ is the request's id.
func answer(t *testing.T, status int, body string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/abort_request", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/generate", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			ID string `json:"rid"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Errorf("the request is no JSON: %v", err)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "@RID@", in.ID))
	})
	return mux
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func p(v int64) *int64     { return &v }
func f(v float64) *float64 { return &v }
func str(v string) *string { return &v }

func TestRecordedReplies(t *testing.T) {
	for _, tc := range []struct {
		file string
		want rollout.Generation
	}{
		{"v0.5.10-eagle.json", rollout.Generation{
			OutputIDs: []int32{220, 19, 17, 151645}, LogProbs: []float32{-0.1, -1.1920929e-07, 0, -12.5},
			GenerationRecord: rollout.GenerationRecord{Meta: rollout.EngineMeta{
				Finish:       rollout.Finish{Type: rollout.FinishStop, MatchedToken: p(151645)},
				PromptTokens: p(3), CachedTokens: p(2), CompletionTokens: p(4), Retractions: p(0), WeightVersion: str("default"), E2ELatency: f(0.2153),
				Spec: rollout.SpecMeta{Verify: p(2), Correct: p(3), Proposed: p(6), Histogram: []int64{0, 1, 1}, Dialect: "spec_accept_token_num"},
			}},
		}},
		{"v0.5.11-eagle.json", rollout.Generation{
			OutputIDs: []int32{22, 2}, LogProbs: []float32{-0.5, -0.25},
			GenerationRecord: rollout.GenerationRecord{Meta: rollout.EngineMeta{
				Finish:       rollout.Finish{Type: rollout.FinishLength},
				PromptTokens: p(3), CachedTokens: p(0), CompletionTokens: p(2), ReasoningTokens: p(0), Retractions: p(0), WeightVersion: str("5"), E2ELatency: f(0.1),
				Spec: rollout.SpecMeta{Verify: p(1), Correct: p(0), Proposed: p(3), Histogram: []int64{1}, Dialect: "spec_accepted_drafts"},
			}},
		}},
		{"v0.5.16-eagle.json", rollout.Generation{
			OutputIDs: []int32{7, 8, 9}, LogProbs: []float32{-1.5, -0.75, -2},
			GenerationRecord: rollout.GenerationRecord{Meta: rollout.EngineMeta{
				Finish:       rollout.Finish{Type: rollout.FinishStop, MatchedText: "END"},
				PromptTokens: p(3), CachedTokens: p(3), CompletionTokens: p(3), ReasoningTokens: p(9), Retractions: p(1), WeightVersion: str("12"),
				WeightVersions: []rollout.VersionSpan{{Version: "11", Start: 0, End: 2}, {Version: "12", Start: 2, End: 3}},
				E2ELatency:     f(1.5), QueueTime: f(0.001), DPRank: p(1),
				Spec: rollout.SpecMeta{Verify: p(2), Correct: p(1), Proposed: p(2), Histogram: []int64{1, 1}, Dialect: "spec_num_correct_drafts"},
			}},
		}},
		{"v0.5.16-plain.json", rollout.Generation{
			OutputIDs: []int32{5}, LogProbs: []float32{-math.MaxFloat32},
			GenerationRecord: rollout.GenerationRecord{Meta: rollout.EngineMeta{
				Finish:       rollout.Finish{Type: rollout.FinishStop, MatchedToken: p(5)},
				PromptTokens: p(3), CachedTokens: p(0), CompletionTokens: p(1), WeightVersion: str("1"),
			}},
		}},
		{"v0.5.4-verify-only.json", rollout.Generation{
			OutputIDs: []int32{1, 2}, LogProbs: []float32{-1, -2},
			GenerationRecord: rollout.GenerationRecord{Meta: rollout.EngineMeta{
				Finish:       rollout.Finish{Type: rollout.FinishLength},
				PromptTokens: p(3), CachedTokens: p(1), CompletionTokens: p(2), WeightVersion: str("default"),
				Spec: rollout.SpecMeta{Verify: p(1)},
			}},
		}},
		{"v0.5.5-queue-abort.json", rollout.Generation{
			GenerationRecord: rollout.GenerationRecord{Fate: rollout.FateAborted, Meta: rollout.EngineMeta{
				Finish: rollout.Finish{Type: rollout.FinishAbort, Message: "Abort before prefill"},
			}},
		}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			c := start(t, answer(t, 200, recorded(t, tc.file)))
			req := testRequest()
			got, err := c.Generate(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			want := tc.want
			want.ID, want.Turn, want.Attempt, want.Engine, want.PromptLen, want.PromptIDs = req.ID, 4, 2, "e0", 3, req.PromptIDs
			want.OutputLen = len(want.OutputIDs)
			if want.Fate == "" {
				want.Fate = rollout.FateFinished
			}
			if got.Seconds <= 0 {
				t.Errorf("seconds = %v", got.Seconds)
			}
			got.Seconds = 0
			if len(got.OutputIDs) == 0 {
				got.OutputIDs, got.LogProbs = nil, nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// body is a reply with these parts of meta_info.
func body(ids, meta string) string {
	return `{"text":"t","output_ids":` + ids + `,"meta_info":{"id":"@RID@",` + meta + `}}`
}

func TestHazards(t *testing.T) {
	const stop = `"finish_reason":{"type":"stop","matched":2}`
	for _, tc := range []struct {
		name        string
		status      int
		body        string
		reason      engine.Reason
		text        string // within the error
		untrainable string
		fate        rollout.Fate
		output      int
		completion  *int64
	}{
		{name: "1: unknown names of the draft counts are unknown, not zero", body: body("[2]", stop+`,"completion_tokens":1,"spec_verify_ct":1,"spec_new_name":4,"output_token_logprobs":[[-1,2,null]]`), output: 1, completion: p(1)},
		{name: "3: one log-prob for many tokens", body: body("[1,2]", stop+`,"completion_tokens":2,"output_token_logprobs":[[-1,1,null]]`), untrainable: "missing_logprob", output: 2, completion: p(2)},
		{name: "5: no log-probs at all", body: body("[1,2]", stop+`,"completion_tokens":2`), untrainable: "missing_logprob", output: 2, completion: p(2)},
		{name: "5: log-probs null", body: body("[1,2]", stop+`,"completion_tokens":2,"output_token_logprobs":null`), untrainable: "missing_logprob", output: 2, completion: p(2)},
		{name: "6: more log-probs than tokens", body: body("[1]", stop+`,"completion_tokens":1,"output_token_logprobs":[[-1,1,null],[-1,2,null]]`), untrainable: "missing_logprob", output: 1, completion: p(1)},
		{name: "6: log-probs of other ids", body: body("[1,2]", stop+`,"completion_tokens":2,"output_token_logprobs":[[-1,1,null],[-1,3,null]]`), reason: engine.BadReply, text: "other token ids", output: 2},
		{name: "6: a count that is not the number of ids", body: body("[1,2]", stop+`,"completion_tokens":3,"output_token_logprobs":[[-1,1,null],[-1,2,null]]`), reason: engine.BadReply, text: "2 token ids and counts 3", output: 2},
		{name: "7: more reasoning than completion tokens", body: body("[2]", stop+`,"completion_tokens":1,"reasoning_tokens":9,"output_token_logprobs":[[-1,2,null]]`), output: 1, completion: p(1)},
		{name: "8: a null log-prob", body: body("[1,2]", stop+`,"completion_tokens":2,"output_token_logprobs":[[-1,1,null],[null,2,null]]`), untrainable: "null_logprob", output: 2, completion: p(2)},
		{name: "8: NaN and infinity as words", body: body("[1,2]", stop+`,"completion_tokens":2,"output_token_logprobs":[[NaN,1,null],[-Infinity,2,null]]`), untrainable: "null_logprob", output: 2, completion: p(2)},
		{name: "8: a number beyond float32", body: body("[2]", stop+`,"completion_tokens":1,"output_token_logprobs":[[-1e300,2,null]]`), untrainable: "null_logprob", output: 1, completion: p(1)},
		{name: "8: 500 out of range", status: 500, body: "Internal Server Error", reason: engine.Faulty, text: "Internal Server Error"},
		{name: "9: abort in the queue without most fields", body: `{"meta_info":{"id":"@RID@","finish_reason":{"type":"abort","message":"Abort in waiting queue"},"weight_version":"3","completion_tokens":0}}`, fate: rollout.FateAborted, completion: p(0)},
		{name: "9: abort with null fields", body: body("null", `"finish_reason":{"type":"abort","message":"m","status_code":null,"err_type":null},"output_token_logprobs":null,"prompt_tokens":null`), fate: rollout.FateAborted},
		{name: "10: abort with part of the output", body: body("[1,2]", `"finish_reason":{"type":"abort","message":"m","status_code":null},"completion_tokens":2,"output_token_logprobs":[[-1,1,null],[-2,2,null]]`), fate: rollout.FateAborted, output: 2, completion: p(2)},
		{name: "10: abort whose parts do not fit", body: body("[2]", `"finish_reason":{"type":"abort","message":"m"},"completion_tokens":7,"output_token_logprobs":[[-1,1,null],[-2,2,null]]`), fate: rollout.FateAborted, untrainable: "missing_logprob", output: 1, completion: p(7)},
		{name: "29: a live id", status: 400, body: `{"error":{"message":"Duplicate request ID detected"}}`, reason: engine.Rejected, text: "Duplicate request ID detected"},
		{name: "31: an id beyond int32", body: body("[2147483648]", stop), reason: engine.BadReply, text: "outside 0 to 2147483647"},
		{name: "31: a negative id", body: body("[2]", stop+`,"output_token_logprobs":[[-1,-2,null]]`), reason: engine.BadReply, text: "outside 0 to 2147483647"},
		{name: "31: an id beyond 64 bits", body: body("[99999999999999999999999]", stop), reason: engine.BadReply, text: "outside 0 to 2147483647"},
		{name: "31: an id with a fraction", body: body("[2.5]", stop), reason: engine.BadReply},
		{name: "32: finish reason null", body: body("[2]", `"finish_reason":null,"completion_tokens":1,"output_token_logprobs":[[-1,2,null]]`), reason: engine.BadReply, text: "no finish reason", output: 1},
		{name: "32: no meta_info", body: `{"text":"","output_ids":[]}`, reason: engine.BadReply, text: "no finish reason"},
		{name: "35: the scheduler refused", body: `{"text":"","output_ids":[],"meta_info":{"id":"@RID@","finish_reason":{"type":"abort","message":"too long","status_code":400,"err_type":"BadRequestError"},"prompt_tokens":1,"completion_tokens":0}}`, reason: engine.Rejected, text: "too long"},
		{name: "35: the scheduler had no room", body: `{"meta_info":{"id":"@RID@","finish_reason":{"type":"abort","message":"full","status_code":503},"completion_tokens":5}}`, reason: engine.Overloaded, text: "full"},
		{name: "36: stopped on a text of its own", body: body("[2]", `"finish_reason":{"type":"stop","matched":"NaN happened"},"completion_tokens":1,"output_token_logprobs":[[-1,2,null]]`), reason: engine.Faulty, text: "NaN happened", output: 1},
		{name: "the prompt was truncated", body: body("[2]", stop+`,"completion_tokens":1,"prompt_tokens":2,"output_token_logprobs":[[-1,2,null]]`), untrainable: "prompt_differs", output: 1, completion: p(1)},
		{name: "a finish reason that nobody knows", body: body("[2]", `"finish_reason":{"type":"tired"}`), reason: engine.BadReply, text: "tired", output: 1},
		{name: "tool calls", body: body("[2]", `"finish_reason":{"type":"tool_calls","matched":null},"completion_tokens":1,"output_token_logprobs":[[-1,2,null]]`), output: 1, completion: p(1)},
		{name: "a reply to another request", body: strings.ReplaceAll(body("[2]", stop), "@RID@", "other"), reason: engine.BadReply, text: "belongs to request"},
		{name: "a list, as for n > 1", body: `[` + body("[2]", stop) + `]`, reason: engine.BadReply},
		{name: "garbage", body: "<html>", reason: engine.BadReply},
		{name: "nothing", body: "", reason: engine.BadReply, text: "ends early"},
		{name: "half a reply that says it is whole", body: `{"output_ids":[1,2`, reason: engine.BadReply, text: "ends early"},
		{name: "more after the reply", body: body("[2]", stop) + "{}", reason: engine.BadReply, text: "more follows"},
		{name: "validation", status: 400, body: `{"object":"error","message":"bad\n top_p","type":"Bad Request","param":null,"code":400}`, reason: engine.Rejected, text: "bad top_p"},
		{name: "no such key", status: 401, body: `{"error":"Unauthorized"}`, reason: engine.Rejected, text: "Unauthorized"},
		{name: "queue full", status: 503, body: `{"object":"error","message":"The request queue is full.","type":"503","code":503}`, reason: engine.Overloaded, text: "queue is full"},
		{name: "too many", status: 429, body: ``, reason: engine.Overloaded, text: "Too Many Requests"},
		{name: "a redirect is not followed", status: 307, body: ``, reason: engine.BadReply, text: "Temporary Redirect"},
		{name: "ids in log-probs only", body: `{"meta_info":{"id":"@RID@",` + stop + `,"completion_tokens":2,"output_token_logprobs":[[-1,1,null],[-1,2,null]]}}`, output: 2, completion: p(2)},
		{name: "finished without a token", body: body("[]", `"finish_reason":{"type":"length","length":0},"completion_tokens":0,"output_token_logprobs":[]`), completion: p(0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status := tc.status
			if status == 0 {
				status = 200
			}
			c := start(t, answer(t, status, tc.body))
			g, err := c.Generate(t.Context(), testRequest())
			if got := engine.ReasonOf(err); got != tc.reason {
				t.Fatalf("reason %q, want %q: %v", got, tc.reason, err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %q does not say %q", err, tc.text)
			}
			want := tc.fate
			switch {
			case tc.reason != "":
				want = rollout.FateFailed
				if g.Failure == nil || g.Failure.Reason != string(tc.reason) {
					t.Errorf("failure %+v", g.Failure)
				}
			case want == "":
				want = rollout.FateFinished
			}
			if g.Fate != want || g.Untrainable != tc.untrainable || g.OutputLen != tc.output {
				t.Errorf("fate %q untrainable %q output %d, want %q %q %d", g.Fate, g.Untrainable, g.OutputLen, want, tc.untrainable, tc.output)
			}
			if len(g.LogProbs) != len(g.OutputIDs) {
				t.Errorf("%d log-probs, %d ids", len(g.LogProbs), len(g.OutputIDs))
			}
			for _, lp := range g.LogProbs {
				if isMissing(lp) {
					t.Errorf("log-probs hold %v", lp)
				}
			}
			if !reflect.DeepEqual(g.Meta.CompletionTokens, tc.completion) {
				t.Errorf("completion tokens %v, want %v", g.Meta.CompletionTokens, tc.completion)
			}
			if g.Meta.Spec.Correct != nil || g.Meta.Spec.Dialect != "" {
				t.Errorf("draft counts from nowhere: %+v", g.Meta.Spec)
			}
		})
	}
}

func TestRequestBody(t *testing.T) {
	var got map[string]any
	var header http.Header
	c := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		if r.Method != http.MethodPost || r.URL.Path != "/generate" {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(w, `{"output_ids":[],"meta_info":{"finish_reason":{"type":"length"}}}`)
	}), func(cfg *Config) { cfg.APIKey = "k" })
	req := testRequest()
	req.Seed = p(1 << 61)
	req.RoutingKey = "group-7"
	if _, err := c.Generate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"rid": req.ID, "input_ids": []any{1.0, 2.0, 3.0}, "return_logprob": true, "logprob_start_len": -1.0, "top_logprobs_num": 0.0,
		"return_text_in_logprobs": false, "stream": false,
		"sampling_params": map[string]any{
			"temperature": 1.0, "top_p": 1.0, "top_k": -1.0, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
			"repetition_penalty": 1.0, "max_new_tokens": 16.0, "min_new_tokens": 0.0, "n": 1.0, "stop": []any{"END"}, "stop_token_ids": nil,
			"ignore_eos": false, "skip_special_tokens": false, "spaces_between_special_tokens": false, "no_stop_trim": true, "sampling_seed": float64(1 << 61),
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if header.Get("X-SMG-Routing-Key") != "group-7" || header.Get("Authorization") != "Bearer k" || header.Get("Content-Type") != "application/json" {
		t.Errorf("header %v", header)
	}

	req.Seed, req.RoutingKey = nil, strings.Repeat("ключ\n", 40)
	if _, err := c.Generate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, ok := got["sampling_params"].(map[string]any)["sampling_seed"]; ok {
		t.Error("a seed is sent that nobody set")
	}
	if key := header.Get("X-SMG-Routing-Key"); len(key) != 64 {
		t.Errorf("a routing key that a router would ignore is sent as %q", key)
	}
}

func TestBadRequests(t *testing.T) {
	c := start(t, http.NotFoundHandler())
	empty := testRequest()
	empty.PromptIDs = nil
	nan := testRequest()
	nan.Sampling.Temperature = math.NaN()
	for name, req := range map[string]engine.Request{"no prompt": empty, "no temperature": nan} {
		if _, err := c.Generate(t.Context(), req); engine.ReasonOf(err) != engine.Rejected {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, u := range []string{"", "host:1", "ftp://h", "http://", "://", "http://u:hush@h:1", "http://hush@h:1", "http://u:hush@"} {
		if _, err := New(Config{URL: u}); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("New of %q: %v", u, err)
		}
	}
}
