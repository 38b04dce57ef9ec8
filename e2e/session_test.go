//go:build e2e

package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAgentQuickstart(t *testing.T) {
	out := t.TempDir()
	code, text := start(t, "controller", "run", "configs/agent-quickstart.yaml", "--out", out).wait(3 * time.Minute)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, text)
	}
	dir := stepDir(out, "agent-quickstart", 0)
	rep := checkStep(t, dir, 32)
	if u := rep.Ledger.Books.EngineUnclaimed; u == nil || *u != 0 {
		t.Errorf("engine_unclaimed is %v, want 0", u)
	}
	for _, key := range []string{"rollout/spec_accept_length", "rollout/spec_accept_rate", "rollout/prefix_cache_hit_rate", "rollout/raw_reward/mean"} {
		if v, ok := rep.Metrics[key]; !ok || v <= 0 {
			t.Errorf("%s is %v", key, v)
		}
	}
	turns := 0
	for _, s := range readSamples(t, dir) {
		if s.Reward == nil {
			t.Errorf("sample %d has no reward", s.Index)
		}
		if strings.Contains(s.Response, "<tool_response>") {
			turns++
		}
	}
	if turns < 16 {
		t.Errorf("%d of 32 episodes used the tool", turns)
	}
}

// recorder stands before an engine. The first reply to a prompt is kept, and given
// again to whoever asks with the same prompt, under their request id.
type recorder struct {
	mu      sync.Mutex
	replies map[string]kept
	change  func([]byte) []byte
	again   int
}

type kept struct {
	rid  string
	body []byte
}

