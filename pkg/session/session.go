package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Config is what a session is made of. Family and Engine are required.
type Config struct {
	Family *chat.Family
	Engine engine.Generator
	// Sampling is the run's. A request may ask for less tokens and further stops;
	// everything else it asks for is overwritten.
	Sampling rollout.Sampling
	// Kwargs are the run's template arguments; they win over a client's.
	Kwargs  map[string]json.RawMessage
	Matcher Matcher
	// Linear refuses what does not go on from the last turn or the one before it,
	// instead of branching.
	Linear bool
	// MaxSeqLen bounds prompt and reply together, in tokens; MaxTurns the calls of
	// the session, failed ones included. 0 is no limit.
	MaxSeqLen int
	MaxTurns  int
	// Seed returns the sampling seed of a turn; nil sends none.
	Seed func(turn int) int64
	// RoutingKey keeps the session's turns on one engine. It is not the session's
	// id, which is a secret.
	RoutingKey string
	// VocabSize bounds the token ids of replies; 0 is no bound.
	VocabSize int
	// Attempt is copied to the records.
	Attempt int
	// TTL is how long the session may lie idle; 0 is for ever.
	TTL time.Duration
}

// Session is one conversation tree. It is safe for concurrent use.
type Session struct {
	cfg    Config
	id     string
	ctx    context.Context
	cancel context.CancelFunc
	calls  sync.WaitGroup

	mu      sync.Mutex
	tree    *tree
	options []*options
	flight  map[flightKey]*Call
	records []rollout.GenerationRecord
	turns   int // calls begun
	closed  bool
	stats   Stats
	idle    *time.Timer

	running   int // calls in flight
	busySince time.Time
	busy      time.Duration
}

// flightKey identifies a request: what it goes on from, and what it adds.
type flightKey struct {
	parent *node
	opts   *options
	sum    uint64
}

// Stats count what happened in a session.
type Stats struct {
	// Turns are committed generations, Calls all that were begun.
	Turns, Calls int
	// Roots are conversations that began anew.
	Roots int
	// OptionsChanged counts conversations known under other tools or arguments.
	OptionsChanged int
	Joined         int
	Replayed       int
	// Overflowed says that a prompt left no room for a reply.
	Overflowed bool
	// Busy is the time in which an engine was at work for the session.
	Busy time.Duration
}

