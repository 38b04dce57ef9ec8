//go:build e2e

package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// totals are sums of what engines count: of one engine by its own books, or of
// calls by their records.
type totals struct {
	Prompt, Cached, Completion, Verify, Proposed, Correct int64
}

func (a totals) plus(b totals) totals {
	return totals{a.Prompt + b.Prompt, a.Cached + b.Cached, a.Completion + b.Completion, a.Verify + b.Verify, a.Proposed + b.Proposed, a.Correct + b.Correct}
}

func (a totals) minus(b totals) totals {
	return a.plus(totals{-b.Prompt, -b.Cached, -b.Completion, -b.Verify, -b.Proposed, -b.Correct})
}

// page reads an engine's /metrics: the sum of each name over its labels.
func page(t *testing.T, url string) map[string]int64 {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s/metrics: status %d, %v", url, resp.StatusCode, err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, "sheaf_sim_") {
			v, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				t.Fatalf("%s/metrics: %q: %v", url, line, err)
			}
			out[fields[0]] += int64(v)
		}
	}
	return out
}

// books are a simulated engine's own totals.
func books(t *testing.T, url string) totals {
	t.Helper()
	p := page(t, url)
	return totals{
		Prompt: p["sheaf_sim_prompt_tokens_total"], Cached: p["sheaf_sim_cached_tokens_total"], Completion: p["sheaf_sim_completion_tokens_total"],
		Verify: p["sheaf_sim_verify_total"], Proposed: p["sheaf_sim_proposed_tokens_total"], Correct: p["sheaf_sim_correct_tokens_total"],
	}
}

// call is what groups.cbor keeps of one engine call; nil is what no engine said.
type call struct {
	ID        string
	Engine    string
	Fate      string
	PromptLen int
	OutputLen int
	Meta      struct {
		PromptTokens, CachedTokens, CompletionTokens *int64
		Spec                                         struct {
			Verify, Correct, Proposed *int64
			Dialect                   string
		}
	}
}

func (c call) totals() totals {
	n := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	m := c.Meta
	return totals{
		Prompt: n(m.PromptTokens), Cached: n(m.CachedTokens), Completion: n(m.CompletionTokens),
		Verify: n(m.Spec.Verify), Proposed: n(m.Spec.Proposed), Correct: n(m.Spec.Correct),
	}
}

// verified says that the call ran verify passes and its engine said how many.
func (c call) verified() bool { return c.Meta.Spec.Verify != nil && *c.Meta.Spec.Verify > 0 }

// readCalls reads the calls of every episode of a step, whatever became of it.
func readCalls(t *testing.T, dir string) []call {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "groups.cbor"))
	if err != nil {
		t.Fatal(err)
	}
	var calls []call
	for dec := cbor.NewDecoder(bytes.NewReader(data)); ; {
		var record []byte
		err := dec.Decode(&record)
		if errors.Is(err, io.EOF) {
			return calls
		}
		if err != nil || len(record) < 2 || record[1] != 'g' {
			t.Fatalf("%s: no group record: %v", dir, err)
		}
		var group struct {
			Episodes []struct {
				Episode struct{ Generations []call }
			}
		}
		if err := cbor.Unmarshal(record[2:], &group); err != nil {
			t.Fatal(err)
		}
		for _, e := range group.Episodes {
			calls = append(calls, e.Episode.Generations...)
		}
	}
}

func sum(calls []call) (s totals) {
	for _, c := range calls {
		s = s.plus(c.totals())
	}
	return s
}

// rig is a run whose engines are processes of their own, and whose books begin
// after their admission.
type rig struct {
	t       *testing.T
	name    string
	out     string
	engines []string
	admit   []totals // the engines' books when the run began: their canaries
	ctl     *process
	workers []*process
}

// startRig starts a controller over the engines and then its workers.
func startRig(t *testing.T, name string, engines []string, workers, steps int, lines ...string) *rig {
	t.Helper()
	r := &rig{t: t, name: name, out: t.TempDir(), engines: engines}
	nats := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	entries := make([]string, len(engines))
	for i, url := range engines {
		entries[i] = "{url: '" + url + "'}"
	}
	cfg := config(t, append([]string{
		fmt.Sprintf("run: {name: %s, steps: %d, seed: 1, out: %s}", name, steps, r.out),
		"nats: {embedded: true, listen: '" + nats + "'}",
		"model: {path: configs/models/tiny}",
		"data: {prompts: configs/data/arithmetic.jsonl}",
		"engines: [" + strings.Join(entries, ", ") + "]",
		"reward: {type: exact}",
	}, lines...)...)
	r.ctl = start(t, "controller", "run", cfg)
	r.ctl.until(`step 0 of`, 20*time.Second)
	for _, url := range engines {
		r.admit = append(r.admit, books(t, url))
	}
	for i := range workers {
		r.workers = append(r.workers, start(t, "worker", "--nats", "nats://"+nats, "--id", fmt.Sprintf("w-%d", i)))
	}
	return r
}

// finish waits for the end of the run.
func (r *rig) finish(within time.Duration) {
	r.t.Helper()
	if code, text := r.ctl.wait(within); code != 0 {
		r.t.Fatalf("controller: exit code %d\n%s", code, text)
	}
}

func (r *rig) step(n int) string { return stepDir(r.out, r.name, n) }

// grown is what an engine's books grew by since its admission.
func (r *rig) grown(engine int) totals {
	r.t.Helper()
	return books(r.t, r.engines[engine]).minus(r.admit[engine])
}

func (r *rig) allGrown() (s totals) {
	r.t.Helper()
	for i := range r.engines {
		s = s.plus(r.grown(i))
	}
	return s
}
