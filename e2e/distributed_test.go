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
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// liar stands before an engine and falsifies what it answers, in turn.
type liar struct {
	url   string
	told  []atomic.Int64 // lies told, in the order of lies
	calls atomic.Int64
	// hidden counts the tokens that its engine made and that it showed nobody.
	hidden atomic.Int64
}

// lie falsifies a reply of so many tokens, and returns how many of them it hides.
// Some make the reply contradict itself, which costs the try; others leave tokens
// that must not be trained on, or a count that cannot be.
type lie struct {
	name    string
	falsify func(tokens int, reply, meta map[string]any, probs []any) (hidden int)
	// failure is that of the try, excluded why its tokens are kept out of the loss,
	// implausible the count that is not believed; "" for none.
	failure, excluded, implausible string
}

var lies = []lie{
	{name: "one token more counted", failure: "engine/bad_reply", falsify: func(tokens int, _, meta map[string]any, _ []any) int {
		meta["completion_tokens"] = tokens + 1
		return 0
	}},
	{name: "the truth", falsify: func(int, map[string]any, map[string]any, []any) int { return 0 }},
	{name: "a log-prob left out", excluded: "missing_logprob", falsify: func(_ int, _, meta map[string]any, probs []any) int {
		meta["output_token_logprobs"] = probs[1:]
		return 0
	}},
	{name: "a log-prob that is null", excluded: "null_logprob", falsify: func(_ int, _, _ map[string]any, probs []any) int {
		probs[0].([]any)[0] = nil
		return 0
	}},
	{name: "a token left out", failure: "engine/bad_reply", falsify: func(_ int, reply, _ map[string]any, _ []any) int {
		reply["output_ids"] = reply["output_ids"].([]any)[1:]
		return 1
	}},
	{name: "another prompt counted", excluded: "prompt_differs", falsify: func(_ int, _, meta map[string]any, _ []any) int {
		meta["prompt_tokens"], meta["cached_tokens"] = 1, 1
		return 0
	}},
	{name: "the truth", falsify: func(int, map[string]any, map[string]any, []any) int { return 0 }},
	{name: "the log-prob of another token", failure: "engine/bad_reply", falsify: func(_ int, _, _ map[string]any, probs []any) int {
		probs[0].([]any)[1] = 11
		return 0
	}},
	{name: "a count below zero", implausible: "spec_verify", falsify: func(_ int, _, meta map[string]any, _ []any) int {
		meta["spec_verify_ct"] = -1
		return 0
	}},
	{name: "another request's reply", failure: "engine/bad_reply", falsify: func(tokens int, _, meta map[string]any, _ []any) int {
		meta["id"] = "0123456789abcdef0123456789abcdef"
		return tokens
	}},
}

func startLiar(t *testing.T, engine string) *liar {
	t.Helper()
	target, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{told: make([]atomic.Int64, len(lies))}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Path != "/generate" || resp.StatusCode != http.StatusOK {
				return nil
			}
			k := l.calls.Add(1)
			if k == 1 { // honest when it asks to be admitted
				return nil
			}
			var reply map[string]any
			if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil {
				return err
			}
			if err := resp.Body.Close(); err != nil {
				return err
			}
			n := int(k) % len(lies)
			meta := reply["meta_info"].(map[string]any)
			probs := meta["output_token_logprobs"].([]any)
			l.hidden.Add(int64(lies[n].falsify(len(probs), reply, meta, probs)))
			l.told[n].Add(1)
			body, err := json.Marshal(reply)
			if err != nil {
				return err
			}
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			resp.Header.Set("Content-Length", fmt.Sprint(len(body)))
			return nil
		},
	}
	srv := httptest.NewServer(proxy)
	t.Cleanup(srv.Close)
	l.url = srv.URL
	return l
}

// faulty starts an engine with a fault script.
func faulty(t *testing.T, script string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "faults.yaml")
	if err := os.WriteFile(path, []byte("faults:\n"+script), 0o644); err != nil {
		t.Fatal(err)
	}
	return startSimengine(t, append([]string{"--faults", path}, flags...)...)
}

