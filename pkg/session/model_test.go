package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// said is one message of the brute-force model.
type said struct{ role, content string }

// modelTurn is a committed turn as the model knows it: whole, without any tree.
type modelTurn struct {
	request     []said
	reply       string
	cut         bool
	prompt, out []int32
	parent      *modelTurn
	undelivered bool
	number      int
}

func (m *modelTurn) conversation() []said {
	return append(slices.Clone(m.request), said{"assistant", m.reply})
}

// brute is a session by its definition: every question looks at every turn.
type brute struct{ turns []*modelTurn }

// parent is the turn that a request goes on from: the longest conversation that the
// request begins with and that can be gone on with; of equals the newest.
func (b *brute) parent(request []said) *modelTurn {
	var best *modelTurn
	for _, t := range b.turns {
		c := t.conversation()
		if t.cut || len(c) >= len(request) || !slices.Equal(c, request[:len(c)]) {
			continue
		}
		if best == nil || len(c) >= len(best.conversation()) {
			best = t
		}
	}
	return best
}

func (b *brute) children(t *modelTurn) (n int) {
	for _, c := range b.turns {
		if c.parent == t && t != nil {
			n++
		}
	}
	return n
}

// lost is a turn that the same request gets once more.
func (b *brute) lost(request []said) *modelTurn {
	p := b.parent(request)
	for _, t := range b.turns {
		if t.undelivered && t.parent == p && slices.Equal(t.request, request) {
			return t
		}
	}
	return nil
}

type modelSample struct {
	tokens []int32
	mask   []byte
}

func (b *brute) samples() []modelSample {
	var leaves []*modelTurn
	for _, t := range b.turns {
		retried := false
		for _, o := range b.turns {
			if o != t && o.parent == t.parent && slices.Equal(o.request, t.request) && (b.children(o) > 0 || o.number > t.number) {
				retried = true
			}
		}
		if b.children(t) == 0 && !retried {
			leaves = append(leaves, t)
		}
	}
	depth := func(t *modelTurn) (n int) {
		for ; t != nil; t = t.parent {
			n++
		}
		return n
	}
	slices.SortFunc(leaves, func(x, y *modelTurn) int {
		return cmp.Or(cmp.Compare(depth(y), depth(x)), cmp.Compare(y.number, x.number))
	})
	trained := map[*modelTurn]bool{}
	var out []modelSample
	for _, leaf := range leaves {
		first := leaf
		for first.parent != nil {
			first = first.parent
		}
		s := modelSample{tokens: slices.Concat(leaf.prompt, leaf.out)}
		s.mask = make([]byte, len(s.tokens)-len(first.prompt))
		for t := leaf; t != nil; t = t.parent {
			if !trained[t] {
				trained[t] = true
				for i := range t.out {
					s.mask[len(t.prompt)-len(first.prompt)+i] = 1
				}
			}
		}
		out = append(out, s)
	}
	return out
}

// moody is an engine that does what the test decided for a prompt.
type moody struct {
	model *chat.Model
	mu    sync.Mutex
	mood  func(prompt string) (reply string, finish rollout.FinishType, err error)
	seen  map[string]rollout.Generation // by the request's last text
}

func (e *moody) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	g := rollout.Generation{PromptIDs: req.PromptIDs}
	g.ID, g.Turn, g.Fate, g.PromptLen = req.ID, req.Turn, rollout.FateFinished, len(req.PromptIDs)
	text := e.model.Tokenizer().Decode(req.PromptIDs, false)
	e.mu.Lock()
	defer e.mu.Unlock()
	reply, finish, err := e.mood(text)
	if err != nil {
		g.Fate, g.Failure = rollout.FateFailed, rollout.NewFailure(rollout.BoundaryEngine, "test", true, err)
		return g, &engine.Error{Reason: engine.Faulty, Err: err}
	}
	if finish == rollout.FinishAbort {
		g.Fate = rollout.FateAborted
	}
	if finish == rollout.FinishStop {
		reply += "<|im_end|>"
	}
	g.OutputIDs = e.model.Tokenizer().Encode(reply, false)
	g.LogProbs = make([]float32, len(g.OutputIDs))
	g.Meta.Finish.Type = finish
	e.seen[lastUser(text)] = g
	return g, nil
}

