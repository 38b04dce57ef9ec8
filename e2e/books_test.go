//go:build e2e

package e2e_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// post sends an engine what an operator would.
func post(t *testing.T, url string, body any) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url, "application/json", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, resp.StatusCode, err)
	}
}

// busy waits until an engine has requests in its batch; false when the run ended
// before.
func (r *rig) busy(url string) bool {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := http.Get(url + "/get_load")
		if err != nil {
			r.t.Fatal(err)
		}
		var ranks []struct {
			Running int `json:"num_reqs"`
			Waiting int `json:"num_waiting_reqs"`
		}
		err = json.NewDecoder(resp.Body).Decode(&ranks)
		if closeErr := resp.Body.Close(); err != nil || closeErr != nil {
			r.t.Fatalf("/get_load: %v %v", err, closeErr)
		}
		if len(ranks) > 0 && ranks[0].Running > ranks[0].Waiting {
			return true
		}
		select {
		case <-r.ctl.done:
			return false
		case <-tick.C:
		}
	}
}

// slowed makes an engine take about as long as a real one, in batches that leave
// some requests waiting.
var slowed = []string{"--latency-scale", "1", "--max-running-requests", "8"}

var eagle = []string{"--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"}

// TestBooksBalance aborts requests under a run with speculation, a filter and
// more groups than it needs. What the records of calls say and what the engines
// counted themselves is the same, to the last token.
func TestBooksBalance(t *testing.T) {
	flags := append(append([]string{"--dialect", "0.5.12"}, eagle...), slowed...)
	const steps, groups, episodes = 3, 16, 6
	r := startRig(t, "books", []string{startSimengine(t, flags...), startSimengine(t, flags...)}, 1, steps,
		"rollout: {batch_size: 3, over_sampling_batch_size: 16, n_samples_per_prompt: 6, min_valid_per_group: 1, max_context_len: 512, dynamic_filter: nonzero_std, sampling: {temperature: 1.2, max_new_tokens: 48}}",
		"worker: {embedded: false, slots: 32}",
	)
	// Single requests are aborted by the first digit of their ids, as an abort
	// takes every request whose id begins so; and then whatever runs.
	for _, first := range "0f4b29" {
		for _, url := range r.engines {
			if r.busy(url) {
				post(t, url+"/abort_request", map[string]any{"rid": string(first)})
			}
		}
	}
	for _, url := range r.engines {
		if r.busy(url) {
			post(t, url+"/abort_request", map[string]any{"abort_all": true})
		}
	}
	r.finish(60 * time.Second)

	var ours, reported totals
	outcomes, verdicts := map[string]int{}, map[string]int{}
	for n := range steps {
		rep := checkStep(t, r.step(n), groups*episodes)
		ours = ours.plus(sum(readCalls(t, r.step(n))))
		reported = reported.plus(rep.Ledger.Counters.totals)
		if u := rep.Ledger.Books.EngineUnclaimed; u == nil || *u != 0 {
			t.Errorf("step %d: engine_unclaimed %v, want 0", n, show(u))
		}
		for k, v := range rep.Ledger.Outcomes {
			outcomes[k] += v
		}
		for k, v := range rep.Ledger.Dispositions {
			verdicts[k] += v
		}
	}
	if theirs := r.allGrown(); ours != theirs || reported != theirs {
		t.Errorf("the engines counted %+v\nthe records say   %+v\nthe reports say   %+v", theirs, ours, reported)
	}
	if ours.Verify == 0 || ours.Correct == 0 || ours.Cached == 0 {
		t.Errorf("nothing to compare: %+v", ours)
	}
	if outcomes["aborted"] == 0 || verdicts["discarded(aborted)"] != outcomes["aborted"] || verdicts["filtered(zero_std_0.0)"] == 0 || verdicts["accepted"] == 0 || verdicts["surplus"] == 0 {
		t.Errorf("outcomes %v, dispositions %v: want some aborted, filtered, accepted and surplus", outcomes, verdicts)
	}
	aborts := 0
	for _, url := range r.engines {
		aborts += int(page(t, url)[`sheaf_sim_requests_total{fate="abort"}`])
	}
	if aborts != outcomes["aborted"] {
		t.Errorf("the engines aborted %d requests, %d episodes are aborted", aborts, outcomes["aborted"])
	}
	t.Logf("%+v in %v, %v", ours, outcomes, verdicts)
}

