package sim_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// exact is the quickstart's reward: the response ends in the right integer.
func exact(text string, want int) bool {
	return regexp.MustCompile(`-?\d+$`).FindString(text) == fmt.Sprint(want)
}

func TestBaseReward(t *testing.T) {
	engine := newEngine(t, nil)
	const n = 4000
	right, tokens := 0, 0
	for i := range n {
		a, b := i/10%10, i%10
		r := generate(t, engine, object{"rid": fmt.Sprintf("%032d", i), "text": question(a, b), "sampling_params": object{"max_new_tokens": 64}})
		if r.Meta.FinishReason.Type == "stop" && exact(r.Text, a+b) {
			right++
		}
		tokens += r.Meta.Completion
	}
	share := float64(right) / n
	t.Logf("reward %.3f, %.2f tokens", share, float64(tokens)/n)
	if share < 0.05 || share > 0.3 {
		t.Errorf("the base weights are right on %.3f of the questions, want 0.05 to 0.3", share)
	}
}

func TestGenerateRefuses(t *testing.T) {
	flat := func(status int) func(object) bool {
		return func(o object) bool {
			return o["object"] == "error" && o["message"] != "" && o["code"] == float64(status)
		}
	}
	nested := func(o object) bool {
		inner, ok := o["error"].(map[string]any)
		return ok && inner["message"] != ""
	}
	long := `[` + strings.Repeat("1,", 40) + `1]`
	tests := []struct {
		name, body string
		status     int
		shape      func(object) bool
	}{
		{"malformed JSON", `{"text":`, 400, flat(400)},
		{"a wrong type", `{"text":3}`, 400, flat(400)},
		{"a batch", `{"input_ids":[[1],[2]]}`, 400, flat(400)},
		{"a fraction for an id", `{"input_ids":[1.5]}`, 400, flat(400)},
		{"a huge id", `{"input_ids":[99999999999]}`, 400, flat(400)},
		{"nothing to continue", `{}`, 400, nested},
		{"an empty prompt", `{"input_ids":[]}`, 400, nested},
		{"an id outside the vocabulary", `{"input_ids":[272]}`, 400, nested},
		{"a prompt as long as the context", `{"input_ids":` + long + `}`, 400, nested},
		{"more tokens than the context has room for", `{"input_ids":[1],"sampling_params":{"max_new_tokens":40}}`, 400, nested},
		{"a negative temperature", `{"text":"a","sampling_params":{"temperature":-1,"max_new_tokens":1}}`, 400, nested},
		{"top_p 0", `{"text":"a","sampling_params":{"top_p":0,"max_new_tokens":1}}`, 400, nested},
		{"top_k 0", `{"text":"a","sampling_params":{"top_k":0,"max_new_tokens":1}}`, 400, nested},
		{"min_p above 1", `{"text":"a","sampling_params":{"min_p":2,"max_new_tokens":1}}`, 400, nested},
		{"a penalty out of range", `{"text":"a","sampling_params":{"repetition_penalty":3,"max_new_tokens":1}}`, 400, nested},
		{"several samples", `{"text":"a","sampling_params":{"n":2,"max_new_tokens":1}}`, 400, nested},
		{"a grammar", `{"text":"a","sampling_params":{"regex":"a*","max_new_tokens":1}}`, 400, nested},
		{"a minimum above the maximum", `{"text":"a","sampling_params":{"min_new_tokens":2,"max_new_tokens":1}}`, 400, nested},
		{"fewer than no alternatives", `{"text":"a","top_logprobs_num":-5,"sampling_params":{"max_new_tokens":1}}`, 400, nested},
		{"a bias for no token", `{"text":"a","sampling_params":{"logit_bias":{"x":1},"max_new_tokens":1}}`, 400, nested},
	}
	engine := newEngine(t, func(c *sim.Config) { c.ContextLength = 40 })
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := call(t, engine, "POST", "/generate", tt.body)
			var answer object
			if err := json.Unmarshal(body, &answer); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			if status != tt.status || !tt.shape(answer) {
				t.Errorf("status %d, body %s", status, body)
			}
		})
	}
	t.Run("an unknown sampling parameter", func(t *testing.T) {
		status, body := call(t, engine, "POST", "/generate", `{"text":"a","sampling_params":{"max_tokens":1}}`)
		if status != 500 || json.Valid(body) {
			t.Errorf("status %d, body %s; want SGLang's plain 500", status, body)
		}
	})
	t.Run("a stream", func(t *testing.T) {
		status, body := call(t, engine, "POST", "/generate", `{"stream":true}`)
		want := "data: {\"error\":{\"message\":\"Give text or input_ids.\"}}\n\ndata: [DONE]\n\n"
		if status != 200 || string(body) != want {
			t.Errorf("status %d, body %s", status, body)
		}
	})
}

