package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// background starts a request and returns what will be its reply.
func background(t *testing.T, engine *sim.Engine, body object) <-chan reply {
	t.Helper()
	answers := make(chan reply, 1)
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, answer := call(t, engine, http.MethodPost, "/generate", string(data))
		answers <- parse(t, answer)
	}()
	return answers
}

// post sends a control request that has to be answered with status.
func post(t testing.TB, engine *sim.Engine, path, body string, status int) string {
	t.Helper()
	got, answer := call(t, engine, http.MethodPost, path, body)
	if got != status {
		t.Fatalf("%s %s: status %d, %s", path, body, got, answer)
	}
	return string(answer)
}

// loads is a reading of /v1/loads.
func loads(t testing.TB, engine *sim.Engine) (running, waiting int) {
	t.Helper()
	_, body := call(t, engine, "GET", "/v1/loads?include=core", "")
	var answer struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Loads) != 1 {
		t.Fatalf("%v in %s", err, body)
	}
	return answer.Loads[0].Running, answer.Loads[0].Waiting
}

// until polls a condition of the engine, which each reading lets take a step.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("still not so: " + what)
		}
	}
}

// endless is a request that runs until it is aborted.
func endless(rid string) object {
	return object{"rid": rid, "text": "a", "return_logprob": true, "sampling_params": object{"max_new_tokens": 1 << 28, "ignore_eos": true}}
}

// slow makes an engine on which endless requests take real time.
func slow(c *sim.Config) {
	c.ContextLength = 1 << 29
	c.Latency = sim.Latency{Scale: 1, Step: 200 * time.Microsecond, VerifyFactor: 1}
}

func TestAbort(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { slow(c); c.MaxRunning = 2 })
	first := background(t, engine, endless("job-1"))
	until(t, "job-1 runs", func() bool { n, _ := loads(t, engine); return n == 1 })
	second := background(t, engine, endless("job-2"))
	until(t, "job-2 runs", func() bool { n, _ := loads(t, engine); return n == 2 })
	third := background(t, engine, endless("job-10"))
	until(t, "job-10 waits", func() bool { _, n := loads(t, engine); return n == 1 })

	post(t, engine, "/abort_request", `{"rid":""}`, 200)
	post(t, engine, "/abort_request", `{"rid":"unknown"}`, 200)
	post(t, engine, "/abort_request", `{"rid":"job-1"}`, 200)
	running, waiting := <-first, <-third // hazard 11: the id of one begins that of the other
	if f := running.Meta.FinishReason; f.Type != "abort" || running.Meta.Completion == 0 || len(running.Meta.Logprobs) != running.Meta.Completion {
		t.Errorf("a running request ended with %+v after %d tokens", f, running.Meta.Completion)
	}
	if f := waiting.Meta.FinishReason; f.Message != "Abort in waiting queue" || waiting.Meta.Completion != 0 {
		t.Errorf("a waiting request ended with %+v after %d tokens", f, waiting.Meta.Completion)
	}
	for _, key := range []string{"prompt_tokens", "cached_tokens", "num_retractions", "spec_verify_ct"} {
		if _, there := waiting.Keys[key]; there {
			t.Errorf("the record of a request aborted in the queue has %s (hazard 9)", key)
		}
	}
	post(t, engine, "/abort_request", `{"abort_all":true}`, 200)
	if f := (<-second).Meta.FinishReason; f.Type != "abort" {
		t.Errorf("abort_all left a request end with %+v", f)
	}
	if got := counter(t, engine, `sheaf_sim_requests_total{fate="abort"}`); got != 3 {
		t.Errorf("%g aborts counted, want 3", got)
	}
}

func TestDuplicateIDAndFullQueueAreRefused(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { slow(c); c.MaxRunning, c.MaxQueued = 1, 1 })
	live := background(t, engine, endless("one"))
	until(t, "one runs", func() bool { n, _ := loads(t, engine); return n == 1 })
	if answer := post(t, engine, "/generate", `{"rid":"one","text":"a","sampling_params":{"max_new_tokens":1}}`, 400); !strings.Contains(answer, "Duplicate request ID") {
		t.Errorf("a duplicate is answered with %s (hazard 29)", answer)
	}
	queued := background(t, engine, endless("two"))
	until(t, "two waits", func() bool { _, n := loads(t, engine); return n == 1 })
	post(t, engine, "/generate", `{"rid":"three","text":"a"}`, 503)
	post(t, engine, "/flush_cache", "", 400)
	post(t, engine, "/abort_request", `{"abort_all":true}`, 200)
	<-live
	<-queued
	post(t, engine, "/flush_cache", "", 200)
}