// show prints a number that may not be there.
func show(p *int64) any {
	if p == nil {
		return "null"
	}
	return *p
}

// TestBooksSayWhatTheProtocolLoses retracts running requests and aborts them in
// the queue. Such a reply lacks most counters (hazard 9), and an old engine's all
// of them, its tokens too. Then the books say how much is missing, and nothing
// is made up.
func TestBooksSayWhatTheProtocolLoses(t *testing.T) {
	cases := []struct {
		name, dialect string
		tokens        bool // the reply has the tokens made so far
	}{
		{"with partial output", "0.5.12", true},
		{"an old engine", "0.5.3", false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			url := startSimengine(t, append([]string{"--dialect", tc.dialect, "--latency-scale", "8"}, eagle...)...)
			r := startRig(t, "lost", []string{url}, 1, 1,
				"rollout: {batch_size: 4, n_samples_per_prompt: 8, min_valid_per_group: 1, max_context_len: 512, sampling: {temperature: 1.2, max_new_tokens: 48}}",
				"worker: {embedded: false, slots: 24}",
			)
			// The counters of a step are there before the time that it takes has passed:
			// the pause comes behind the first verify pass of the first batch.
			for books(t, url).Verify == r.admit[0].Verify {
				if !r.busy(url) {
					t.Fatal("the run ended before anything ran")
				}
			}
			post(t, url+"/pause_generation", map[string]any{"mode": "retract"})
			post(t, url+"/abort_request", map[string]any{"abort_all": true})
			post(t, url+"/continue_generation", map[string]any{})
			r.finish(60 * time.Second)

			rep := checkStep(t, r.step(0), 32)
			calls := readCalls(t, r.step(0))
			ours, theirs := sum(calls), r.grown(0)
			unclaimed := rep.Ledger.Books.EngineUnclaimed
			if unclaimed == nil || *unclaimed != theirs.Completion-rep.Ledger.Books.Generated {
				t.Errorf("engine_unclaimed %v, the engine made %d tokens and the books have %d", show(unclaimed), theirs.Completion, rep.Ledger.Books.Generated)
			}
			if tc.tokens != (*unclaimed == 0) {
				t.Errorf("engine_unclaimed %d", *unclaimed)
			}
			if reported := rep.Ledger.Counters.totals; reported != ours {
				t.Errorf("the report says %+v, the records %+v", reported, ours)
			}
			var silent, verified, total int64
			for _, n := range rep.Ledger.Generations {
				total += int64(n)
			}
			for _, c := range calls {
				if c.Meta.Spec.Verify != nil {
					verified++
				}
				if c.Fate == "aborted" && !c.verified() {
					silent++
				}
			}
			if lost := theirs.minus(ours); silent == 0 || lost.Verify <= 0 || lost.Prompt <= 0 || lost.Proposed < 0 {
				t.Errorf("%d calls report no verify count, and %+v is missing", silent, lost)
			}
			if n := rep.Ledger.Counters.Reported.Verify; n != verified || n > total-silent || total != int64(len(calls)) {
				t.Errorf("the report says that %d of %d calls had a verify count, the records say %d of %d", n, total, verified, len(calls))
			}
			if int64(rep.Ledger.Outcomes["aborted"]) < silent {
				t.Errorf("outcomes %v, %d silent calls", rep.Ledger.Outcomes, silent)
			}
			// The batch's ratios are of calls that did report, and all of those are in.
			length, ok := rep.Metrics["rollout/spec_accept_length"]
			if !ok || length < 1 || length > 4.5 {
				t.Errorf("spec_accept_length %v", length)
			}
		})
	}
}
