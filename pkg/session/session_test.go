package session

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func tiny(t testing.TB) (*chat.Model, *chat.Family) {
	t.Helper()
	model, err := chat.Load("../../configs/models/tiny")
	if err != nil {
		t.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	return model, family
}

func TestMatchers(t *testing.T) {
	const call = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1000.0, \"b\": [true]}"}}]}`
	for _, c := range []struct {
		name, stored, got             string
		strict, loose, roleAndContent bool
	}{
		{"the same", `{"role":"user","content":"x"}`, `{"content":"x","role":"user"}`, true, true, true},
		{"one part", `{"role":"user","content":"x"}`, `{"role":"user","content":[{"type":"text","text":"x","cache_control":{}}]}`, true, true, true},
		{"empty in every way", `{"role":"assistant","content":""}`, `{"role":"assistant","content":null,"tool_calls":[],"refusal":null}`, true, true, true},
		{"developer", `{"role":"system","content":"x"}`, `{"role":"developer","content":"x"}`, true, true, true},
		{"another text", `{"role":"user","content":"x"}`, `{"role":"user","content":"x "}`, false, false, false},
		{"another role", `{"role":"user","content":"x"}`, `{"role":"system","content":"x"}`, false, false, false},
		{"reply stripped", `{"role":"assistant","content":"x\n"}`, `{"role":"assistant","content":"x"}`, false, true, true},
		{"reasoning dropped", `{"role":"assistant","content":"x","reasoning_content":"hm"}`, `{"role":"assistant","content":"x"}`, false, true, true},
		{"reasoning renamed", `{"role":"assistant","content":"x","reasoning_content":"hm"}`, `{"role":"assistant","content":"x","reasoning":"hm"}`, true, true, true},
		{"reasoning changed", `{"role":"assistant","content":"x","reasoning_content":"hm"}`, `{"role":"assistant","content":"x","reasoning_content":"no"}`, false, false, true},
		{"arguments respelled", call, strings.Replace(call, `{\"a\": 1000.0, \"b\": [true]}`, `{\"b\":[true],\"a\":1e3}`, 1), false, true, true},
		{"another argument", call, strings.Replace(call, "1000.0", "1000.5", 1), false, false, true},
		{"true is not 1", call, strings.Replace(call, "[true]", "[1]", 1), false, false, true},
		{"another call id", call, strings.Replace(call, "c1", "c2", 1), false, false, true},
		{"an index", call, strings.Replace(call, `"id":"c1"`, `"index":0,"id":"c1"`, 1), true, true, true},
		{"a call dropped", call, `{"role":"assistant","content":""}`, false, false, true},
		{"a huge exponent", strings.Replace(call, "1000.0", "1e999999999", 1), strings.Replace(call, "1000.0", "10e999999998", 1), false, false, true},
	} {
		stored, err1 := readPlain([]byte(c.stored))
		got, err2 := readPlain([]byte(c.got))
		if err1 != nil || err2 != nil {
			t.Fatal(c.name, err1, err2)
		}
		for m, want := range map[Matcher]bool{Strict: c.strict, LooseToolCall: c.loose, RoleContentOnly: c.roleAndContent} {
			if m.same(stored, got) != want {
				t.Errorf("%s: %s says %v", c.name, m, !want)
			}
		}
	}
}

