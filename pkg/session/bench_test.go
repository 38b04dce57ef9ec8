package session

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// The budgets are those of the design's session rows, on two cores.

// fixed is an engine that answers at once with the same tokens.
type fixed struct{ out []int32 }

func (f fixed) Generate(_ context.Context, req engine.Request) (rollout.Generation, error) {
	g := rollout.Generation{PromptIDs: req.PromptIDs, OutputIDs: f.out, LogProbs: make([]float32, len(f.out))}
	g.ID, g.Turn, g.Fate = req.ID, req.Turn, rollout.FateFinished
	g.Meta.Finish.Type = rollout.FinishStop
	return g, nil
}

// growing is a session whose conversation is so many bytes long, in steps of about
// 24 kB, and the request that goes on from there.
func growing(tb testing.TB, size int) (*Store, *Session, []byte) {
	tb.Helper()
	model, err := chat.Load("../../configs/models/tiny")
	if err != nil {
		tb.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		tb.Fatal(err)
	}
	st := NewStore()
	tb.Cleanup(st.Close)
	out := model.Tokenizer().Encode("It is done.<|im_end|>", false)
	s, err := st.Open(Config{Family: family, Engine: fixed{out}, Sampling: rollout.Sampling{MaxNewTokens: 1000}})
	if err != nil {
		tb.Fatal(err)
	}
	var messages strings.Builder
	chunk := min(size, 24<<10)
	for messages.Len() == 0 || messages.Len() < size {
		if messages.Len() > 0 {
			messages.WriteString(`,{"role":"assistant","content":"It is done."},`)
		}
		fmt.Fprintf(&messages, `{"role":"user","content":"step %d\n%s"}`, messages.Len(), strings.Repeat("the quick brown fox \\\"jumps\\\" over\\n", chunk/35))
		if messages.Len() < size {
			oneTurn(tb, s, []byte("["+messages.String()+"]"))
		}
	}
	return st, s, []byte("[" + messages.String() + "]")
}

func oneTurn(tb testing.TB, s *Session, messages []byte) {
	m, _, err := s.Match(messages)
	if err != nil {
		tb.Fatal(err)
	}
	call, err := s.Begin(Request{Match: m})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := call.Wait(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	call.Delivered()
	call.Release()
}

// BenchmarkLookup finds a conversation of which all but the last message is known:
// what parsing and hashing the history costs per turn.
func BenchmarkLookup(b *testing.B) {
	for _, size := range []int{1 << 10, 48 << 10, 2400 << 10} {
		b.Run(fmt.Sprintf("%dkB", size>>10), func(b *testing.B) {
			_, s, messages := growing(b, size)
			oneTurn(b, s, messages) // the spelling of the last reply is known from here on
			b.SetBytes(int64(len(messages)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.Match(messages); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRead reads a whole conversation message by message: what a turn costs
// whose client spelled its history anew.
func BenchmarkRead(b *testing.B) {
	_, s, messages := growing(b, 2400<<10)
	b.SetBytes(int64(len(messages)))
	for b.Loop() {
		m := Match{data: messages, first: 1}
		raws, _, err := m.tail(1)
		if err != nil {
			b.Fatal(err)
		}
		for _, raw := range raws {
			if _, err := read(raw, s.tree.seed); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkAssemble: 100 turns that grow to 100k tokens; first bar 60 ms, goal 20 ms.
// bytes/token is what the tree holds of tokens and log-probs; goal 10.
func BenchmarkAssemble(b *testing.B) {
	_, s := assembled(b, 100, 1000)
	b.ReportAllocs()
	for b.Loop() {
		leaves, err := s.Assemble(0)
		if err != nil || len(leaves) != 1 {
			b.Fatal(len(leaves), err)
		}
	}
}

func assembled(tb testing.TB, turns, tokens int) (*Store, *Session) {
	st := NewStore()
	tb.Cleanup(st.Close)
	s := newSession(tb.Context(), "", Config{})
	for i := range turns {
		n := &node{parent: s.tree.tip, base: s.tree.tip.length, gap: make([]int32, tokens/2)}
		g := rollout.Generation{OutputIDs: make([]int32, tokens/2), LogProbs: make([]float32, tokens/2)}
		g.ID, g.Turn, g.Meta.Finish.Type = fmt.Sprint(i), i, rollout.FinishStop
		s.tree.add(n, g)
	}
	return st, s
}

// BenchmarkHeld reports the memory of a session of 100 turns and 100k tokens,
// texts apart; first bar 2 MB, goal 1 MB.
func BenchmarkHeld(b *testing.B) {
	const sessions = 8
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	held := make([]*Session, sessions)
	for i := range held {
		_, held[i] = assembled(b, 100, 1000)
	}
	size := float64(heap()-before) / sessions
	for b.Loop() { // what is measured happened above
	}
	b.ReportMetric(size, "B/session")
	runtime.KeepAlive(held)
}