func newSession(ctx context.Context, id string, cfg Config) *Session {
	s := &Session{cfg: cfg, id: id, tree: newTree(), flight: map[flightKey]*Call{}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// ID is the session's secret name.
func (s *Session) ID() string { return s.id }

// Match looks up the conversation whose list of messages begins at data, and
// returns the index behind the list. What it returns points into data.
func (s *Session) Match(data []byte) (Match, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tree.match(data, s.cfg.Matcher)
}

// Request is a turn that a client asks for.
type Request struct {
	Match Match
	// Tools is the JSON list of tool definitions and Kwargs the JSON object of
	// template arguments; nil for none.
	Tools, Kwargs []byte
	// MaxTokens bounds the reply below the run's own limit; 0 for none.
	MaxTokens int
	// Stop are texts that end the reply, beside the run's.
	Stop []string
	// Stream asks the engine for tokens as they are made.
	Stream bool
}

// plan is a turn before anything has happened.
type plan struct {
	key      flightKey
	from     candidate
	messages []incoming
	span     []byte // the messages as the client spelled them
}

// Begin starts a turn, joins one that is under way, or hands out the reply to one
// that its client never got. The caller must release the call. The request's bytes
// are not used once Begin has returned.
func (s *Session) Begin(req Request) (*Call, error) {
	s.mu.Lock()
	opts, err := s.optionsOf(req.Tools, req.Kwargs)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	p, call, err := s.plan(req, opts, s.choose(req.Match, opts))
	s.mu.Unlock()
	if call != nil || err != nil {
		return call, err
	}
	n, err := s.render(p, opts)
	if errors.Is(err, chat.ErrRole) && p.key.parent != s.tree.root {
		// The template cannot append such a message: the conversation begins anew.
		s.mu.Lock()
		p, call, err = s.plan(req, opts, candidate{node: s.tree.root, next: req.Match.first})
		s.mu.Unlock()
		if call != nil || err != nil {
			return call, err
		}
		n, err = s.render(p, opts)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	sampling, err := s.sampling(req, n)
	if err != nil {
		return nil, err
	}
	return s.start(req, p, n, sampling)
}

// choose picks the node that a conversation goes on from.
func (s *Session) choose(m Match, opts *options) candidate {
	for _, c := range m.best {
		if c.node.opts == opts {
			return c
		}
	}
	if len(m.best) > 0 {
		s.stats.OptionsChanged++
	}
	return candidate{node: s.tree.root, next: m.first}
}

// plan identifies a turn; it returns the call to join instead, if there is one.
func (s *Session) plan(req Request, opts *options, from candidate) (plan, *Call, error) {
	p := plan{from: from}
	if s.closed {
		return p, nil, ErrClosed
	}
	raws, span, err := req.Match.tail(from.next)
	if err != nil {
		return p, nil, err
	}
	p.span = span
	p.messages = make([]incoming, len(raws))
	for i, raw := range raws {
		if p.messages[i], err = read(raw, s.tree.seed); err != nil {
			return p, nil, fmt.Errorf("message %d: %w", i, err)
		}
	}
	inCallOrder(p.messages, from.node.reply.calls,
		func(m incoming) bool { return m.Role == "tool" }, func(m incoming) string { return m.plain.callID })
	p.key = flightKey{from.node, opts, s.sumRequest(req, p.messages)}
	if call := s.repeated(p.key); call != nil {
		return p, call, nil
	}
	if s.cfg.MaxTurns > 0 && s.turns >= s.cfg.MaxTurns {
		return p, nil, fmt.Errorf("%w of %d turns", ErrLimit, s.cfg.MaxTurns)
	}
	if s.cfg.Linear && from.node != s.tree.tip && from.node != s.tree.tip.parent {
		return p, nil, fmt.Errorf("%w: %w", ErrBadRequest, ErrHistory)
	}
	return p, nil, nil
}

// repeated returns the call that answers the same request: one in flight, or one
// whose client went away before it had the reply.
func (s *Session) repeated(key flightKey) *Call {
	if call := s.flight[key]; call != nil && call.join() {
		s.stats.Joined++
		return call
	}
	for _, n := range key.parent.children {
		if n.key == key.sum && n.opts == key.opts && n.delivered == 0 && !n.replayed {
			n.replayed = true
			s.stats.Replayed++
			return replay(s, n)
		}
	}
	return nil
}

// sumRequest identifies what a request adds, however it is spelled.
func (s *Session) sumRequest(req Request, messages []incoming) uint64 {
	var h maphash.Hash
	h.SetSeed(s.tree.seed)
	add := func(texts ...string) {
		for _, t := range texts {
			maphash.WriteComparable(&h, len(t)) // so that no text runs into the next
			h.WriteString(t)
		}
	}
	for _, m := range messages {
		add(m.plain.role, m.plain.content, m.plain.reasoning, m.plain.callID)
		for _, c := range m.plain.calls {
			add(c.ID, c.Name, c.Arguments)
		}
	}
	maphash.WriteComparable(&h, req.MaxTokens)
	add(req.Stop...)
	return h.Sum64()
}

// optionsOf returns the options that were spelled so before, or new ones.
func (s *Session) optionsOf(tools, kwargs []byte) (*options, error) {
	for _, o := range s.options {
		if bytes.Equal(o.tools, tools) && bytes.Equal(o.kwargs, kwargs) {
			return o, nil
		}
	}
	o := &options{id: uint64(len(s.options)), tools: bytes.Clone(tools), kwargs: bytes.Clone(kwargs)}
	o.render.AddGenerationPrompt = true
	if len(tools) > 0 {
		if err := json.Unmarshal(o.tools, &o.render.Tools); err != nil {
			return nil, fmt.Errorf("%w: tools: %w", ErrBadRequest, err)
		}
	}
	if len(kwargs) > 0 {
		if err := json.Unmarshal(o.kwargs, &o.render.Kwargs); err != nil {
			return nil, fmt.Errorf("%w: chat_template_kwargs: %w", ErrBadRequest, err)
		}
	}
	if len(s.cfg.Kwargs) > 0 {
		if o.render.Kwargs == nil {
			o.render.Kwargs = map[string]json.RawMessage{}
		}
		maps.Copy(o.render.Kwargs, s.cfg.Kwargs)
	}
	opens, err := s.cfg.Family.OpensReasoning(o.render)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	o.reply = chat.ReplyOptions{InReasoning: opens, Tools: o.render.Tools}
	s.options = append(s.options, o)
	return o, nil
}

// render makes the turn's node, with the prompt's tokens and no reply yet.
func (s *Session) render(p plan, opts *options) (*node, error) {
	parent := p.key.parent
	n := &node{parent: parent, opts: opts, key: p.key.sum, asked: bytes.Clone(p.span), count: len(p.messages)}
	messages := make([]rollout.Message, len(p.messages))
	for i, m := range p.messages {
		n.sums = append(n.sums, m.sum)
		messages[i] = m.Message
	}
	var err error
	if parent == s.tree.root {
		n.gap, err = s.cfg.Family.EncodeChat(messages, opts.render)
		if err == nil && len(n.gap) == 0 {
			err = errors.New("the template rendered nothing")
		}
		return n, err
	}
	// Only the last token decides about the seam, so that alone goes in.
	last := parent.lastToken()
	n.base = parent.length
	n.gap, err = s.cfg.Family.Continue([]int32{last}, []rollout.Message{parent.reply.message()}, messages, opts.render)
	if err != nil {
		return nil, err
	}
	if len(n.gap) > 0 && n.gap[0] == last {
		n.gap = n.gap[1:]
	} else {
		n.base--
	}
	return n, nil
}

// incoming is a new message.
type incoming struct {
	rollout.Message
	plain plain
	sum   uint64
}

func read(raw json.RawMessage, seed maphash.Seed) (incoming, error) {
	p, err := readPlain(raw)
	if err != nil {
		return incoming{}, err
	}
	m := incoming{rollout.Message{Role: p.role, Raw: raw}, p, sumOf(seed, p)}
	if bytes.Contains(raw, []byte(`"developer"`)) {
		m.Raw, err = asSystem(raw)
	}
	return m, err
}

// asSystem is a developer message under the name that templates know.
func asSystem(raw []byte) (json.RawMessage, error) {
	out := json.RawMessage(raw)
	_, err := Fields(raw, func(key string, at int) (int, error) {
		value, end, err := Value(raw, at)
		if err == nil && key == "role" && string(value) == `"developer"` {
			out = slices.Concat(raw[:at], []byte(`"system"`), raw[end:])
		}
		return end, err
	})
	return out, err
}

// message is a reply as history shows it.
func (p plain) message() rollout.Message {
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		ID       string   `json:"id"`
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	if len(p.calls) == 0 && p.reasoning == "" {
		return rollout.NewMessage(p.role, p.content)
	}
	calls := make([]call, len(p.calls))
	for i, c := range p.calls {
		calls[i] = call{c.ID, "function", function{c.Name, c.Arguments}}
	}
	raw, err := json.Marshal(struct {
		Role      string `json:"role"`
		Content   string `json:"content"`
		Reasoning string `json:"reasoning_content,omitempty"`
		Calls     []call `json:"tool_calls,omitempty"`
	}{p.role, p.content, p.reasoning, calls})
	if err != nil { // strings always encode
		return rollout.NewMessage(p.role, p.content)
	}
	return rollout.Message{Role: p.role, Raw: raw}
}

// sampling is the run's, with what a request may change.
func (s *Session) sampling(req Request, n *node) (rollout.Sampling, error) {
	out := s.cfg.Sampling
	if req.MaxTokens > 0 {
		out.MaxNewTokens = min(out.MaxNewTokens, req.MaxTokens)
	}
	if len(req.Stop) > 0 {
		out.Stop = slices.Concat(out.Stop, req.Stop)
	}
	if s.cfg.MaxSeqLen > 0 {
		prompt := n.base + len(n.gap)
		if prompt >= s.cfg.MaxSeqLen {
			s.mu.Lock()
			s.stats.Overflowed = true
			s.mu.Unlock()
			return out, &ContextError{Limit: s.cfg.MaxSeqLen, Prompt: prompt}
		}
		out.MaxNewTokens = min(out.MaxNewTokens, s.cfg.MaxSeqLen-prompt)
	}
	return out, nil
}

// Records returns a record of every engine call that ended, in order of turns.
func (s *Session) Records() []rollout.GenerationRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.records)
	slices.SortStableFunc(out, func(a, b rollout.GenerationRecord) int { return cmp.Compare(a.Turn, b.Turn) })
	return out
}

// Stats returns the session's counts so far.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Turns, st.Calls, st.Busy = len(s.tree.nodes), s.turns, s.busy
	st.Roots = len(s.tree.root.children)
	if s.running > 0 {
		st.Busy += time.Since(s.busySince)
	}
	return st
}

// Assemble makes samples of what is committed, each at most maxLen tokens long; 0
// is no limit. It works on a snapshot: turns go on meanwhile.
func (s *Session) Assemble(maxLen int) ([]Leaf, error) {
	s.mu.Lock()
	t := &tree{root: s.tree.root, nodes: slices.Clone(s.tree.nodes)}
	leaves := t.leaves()
	if s.cfg.Linear && s.tree.tip != s.tree.root {
		leaves = []*node{s.tree.tip}
	}
	s.mu.Unlock()
	return t.assemble(leaves, maxLen)
}

// Tokens returns the tokens up to and with the turn committed last.
func (s *Session) Tokens() []int32 {
	s.mu.Lock()
	tip := s.tree.tip
	s.mu.Unlock()
	return tip.appendTokens(nil, tip.length)
}

// Close cancels what is under way and returns when it has ended. What is committed
// stays readable.
func (s *Session) Close() {
	s.mu.Lock()
	s.closed = true
	if s.idle != nil {
		s.idle.Stop()
	}
	s.mu.Unlock()
	s.cancel()
	s.calls.Wait()
}