func TestPauseModes(t *testing.T) {
	for _, mode := range []string{"abort", "retract", "in_place"} {
		t.Run(mode, func(t *testing.T) {
			engine := newEngine(t, func(c *sim.Config) { slow(c); c.WeightVersion = "1" })
			body := endless("a")
			body["sampling_params"].(object)["max_new_tokens"] = 400
			flight := background(t, engine, body)
			until(t, "a runs", func() bool { n, _ := loads(t, engine); return n == 1 })
			post(t, engine, "/pause_generation", fmt.Sprintf(`{"mode":%q}`, mode), 200)
			if status, _ := call(t, engine, "GET", "/health", ""); status != 503 {
				t.Errorf("health of a paused engine is %d", status)
			}
			held := background(t, engine, object{"rid": "b", "text": "b", "sampling_params": object{"max_new_tokens": 2}})
			update := fmt.Sprintf(`{"model_path":%q,"weight_version":"2","flush_cache":true}`, modelPath)
			if mode == "in_place" {
				if answer := post(t, engine, "/update_weights_from_disk", update, 400); !strings.Contains(answer, "flushed") {
					t.Errorf("an update that cannot flush says %s", answer)
				}
				update = strings.Replace(update, `"flush_cache":true`, `"flush_cache":false`, 1)
			}
			post(t, engine, "/update_weights_from_disk", update, 200)
			post(t, engine, "/continue_generation", `{}`, 200)
			got := <-flight
			if after := <-held; after.Meta.Version != "2" || after.Meta.Completion != 2 {
				t.Errorf("a request that waited out the pause: version %s, %d tokens", after.Meta.Version, after.Meta.Completion)
			}
			switch {
			case mode == "abort" && (got.Meta.FinishReason.Type != "abort" || got.Meta.Version != "1"):
				t.Errorf("finish %+v at version %s, want an abort at 1", got.Meta.FinishReason, got.Meta.Version)
			case mode == "abort":
				return
			case got.Meta.FinishReason.Type != "length" || got.Meta.Completion != 400 || got.Meta.Version != "2":
				t.Errorf("finish %+v after %d tokens at version %s", got.Meta.FinishReason, got.Meta.Completion, got.Meta.Version)
			}
			spans := got.Meta.Spans
			if len(spans) != 2 || spans[0].Version != "1" || spans[0].Start != 0 || spans[0].End != spans[1].Start || spans[1].End != 400 || spans[1].Version != "2" {
				t.Errorf("version spans %+v do not tile the output", spans)
			}
			retractions, err := got.Keys["num_retractions"].(json.Number).Int64()
			if want := map[string]int64{"retract": 1, "in_place": 0}[mode]; err != nil || retractions != want {
				t.Errorf("%d retractions, want %d", retractions, want)
			}
		})
	}
}

// TestUpdateWaitsForWhatRuns updates an engine that is not paused.
func TestUpdateWaitsForWhatRuns(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { slow(c); speculate(c); c.WeightVersion = "1" })
	body := endless("a")
	body["sampling_params"].(object)["max_new_tokens"] = 100
	flight := background(t, engine, body)
	until(t, "a runs", func() bool { n, _ := loads(t, engine); return n == 1 })
	post(t, engine, "/update_weights_from_disk", fmt.Sprintf(`{"model_path":%q,"weight_version":"2"}`, modelPath), 200)
	select {
	case got := <-flight:
		if got.Meta.Version != "1" || len(got.Meta.Spans) != 1 {
			t.Errorf("the request in flight has version %s, spans %v", got.Meta.Version, got.Meta.Spans)
		}
	case <-t.Context().Done():
		t.Fatal("the request in flight was lost")
	}
	if _, answer := call(t, engine, "GET", "/v1/models", ""); !bytes.Contains(answer, []byte(modelPath)) {
		t.Errorf("the served name is not the new path: %s", answer)
	}
}

