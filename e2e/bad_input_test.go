//go:build e2e

package e2e_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBadInput: each wrong input ends the command with a sentence that says what
// to do, with the right exit code, and leaves no half-written file.
func TestBadInput(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	base := func(out string, more ...string) []string {
		return append([]string{
			"run: {name: bad-input, steps: 1, out: " + out + "}",
			"model: {path: configs/models/tiny}",
			"data: {prompts: configs/data/arithmetic.jsonl}",
			"engines: [{sim: {count: 1}}]",
			"rollout: {batch_size: 2, n_samples_per_prompt: 2, max_context_len: 512, sampling: {max_new_tokens: 8}}",
			"reward: {type: exact}",
		}, more...)
	}
	prompts := func(t *testing.T, text string) string {
		path := filepath.Join(t.TempDir(), "prompts.jsonl")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cases := []struct {
		name string
		args func(t *testing.T, out string) []string
		code int
		say  []string
	}{
		{"no such config", func(*testing.T, string) []string { return []string{"run", "nowhere.yaml"} }, 2, []string{"nowhere.yaml"}},
		{"no config named", func(*testing.T, string) []string { return []string{"run"} }, 2, []string{"--help"}},
		{"every problem at once", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out, "rolout: {}", "worker: {slots: 0}", "train: {estimator: gpro}")...)}
		}, 2, []string{":7:", "rollout", ":8:", "slots", ":9:", "gpro"}},
		{"missing model folder", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "model.path=nowhere"}
		}, 2, []string{"nowhere"}},
		{"model folder without a tokenizer", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "model.path=docs"}
		}, 2, []string{"tokenizer.json"}},
		{"missing prompts file", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "data.prompts=nowhere.jsonl"}
		}, 2, []string{"nowhere.jsonl"}},
		{"bad prompt line", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "data.prompts=" + prompts(t, "{\"prompt\":\"a\"}\n{\"prompt\":\n")}
		}, 2, []string{":2", "data.skip_bad"}},
		{"sizes past their bounds", func(t *testing.T, out string) []string {
			return []string{"check", config(t, base(out)...), "--set", "rollout.batch_size=9223372036854775807", "--set", "rollout.n_samples_per_prompt=1000000000000"}
		}, 2, []string{"rollout.batch_size: must be at most", "rollout.n_samples_per_prompt: must be at most"}},
		{"a row that cannot travel", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "data.prompts=" + prompts(t, "{\"prompt\":\"a\",\"label\":\"1\"}\n{\"prompt\":\""+strings.Repeat("x", 9<<20)+"\",\"label\":\"1\"}\n")}
		}, 2, []string{"prompts.jsonl:2: has 9437187 bytes", "data.skip_bad"}},
		{"a row that is not UTF-8", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "data.prompts=" + prompts(t, "{\"prompt\":\"\xff\",\"label\":\"1\"}\n")}
		}, 2, []string{"prompts.jsonl:1: is not UTF-8"}},
		{"a label column that is not there", func(t *testing.T, out string) []string {
			return []string{"check", config(t, base(out)...), "--set", "data.label_key=nope"}
		}, 2, []string{"data.label_key names no column", "there are: label, metadata, prompt"}},
		{"prompts that are a folder", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "data.prompts=docs"}
		}, 2, []string{"data.prompts: docs is a folder"}},
		{"a step that fails as a whole", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "rollout.max_context_len=9"}
		}, 1, []string{"first failure of its kind: ", "step 0: every episode failed: 4 of 4 with ", "rollout.allow_empty_steps"}},
		{"unreachable engine", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out)...), "--set", "engines=[{url: 'http://127.0.0.1:9'}]"}
		}, 1, []string{"engines.0.url", "127.0.0.1:9", "start it"}},
		{"unreachable NATS", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out, "nats: {embedded: false, urls: ['nats://127.0.0.1:9']}")...)}
		}, 1, []string{"no NATS server", "127.0.0.1:9", "start it"}},
		{"port in use", func(t *testing.T, out string) []string {
			return []string{"run", config(t, base(out, "nats: {listen: '"+taken.Addr().String()+"'}")...)}
		}, 1, []string{"nats.listen", "address already in use"}},
		{"output is a file", func(t *testing.T, _ string) []string {
			return []string{"run", config(t, base("go.mod")...)}
		}, 1, []string{"go.mod"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			out := t.TempDir()
			code, text := start(t, "controller", tc.args(t, out)...).wait(30 * time.Second)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			for _, want := range tc.say {
				if !strings.Contains(text, want) {
					t.Errorf("the message has no %q:\n%s", want, text)
				}
			}
			if strings.Contains(text, "goroutine ") {
				t.Errorf("a stack trace:\n%s", text)
			}
			files, err := filepath.Glob(filepath.Join(out, "*", "step-*", "*"))
			if err != nil || len(files) > 0 {
				t.Errorf("files left: %v %v", files, err)
			}
		})
	}
	t.Run("skipped bad prompts", func(t *testing.T) {
		out := t.TempDir()
		path := prompts(t, "{\"prompt\":\"a\",\"label\":\"1\"}\n{\"prompt\":\n{\"prompt\":\"b\",\"label\":\"2\"}\n")
		code, text := start(t, "controller", "run", config(t, base(out)...), "--set", "data.prompts="+path, "--set", "data.skip_bad=true").wait(30 * time.Second)
		if code != 0 || !strings.Contains(text, "skipped") || !strings.Contains(text, ":2") {
			t.Errorf("exit code %d\n%s", code, text)
		}
		lines, err := os.ReadFile(filepath.Join(out, "bad-input", "metrics.jsonl"))
		if err != nil || !strings.Contains(string(lines), `"event":"prompts_skipped"`) || !strings.Contains(string(lines), `"data/skipped_rows":1`) {
			t.Errorf("%v in\n%s", err, lines)
		}
	})
	t.Run("two controllers on one folder", func(t *testing.T) {
		out := t.TempDir()
		cfg := config(t, base(out, "nats: {listen: '127.0.0.1:0'}", "worker: {embedded: false}")...) // it waits for workers
		first := start(t, "controller", "run", cfg)
		first.until(`step 0`, 10*time.Second)
		if code, text := start(t, "controller", "status", filepath.Join(out, "bad-input")).wait(10 * time.Second); code != 0 || !strings.Contains(text, "collecting") || !strings.Contains(text, "0 of 4 episodes") {
			t.Errorf("status: exit code %d\n%s", code, text)
		}
		code, text := start(t, "controller", "run", cfg).wait(10 * time.Second)
		if code != 1 || !strings.Contains(text, fmt.Sprint(first.cmd.Process.Pid)) {
			t.Errorf("exit code %d\n%s", code, text)
		}
	})
	t.Run("a ledger that was lost", func(t *testing.T) {
		out := t.TempDir()
		cfg := config(t, base(out)...)
		if code, text := start(t, "controller", "run", cfg, "--steps", "3").wait(20 * time.Second); code != 0 {
			t.Fatalf("exit code %d\n%s", code, text)
		}
		if err := os.RemoveAll(filepath.Join(out, "bad-input", ".state")); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first try must not make the second one pass
			code, text := start(t, "controller", "run", cfg, "--steps", "4").wait(20 * time.Second)
			if code != 2 || !strings.Contains(text, "--fresh") {
				t.Errorf("exit code %d\n%s", code, text)
			}
		}
	})
	t.Run("a worker's address that is none", func(t *testing.T) {
		for _, address := range []string{"foo://127.0.0.1:1", "", "127.0.0.1"} {
			code, text := start(t, "worker", "--nats", address).wait(10 * time.Second)
			if code != 1 || !strings.Contains(text, "nats://host:port") {
				t.Errorf("%q: exit code %d\n%s", address, code, text)
			}
		}
	})
	t.Run("another config on the same run", func(t *testing.T) {
		out := t.TempDir()
		cfg := config(t, base(out)...)
		if code, text := start(t, "controller", "run", cfg).wait(20 * time.Second); code != 0 {
			t.Fatalf("exit code %d\n%s", code, text)
		}
		code, text := start(t, "controller", "run", cfg, "--set", "run.seed=99").wait(20 * time.Second)
		if code != 2 || !strings.Contains(text, "--fresh") || !strings.Contains(text, "what differs: run.seed\n") {
			t.Errorf("exit code %d\n%s", code, text)
		}
	})
	t.Run("worker without a server", func(t *testing.T) {
		code, text := start(t, "worker", "--nats", "nats://127.0.0.1:9", "--wait", "300ms").wait(10 * time.Second)
		if code != 1 || !strings.Contains(text, "no NATS server") {
			t.Errorf("exit code %d\n%s", code, text)
		}
	})
}