func TestStops(t *testing.T) {
	engine := newEngine(t, nil)
	base := object{"max_new_tokens": 40, "sampling_seed": 4, "ignore_eos": true, "skip_special_tokens": false}
	with := func(extra object) object {
		params := object{}
		for _, m := range []object{base, extra} {
			for k, v := range m {
				params[k] = v
			}
		}
		return object{"text": question(3, 4), "sampling_params": params}
	}
	free := generate(t, engine, with(nil))
	if free.Meta.FinishReason.Type != "length" || free.Meta.Completion != 40 {
		t.Fatalf("finish %+v after %d tokens, want length after 40", free.Meta.FinishReason, free.Meta.Completion)
	}
	full := byteTokenizer{}.Decode(free.OutputIDs, false)
	if free.Text != full {
		t.Errorf("text %q, want %q", free.Text, full)
	}
	cut := strings.Index(full, specials[2])
	if cut < 0 {
		t.Fatalf("no %s in %q", specials[2], full)
	}
	tests := []struct {
		name    string
		params  object
		kind    string
		matched any
		text    string
	}{
		{"an eos token", object{"ignore_eos": false}, "stop", 258.0, full[:cut]},
		{"an eos token, untrimmed", object{"ignore_eos": false, "no_stop_trim": true}, "stop", 258.0, full[:cut] + specials[2]},
		{"a stop token", object{"stop_token_ids": []int{imEnd}}, "stop", 258.0, full[:cut]},
		{"a stop string that is a special token", object{"stop": specials[2]}, "stop", specials[2], full[:cut]},
		{"a stop string", object{"stop": []string{"never", full[1:4]}}, "stop", full[1:4], full[:1]},
		{"a stop string, untrimmed", object{"stop": []string{full[1:4]}, "no_stop_trim": true}, "stop", full[1:4], full[:4]},
		{"the length first", object{"stop_token_ids": []int{int(free.OutputIDs[0])}, "max_new_tokens": 1}, "length", nil, full[:1]},
		{"no tokens at all", object{"max_new_tokens": 0}, "length", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := generate(t, engine, with(tt.params))
			if r.Meta.FinishReason.Type != tt.kind || r.Meta.FinishReason.Matched != tt.matched {
				t.Errorf("finish %+v, want %s matching %v", r.Meta.FinishReason, tt.kind, tt.matched)
			}
			if r.Text != tt.text {
				t.Errorf("text %q, want %q", r.Text, tt.text)
			}
			if r.Meta.Completion != len(r.OutputIDs) || !reflect.DeepEqual(append([]int32{}, free.OutputIDs[:len(r.OutputIDs)]...), append([]int32{}, r.OutputIDs...)) {
				t.Errorf("ids %v are no beginning of %v", r.OutputIDs, free.OutputIDs)
			}
		})
	}
	t.Run("a minimum length", func(t *testing.T) {
		r := generate(t, engine, with(object{"ignore_eos": false, "min_new_tokens": 30}))
		for i, id := range r.OutputIDs[:30] {
			if id == imEnd || id == endOfText {
				t.Errorf("token %d is a stop token", i)
			}
		}
	})
}

func TestLogprobs(t *testing.T) {
	for _, spec := range []bool{false, true} {
		engine := newEngine(t, func(c *sim.Config) {
			if spec {
				speculate(c)
			}
		})
		params := object{"max_new_tokens": 30, "ignore_eos": true, "temperature": 0.7, "top_p": 0.9, "sampling_seed": 3}
		r := generate(t, engine, object{"text": question(3, 4), "return_logprob": true, "top_logprobs_num": 3, "sampling_params": params})
		if len(r.Meta.Logprobs) != 30 || len(r.Meta.Top) != 30 {
			t.Fatalf("%d log-probs and %d lists for 30 tokens", len(r.Meta.Logprobs), len(r.Meta.Top))
		}
		// Scoring prompt plus output at temperature 1 has to agree with T=1 sampling;
		// at 0.7 the reported ones are those of the sharpened distribution.
		for i, entry := range r.Meta.Logprobs {
			if int32(entry[1].(float64)) != r.OutputIDs[i] || entry[2] != nil {
				t.Errorf("entry %d is %v for token %d", i, entry, r.OutputIDs[i])
			}
			if best := r.Meta.Top[i][0][0].(float64); best < entry[0].(float64) {
				t.Errorf("token %d is more probable than the best, %g", i, best)
			}
		}
		params["temperature"], params["top_p"] = 1.0, 1.0
		r = generate(t, engine, object{"text": question(3, 4), "return_logprob": true, "sampling_params": params})
		whole := append(byteTokenizer{}.Encode(question(3, 4), true), r.OutputIDs...)
		scored := generate(t, engine, object{"input_ids": whole, "return_logprob": true, "logprob_start_len": 0, "sampling_params": object{"max_new_tokens": 0}})
		if len(scored.Meta.Input) != len(whole) || scored.Meta.Input[0][0] != nil {
			t.Fatalf("%d input log-probs for %d tokens, the first %v", len(scored.Meta.Input), len(whole), scored.Meta.Input[0])
		}
		if scored.Meta.Cached != 0 {
			t.Errorf("scoring a prompt used %d cached tokens", scored.Meta.Cached)
		}
		for i, entry := range r.Meta.Logprobs {
			want := scored.Meta.Input[len(whole)-30+i][0].(float64)
			if math.Abs(entry[0].(float64)-want) > 1e-6 {
				t.Errorf("speculative %v: log-prob %d is %v, scored %g", spec, i, entry[0], want)
			}
		}
	}
}

