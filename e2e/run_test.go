//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func stepDir(out, run string, n int) string {
	return filepath.Join(out, run, fmt.Sprintf("step-%06d", n))
}

// freePort is a port of the loopback interface that is free at the moment, below
// the range from which outgoing connections take theirs.
func freePort(t *testing.T) int {
	t.Helper()
	for port := 21000 + os.Getpid()%5000; port < 32000; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func TestQuickstart(t *testing.T) {
	out := t.TempDir()
	p := start(t, "controller", "run", "configs/quickstart.yaml", "--out", out)
	code, text := p.wait(20 * time.Second)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, text)
	}
	for n := range 3 {
		dir := stepDir(out, "quickstart", n)
		rep := checkStep(t, dir, 64)
		if n == 0 {
			if r := rep.Metrics["rollout/raw_reward/mean"]; r < 0.05 || r > 0.3 {
				t.Errorf("the reward starts at %.3f, want 0.05 to 0.3", r)
			}
		}
		for _, want := range []string{fmt.Sprintf("step %d:", n), dir} {
			if !strings.Contains(text, want) {
				t.Errorf("the output has no %q", want)
			}
		}
	}
	if n := strings.Count(text, "first  group"); n != 3 {
		t.Errorf("%d first samples shown, want 3", n)
	}

	t.Run("again", func(t *testing.T) {
		code, text := start(t, "controller", "run", "configs/quickstart.yaml", "--out", out).wait(20 * time.Second)
		if code != 0 || !strings.Contains(text, "is finished") {
			t.Errorf("exit code %d\n%s", code, text)
		}
	})
	t.Run("more steps", func(t *testing.T) {
		code, text := start(t, "controller", "run", "configs/quickstart.yaml", "--out", out, "--steps", "4").wait(20 * time.Second)
		if code != 0 {
			t.Errorf("exit code %d\n%s", code, text)
		}
		checkStep(t, stepDir(out, "quickstart", 3), 64)
	})
	t.Run("the same batch from a fresh start", func(t *testing.T) {
		before := batchBytes(t, stepDir(out, "quickstart", 0))
		code, text := start(t, "controller", "run", "configs/quickstart.yaml", "--out", out, "--fresh", "--steps", "1").wait(20 * time.Second)
		if code != 0 {
			t.Errorf("exit code %d\n%s", code, text)
		}
		if after := batchBytes(t, stepDir(out, "quickstart", 0)); after != before {
			t.Error("the batch differs, though every seed is fixed")
		}
	})
}

// batchBytes is what a step's trainer reads.
func batchBytes(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "batch", "rank-00000-of-00001.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func startSimengine(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, "simengine", append([]string{"--model-path", "configs/models/tiny", "--host", "127.0.0.1", "--port", "0"}, args...)...)
	return p.until(`(http://127\.0\.0\.1:\d+)`, 10*time.Second)[1]
}

func TestExternalRun(t *testing.T) {
	out := t.TempDir()
	nats := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cfg := config(t,
		"run: {name: external, steps: 40, seed: 1, out: "+out+"}",
		"nats: {embedded: true, listen: '"+nats+"'}",
		"model: {path: configs/models/tiny}",
		"data: {prompts: configs/data/arithmetic.jsonl}",
		"engines: [{url: '"+startSimengine(t)+"'}, {url: '"+startSimengine(t)+"'}]",
		"rollout: {batch_size: 16, n_samples_per_prompt: 8, max_context_len: 512, sampling: {max_new_tokens: 24}}",
		"reward: {type: exact}",
		"worker: {embedded: false, slots: 16}",
	)
	first := start(t, "worker", "--nats", "nats://"+nats, "--id", "w-first", "-v") // before its controller
	ctl := start(t, "controller", "run", cfg, "-v")
	ctl.until(`step 3: `, 30*time.Second)
	late := start(t, "worker", "--nats", "nats://"+nats, "--id", "w-late", "-v")
	late.until("joined", 10*time.Second)
	ctl.until(`step 12: `, 30*time.Second)
	first.signal(syscall.SIGTERM)
	if code, text := first.wait(10 * time.Second); code != 0 || !strings.Contains(text, "draining") {
		t.Errorf("the drained worker: exit code %d\n%s", code, text)
	}
	if code, text := ctl.wait(60 * time.Second); code != 0 {
		t.Fatalf("controller: exit code %d\n%s", code, text)
	}
	if code, text := late.wait(10 * time.Second); code != 0 {
		t.Errorf("the late worker after the run: exit code %d\n%s", code, text)
	}
	by := map[string]bool{}
	for n := range 40 {
		dir := stepDir(out, "external", n)
		if rep := checkStep(t, dir, 128); rep.Ledger.Dispositions["accepted"] != 128 {
			t.Errorf("step %d: %v, want all accepted", n, rep.Ledger.Dispositions)
		}
		groups, err := os.ReadFile(filepath.Join(dir, "groups.cbor"))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []string{"w-first", "w-late"} {
			by[w] = by[w] || strings.Contains(string(groups), w)
		}
	}
	if !by["w-first"] || !by["w-late"] {
		t.Errorf("workers with results: %v, want both", by)
	}
}