// TestUpdateChangesTheDistribution installs a policy with another bias.
func TestUpdateChangesTheDistribution(t *testing.T) {
	engine := newEngine(t, speculate)
	folder := t.TempDir()
	policy, err := sim.ReadPolicy(filepath.Join(modelPath, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	shape := policy.Shape()
	bias := make([]float32, shape.Vocab)
	bias['x'] = 30
	policy, err = sim.NewPolicy(shape, make([]float32, shape.Rows*shape.Dim), make([]float32, shape.Vocab*shape.Dim), bias)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := policy.Write(&file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "model.safetensors"), file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	post(t, engine, "/update_weights_from_disk", fmt.Sprintf(`{"model_path":%q}`, folder), 200)
	if r := generate(t, engine, object{"text": "a", "sampling_params": object{"max_new_tokens": 6}}); r.Text != "xxxxxx" {
		t.Errorf("the new policy says %q", r.Text)
	}
	// A draft in the folder comes with the policy: as it says the same, all is accepted.
	before := counter(t, engine, "sheaf_sim_correct_tokens_total")
	if err := os.MkdirAll(filepath.Join(folder, "draft"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "draft", "model.safetensors"), file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	post(t, engine, "/update_weights_from_disk", fmt.Sprintf(`{"model_path":%q}`, folder), 200)
	r := generate(t, engine, object{"text": "a", "sampling_params": object{"max_new_tokens": 9}})
	if r.Meta.Correct != r.Meta.Proposed || r.Meta.Verify != 2 || before != 0 {
		t.Errorf("%d of %d accepted in %d verifies, %g before the draft came", r.Meta.Correct, r.Meta.Proposed, r.Meta.Verify, before)
	}
	post(t, engine, "/update_weights_from_disk", `{"model_path":"/does/not/exist"}`, 400)
	post(t, engine, "/update_weights_from_disk", fmt.Sprintf(`{"model_path":%q}`, t.TempDir()), 400)
	if r := generate(t, engine, object{"text": "a", "sampling_params": object{"max_new_tokens": 6}}); r.Text != "xxxxxx" {
		t.Errorf("after a failed update the policy says %q", r.Text)
	}
}

func TestUpdateVersionAbortsUnlessToldNotTo(t *testing.T) {
	engine := newEngine(t, slow)
	flight := background(t, engine, endless("a"))
	until(t, "a runs", func() bool { n, _ := loads(t, engine); return n == 1 })
	post(t, engine, "/update_weight_version", `{"new_version":"5","abort_all_requests":false}`, 200)
	if n, _ := loads(t, engine); n != 1 {
		t.Error("the request was aborted although it was not to be")
	}
	post(t, engine, "/update_weight_version", `{"new_version":"6"}`, 200)
	if f := (<-flight).Meta.FinishReason; f.Type != "abort" {
		t.Errorf("the request ended with %+v, want an abort", f)
	}
	post(t, engine, "/update_weight_version", `{}`, 400)
	if _, info := call(t, engine, "GET", "/model_info", ""); !bytes.Contains(info, []byte(`"weight_version":"6"`)) {
		t.Errorf("model info %s", info)
	}
}

func TestMemoryOccupation(t *testing.T) {
	engine := newEngine(t, slow)
	flight := background(t, engine, endless("a"))
	until(t, "a runs", func() bool { n, _ := loads(t, engine); return n == 1 })
	post(t, engine, "/release_memory_occupation", `{}`, 400)
	post(t, engine, "/abort_request", `{"abort_all":true}`, 200)
	<-flight
	post(t, engine, "/release_memory_occupation", `{"tags":["nothing"]}`, 400)
	if answer := post(t, engine, "/release_memory_occupation", `{}`, 200); answer != "null" {
		t.Errorf("release answers %q", answer)
	}
	held := background(t, engine, object{"rid": "b", "text": "b", "sampling_params": object{"max_new_tokens": 2}})
	post(t, engine, "/resume_memory_occupation", `{"tags":["weights"]}`, 200)
	if status, _ := call(t, engine, "GET", "/health_generate", ""); status != 503 {
		t.Errorf("health without a KV cache is %d", status)
	}
	post(t, engine, "/resume_memory_occupation", `{"tags":["kv_cache","cuda_graph"]}`, 200)
	<-held
	if status, _ := call(t, engine, "GET", "/health_generate", ""); status != 200 {
		t.Errorf("health after all is back is %d", status)
	}
}

// TestCloseEndsEverything closes an engine with requests in every state.
func TestCloseEndsEverything(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { slow(c); c.MaxRunning = 1 })
	var flights []<-chan reply
	for i := range 3 {
		flights = append(flights, background(t, engine, endless(fmt.Sprint("r", i))))
	}
	until(t, "all are there", func() bool { r, w := loads(t, engine); return r+w == 3 })
	engine.Close()
	engine.Close()
	for _, flight := range flights {
		<-flight // an error body: it parses as a reply without anything in it
	}
	if status, _ := call(t, engine, "POST", "/generate", `{"text":"a"}`); status != 503 {
		t.Errorf("a closed engine answers %d", status)
	}
}

// TestDialects compares the keys of replies with what each release reports.
func TestDialects(t *testing.T) {
	always := []string{"cached_tokens", "completion_tokens", "e2e_latency", "finish_reason", "id", "prompt_tokens", "response_sent_to_client_ts", "weight_version"}
	verified := []string{"spec_accept_length", "spec_accept_rate", "spec_verify_ct"}
	tests := []struct {
		dialect string
		plain   []string
		spec    []string // beside plain, for a request that was verified
		first   []string // beside plain, for one that ended on its first token
	}{
		{"0.5.3", always, []string{"spec_verify_ct"}, []string{"spec_verify_ct"}},
		{"0.5.10", append([]string{"reasoning_tokens", "total_retractions"}, always...),
			append([]string{"spec_accept_histogram", "spec_accept_token_num", "spec_draft_token_num"}, verified...), nil},
		{"0.5.11", append([]string{"reasoning_tokens", "total_retractions"}, always...),
			append([]string{"spec_accept_histogram", "spec_accepted_drafts", "spec_proposed_drafts"}, verified...), nil},
		{"0.5.12", append([]string{"num_retractions", "reasoning_tokens"}, always...),
			append([]string{"spec_accept_histogram", "spec_accepted_drafts", "spec_proposed_drafts",
				"spec_correct_drafts_histogram", "spec_num_correct_drafts", "spec_num_proposed_drafts"}, verified...), nil},
		{"0.5.23", append([]string{"num_retractions", "reasoning_tokens", "weight_versions"}, always...),
			append([]string{"spec_correct_drafts_histogram", "spec_num_correct_drafts", "spec_num_proposed_drafts"}, verified...), nil},
	}
	for _, tt := range tests {
		t.Run(tt.dialect, func(t *testing.T) {
			dialect, err := sim.DialectNamed(tt.dialect)
			if err != nil {
				t.Fatal(err)
			}
			check := func(engine *sim.Engine, tokens int, want []string) {
				t.Helper()
				r := generate(t, engine, object{"text": question(3, 4), "sampling_params": object{"max_new_tokens": tokens, "ignore_eos": true}})
				var got []string
				for key := range r.Keys {
					got = append(got, key)
				}
				slices.Sort(got)
				want = slices.Sorted(slices.Values(want))
				if !slices.Equal(got, want) {
					t.Errorf("keys\n%v, want\n%v", got, want)
				}
			}
			plain := newEngine(t, func(c *sim.Config) { c.Dialect = dialect })
			check(plain, 8, tt.plain)
			spec := newEngine(t, func(c *sim.Config) { c.Dialect = dialect; speculate(c) })
			check(spec, 8, append(slices.Clone(tt.plain), tt.spec...))
			check(spec, 1, append(slices.Clone(tt.plain), tt.first...))
			status, _ := call(t, plain, "GET", "/get_weight_version", "")
			if want := map[bool]int{true: 200, false: 404}[tt.dialect == "0.5.3"]; status != want {
				t.Errorf("/get_weight_version answers %d, want %d", status, want)
			}
		})
	}
	if _, err := sim.DialectNamed("1"); err == nil {
		t.Error("an unknown dialect was found")
	}
}

// TestLatencyOnAVirtualClock checks the reported times against the model.
func TestLatencyOnAVirtualClock(t *testing.T) {
	latency := func(edit func(*sim.Config), tokens int) float64 {
		engine := newEngine(t, func(c *sim.Config) {
			c.Clock, c.Latency = sim.NewVirtualClock(time.Unix(1000, 0)), sim.DefaultLatency()
			c.Latency.Scale = 1
			if edit != nil {
				edit(c)
			}
		})
		r := generate(t, engine, object{"text": question(3, 4), "sampling_params": object{"max_new_tokens": tokens, "ignore_eos": true, "temperature": 0}})
		return r.Meta.Latency
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s took %g s, want %g", name, got, want)
		}
	}
	prefill := 23 * 50e-6
	near("a prefill", latency(nil, 1), prefill)
	near("ten tokens", latency(nil, 10), prefill+9*4.06e-3)
	near("ten tokens at half the scale", latency(func(c *sim.Config) { c.Latency.Scale = 0.5 }, 10), (prefill+9*4.06e-3)/2)
	near("one verify", latency(speculate, 2), prefill+1.3*4.06e-3+3*0.1*4e-3)
}

func TestTimesWithMetrics(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) {
		c.EnableMetrics = true
		c.Clock, c.Latency = sim.NewVirtualClock(time.Unix(1000, 0)), sim.DefaultLatency()
		c.Latency.Scale = 1
	})
	r := generate(t, engine, object{"text": "a", "sampling_params": object{"max_new_tokens": 5, "ignore_eos": true}})
	for key, want := range map[string]string{
		"queue_time": "0", "forward_entry_time": "1000.000000", "prefill_finished_time": "1000.000050",
		"request_received_ts": "1000.000000", "request_finished_ts": "1000.016290",
	} {
		if got := fmt.Sprint(r.Keys[key]); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

func TestTokenizeAndModels(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { c.ServedModelName = "tiny" })
	tests := []struct{ method, path, body, want string }{
		{"POST", "/v1/tokenize", `{"prompt":"a<|im_end|>"}`, `{"count":2,"max_model_len":32768,"tokens":[97,258]}`},
		{"POST", "/tokenize", `{"prompt":""}`, `{"count":0,"max_model_len":32768,"tokens":[]}`},
		{"GET", "/ping", "", ""},
		{"GET", "/health", "", ""},
	}
	for _, tt := range tests {
		if status, body := call(t, engine, tt.method, tt.path, tt.body); status != 200 || string(body) != tt.want {
			t.Errorf("%s %s: %d %s, want %s", tt.path, tt.body, status, body, tt.want)
		}
	}
	post(t, engine, "/v1/tokenize", `{}`, 400)
	bare := newEngine(t, func(c *sim.Config) { c.Tokenizer = nil })
	post(t, bare, "/v1/tokenize", `{"prompt":"a"}`, 400)
	if status, body := call(t, bare, "POST", "/generate", `{"input_ids":[97],"sampling_params":{"max_new_tokens":1}}`); status != 200 || bytes.Contains(body, []byte(`"text"`)) {
		t.Errorf("without a tokenizer: %d %s", status, body)
	}
	post(t, bare, "/generate", `{"text":"a"}`, 400)
	post(t, bare, "/generate", `{"input_ids":[97],"sampling_params":{"stop":"a"}}`, 400)
}