// lastUser is what the last user said in a rendered prompt.
func lastUser(prompt string) string {
	parts := strings.Split(prompt, "<|im_start|>user\n")
	text, _, _ := strings.Cut(parts[len(parts)-1], "<|im_end|>")
	return text
}

func spell(messages []said) []byte {
	list := make([]map[string]string, len(messages))
	for i, m := range messages {
		list[i] = map[string]string{"role": m.role, "content": m.content}
	}
	raw, err := json.Marshal(list)
	if err != nil {
		panic(err) // texts always encode
	}
	return raw
}

// ask makes one request and says whether the reply was delivered.
func ask(s *Session, messages []said, deliver bool) (Reply, error) {
	m, _, err := s.Match(spell(messages))
	if err != nil {
		return Reply{}, err
	}
	call, err := s.Begin(Request{Match: m})
	if err != nil {
		return Reply{}, err
	}
	defer call.Release()
	r, err := call.Wait(context.Background())
	if err == nil && deliver {
		call.Delivered()
	}
	return r, err
}

// TestSessionIsItsModel lets a random agent talk, and compares every prompt and the
// samples at the end with a model that knows no trees.
func TestSessionIsItsModel(t *testing.T) {
	model, err := chat.Load("../../configs/models/tiny")
	if err != nil {
		t.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		st := NewStore()
		defer st.Close()
		eng := &moody{model: model, seen: map[string]rollout.Generation{}}
		s, err := st.Open(Config{Family: family, Engine: eng, Sampling: rollout.Sampling{MaxNewTokens: 64}})
		if err != nil {
			rt.Fatal(err)
		}
		b := &brute{}
		texts, crowds := 0, 0
		next := func() said {
			texts++
			return said{"user", fmt.Sprintf("text %d", texts)}
		}
		// A conversation to go on from: a committed one, cut anywhere, perhaps with a
		// reply that the client changed.
		prefix := func() []said {
			if len(b.turns) == 0 || rapid.IntRange(0, 9).Draw(rt, "anew") == 0 {
				return nil
			}
			c := rapid.SampledFrom(b.turns).Draw(rt, "turn").conversation()
			if rapid.IntRange(0, 3).Draw(rt, "cut") == 0 {
				c = c[:rapid.IntRange(0, len(c)).Draw(rt, "keep")]
			}
			if len(c) > 0 && rapid.IntRange(0, 7).Draw(rt, "tamper") == 0 {
				c = slices.Clone(c)
				c[rapid.IntRange(0, len(c)-1).Draw(rt, "which")].content += "!"
			}
			return c
		}
		commit := func(request []said, parent *modelTurn, delivered bool) {
			g := eng.seen[request[len(request)-1].content]
			turn := &modelTurn{
				request: request, parent: parent, prompt: g.PromptIDs, out: g.OutputIDs, undelivered: !delivered, number: len(b.turns),
				cut:   g.Meta.Finish.Type == rollout.FinishLength,
				reply: strings.TrimSuffix(model.Tokenizer().Decode(g.OutputIDs, false), "<|im_end|>"),
			}
			if parent != nil {
				held := slices.Concat(parent.prompt, parent.out)
				if len(turn.prompt) <= len(held) || !slices.Equal(turn.prompt[:len(held)], held) {
					rt.Fatalf("the prompt of %q does not begin with what the model saw before", request)
				}
			}
			b.turns = append(b.turns, turn)
		}
		reply := rapid.SampledFrom([]string{"yes", "no", "yes it is", "caf\u00e9"})
		rt.Repeat(map[string]func(*rapid.T){
			"turn": func(rt *rapid.T) {
				request := append(prefix(), next())
				says := reply.Draw(rt, "reply")
				finish := rapid.SampledFrom([]rollout.FinishType{"stop", "stop", "stop", "length", "abort"}).Draw(rt, "finish")
				delivered := rapid.IntRange(0, 4).Draw(rt, "delivered") > 0
				eng.mood = func(string) (string, rollout.FinishType, error) { return says, finish, nil }
				parent := b.parent(request)
				_, err := ask(s, request, delivered)
				if finish == rollout.FinishAbort {
					if !errors.Is(err, ErrAborted) {
						rt.Fatalf("error %v for an abort", err)
					}
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				commit(request, parent, delivered)
			},
			"repeat": func(rt *rapid.T) {
				if len(b.turns) == 0 {
					rt.Skip()
				}
				request := rapid.SampledFrom(b.turns).Draw(rt, "turn").request
				says := reply.Draw(rt, "reply")
				eng.mood = func(string) (string, rollout.FinishType, error) { return says, rollout.FinishStop, nil }
				parent, lost, before := b.parent(request), b.lost(request), s.Stats().Calls
				r, err := ask(s, request, true)
				if err != nil {
					rt.Fatal(err)
				}
				if lost != nil {
					if r.Content != lost.reply || s.Stats().Calls != before {
						rt.Fatalf("%q instead of the lost reply %q", r.Content, lost.reply)
					}
					lost.undelivered = false
					return
				}
				commit(request, parent, true)
			},
			"failure": func(rt *rapid.T) {
				request := append(prefix(), next())
				eng.mood = func(string) (string, rollout.FinishType, error) { return "", "", errors.New("broken") }
				if _, err := ask(s, request, true); engine.ReasonOf(err) != engine.Faulty {
					rt.Fatalf("error %v", err)
				}
			},
			"at once": func(rt *rapid.T) {
				if crowds++; crowds > 1 {
					rt.Skip() // the model looks at every pair of turns
				}
				const many = 64
				requests, parents := make([][]said, many), make([]*modelTurn, many)
				for i := range requests {
					requests[i] = append(prefix(), next())
					parents[i] = b.parent(requests[i])
				}
				eng.mood = func(prompt string) (string, rollout.FinishType, error) {
					return "to " + lastUser(prompt), rollout.FinishStop, nil
				}
				var wg sync.WaitGroup
				for i := range requests {
					wg.Go(func() {
						if r, err := ask(s, requests[i], true); err != nil || r.Content != "to "+requests[i][len(requests[i])-1].content {
							rt.Errorf("%q: %q, %v", requests[i], r.Content, err)
						}
					})
				}
				wg.Wait()
				// The order of commit is the session's to choose.
				order := map[string]int{}
				for _, n := range s.tree.nodes {
					tokens := n.appendTokens(nil, n.length-len(n.out))
					order[lastUser(model.Tokenizer().Decode(tokens, false))] = n.id
				}
				index := make([]int, many)
				for i := range index {
					index[i] = i
				}
				slices.SortFunc(index, func(i, j int) int {
					return order[requests[i][len(requests[i])-1].content] - order[requests[j][len(requests[j])-1].content]
				})
				for _, i := range index {
					commit(requests[i], parents[i], true)
				}
			},
			"": func(rt *rapid.T) {
				for i, turn := range b.turns {
					n, parent := s.tree.nodes[i], 0
					if turn.parent != nil {
						parent = turn.parent.number + 1
					}
					if n.parent.id != parent || !slices.Equal(n.out, turn.out) {
						rt.Fatalf("turn %d of %q goes on from %d, want %d", i+1, turn.request, n.parent.id, parent)
					}
				}
				leaves, err := s.Assemble(0)
				if err != nil {
					rt.Fatal(err)
				}
				want := b.samples()
				if len(leaves) != len(want) {
					rt.Fatalf("%d samples, want %d", len(leaves), len(want))
				}
				trained := 0
				for i, l := range leaves {
					if !slices.Equal(l.Sample.Tokens(), want[i].tokens) || !slices.Equal(l.Sample.LossMask(), want[i].mask) {
						rt.Fatalf("sample %d: %v masked %v, want %v masked %v", i, l.Sample.Tokens(), l.Sample.LossMask(), want[i].tokens, want[i].mask)
					}
					trained += l.Trained
				}
				if trained > len(b.turns) {
					rt.Fatalf("%d turns trained of %d", trained, len(b.turns))
				}
			},
		})
		if err := st.Delete(s.ID()); err != nil {
			rt.Fatal(err)
		}
		if _, err := ask(s, []said{{"user", "late"}}, true); !errors.Is(err, ErrClosed) {
			rt.Errorf("error %v from a closed session", err)
		}
	})
}
