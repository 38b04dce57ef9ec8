package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/session"
	"github.com/sheaf-rl/sheaf/pkg/session/server"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// script is an engine that says what a test tells it to.
type script struct {
	model *chat.Model
	// say answers a request; the text's end of turn is added for a stop.
	say func(ctx context.Context, prompt string) (text string, finish rollout.FinishType, err error)

	mu      sync.Mutex
	prompts [][]int32
	outputs [][]int32
	seen    []engine.Request
}

func (e *script) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	return e.Stream(ctx, req, func(engine.Chunk) error { return nil })
}

func (e *script) Stream(ctx context.Context, req engine.Request, emit func(engine.Chunk) error) (rollout.Generation, error) {
	g := rollout.Generation{PromptIDs: req.PromptIDs}
	g.ID, g.Turn, g.Fate, g.PromptLen = req.ID, req.Turn, rollout.FateFinished, len(req.PromptIDs)
	text, finish, err := e.say(ctx, e.model.Tokenizer().Decode(req.PromptIDs, false))
	if err != nil {
		fault := &engine.Error{Reason: engine.Faulty, Engine: "script", Err: err}
		if ctx.Err() != nil {
			fault.Reason = engine.Canceled
		}
		g.Fate, g.Failure = rollout.FateFailed, fault.Failure()
		return g, fault
	}
	if finish == rollout.FinishStop {
		text += "<|im_end|>"
	}
	if finish == rollout.FinishAbort {
		g.Fate = rollout.FateAborted
	}
	g.OutputIDs = e.model.Tokenizer().Encode(text, false)
	for i := range g.OutputIDs {
		g.LogProbs = append(g.LogProbs, -float32(i+1)/8)
	}
	g.Meta.Finish.Type = finish
	g.Meta.PromptTokens, g.Meta.CompletionTokens = rollout.Ptr(int64(len(req.PromptIDs))), rollout.Ptr(int64(len(g.OutputIDs)))
	g.Meta.Spec.Verify, g.Meta.WeightVersion = rollout.Ptr(int64(3)), rollout.Ptr("7")
	g.OutputLen = len(g.OutputIDs)
	for i := range g.OutputIDs {
		if err := emit(engine.Chunk{IDs: g.OutputIDs[i : i+1]}); err != nil {
			return g, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prompts, e.outputs = append(e.prompts, req.PromptIDs), append(e.outputs, g.OutputIDs)
	e.seen = append(e.seen, req)
	return g, nil
}

// bed is a server with one session.
type bed struct {
	t      *testing.T
	store  *session.Store
	sess   *session.Session
	engine *script
	url    string
	cfg    session.Config
}

func newBed(t *testing.T, change ...func(*session.Config)) *bed {
	t.Helper()
	model, err := chat.Load("../../../configs/models/tiny")
	if err != nil {
		t.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, store: session.NewStore(), engine: &script{model: model}}
	b.says("hello")
	b.cfg = session.Config{
		Family: family, Engine: b.engine, Matcher: session.LooseToolCall, MaxSeqLen: 1 << 20,
		Sampling: rollout.Sampling{Temperature: 1, TopP: 1, TopK: -1, MaxNewTokens: 256},
	}
	for _, f := range change {
		f(&b.cfg)
	}
	if b.sess, err = b.store.Open(b.cfg); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(server.New(server.Config{
		Store: b.store, Model: "tiny", KeepAlive: 20 * time.Millisecond, HeaderWait: 20 * time.Millisecond, MaxBody: 8 << 20,
		Open: func() (session.Config, error) { return b.cfg, nil },
	}))
	t.Cleanup(func() {
		b.store.Close()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	b.url = srv.URL
	return b
}

// says makes the engine give these replies in turn, and the last one for ever.
func (b *bed) says(texts ...string) {
	var mu sync.Mutex
	b.engine.say = func(context.Context, string) (string, rollout.FinishType, error) {
		mu.Lock()
		defer mu.Unlock()
		text := texts[0]
		if len(texts) > 1 {
			texts = texts[1:]
		}
		return text, rollout.FinishStop, nil
	}
}

func (b *bed) path() string { return "/sessions/" + b.sess.ID() + "/v1/chat/completions" }

// post sends a body and returns the status and the JSON of the answer.
func (b *bed) post(path, body string, headers ...string) (int, map[string]any, http.Header) {
	b.t.Helper()
	resp := b.send(b.t.Context(), http.MethodPost, path, body, headers...)
	defer resp.Body.Close()
	var out map[string]any
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &out); err != nil {
			b.t.Fatalf("%v in %q", err, data)
		}
	}
	return resp.StatusCode, out, resp.Header
}

func (b *bed) send(ctx context.Context, method, path, body string, headers ...string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

// turn posts messages and returns the reply's message.
func (b *bed) turn(messages []any, extra ...any) map[string]any {
	b.t.Helper()
	body := map[string]any{"model": "m", "messages": messages}
	for i := 0; i < len(extra); i += 2 {
		body[extra[i].(string)] = extra[i+1]
	}
	status, out, _ := b.post(b.path(), asJSON(body))
	if status != http.StatusOK {
		b.t.Fatalf("status %d: %v", status, out)
	}
	choice := out["choices"].([]any)[0].(map[string]any)
	message := choice["message"].(map[string]any)
	message["finish"] = choice["finish_reason"]
	return message
}

func asJSON(v any) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only the tests' own values come here
	}
	return buf.String()
}

func user(text string) map[string]any { return map[string]any{"role": "user", "content": text} }
func said(text string) map[string]any { return map[string]any{"role": "assistant", "content": text} }

// events reads a stream: the JSON of its events and how many comments it had.
func events(t *testing.T, body io.Reader) (out []map[string]any, comments int, done bool) {
	t.Helper()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, ":"):
			comments++
		case line == "data: [DONE]":
			done = true
		case strings.HasPrefix(line, "data: "):
			var v map[string]any
			if err := json.Unmarshal([]byte(line[6:]), &v); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			out = append(out, v)
		case line != "":
			t.Fatalf("line %q in a stream", line)
		}
	}
	return out, comments, done
}

