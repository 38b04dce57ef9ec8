//go:build e2e

package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
)

// TestNamedEnds takes away all of something that the run cannot do without: the
// run ends by its name within its deadline, shows it before, and goes on once it
// is there again.
func TestNamedEnds(t *testing.T) {
	cases := []struct {
		name string
		// take removes it from a run that is under way.
		take func(engine, worker *process, nats *natsbus.Server)
		want string
	}{
		{"every engine", func(engine, _ *process, _ *natsbus.Server) { engine.kill() }, "no engine serves"},
		{"every worker", func(_, worker *process, _ *natsbus.Server) { worker.kill() }, "the step does not get on"},
		{"NATS", func(_, _ *process, nats *natsbus.Server) { nats.Close() }, "no connection to NATS"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			out := t.TempDir()
			nats, err := natsbus.StartServer(natsbus.ServerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nats.Close)
			engine := start(t, "simengine", "--model-path", "configs/models/tiny", "--host", "127.0.0.1", "--port", "0", "--latency-scale", "1")
			url := engine.until(`(http://127\.0\.0\.1:\d+)`, 10*time.Second)[1]
			cfg := config(t,
				"run: {name: ends, steps: 1000, out: "+out+"}",
				"nats: {embedded: false, urls: ['"+nats.URL()+"']}",
				"model: {path: configs/models/tiny}",
				"data: {prompts: configs/data/arithmetic.jsonl}",
				"engines: [{url: '"+url+"'}]",
				"rollout: {batch_size: 4, n_samples_per_prompt: 4, max_context_len: 512, step_deadline: 4s, sampling: {max_new_tokens: 24}}",
				"reward: {type: exact}",
				"worker: {embedded: false, slots: 4}",
			)
			ctl := start(t, "controller", "run", cfg)
			worker := start(t, "worker", "--nats", nats.URL())
			ctl.until(`step 1: `, 20*time.Second)
			tc.take(engine, worker, nats)
			waitFor(t, 15*time.Second, func() bool {
				_, text := start(t, "controller", "status", filepath.Join(out, "ends")).wait(10 * time.Second)
				return strings.Contains(text, "waiting for")
			})
			code, text := ctl.wait(30 * time.Second)
			if code != 1 || !strings.Contains(text, tc.want) || !strings.Contains(text, "can be resumed") {
				t.Errorf("exit code %d\n%s", code, text)
			}
		})
	}
}

// waitFor calls f until it is true.
func waitFor(t *testing.T, within time.Duration, f func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !f(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s", within)
		}
	}
}