func TestGreedyIsTheSameWithAndWithoutSpeculation(t *testing.T) {
	plain, spec := newEngine(t, nil), newEngine(t, speculate)
	for a := range 10 {
		body := object{"text": question(a, 5), "sampling_params": object{"temperature": 0, "max_new_tokens": 20, "ignore_eos": true}}
		x, y := generate(t, plain, body), generate(t, spec, body)
		if !reflect.DeepEqual(x.OutputIDs, y.OutputIDs) {
			t.Errorf("%d+5: %q and %q", a, x.Text, y.Text)
		}
	}
}

func TestPrefixCacheIsReported(t *testing.T) {
	engine := newEngine(t, nil)
	ask := func(ids []int32, extra string) reply {
		return generate(t, engine, object{"input_ids": ids, "extra_key": extra, "sampling_params": object{"max_new_tokens": 5, "ignore_eos": true, "sampling_seed": 1}})
	}
	prompt := byteTokenizer{}.Encode(question(3, 4), true)
	first := ask(prompt, "")
	if first.Meta.Cached != 0 {
		t.Errorf("a new prompt had %d cached tokens", first.Meta.Cached)
	}
	if again := ask(prompt, ""); again.Meta.Cached != len(prompt)-1 {
		t.Errorf("the same prompt had %d cached tokens, want all but one, %d", again.Meta.Cached, len(prompt)-1)
	}
	if other := ask(prompt, "key"); other.Meta.Cached != 0 {
		t.Errorf("another namespace had %d cached tokens", other.Meta.Cached)
	}
	// The last token of an output was never computed on.
	next := append(append([]int32{}, prompt...), first.OutputIDs...)
	if turn := ask(append(next, 10), ""); turn.Meta.Cached != len(next)-1 {
		t.Errorf("the next turn had %d cached tokens, want %d", turn.Meta.Cached, len(next)-1)
	}
	if status, body := call(t, engine, "POST", "/flush_cache", ""); status != 200 {
		t.Errorf("flush: %d %s", status, body)
	}
	if flushed := ask(prompt, ""); flushed.Meta.Cached != 0 {
		t.Errorf("after a flush %d tokens were cached", flushed.Meta.Cached)
	}
}

// TestOutputsDoNotDependOnConcurrency runs the same requests one after the other
// and thirteen at a time, in another order.
func TestOutputsDoNotDependOnConcurrency(t *testing.T) {
	for _, spec := range []bool{false, true} {
		run := func(clients int) map[string]string {
			engine := newEngine(t, func(c *sim.Config) {
				if spec {
					speculate(c)
				}
			})
			outputs := map[string]string{}
			var mu sync.Mutex
			var group sync.WaitGroup
			for client := range clients {
				group.Go(func() {
					for i := client; i < 600; i += clients {
						rid := fmt.Sprintf("%032d", i)
						r := generate(t, engine, object{"rid": rid, "text": question(i%10, i/10%10), "sampling_params": object{"max_new_tokens": 24}})
						mu.Lock()
						outputs[rid] = fmt.Sprint(r.OutputIDs)
						mu.Unlock()
					}
				})
			}
			group.Wait()
			return outputs
		}
		if one, many := run(1), run(13); !reflect.DeepEqual(one, many) {
			t.Errorf("speculative %v: outputs depend on the number of clients", spec)
		}
	}
}