// joined puts a stream's deltas together.
func joined(events []map[string]any) (message map[string]any, finish string, usage any) {
	var content, reasoning string
	calls := map[int]map[string]string{}
	for _, e := range events {
		if u, ok := e["usage"]; ok {
			usage = u
		}
		for _, c := range e["choices"].([]any) {
			choice := c.(map[string]any)
			if f, ok := choice["finish_reason"].(string); ok {
				finish = f
			}
			d := choice["delta"].(map[string]any)
			if s, ok := d["content"].(string); ok {
				content += s
			}
			if s, ok := d["reasoning_content"].(string); ok {
				reasoning += s
			}
			list, _ := d["tool_calls"].([]any)
			for _, item := range list {
				call := item.(map[string]any)
				i := int(call["index"].(float64))
				if calls[i] == nil {
					calls[i] = map[string]string{"id": call["id"].(string), "type": call["type"].(string)}
				}
				f := call["function"].(map[string]any)
				if name, ok := f["name"].(string); ok {
					calls[i]["name"] += name
				}
				calls[i]["arguments"] += f["arguments"].(string)
			}
		}
	}
	message = map[string]any{"content": content, "reasoning": reasoning, "calls": calls}
	return message, finish, usage
}

// sample assembles the session and expects one sample.
func (b *bed) sample() *rollout.Sample {
	b.t.Helper()
	leaves, err := b.sess.Assemble(0)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(leaves) != 1 {
		b.t.Fatalf("%d samples, want 1", len(leaves))
	}
	return leaves[0].Sample
}

// prefixes checks that every prompt begins with the prompt and the reply before it.
func (b *bed) prefixes() {
	b.t.Helper()
	for i := 1; i < len(b.engine.prompts); i++ {
		before := slices.Concat(b.engine.prompts[i-1], b.engine.outputs[i-1])
		if p := b.engine.prompts[i]; len(p) <= len(before) || !slices.Equal(p[:len(before)], before) {
			b.t.Errorf("turn %d does not begin with the tokens of turn %d", i, i-1)
		}
	}
}

const calcTool = `{"type":"function","function":{"name":"calc","description":"adds","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}`

const oneCall = "I add.\n<tool_call>\n{\"name\": \"calc\", \"arguments\": {\"a\": \"caf\u00e9\",  \"b\": 1000.0}}\n</tool_call>"
const twoCalls = oneCall + "\n<tool_call>\n{\"name\": \"calc\", \"arguments\": {}}\n</tool_call>"