func TestRoutesByRelease(t *testing.T) {
	for dialect, lacking := range map[string][]string{
		"0.5.3":  {"/model_info", "/server_info", "/v1/loads"},
		"0.5.10": nil,
		"0.5.23": {"/get_load"},
	} {
		engine := newEngine(t, func(c *sim.Config) { c.Dialect, _ = sim.DialectNamed(dialect) })
		for _, path := range []string{"/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/loads", "/get_load"} {
			want := 200
			if slices.Contains(lacking, path) {
				want = 404
			}
			if status, _ := call(t, engine, "GET", path, ""); status != want {
				t.Errorf("%s %s answers %d, want %d", dialect, path, status, want)
			}
		}
	}
}

func TestAPIKey(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { c.APIKey = "secret" })
	for _, tt := range []struct {
		path, header string
		want         int
	}{
		{"/model_info", "", 401}, {"/model_info", "Bearer wrong", 401}, {"/model_info", "Bearer secret", 200},
		{"/health", "", 200}, {"/metrics", "", 200},
	} {
		request := httptest.NewRequest("GET", tt.path, nil)
		request.Header.Set("Authorization", tt.header)
		recorder := httptest.NewRecorder()
		engine.Handler().ServeHTTP(recorder, request)
		if recorder.Code != tt.want {
			t.Errorf("%s with %q answers %d, want %d", tt.path, tt.header, recorder.Code, tt.want)
		}
	}
}