// events reads the server-sent events of a response.
func events(t testing.TB, body []byte) (list []reply, done bool) {
	t.Helper()
	scanner := bufio.NewScanner(bytes.NewReader(body))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		data, ok := strings.CutPrefix(scanner.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			done = true
		default:
			list = append(list, parse(t, []byte(data)))
		}
	}
	return list, done
}

func TestStreams(t *testing.T) {
	params := object{"max_new_tokens": 25, "ignore_eos": true, "sampling_seed": 9, "skip_special_tokens": false}
	body := object{"text": question(3, 4), "return_logprob": true, "sampling_params": params}
	whole := generate(t, newEngine(t, nil), body)
	body["stream"] = true
	data, _ := json.Marshal(body)
	for _, incremental := range []bool{false, true} {
		t.Run(fmt.Sprintf("incremental %v", incremental), func(t *testing.T) {
			engine := newEngine(t, func(c *sim.Config) { c.IncrementalStreaming = incremental })
			status, answer := call(t, engine, "POST", "/generate", string(data))
			list, done := events(t, answer)
			if status != 200 || !done || len(list) == 0 {
				t.Fatalf("status %d, done %v, %d events", status, done, len(list))
			}
			var text string
			var ids []int32
			var logprobs [][]any
			for i, e := range list {
				if incremental {
					text, ids, logprobs = text+e.Text, append(ids, e.OutputIDs...), append(logprobs, e.Meta.Logprobs...)
				} else {
					text, ids, logprobs = e.Text, e.OutputIDs, e.Meta.Logprobs
				}
				if e.Meta.Completion != len(ids) || len(ids) != len(logprobs) {
					t.Errorf("event %d says %d tokens, has %d and %d log-probs", i, e.Meta.Completion, len(ids), len(logprobs))
				}
				last := i == len(list)-1
				if _, timed := e.Keys["e2e_latency"]; timed != last || (e.Meta.FinishReason != nil) != last {
					t.Errorf("event %d of %d: finish %v, keys %v", i, len(list), e.Meta.FinishReason, e.Keys)
				}
			}
			if text != whole.Text || !reflect.DeepEqual(ids, whole.OutputIDs) || !reflect.DeepEqual(logprobs, whole.Meta.Logprobs) {
				t.Errorf("the stream adds up to %q, want %q", text, whole.Text)
			}
		})
	}
}

// TestDisconnectStopsGeneration closes a stream early and sees the request end and
// what it generated counted.
func TestDisconnectStopsGeneration(t *testing.T) {
	engine := newEngine(t, func(c *sim.Config) { c.ContextLength = 1 << 30 })
	server := httptest.NewServer(engine.Handler())
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/generate",
		strings.NewReader(`{"text":"a","stream":true,"sampling_params":{"max_new_tokens":100000000,"ignore_eos":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	response.Body.Close()
	server.CloseClientConnections()
	until(t, "the request is aborted", func() bool { return counter(t, engine, `sheaf_sim_requests_total{fate="abort"}`) == 1 })
	if n := counter(t, engine, "sheaf_sim_completion_tokens_total"); n < 1 {
		t.Errorf("%g tokens counted", n)
	}
}

// counter reads one counter from /metrics, 0 when it is not there.
func counter(t testing.TB, engine *sim.Engine, name string) float64 {
	t.Helper()
	_, body := call(t, engine, "GET", "/metrics", "")
	for line := range strings.Lines(string(body)) {
		var value float64
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &value); err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	return 0
}

func BenchmarkGenerate(b *testing.B) {
	for _, mode := range []string{"plain", "speculative"} {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", mode, clients), func(b *testing.B) {
				engine := newEngine(b, func(c *sim.Config) {
					if mode == "speculative" {
						speculate(c)
					}
				})
				body := `{"text":"` + strings.ReplaceAll(question(3, 4), "\n", `\n`) + `","return_logprob":true,"sampling_params":{"max_new_tokens":256,"ignore_eos":true}}`
				b.SetParallelism(clients)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						call(b, engine, "POST", "/generate", body)
					}
				})
				b.ReportMetric(float64(256*b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

// BenchmarkLongPrompt is a turn of a long conversation: most of it is cached.
func BenchmarkLongPrompt(b *testing.B) {
	engine := newEngine(b, func(c *sim.Config) { c.ContextLength = 1 << 20 })
	for _, tokens := range []int{2_000, 100_000} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			body := `{"input_ids":[` + strings.Repeat("100,", tokens-1) + `1],"return_logprob":true,"sampling_params":{"max_new_tokens":32,"ignore_eos":true}}`
			b.ReportAllocs()
			for b.Loop() {
				call(b, engine, "POST", "/generate", body)
			}
		})
	}
}