// Case 1: a call's arguments come back in another spelling.
func TestCase01EchoRespelled(t *testing.T) {
	b := newBed(t)
	b.says(strings.TrimPrefix(oneCall, "I add.\n"), "done")
	tools := []any{json.RawMessage(calcTool)}
	m := b.turn([]any{user("add")}, "tools", tools)
	calls, _ := m["tool_calls"].([]any)
	if m["content"] != nil || m["finish"] != "tool_calls" || len(calls) != 1 {
		t.Fatalf("reply %v", m)
	}
	call := calls[0].(map[string]any)
	arguments, ok := call["function"].(map[string]any)["arguments"].(string)
	if !ok || !json.Valid([]byte(arguments)) {
		t.Fatalf("arguments %v are not a string of JSON", call)
	}
	call["function"].(map[string]any)["arguments"] = `{"b":1000,"a":"caf\u00e9"}` // case 12 as well
	echo := map[string]any{"role": "assistant", "content": "", "tool_calls": []any{call}}
	result := map[string]any{"role": "tool", "tool_call_id": call["id"], "content": []any{map[string]any{"type": "text", "text": "2"}}}
	b.turn([]any{user("add"), echo, result}, "tools", tools)
	b.prefixes()
	if s := b.sample(); len(s.Generations()) != 2 {
		t.Errorf("%d generations in the sample, want 2", len(s.Generations()))
	}
}

// Cases 2, 3 and 5: a stream has the reply's parts in order, and is the reply.
func TestCase02StreamedTurns(t *testing.T) {
	for _, usageToo := range []bool{true, false} {
		b := newBed(t)
		b.says("<think>\nhm\n</think>\n\n" + twoCalls)
		body := `{"model":"m","stream":true,"stream_options":{"include_usage":` + fmt.Sprint(usageToo) + `},"tools":[` + calcTool + `],"messages":[{"role":"user","content":"add"}]}`
		resp := b.send(t.Context(), http.MethodPost, b.path(), body)
		list, _, done := events(t, resp.Body)
		resp.Body.Close()
		if !done || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("done %v, headers %v", done, resp.Header)
		}
		first := list[0]["choices"].([]any)[0].(map[string]any)["delta"].(map[string]any)
		if first["role"] != "assistant" {
			t.Errorf("the first event is %v", list[0])
		}
		message, finish, usage := joined(list)
		if finish != "tool_calls" || (usage != nil) != usageToo {
			t.Errorf("finish %q, usage %v", finish, usage)
		}
		if last := list[len(list)-1]; usageToo && len(last["choices"].([]any)) != 0 {
			t.Errorf("the usage chunk has choices: %v", last)
		}
		calls := message["calls"].(map[int]map[string]string)
		if len(calls) != 2 || calls[0]["type"] != "function" || calls[0]["id"] == calls[1]["id"] || !json.Valid([]byte(calls[0]["arguments"])) {
			t.Errorf("calls %v", calls)
		}
		// The same turn once more, now whole.
		whole := b.turn([]any{user("add")}, "tools", []any{json.RawMessage(calcTool)})
		if whole["content"] != message["content"] || whole["reasoning_content"] != message["reasoning"] || message["content"] != "I add." {
			t.Errorf("whole %v, streamed %v", whole, message)
		}
		for i, item := range whole["tool_calls"].([]any) {
			f := item.(map[string]any)["function"].(map[string]any)
			if f["name"] != calls[i]["name"] || f["arguments"] != calls[i]["arguments"] {
				t.Errorf("call %d: %v, streamed %v", i, f, calls[i])
			}
		}
	}
}

// Cases 8 and 10: side requests make no turns.
func TestCase08SideRequests(t *testing.T) {
	b := newBed(t)
	base := "/sessions/" + b.sess.ID()
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{http.MethodHead, base + "/api/hello", 200}, {http.MethodGet, base + "/v1/models", 200}, {http.MethodGet, base + "/v1/models/gpt", 200},
		{http.MethodGet, base + "/v1/responses", 404}, {http.MethodGet, "/health", 200}, {http.MethodGet, base, 200},
		{http.MethodGet, "/sessions/0123", 404}, {http.MethodDelete, "/sessions/0123", 404},
	} {
		resp := b.send(t.Context(), c.method, c.path, "")
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, resp.StatusCode, c.status)
		}
		if c.status == 404 && resp.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s %s may be tried again", c.method, c.path)
		}
	}
	if st := b.sess.Stats(); st.Calls != 0 {
		t.Errorf("%d calls", st.Calls)
	}
}