func TestIdleSessionsExpire(t *testing.T) {
	model, family := tiny(t)
	out := model.Tokenizer().Encode("fine<|im_end|>", false)
	synctest.Test(t, func(t *testing.T) {
		st := NewStore()
		defer st.Close()
		gate := make(chan struct{})
		s, err := st.Open(Config{Family: family, Engine: gated{fixed{out}, gate}, Sampling: rollout.Sampling{MaxNewTokens: 9}, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		done := make(chan error)
		go func() {
			_, err := ask(s, []said{{"user", "x"}}, true)
			done <- err
		}()
		time.Sleep(time.Hour) // a turn under way is not idle
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if st.Len() != 1 {
			t.Error("the session ended before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st.Len() != 0 || st.Expired() != 1 {
			t.Errorf("%d sessions, %d expired", st.Len(), st.Expired())
		}
		if _, err := ask(s, []said{{"user", "y"}}, true); !errors.Is(err, ErrClosed) {
			t.Errorf("error %v", err)
		}
	})
}

// gated is an engine that waits for its gate.
type gated struct {
	engine.Generator
	gate chan struct{}
}

func (g gated) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	select {
	case <-g.gate:
		return g.Generator.Generate(ctx, req)
	case <-ctx.Done():
		var out rollout.Generation
		out.ID, out.Turn, out.Fate = req.ID, req.Turn, rollout.FateFailed
		return out, &engine.Error{Reason: engine.Canceled, Err: context.Cause(ctx)}
	}
}

// Closing cancels what runs, and its record is there when Close returns.
func TestCloseWaitsForCalls(t *testing.T) {
	model, family := tiny(t)
	st := NewStore()
	defer st.Close()
	s, err := st.Open(Config{
		Family: family, Engine: gated{fixed{model.Tokenizer().Encode("x", false)}, make(chan struct{})}, Sampling: rollout.Sampling{MaxNewTokens: 9},
	})
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := s.Match(spell([]said{{"user", "x"}}))
	if err != nil {
		t.Fatal(err)
	}
	call, err := s.Begin(Request{Match: m})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Delete(s.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Wait(t.Context()); engine.ReasonOf(err) != engine.Canceled {
		t.Errorf("error %v", err)
	}
	call.Release()
	if len(s.Records()) != 1 || s.Stats().Turns != 0 {
		t.Errorf("%d records, %+v", len(s.Records()), s.Stats())
	}
}

func TestLinearPolicy(t *testing.T) {
	model, family := tiny(t)
	st := NewStore()
	defer st.Close()
	s, err := st.Open(Config{
		Family: family, Engine: fixed{model.Tokenizer().Encode("fine<|im_end|>", false)}, Sampling: rollout.Sampling{MaxNewTokens: 9}, Linear: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	a, fine := said{"user", "a"}, said{"assistant", "fine"}
	two := []said{a, fine, {"user", "b"}}
	for _, c := range []struct {
		name    string
		request []said
		refused bool
	}{
		{"first", []said{a}, false}, {"second", two, false}, {"the second again", []said{a, fine, {"user", "c"}}, false},
		{"third", []said{a, fine, {"user", "c"}, fine, {"user", "d"}}, false}, {"two turns back", []said{a, fine, {"user", "e"}}, true},
		{"another beginning", []said{{"user", "z"}}, true},
	} {
		if _, err := ask(s, c.request, true); errors.Is(err, ErrHistory) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	leaves, err := s.Assemble(0)
	if err != nil || len(leaves) != 1 || leaves[0].Turns != 3 {
		t.Errorf("%+v, %v", leaves, err)
	}
}

// A reply that cannot be merged is no part of the session: counts that differ, a
// log-prob that is no number, a finish reason nobody knows.
func TestLyingEngine(t *testing.T) {
	model, family := tiny(t)
	out := model.Tokenizer().Encode("fine<|im_end|>", false)
	for name, lie := range map[string]func(*rollout.Generation){
		"too few log-probs": func(g *rollout.Generation) { g.LogProbs = g.LogProbs[1:] },
		"not a number":      func(g *rollout.Generation) { g.LogProbs[0] /= g.LogProbs[0] },
		"finish reason":     func(g *rollout.Generation) { g.Meta.Finish.Type = "tired" },
		"no prompt":         func(g *rollout.Generation) { g.PromptIDs = nil },
	} {
		st := NewStore()
		s, err := st.Open(Config{Family: family, Engine: liar{fixed{out}, lie}, Sampling: rollout.Sampling{MaxNewTokens: 9}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(s, []said{{"user", "x"}}, true); engine.ReasonOf(err) != engine.BadReply {
			t.Errorf("%s: %v", name, err)
		}
		if r := s.Records(); len(r) != 1 || r[0].Failure == nil || s.Stats().Turns != 0 {
			t.Errorf("%s: records %+v", name, r)
		}
		st.Close()
	}
}

type liar struct {
	engine.Generator
	lie func(*rollout.Generation)
}

func (l liar) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	g, err := l.Generator.Generate(ctx, req)
	l.lie(&g)
	return g, err
}

// What the scanner takes for a list of messages, encoding/json takes as well.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{
		`[{"role":"user","content":"x"}]`, `[ {"role":"user","content":"a \" b"} , {"role":"assistant","content":"fine"} ,{"role":"user"}]`,
		`[]`, `[{]`, `[{"role":"user"},]`, `[{"role":"tool","tool_call_id":"\u0000"}`, `["x"]`, `[[[[`, `[{"role":"user","content":"\\"}]`,
	} {
		f.Add([]byte(seed))
	}
	model, family := tiny(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		st := NewStore()
		defer st.Close()
		s, err := st.Open(Config{Family: family, Engine: fixed{model.Tokenizer().Encode("fine<|im_end|>", false)}, Sampling: rollout.Sampling{MaxNewTokens: 9}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time the history is known
			m, end, err := s.Match(data)
			if err != nil {
				return
			}
			if end > len(data) {
				t.Fatalf("the list of %d bytes ends at %d", len(data), end)
			}
			call, err := s.Begin(Request{Match: m})
			if err != nil {
				return
			}
			if !json.Valid(data[:end]) {
				t.Fatalf("%q began a turn", data[:end])
			}
			if _, err := call.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			call.Delivered()
			call.Release()
		}
	})
}

// An engine that saw other tokens than the session holds is not believed.
func TestPromptThatContradicts(t *testing.T) {
	model, family := tiny(t)
	st := NewStore()
	defer st.Close()
	lie := false
	s, err := st.Open(Config{
		Family: family, Sampling: rollout.Sampling{MaxNewTokens: 9},
		Engine: liar{fixed{model.Tokenizer().Encode("fine<|im_end|>", false)}, func(g *rollout.Generation) {
			if lie {
				g.PromptIDs = append([]int32{7}, g.PromptIDs[1:]...)
			}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(s, []said{{"user", "x"}}, true); err != nil {
		t.Fatal(err)
	}
	lie = true
	if _, err := ask(s, []said{{"user", "x"}, {"assistant", "fine"}, {"user", "y"}}, true); !errors.Is(err, ErrContradiction) {
		t.Errorf("error %v", err)
	}
	if st := s.Stats(); st.Turns != 1 {
		t.Errorf("%+v", st)
	}
}
