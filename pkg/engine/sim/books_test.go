package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// TestBooks runs a crowd of requests, aborts some of them, and adds up what the
// replies say: it has to be what the engine counted, to the last token.
func TestBooks(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) {
		speculate(c)
		c.MaxRunning = 8
		c.Faults = rules(t, "faults: [{hazard: 10, share: 0.1}, {hazard: 36, share: 0.1}, {hazard: 29, share: 0.05}]")
	})
	var mu sync.Mutex
	sums := map[string]int{}
	var clients sync.WaitGroup
	for client := range 12 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(client)))
			for i := range 60 {
				rid := fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64())
				body, _ := json.Marshal(object{"rid": rid, "text": question(i%10, client%10), "stream": i%3 == 0,
					"sampling_params": object{"max_new_tokens": 1 + rng.IntN(60), "ignore_eos": i%2 == 0}})
				if i%5 == 0 {
					clients.Go(func() { call(t, engine, "POST", "/abort_request", fmt.Sprintf(`{"rid":%q}`, rid)) })
				}
				status, answer := call(t, engine, "POST", "/generate", string(body))
				if status == http.StatusBadRequest || strings.HasPrefix(string(answer), `data: {"error"`) {
					continue // hazard 29: nothing was generated
				}
				var r reply
				if i%3 == 0 {
					list, _ := events(t, answer)
					r = list[len(list)-1]
				} else {
					r = parse(t, answer)
				}
				mu.Lock()
				sums["completion_tokens"] += r.Meta.Completion
				sums["verify"] += r.Meta.Verify
				sums["proposed_tokens"] += r.Meta.Proposed
				sums["correct_tokens"] += r.Meta.Correct
				sums["cached_tokens"] += r.Meta.Cached
				sums["received"]++
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	for name, want := range sums {
		if got := counter(t, engine, "sheaf_sim_"+name+"_total"); got != float64(want) {
			t.Errorf("the engine counted %g %s, the replies add up to %d", got, name, want)
		}
	}
	var fates float64
	for _, fate := range []string{"stop", "length", "abort"} {
		fates += counter(t, engine, fmt.Sprintf("sheaf_sim_requests_total{fate=%q}", fate))
	}
	if fates != float64(sums["received"]) {
		t.Errorf("%g requests have a fate, %d were received", fates, sums["received"])
	}
	if sums["verify"] == 0 || sums["completion_tokens"] == 0 {
		t.Errorf("nothing was counted: %v", sums)
	}
}

// TestEditedLogits looks at penalties and biases, which change logits before they
// are sampled; greedily, so that with and without speculation the text is one.
func TestEditedLogits(t *testing.T) {
	plain, spec := newEngine(t, nil), newEngine(t, speculate)
	greedy := func(extra object) string {
		params := object{"temperature": 0, "max_new_tokens": 24, "ignore_eos": true}
		for k, v := range extra {
			params[k] = v
		}
		body := object{"text": question(7, 2), "sampling_params": params}
		x, y := generate(t, plain, body), generate(t, spec, body)
		if !reflect.DeepEqual(x.OutputIDs, y.OutputIDs) {
			t.Errorf("%v: %q plainly and %q with speculation", extra, x.Text, y.Text)
		}
		return fmt.Sprint(x.OutputIDs)
	}
	free := greedy(nil)
	for name, params := range map[string]object{
		"frequency":  {"frequency_penalty": 2.0},
		"presence":   {"presence_penalty": 2.0},
		"repetition": {"repetition_penalty": 2.0},
		"minimum":    {"min_new_tokens": 10, "ignore_eos": false},
	} {
		if got := greedy(params); got == free {
			t.Errorf("%s changes nothing", name)
		}
	}
	if got := greedy(object{"logit_bias": object{"120": 100.0}}); strings.Count(got, "120") != 24 {
		t.Errorf("a bias towards one token gives %s", got)
	}
}

// TestDisconnectsAreCounted closes connections of waiting and running requests.
func TestDisconnectsAreCounted(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { slow(c); c.MaxRunning = 2 })
	server := httptest.NewServer(engine.Handler())
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			body, _ := json.Marshal(endless(fmt.Sprint("gone-", i)))
			request, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/generate", strings.NewReader(string(body)))
			if err != nil {
				t.Error(err)
				return
			}
			if response, err := server.Client().Do(request); err == nil {
				response.Body.Close()
				t.Error("an endless request was answered")
			}
		})
	}
	until(t, "two run and two wait", func() bool { r, w := loads(t, engine); return r == 2 && w == 2 })
	leave()
	clients.Wait()
	until(t, "all are aborted", func() bool { return counter(t, engine, `sheaf_sim_requests_total{fate="abort"}`) == 4 })
	if r, w := loads(t, engine); r+w != 0 {
		t.Errorf("%d run and %d wait after their clients have left", r, w)
	}
}