// Case 9: the key may carry the session; the path wins; another's key is refused.
func TestCase09Keys(t *testing.T) {
	b := newBed(t)
	other, err := b.store.Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"messages":[{"role":"user","content":"x"}]}`
	for _, c := range []struct {
		path, header, value string
		status              int
	}{
		{"/v1/chat/completions", "Authorization", "Bearer " + b.sess.ID(), 200},
		{"/v1/chat/completions", "X-Api-Key", b.sess.ID(), 200},
		{b.path(), "Authorization", "Bearer sk-anything", 200},
		{b.path(), "Authorization", "Bearer " + other.ID(), 403},
		{b.path(), "X-Api-Key", other.ID(), 403},
		{"/v1/chat/completions", "X-Nothing", "", 403},
		{"/sessions/00/v1/chat/completions", "X-Nothing", "", 403},
	} {
		status, _, header := b.post(c.path, body, c.header, c.value)
		if status != c.status || status != 200 && header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s with %s: %d, want %d", c.path, c.header, status, c.status)
		}
	}
}

// Case 13: results of parallel calls come in the order in which they were ready.
func TestCase13ToolOrder(t *testing.T) {
	prompts := map[bool][]int32{}
	for _, swap := range []bool{false, true} {
		b := newBed(t)
		b.says(twoCalls, "done", "more")
		tools := []any{json.RawMessage(calcTool)}
		m := b.turn([]any{user("add")}, "tools", tools)
		calls := m["tool_calls"].([]any)
		delete(m, "finish")
		history := []any{user("add"), m}
		results := []any{}
		for i, c := range calls {
			results = append(results, map[string]any{"role": "tool", "tool_call_id": c.(map[string]any)["id"], "content": fmt.Sprint("result ", i)})
		}
		if swap {
			slices.Reverse(results)
		}
		b.turn(slices.Concat(history, results), "tools", tools)
		slices.Reverse(results)
		b.turn(slices.Concat(history, results, []any{said("done"), user("go on")}), "tools", tools)
		b.prefixes()
		prompts[swap] = b.engine.prompts[1]
	}
	if !slices.Equal(prompts[false], prompts[true]) {
		t.Error("the prompt depends on the order of the results")
	}
}

// Case 16: an assistant message of the client's own is prompt, and not looked up.
func TestCase16Preamble(t *testing.T) {
	b := newBed(t)
	b.says("hello", "again")
	b.turn([]any{user("setup"), said("Got it."), user("hi")})
	b.turn([]any{user("setup"), said("Got it."), user("hi"), said("hello"), user("more")})
	b.prefixes()
	s := b.sample()
	text := b.engine.model.Tokenizer().Decode(s.Tokens()[:s.PromptLen()], false)
	if !strings.Contains(text, "Got it.") || s.EffectiveLen() != len(b.engine.outputs[0])+len(b.engine.outputs[1]) {
		t.Errorf("prompt %q, %d tokens trained", text, s.EffectiveLen())
	}
}

// Case 17: the client drops a turn and goes on without it.
func TestCase17VanishedTurn(t *testing.T) {
	b := newBed(t)
	b.says("first", "second")
	b.turn([]any{user("x")})
	b.turn([]any{user("x"), user("format error")})
	leaves, err := b.sess.Assemble(0)
	if err != nil || len(leaves) != 2 {
		t.Fatalf("%d samples (%v), want both", len(leaves), err)
	}
	for _, n := range b.sess.Nodes() {
		if !n.Leaf || n.Parent != 0 {
			t.Errorf("node %+v", n)
		}
	}
}

// Case 18: a repeated request joins the one in flight; later it is a sibling, and
// the branch that is gone on with wins.
func TestCase18Repeats(t *testing.T) {
	b := newBed(t)
	release := make(chan struct{})
	entered := make(chan struct{}, 8)
	b.engine.say = func(context.Context, string) (string, rollout.FinishType, error) {
		entered <- struct{}{}
		<-release
		return "hello", rollout.FinishStop, nil
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if i%2 == 0 {
				b.turn([]any{user("x")})
				return
			}
			resp := b.send(t.Context(), http.MethodPost, b.path(), `{"messages":[{"role":"user","content":"x"}],"model":"m","stream":true}`)
			defer resp.Body.Close()
			if list, _, done := events(t, resp.Body); !done {
				t.Errorf("the stream is not whole: %v", list)
			}
		})
	}
	<-entered
	for b.sess.Stats().Joined < 3 {
		time.Sleep(time.Millisecond) // nothing announces a request that joined
	}
	close(release)
	wg.Wait()
	if st := b.sess.Stats(); st.Calls != 1 || st.Turns != 1 {
		t.Fatalf("%+v, want one call", st)
	}
	b.says("another")
	b.turn([]any{user("x")})
	if st := b.sess.Stats(); st.Turns != 2 {
		t.Fatalf("%+v, want a sibling", st)
	}
	leaves, err := b.sess.Assemble(0)
	if err != nil || len(leaves) != 1 || leaves[0].Node != 2 {
		t.Fatalf("leaves %+v (%v), want the later of the siblings", leaves, err)
	}
	b.says("on it goes")
	b.turn([]any{user("x"), said("hello"), user("go on")})
	leaves, err = b.sess.Assemble(0)
	if err != nil || len(leaves) != 1 || leaves[0].Turns != 2 || leaves[0].Node != 3 {
		t.Fatalf("leaves %+v (%v), want the branch that was gone on with", leaves, err)
	}
}

// Case 19: 64 conversations at once in one session.
func TestCase19Interleaved(t *testing.T) {
	b := newBed(t)
	b.engine.say = func(_ context.Context, prompt string) (string, rollout.FinishType, error) {
		return fmt.Sprintf("reply to %d bytes", len(prompt)), rollout.FinishStop, nil
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			history := []any{user(fmt.Sprint("agent ", i))}
			for turn := range 4 {
				m := b.turn(history)
				history = append(history, said(m["content"].(string)), user(fmt.Sprint("agent ", i, " turn ", turn)))
			}
		})
	}
	wg.Wait()
	leaves, err := b.sess.Assemble(0)
	if err != nil || len(leaves) != 64 {
		t.Fatalf("%d samples (%v), want 64", len(leaves), err)
	}
	for _, l := range leaves {
		text := b.engine.model.Tokenizer().Decode(l.Sample.Tokens(), false)
		var first int
		if _, err := fmt.Sscanf(text[strings.Index(text, "agent "):], "agent %d", &first); err != nil {
			t.Fatal(err)
		}
		if l.Turns != 4 || strings.Count(text, fmt.Sprintf("agent %d turn", first)) != 3 || strings.Count(text, "agent ") != 4 {
			t.Errorf("a sample of %d turns: %q", l.Turns, text)
		}
	}
}

// Case 21: other tools, or another system prompt, are another conversation.
func TestCase21RootChanged(t *testing.T) {
	b := newBed(t)
	b.says("hello", "two", "three")
	b.turn([]any{user("x")})
	b.turn([]any{user("x"), said("hello"), user("y")}, "tools", []any{json.RawMessage(calcTool)})
	b.turn([]any{map[string]any{"role": "developer", "content": "be brief"}, user("x"), said("hello"), user("y")})
	if st := b.sess.Stats(); st.Roots != 3 || st.OptionsChanged != 1 {
		t.Errorf("%+v, want 3 roots and one change of tools", st)
	}
}

// Case 23: the client goes away in the middle.
func TestCase23Disconnect(t *testing.T) {
	b := newBed(t)
	ended := make(chan struct{})
	b.engine.say = func(ctx context.Context, _ string) (string, rollout.FinishType, error) {
		<-ctx.Done()
		close(ended)
		return "", "", ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	resp := b.send(ctx, http.MethodPost, b.path(), `{"stream":true,"messages":[{"role":"user","content":"x"}]}`)
	cancel()
	resp.Body.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the engine call goes on without a client")
	}
	b.says("hello")
	b.turn([]any{user("x")})
	if st := b.sess.Stats(); st.Turns != 1 || st.Calls != 2 || len(b.sess.Records()) != 2 {
		t.Errorf("%+v, %d records", st, len(b.sess.Records()))
	}
}

// Case 25: an engine's fault is told as such, before and behind the first byte.
func TestCase25EngineFault(t *testing.T) {
	b := newBed(t)
	slow := make(chan struct{})
	close(slow)
	b.engine.say = func(context.Context, string) (string, rollout.FinishType, error) {
		<-slow
		return "", "", errors.New("broken")
	}
	const body = `{"stream":true,"messages":[{"role":"user","content":"x"}]}`
	status, out, header := b.post(b.path(), body)
	if status != 503 || header.Get("Retry-After") == "" || out["error"] == nil {
		t.Errorf("status %d: %v", status, out)
	}
	slow = make(chan struct{})
	resp := b.send(t.Context(), http.MethodPost, b.path(), body)
	close(slow)
	list, _, done := events(t, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || done || list[len(list)-1]["error"] == nil {
		t.Errorf("status %d, done %v: %v", resp.StatusCode, done, list)
	}
	b.engine.say = func(context.Context, string) (string, rollout.FinishType, error) {
		return "half", rollout.FinishAbort, nil
	}
	if status, _, _ := b.post(b.path(), `{"messages":[{"role":"user","content":"x"}]}`); status != 503 {
		t.Errorf("status %d for an abort", status)
	}
	if st := b.sess.Stats(); st.Turns != 0 || st.Calls != 3 {
		t.Errorf("%+v: a failed call must not become a turn", st)
	}
}

// Case 27: the prompt fills the context.
func TestCase27Overflow(t *testing.T) {
	b := newBed(t, func(c *session.Config) { c.MaxSeqLen = 40 })
	status, out, header := b.post(b.path(), asJSON(map[string]any{"messages": []any{user(strings.Repeat("long ", 20))}}))
	e, _ := out["error"].(map[string]any)
	if status != 400 || e["code"] != "context_length_exceeded" || !strings.Contains(e["message"].(string), "maximum context length is 40 tokens") || header.Get("X-Should-Retry") != "false" {
		t.Errorf("status %d: %v", status, out)
	}
	if st := b.sess.Stats(); st.Calls != 0 || !st.Overflowed {
		t.Errorf("%+v", st)
	}
}

// Case 28: the reply is cut inside a tool call.
func TestCase28CutCall(t *testing.T) {
	b := newBed(t)
	cut := oneCall[:len(oneCall)-30]
	b.engine.say = func(context.Context, string) (string, rollout.FinishType, error) {
		return cut, rollout.FinishLength, nil
	}
	m := b.turn([]any{user("x")}, "tools", []any{json.RawMessage(calcTool)})
	if m["finish"] != "length" || m["tool_calls"] != nil {
		t.Errorf("reply %v", m)
	}
	if s := b.sample(); s.Status() != rollout.StatusTruncated || s.EffectiveLen() != len(b.engine.outputs[0]) {
		t.Errorf("status %s, %d tokens", s.Status(), s.EffectiveLen())
	}
	// What follows is another conversation: the cut turn has no end to go on from.
	b.says("more")
	b.turn([]any{user("x"), said(cut), user("go on")}, "tools", []any{json.RawMessage(calcTool)})
	if st := b.sess.Stats(); st.Turns != 2 {
		t.Errorf("%+v", st)
	}
}

// Case 29: a slow reply shows that it is alive.
func TestCase29KeepAlive(t *testing.T) {
	b := newBed(t)
	release := make(chan struct{})
	b.engine.say = func(context.Context, string) (string, rollout.FinishType, error) {
		<-release
		return "hello", rollout.FinishStop, nil
	}
	resp := b.send(t.Context(), http.MethodPost, b.path(), `{"stream":true,"messages":[{"role":"user","content":"x"}]}`)
	defer resp.Body.Close()
	var seen bytes.Buffer
	buf := make([]byte, 4096)
	for strings.Count(seen.String(), ": ping\n\n") < 3 {
		n, err := resp.Body.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(buf[:n])
	}
	close(release)
	rest, _, done := events(t, resp.Body)
	if message, finish, _ := joined(rest); !done || finish != "stop" || message["content"] != "hello" {
		t.Errorf("%v %q", message, finish)
	}
}

// The reply to a client that never got it is handed out once more, and once only.
func TestUndeliveredIsReplayedOnce(t *testing.T) {
	b := newBed(t)
	m, n, err := b.sess.Match([]byte(`[{"role":"user","content":"x"}]`))
	if err != nil || n == 0 {
		t.Fatal(err)
	}
	call, err := b.sess.Begin(session.Request{Match: m})
	if err != nil {
		t.Fatal(err)
	}
	lost, err := call.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	call.Release()
	const body = `{"messages":[{"role":"user","content":"x"}]}`
	_, out, _ := b.post(b.path(), body)
	if out["id"] != "chatcmpl-"+lost.ID {
		t.Errorf("the lost reply did not come again: %v", out)
	}
	_, out, _ = b.post(b.path(), body)
	if out["id"] == "chatcmpl-"+lost.ID {
		t.Error("a delivered reply came again")
	}
	if st := b.sess.Stats(); st.Turns != 2 || st.Replayed != 1 {
		t.Errorf("%+v", st)
	}
}

func TestSamplingIsTheRuns(t *testing.T) {
	b := newBed(t)
	b.turn([]any{user("x")}, "temperature", 0, "top_p", 0.1, "seed", 7, "max_tokens", 5, "stop", "END", "frequency_penalty", 2)
	got := b.engine.seen[0].Sampling
	want := b.cfg.Sampling
	want.MaxNewTokens, want.Stop = 5, []string{"END"}
	if asJSON(got) != asJSON(want) || b.engine.seen[0].Seed != nil {
		t.Errorf("sampling %+v, want %+v", got, want)
	}
	for _, id := range []string{b.engine.seen[0].RoutingKey, b.engine.seen[0].ID} {
		if strings.Contains(id, b.sess.ID()) {
			t.Error("the engine is told the session's secret")
		}
	}
}

func TestRefusals(t *testing.T) {
	b := newBed(t, func(c *session.Config) { c.MaxTurns = 1 })
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"no JSON", `hello`, 400}, {"no object", `[]`, 400}, {"cut", `{"messages":[{"role":"user","content":"x"}`, 400},
		{"no messages", `{}`, 400}, {"empty messages", `{"messages":[]}`, 400}, {"messages no list", `{"messages":{}}`, 400},
		{"no role", `{"messages":[{"content":"x"}]}`, 400}, {"a text as message", `{"messages":["x"]}`, 400},
		{"many replies", `{"n":2,"messages":[{"role":"user","content":"x"}]}`, 400}, {"wrong type", `{"stream":"yes","messages":[{"role":"user","content":"x"}]}`, 400},
		{"text behind", `{"messages":[{"role":"user","content":"x"}]} x`, 400}, {"odd role", `{"messages":[{"role":"alien","content":"x"}]}`, 400},
		{"bad tools", `{"tools":{"a":1},"messages":[{"role":"user","content":"x"}]}`, 400},
		{"too large", `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 9<<20) + `"}]}`, 413},
		{"fine", `{"messages":[{"role":"user","content":"x"}]}`, 200},
		{"over the limit", `{"messages":[{"role":"user","content":"y"}]}`, 403},
	} {
		status, out, header := b.post(b.path(), c.body)
		if status != c.status || status != 200 && (header.Get("X-Should-Retry") != "false" || out["error"] == nil) {
			t.Errorf("%s: status %d, want %d: %v", c.name, status, c.status, out)
		}
	}
	if status, _, _ := b.post(b.path(), "x", "Content-Encoding", "br"); status != 415 {
		t.Errorf("status %d for an unknown encoding", status)
	}
	if err := b.store.Delete(b.sess.ID()); err != nil {
		t.Fatal(err)
	}
	if status, _, header := b.post(b.path(), `{"messages":[{"role":"user","content":"x"}]}`); status != 403 || header.Get("X-Should-Retry") != "false" {
		t.Errorf("status %d for a closed session", status)
	}
}