// TestKilledControllerGoesOn kills the controller in the middle, twice, and lets
// the same command finish.
func TestKilledControllerGoesOn(t *testing.T) {
	out := t.TempDir()
	args := []string{"run", "configs/quickstart.yaml", "--out", out, "--steps", "30"}
	for _, at := range []string{`step 4: `, `step 15: `} {
		p := start(t, "controller", args...)
		p.until(at, 30*time.Second)
		p.kill()
	}
	code, text := start(t, "controller", args...).wait(60 * time.Second)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, text)
	}
	seen := map[int64]bool{}
	for n := range 30 {
		dir := stepDir(out, "quickstart", n)
		checkStep(t, dir, 64)
		for _, s := range readSamples(t, dir) {
			if seen[s.Index] {
				t.Errorf("sample %d is in two steps", s.Index)
			}
			seen[s.Index] = true
		}
	}
	if len(seen) != 30*64 {
		t.Errorf("%d different samples, want %d", len(seen), 30*64)
	}
	data, err := os.ReadFile(filepath.Join(out, "quickstart", "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), `"kind":"step"`); n != 30 {
		t.Errorf("metrics.jsonl has %d steps, want 30", n)
	}
}

// TestBadEnginesCostEpisodes runs beside a good engine ones that are admitted and
// then answer garbage, hang and reset.
func TestBadEnginesCostEpisodes(t *testing.T) {
	good, err := url.Parse(startSimengine(t))
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	bad := func(generate http.HandlerFunc) string {
		proxy := httputil.NewSingleHostReverseProxy(good)
		var admitted atomic.Bool
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/generate" || !admitted.Swap(true) {
				proxy.ServeHTTP(w, r) // the canary is answered well
				return
			}
			calls.Add(1)
			generate(w, r)
		}))
		t.Cleanup(func() {
			srv.CloseClientConnections() // ends the handlers that Close would wait for
			srv.Close()
		})
		return srv.URL
	}
	garbage := bad(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"text": "x", "meta_info": [`) })
	hang := bad(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees a client go
		<-r.Context().Done()
	})
	reset := bad(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	})
	out := t.TempDir()
	cfg := config(t,
		"run: {name: bad, steps: 3, out: "+out+"}",
		"model: {path: configs/models/tiny}",
		"data: {prompts: configs/data/arithmetic.jsonl}",
		fmt.Sprintf("engines: [{sim: {count: 1}}, {url: '%s'}, {url: '%s'}, {url: '%s'}]", garbage, hang, reset),
		"rollout: {batch_size: 8, n_samples_per_prompt: 8, max_context_len: 512, episode_deadline: 2s, sampling: {max_new_tokens: 24}}",
		"reward: {type: exact}",
	)
	code, text := start(t, "controller", "run", cfg).wait(60 * time.Second)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, text)
	}
	failures := map[string]int{}
	accepted := 0
	for n := range 3 {
		rep := checkStep(t, stepDir(out, "bad", n), 64)
		for _, count := range []map[string]int{rep.Ledger.Failures, rep.Ledger.Retried} {
			for k, v := range count {
				failures[k] += v
			}
		}
		accepted += rep.Ledger.Dispositions["accepted"]
	}
	if calls.Load() == 0 || accepted == 0 {
		t.Errorf("%d calls of bad engines, %d episodes accepted", calls.Load(), accepted)
	}
	for _, want := range []string{"engine/bad_reply", "engine/reset", "engine/episode_deadline"} {
		if failures[want] == 0 {
			t.Errorf("failures %v, want some %s", failures, want)
		}
	}
}

// TestStoppedWorkerIsFenced stops a worker for longer than its leases live: its
// jobs run elsewhere, and when it wakes up it leaves with exit code 3.
func TestStoppedWorkerIsFenced(t *testing.T) {
	out := t.TempDir()
	nats := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	slow := startSimengine(t, "--latency-scale", "1")
	cfg := config(t,
		"run: {name: stopped, steps: 1, out: "+out+"}",
		"nats: {listen: '"+nats+"'}",
		"model: {path: configs/models/tiny}",
		"data: {prompts: configs/data/arithmetic.jsonl}",
		"engines: [{url: '"+slow+"'}]",
		"rollout: {batch_size: 32, n_samples_per_prompt: 8, max_context_len: 512, sampling: {max_new_tokens: 24}}",
		"reward: {type: exact}",
		"worker: {embedded: false, slots: 2}",
	)
	ctl := start(t, "controller", "run", cfg)
	first := start(t, "worker", "--nats", "nats://"+nats, "--id", "w-stopped")
	first.until("joined", 10*time.Second)
	second := start(t, "worker", "--nats", "nats://"+nats, "--id", "w-other")
	second.until("joined", 10*time.Second)
	time.Sleep(300 * time.Millisecond) // both hold jobs by now
	first.signal(syscall.SIGSTOP)
	time.Sleep(4 * time.Second) // the stop is longer than a lease
	first.signal(syscall.SIGCONT)
	if code, text := first.wait(20 * time.Second); code != 3 || !strings.Contains(text, "stopped for a while") {
		t.Errorf("the woken worker: exit code %d\n%s", code, text)
	}
	if code, text := ctl.wait(60 * time.Second); code != 0 {
		t.Fatalf("controller: exit code %d\n%s", code, text)
	}
	checkStep(t, stepDir(out, "stopped", 0), 256)
}
