package sim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

func rules(t testing.TB, script string) []sim.FaultRule {
	t.Helper()
	list, err := sim.ParseFaults([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestScriptedHazards lets one hazard hit one request and looks at the reply.
func TestScriptedHazards(t *testing.T) {
	const whole = 12
	tests := []struct {
		hazard int
		stream bool
		check  func(t *testing.T, status int, body []byte, r reply)
	}{
		{1, false, func(t *testing.T, _ int, _ []byte, r reply) {
			if r.Keys["spec_verify_ct"] == nil || r.Keys["spec_num_proposed_drafts"] != nil || r.Keys["spec_accepted_drafts"] != nil {
				t.Errorf("keys %v", r.Keys)
			}
		}},
		{3, false, func(t *testing.T, _ int, _ []byte, r reply) {
			if len(r.Meta.Logprobs) != 1 || r.Meta.Completion != whole {
				t.Errorf("%d log-probs for %d tokens", len(r.Meta.Logprobs), r.Meta.Completion)
			}
		}},
		{7, false, func(t *testing.T, _ int, _ []byte, r reply) {
			if n, err := r.Keys["reasoning_tokens"].(json.Number).Int64(); err != nil || n <= whole {
				t.Errorf("%d reasoning tokens", n)
			}
		}},
		{8, false, func(t *testing.T, _ int, _ []byte, r reply) {
			if len(r.Meta.Logprobs) != whole || r.Meta.Logprobs[whole/2][0] != nil {
				t.Errorf("log-probs %v", r.Meta.Logprobs)
			}
		}},
		{9, false, func(t *testing.T, status int, body []byte, r reply) {
			if status != 200 || r.Meta.FinishReason.Type != "abort" || bytes.Contains(body, []byte("output_ids")) || bytes.Contains(body, []byte("prompt_tokens")) {
				t.Errorf("status %d, body %s", status, body)
			}
		}},
		{10, false, func(t *testing.T, status int, _ []byte, r reply) {
			if status != 200 || r.Meta.FinishReason.Type != "abort" || r.Meta.Completion != whole/2 || len(r.Meta.Logprobs) != whole/2 {
				t.Errorf("status %d, finish %+v after %d tokens", status, r.Meta.FinishReason, r.Meta.Completion)
			}
		}},
		{29, false, func(t *testing.T, status int, body []byte, _ reply) {
			if status != 400 || !bytes.Contains(body, []byte(`{"error":{"message":"Duplicate`)) {
				t.Errorf("status %d, body %s", status, body)
			}
		}},
		{30, false, func(t *testing.T, _ int, body []byte, r reply) {
			if len(body) < 8<<20 || r.Meta.Completion != whole {
				t.Errorf("a body of %d bytes", len(body))
			}
		}},
		{35, false, func(t *testing.T, status int, body []byte, _ reply) {
			if status != 400 {
				t.Errorf("status %d, body %s", status, body)
			}
		}},
		{35, true, func(t *testing.T, status int, _ []byte, r reply) {
			if status != 200 || r.Meta.FinishReason.Type != "abort" || r.Meta.Prompt != 1 || r.Meta.Logprobs != nil {
				t.Errorf("status %d, record %+v", status, r.Meta)
			}
		}},
		{36, false, func(t *testing.T, status int, _ []byte, r reply) {
			if status != 200 || r.Meta.FinishReason.Type != "stop" || r.Meta.FinishReason.Matched != "NaN happened" {
				t.Errorf("status %d, finish %+v", status, r.Meta.FinishReason)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("hazard %d, stream %v", tt.hazard, tt.stream), func(t *testing.T) {
			engine := newEngine(t, func(c *sim.Config) {
				speculate(c)
				c.Faults = rules(t, fmt.Sprintf("faults:\n- {hazard: %d, requests: [1]}", tt.hazard))
			})
			body := object{"text": question(3, 4), "return_logprob": true, "stream": tt.stream,
				"sampling_params": object{"max_new_tokens": whole, "ignore_eos": true}}
			data, _ := json.Marshal(body)
			for i := range 3 {
				status, answer := call(t, engine, "POST", "/generate", string(data))
				var r reply
				switch {
				case tt.stream:
					list, _ := events(t, answer)
					r = list[len(list)-1]
				case json.Valid(answer):
					r = parse(t, answer)
				}
				if i == 1 {
					tt.check(t, status, answer, r)
				} else if status != 200 || r.Meta.Completion != whole || len(r.Meta.Logprobs) != whole {
					t.Errorf("request %d, which no rule names, was hit: status %d, %d tokens", i, status, r.Meta.Completion)
				}
			}
		})
	}
}

// TestHazard32 lets streams end without a finish reason.
func TestHazard32(t *testing.T) {
	engine := withChat(t, func(c *sim.Config) { c.Faults = rules(t, "faults: [{hazard: 32, share: 1}]") })
	_, body := call(t, engine, "POST", "/generate", `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":9}}`)
	list, done := events(t, body)
	for _, e := range list {
		if e.Meta.FinishReason != nil {
			t.Errorf("an event has the finish reason %+v", e.Meta.FinishReason)
		}
	}
	_, chunks := complete(t, engine, object{"messages": user("a"), "max_tokens": 9, "stream": true})
	if done || bytes.Contains(chunks, []byte("[DONE]")) {
		t.Error("a stream says that it is done")
	}
}

// TestHazard11 aborts one request and with it whatever else runs.
func TestHazard11(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { slow(c); c.Faults = rules(t, "faults: [{hazard: 11, requests: [1]}]") })
	sibling := background(t, engine, endless("x"))
	until(t, "x runs", func() bool { n, _ := loads(t, engine); return n == 1 })
	hit := background(t, engine, endless("y"))
	for _, flight := range []<-chan reply{sibling, hit} {
		if f := (<-flight).Meta.FinishReason; f.Type != "abort" {
			t.Errorf("finish %+v, want an abort", f)
		}
	}
}

// TestTransportFaults meets them over a socket.
func TestTransportFaults(t *testing.T) {
	tests := []struct {
		rule  string
		check func(t *testing.T, response *http.Response, body []byte, err error)
	}{
		{"fault: garbage", func(t *testing.T, _ *http.Response, body []byte, err error) {
			if err != nil || json.Valid(body) {
				t.Errorf("%v, body %s", err, body)
			}
		}},
		{"fault: error", func(t *testing.T, response *http.Response, _ []byte, err error) {
			if err != nil || response.StatusCode != 500 {
				t.Errorf("%v, %v", err, response)
			}
		}},
		{"fault: truncated", func(t *testing.T, _ *http.Response, body []byte, err error) {
			if err != nil || json.Valid(body) || len(body) == 0 {
				t.Errorf("%v, body %s", err, body)
			}
		}},
		{"fault: reset", func(t *testing.T, response *http.Response, body []byte, err error) {
			if response == nil || err == nil || json.Valid(body) {
				t.Errorf("%v, body %s", err, body)
			}
		}},
		{"hazard: 16", func(t *testing.T, response *http.Response, _ []byte, err error) {
			if response != nil || err == nil {
				t.Errorf("%v, %v", response, err)
			}
		}},
		{"hazard: 14", func(t *testing.T, response *http.Response, _ []byte, err error) {
			var timeout interface{ Timeout() bool }
			if response != nil || !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%v, %v", response, err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			engine := newEngine(t, func(c *sim.Config) { c.Faults = rules(t, "faults: [{share: 1, "+tt.rule+"}]") })
			server := httptest.NewServer(engine.Handler())
			defer server.Close()
			client := server.Client()
			if tt.rule == "hazard: 14" {
				client.Timeout = 50 * time.Millisecond
			}
			response, err := client.Post(server.URL+"/generate", "application/json", strings.NewReader(`{"text":"a"}`))
			var body []byte
			if err == nil {
				body, err = io.ReadAll(response.Body)
				response.Body.Close()
			}
			tt.check(t, response, body, err)
		})
	}
}

func TestSlowOnAVirtualClock(t *testing.T) {
	clock := sim.NewVirtualClock(time.Unix(0, 0))
	engine := newEngine(t, func(c *sim.Config) {
		c.Clock = clock
		c.Faults = rules(t, "faults: [{fault: slow, requests: [0], delay: 3s}]")
	})
	generate(t, engine, object{"text": "a", "sampling_params": object{"max_new_tokens": 1}})
	if got := clock.Now(); !got.Equal(time.Unix(3, 0)) {
		t.Errorf("the clock shows %v, want 3 s", got)
	}
}

func TestFaultShare(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { c.Faults = rules(t, "faults: [{hazard: 29, share: 0.25}]") })
	hit := 0
	for i := range 400 {
		if status, _ := call(t, engine, "POST", "/generate", fmt.Sprintf(`{"rid":"%032d","text":"a","sampling_params":{"max_new_tokens":1}}`, i)); status == 400 {
			hit++
		}
	}
	if hit < 70 || hit > 130 {
		t.Errorf("%d of 400 requests were hit, want about 100", hit)
	}
}

func TestParseFaultsRefuses(t *testing.T) {
	for name, script := range map[string]string{
		"an unknown key":      "faults: [{hazard: 3, share: 1, often: true}]",
		"an unknown hazard":   "faults: [{hazard: 2, share: 1}]",
		"an unknown fault":    "faults: [{fault: fire, share: 1}]",
		"nothing to do":       "faults: [{share: 1}]",
		"two things to do":    "faults: [{hazard: 3, fault: hang, share: 1}]",
		"nobody to hit":       "faults: [{hazard: 3}]",
		"two ways to choose":  "faults: [{hazard: 3, share: 1, requests: [1]}]",
		"a share above all":   "faults: [{hazard: 3, share: 2}]",
		"slow without a time": "faults: [{fault: slow, share: 1}]",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := sim.ParseFaults([]byte(script)); err == nil {
				t.Error("it was taken")
			}
		})
	}
}