func TestSamplesOverHTTP(t *testing.T) {
	b := newBed(t)
	status, out, _ := b.post("/sessions/"+b.sess.ID()+"/samples", "")
	if status != 200 || out["empty_reason"] != "no_records" {
		t.Errorf("status %d: %v", status, out)
	}
	b.turn([]any{user("x")})
	_, out, _ = b.post("/sessions/"+b.sess.ID()+"/samples", `{"max_seq_len":4}`)
	if out["empty_reason"] != "all_truncated" {
		t.Errorf("%v", out)
	}
	_, out, _ = b.post("/sessions/"+b.sess.ID()+"/samples", `{}`)
	s := out["samples"].([]any)[0].(map[string]any)
	n := len(b.engine.outputs[0])
	if s["response_length"] != float64(n) || len(s["loss_mask"].([]any)) != n || len(s["tokens"].([]any)) != n+len(b.engine.prompts[0]) ||
		s["spec_info"].(map[string]any)["spec_verify_ct"] != 3.0 || s["spec_info"].(map[string]any)["spec_accept_token_num"] != nil {
		t.Errorf("%v", s)
	}
	if p := s["rollout_log_probs"].([]any)[0].(float64); math.Abs(p+1.0/8) > 1e-9 {
		t.Errorf("log-prob %v", p)
	}
}