// every lists each nth request from the first one given on.
func every(n, first int) string {
	var list []string
	for k := first; k < 1000; k += n {
		list = append(list, strconv.Itoa(k))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// TestDistributed runs three workers over six engines, of which one lies, one is
// slow and one resets connections. The run completes; what can be trained on is
// what its engine made; whatever went wrong has a reason that is counted; and the
// totals differ from the engines' by what was lost and hidden, and by nothing else.
func TestDistributed(t *testing.T) {
	const steps, groups, episodes = 2, 128, 8
	l := startLiar(t, startSimengine(t, eagle...))
	engines := []string{
		startSimengine(t, eagle...), startSimengine(t, append([]string{"--dialect", "0.5.11"}, eagle...)...), startSimengine(t),
		l.url,
		faulty(t, "  - {fault: slow, share: 0.3, delay: 200ms}\n", eagle...),
		// Not the first request, which decides its admission.
		faulty(t, "  - {fault: reset, requests: "+every(5, 3)+"}\n  - {hazard: 16, requests: "+every(9, 5)+"}\n", eagle...),
	}
	const resetting = 5
	r := startRig(t, "distributed", engines, 3, steps,
		"rollout: {batch_size: 128, n_samples_per_prompt: 8, min_valid_per_group: 1, max_context_len: 512, sampling: {max_new_tokens: 24}}",
		"worker: {embedded: false, slots: 32}",
	)
	r.finish(60 * time.Second)
	for i, w := range r.workers {
		if code, text := w.wait(10 * time.Second); code != 0 {
			t.Errorf("worker %d: exit code %d\n%s", i, code, text)
		}
	}

	decode := decoder(t)
	var unclaimed, generated, discarded, kept int64
	var reported totals
	failures, retried, outcomes, verdicts, untrainable, implausible := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	add := func(into, from map[string]int) {
		for k, v := range from {
			into[k] += v
		}
	}
	used, by := map[string]int{}, map[string]bool{}
	seen := map[int64]bool{}
	for n := range steps {
		rep := checkStep(t, r.step(n), groups*episodes)
		for _, s := range readSamples(t, r.step(n)) {
			if got := decode(s.Tokens[len(s.Tokens)-s.ResponseLength:]); got != runs(s.Response) {
				t.Errorf("step %d: sample %d has the tokens of %q and the response %q", n, s.Index, got, s.Response)
			}
			if seen[s.Index] {
				t.Errorf("sample %d is in two steps", s.Index)
			}
			seen[s.Index] = true
		}
		for _, c := range readCalls(t, r.step(n)) {
			used[c.Engine]++
			if c.Fate == "finished" {
				kept += c.totals().Completion
			}
		}
		add(failures, rep.Ledger.Failures)
		add(retried, rep.Ledger.Retried)
		for _, n := range rep.Ledger.Books.Discarded {
			discarded += n
		}
		reported = reported.plus(rep.Ledger.Counters.totals)
		add(outcomes, rep.Ledger.Outcomes)
		add(verdicts, rep.Ledger.Dispositions)
		add(untrainable, rep.Ledger.Untrainable)
		add(implausible, rep.Ledger.Implausible)
		generated += rep.Ledger.Books.Generated
		if rep.Ledger.Books.EngineUnclaimed == nil {
			t.Fatalf("step %d: engine_unclaimed is null", n)
		}
		unclaimed += *rep.Ledger.Books.EngineUnclaimed
		data, err := os.ReadFile(filepath.Join(r.step(n), "groups.cbor"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.workers {
			id := fmt.Sprintf("w-%d", i)
			by[id] = by[id] || bytes.Contains(data, []byte(id))
		}
	}

	// Every failed try has one reason, whether or not another one made it good, and
	// every lie its consequence.
	failed := 0
	for reason, k := range failures {
		failed += k
		if verdicts["discarded("+reason+")"] != k {
			t.Errorf("%d episodes failed of %s, dispositions %v", k, reason, verdicts)
		}
	}
	want := map[string]int{}
	for i := range lies {
		want[lies[i].failure] += int(l.told[i].Load())
		want[lies[i].excluded] += int(l.told[i].Load())
		want[lies[i].implausible] += int(l.told[i].Load())
	}
	for _, reason := range []string{"missing_logprob", "null_logprob", "prompt_differs"} {
		if untrainable[reason] != want[reason] || want[reason] == 0 {
			t.Errorf("%d calls are kept out of the loss for %s, %d such lies were told", untrainable[reason], reason, want[reason])
		}
	}
	if len(implausible) != 1 || implausible["spec_verify"] != want["spec_verify"] || want["spec_verify"] == 0 {
		t.Errorf("counts not believed: %v, told %d", implausible, want["spec_verify"])
	}
	if outcomes["failed"] != failed || outcomes["completed"]+failed != steps*groups*episodes {
		t.Errorf("outcomes %v, failures %v", outcomes, failures)
	}
	tries := map[string]int{}
	add(tries, failures)
	add(tries, retried)
	if tries["engine/bad_reply"] != want["engine/bad_reply"] || want["engine/bad_reply"] == 0 || tries["engine/reset"] == 0 || len(tries) != 2 {
		t.Errorf("tries failed of %v, %d replies contradicted themselves", tries, want["engine/bad_reply"])
	}

	// The books differ by the tokens that nobody showed us, as a connection broke
	// or an engine hid them.
	all := r.allGrown()
	lost, hidden := r.grown(resetting).Completion-engineTokens(t, r, steps, resetting), l.hidden.Load()
	if unclaimed != lost+hidden || all.Completion-generated != unclaimed || kept+discarded != generated || reported.Completion != kept {
		t.Errorf("unclaimed %d, of %d lost and %d hidden; the engines made %d, generated are %d, kept %d and discarded %d, reported %d",
			unclaimed, lost, hidden, all.Completion, generated, kept, discarded, reported.Completion)
	}
	if lost == 0 {
		t.Error("no tokens were lost with a connection")
	}
	for i := range engines {
		if id := fmt.Sprintf("engine-%d", i); used[id] == 0 {
			t.Errorf("%s had no calls", id)
		}
	}
	for i := range r.workers {
		if id := fmt.Sprintf("w-%d", i); !by[id] {
			t.Errorf("%s stored nothing", id)
		}
	}
	t.Logf("outcomes %v, tries failed of %v, untrainable %v, implausible %v; calls %v; %d tokens lost, %d hidden", outcomes, tries, untrainable, implausible, used, lost, hidden)
}

// engineTokens sums the completion tokens of an engine's calls.
func engineTokens(t *testing.T, r *rig, steps, engine int) (n int64) {
	t.Helper()
	for k := range steps {
		for _, c := range readCalls(t, r.step(k)) {
			if c.Engine == fmt.Sprintf("engine-%d", engine) {
				n += c.totals().Completion
			}
		}
	}
	return n
}

// decoder returns what makes text of the tiny model's tokens: bytes, and a few
// special ones that its tokenizer file names.
func decoder(t *testing.T) func(ids []int32) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(), "configs", "models", "tiny", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Added []struct {
			ID      int32  `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	special := map[int32]string{}
	for _, a := range file.Added {
		special[a.ID] = a.Content
	}
	return func(ids []int32) string {
		var text strings.Builder
		for _, id := range ids {
			if content, ok := special[id]; ok {
				text.WriteString(content)
			} else {
				text.WriteByte(byte(id))
			}
		}
		return runs(strings.ToValidUTF8(text.String(), "\ufffd"))
	}
}

var replaced = regexp.MustCompile("\ufffd+")

// runs makes one of each run of replacement characters: how many stand for bytes
// that are no text is a matter of taste.
func runs(text string) string { return replaced.ReplaceAllString(text, "\ufffd") }