func (rec *recorder) start(t *testing.T, engine string) string {
	t.Helper()
	target, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	rec.replies = map[string]kept{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/generate" {
			pass.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		var req struct {
			RID string          `json:"rid"`
			IDs json.RawMessage `json:"input_ids"`
		}
		if err := json.Unmarshal(body, &req); err != nil {
			t.Error(err)
			return
		}
		rec.mu.Lock()
		reply, ok := rec.replies[string(req.IDs)]
		change := rec.change
		if ok {
			rec.again++
		}
		rec.mu.Unlock()
		if !ok {
			resp, err := http.Post(engine+"/generate", "application/json", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			reply.rid = req.RID
			if reply.body, err = io.ReadAll(resp.Body); err != nil {
				t.Error(err)
				return
			}
			rec.mu.Lock()
			rec.replies[string(req.IDs)] = reply
			rec.mu.Unlock()
		}
		out := bytes.ReplaceAll(reply.body, []byte(reply.rid), []byte(req.RID))
		if change != nil {
			out = change(out)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(out) // the other side reports a reply that is cut
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// oneTurn is an agent as a service, which asks once and has nothing to say.
func oneTurn(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var task struct {
			Base     string          `json:"openai_base_url"`
			Messages json.RawMessage `json:"messages"`
		}
		if err := json.NewDecoder(r.Body).Decode(&task); err != nil {
			t.Error(err)
			return
		}
		resp, err := http.Post(task.Base+"/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"messages":%s}`, task.Messages)))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(resp.Body)
			t.Errorf("status %d: %s", resp.StatusCode, text)
		}
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// figures are what a run says about its samples and its engine calls, without the
// time that things took.
type figures struct {
	Samples []map[string]any
	Ledger  map[string]any
	Metrics map[string]any
}

func parityRun(t *testing.T, engine, mode, agent string) figures {
	t.Helper()
	out := t.TempDir()
	lines := []string{
		"run: {name: parity, steps: 1, seed: 5, out: " + out + "}",
		"model: {path: configs/models/tiny, family: qwen3}",
		"data: {prompts: configs/data/arithmetic.jsonl}",
		"engines: [{url: '" + engine + "'}]",
		"rollout: {mode: " + mode + ", batch_size: 6, n_samples_per_prompt: 1, max_context_len: 512, sampling: {max_new_tokens: 24}}",
		"reward: {type: exact}",
	}
	if mode == "session" {
		lines = append(lines, "session: {agent: {http: '"+agent+"'}}")
	}
	code, text := start(t, "controller", "run", config(t, lines...), "--out", out).wait(time.Minute)
	if code != 0 {
		t.Fatalf("%s: exit code %d\n%s", mode, code, text)
	}
	dir := stepDir(out, "parity", 0)
	checkStep(t, dir, 6)
	var f figures
	data, err := os.ReadFile(filepath.Join(dir, "samples.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(bytes.NewReader(data)); dec.More(); {
		var s map[string]any
		if err := dec.Decode(&s); err != nil {
			t.Fatal(err)
		}
		delete(s, "non_generation_time") // an agent takes time
		delete(s["metadata"].(map[string]any), "tito_session_mismatch")
		f.Samples = append(f.Samples, s)
	}
	if data, err = os.ReadFile(filepath.Join(dir, "report.json")); err != nil {
		t.Fatal(err)
	}
	var rep struct {
		Ledger  map[string]any `json:"ledger"`
		Metrics map[string]any `json:"metrics"`
	}
	if err := json.Unmarshal(data, &rep); err != nil {
		t.Fatal(err)
	}
	f.Ledger, f.Metrics = rep.Ledger, map[string]any{}
	// The engine made the tokens once and both runs got them.
	delete(f.Ledger["books"].(map[string]any), "engine_unclaimed")
	for key, v := range rep.Metrics {
		if strings.HasPrefix(key, "rollout/") && !strings.Contains(key, "non_generation") && !strings.Contains(key, "tito") {
			f.Metrics[key] = v
		}
	}
	return f
}

// differences names the fields in which two runs differ.
func (f figures) differences(g figures) (out []string) {
	if len(f.Samples) != len(g.Samples) {
		return []string{fmt.Sprintf("%d samples and %d", len(f.Samples), len(g.Samples))}
	}
	compare := func(where string, a, b map[string]any) {
		keys := map[string]bool{}
		for k := range a {
			keys[k] = true
		}
		for k := range b {
			keys[k] = true
		}
		for k := range keys {
			if !reflect.DeepEqual(a[k], b[k]) {
				out = append(out, fmt.Sprintf("%s %s: %v and %v", where, k, a[k], b[k]))
			}
		}
	}
	for i := range f.Samples {
		compare(fmt.Sprint("sample ", i), f.Samples[i], g.Samples[i])
	}
	compare("ledger", f.Ledger, g.Ledger)
	compare("metrics", f.Metrics, g.Metrics)
	slices.Sort(out)
	return out
}

// The same replies of an engine give the same samples, counters and metrics in
// direct mode and through sessions: over the bus, through the codec and in files.
// And a counter that is lost on the way of one of them shows.
func TestParityOfModes(t *testing.T) {
	agent := oneTurn(t)
	for _, dialect := range []string{"0.5.3", "0.5.10", "0.5.11", "0.5.12", "0.5.23"} {
		t.Run(dialect, func(t *testing.T) {
			rec := &recorder{}
			engine := rec.start(t, startSimengine(t, "--dialect", dialect, "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
				"--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"))
			direct := parityRun(t, engine, "direct", "")
			before := rec.again
			session := parityRun(t, engine, "session", agent)
			if rec.again < before+6 {
				t.Fatalf("%d of 6 prompts were the same in both modes", rec.again-before)
			}
			for _, d := range direct.differences(session) {
				t.Error(d)
			}
			if dialect != "0.5.23" {
				return
			}
			for _, key := range []string{"spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts", "cached_tokens", "weight_versions?"} {
				field := regexp.MustCompile(`"` + key + `":`)
				rec.mu.Lock()
				rec.change = func(body []byte) []byte { return field.ReplaceAll(body, []byte(`"lost":`)) }
				rec.mu.Unlock()
				if d := direct.differences(parityRun(t, engine, "session", agent)); len(d) == 0 {
					t.Errorf("%s is lost and nothing shows it", key)
				}
			}
		})
	}
}

// An agent that repeats, branches, goes away in the middle and starts over: every
// token is in the books once.
func TestSessionBooks(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var task struct {
			Base     string           `json:"openai_base_url"`
			Messages []map[string]any `json:"messages"`
		}
		if err := json.NewDecoder(r.Body).Decode(&task); err != nil {
			t.Error(err)
			return
		}
		ask := func(messages ...map[string]any) map[string]any {
			body, err := json.Marshal(map[string]any{"messages": messages})
			if err != nil {
				t.Error(err)
				return nil
			}
			resp, err := http.Post(task.Base+"/chat/completions", "application/json", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return nil
			}
			defer resp.Body.Close()
			var out struct {
				Choices []struct {
					Message map[string]any `json:"message"`
				} `json:"choices"`
			}
			if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || len(out.Choices) == 0 {
				t.Errorf("status %d: %v", resp.StatusCode, err)
				return nil
			}
			return out.Choices[0].Message
		}
		user := func(text string) map[string]any { return map[string]any{"role": "user", "content": text} }
		first := ask(task.Messages...)
		ask(task.Messages...) // a retry
		ask(task.Messages[0], first, user("sure?"))
		ask(task.Messages[0], first, user("really?"))
		ask(user("something else"))
		fmt.Fprint(w, `{"exit_status":"resolved","reward":1}`)
	}))
	defer agent.Close()
	out := t.TempDir()
	cfg := config(t,
		"run: {name: books, steps: 2, seed: 5, out: "+out+"}", "model: {path: configs/models/tiny, family: qwen3}",
		"data: {prompts: configs/data/arithmetic.jsonl}", "engines: [{sim: {speculative: true}}]",
		"rollout: {mode: session, batch_size: 4, n_samples_per_prompt: 4, max_context_len: 512, sampling: {max_new_tokens: 24}}",
		"session: {matcher: loose_tool_call, agent: {http: '"+agent.URL+"'}}", "reward: {type: agent}")
	code, text := start(t, "controller", "run", cfg).wait(time.Minute)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, text)
	}
	for n := range 2 {
		rep := readReport(t, stepDir(out, "books", n))
		b := rep.Ledger.Books
		if b.Unaccounted != 0 || b.EngineUnclaimed == nil || *b.EngineUnclaimed != 0 || rep.Ledger.Generations["finished"] != 16*5 || rep.Ledger.Dispositions["accepted"] != 16 {
			t.Errorf("step %d: books %+v, generations %v, dispositions %v", n, b, rep.Ledger.Generations, rep.Ledger.Dispositions)
		}
		samples := readSamples(t, stepDir(out, "books", n))
		if len(samples) < 3*16 {
			t.Errorf("step %d: %d samples of 16 episodes", n, len(samples))
		}
		trained := 0
		for _, s := range samples {
			for _, m := range s.LossMask {
				trained += m
			}
		}
		if int64(trained) > b.Generated || trained == 0 {
			t.Errorf("step %d: %d tokens trained of %d", n, trained, b.Generated)
		}
	}
}