func TestStub(t *testing.T) {
	cases := []struct {
		name     string
		sampling object
		want     int
	}{
		{"no limit", object{}, 5},
		{"a limit beyond it", object{"max_new_tokens": 9}, 5},
		{"a limit below it", object{"max_new_tokens": 3}, 3},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			engine := newEngine(t, func(c *sim.Config) { c.Stub = 5 })
			r := generate(t, engine, object{"rid": "mine", "sampling_params": tc.sampling, "input_ids": []int{1, 2, 3}, "return_logprob": true})
			if r.Meta.ID != "mine" || r.Meta.Prompt != 3 || r.Meta.Completion != tc.want || len(r.OutputIDs) != tc.want || len(r.Meta.Logprobs) != tc.want || r.Meta.FinishReason.Type != "stop" {
				t.Errorf("the stub answers %+v", r)
			}
			if got := counter(t, engine, "sheaf_sim_completion_tokens_total"); got != float64(tc.want) {
				t.Errorf("%g tokens counted, want %d", got, tc.want)
			}
		})
	}
}

func BenchmarkStub(b *testing.B) {
	engine := newEngine(b, func(c *sim.Config) { c.Stub = 256 })
	body := `{"rid":"0123456789abcdef0123456789abcdef","input_ids":[` + strings.Repeat("100,", 1023) + `1],"return_logprob":true}`
	b.ReportAllocs()
	for b.Loop() {
		call(b, engine, "POST", "/generate", body)
	}
}
