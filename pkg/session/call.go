package session

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Call is a turn under way, or one that ended. Several requests may wait for it; it
// is cancelled when none does.
type Call struct {
	session *Session
	node    *node
	turn    int
	// replyID names the reply to clients. It is not the engine's request id: who
	// knows that one could abort the request.
	replyID string
	cancel  context.CancelFunc

	// Of the goroutine that generates.
	decoder *chat.Decoder
	parser  *chat.ReplyParser
	held    []int32 // tokens that may be the end of the turn

	mu      sync.Mutex
	waiting int
	pieces  []chat.Piece
	ended   bool
	err     error
	changed chan struct{} // closed at the next change
}

// Reply is a finished turn as clients see it.
type Reply struct {
	ID        string
	Content   string
	Reasoning string
	ToolCalls []rollout.ToolCall
	Finish    rollout.FinishType
	// Prompt and Completion count tokens; Cached and Thinking are nil where the
	// engine did not say.
	Prompt, Completion int
	Cached, Thinking   *int64
}

// start registers the call and lets it run, unless the same request came first.
func (s *Session) start(req Request, p plan, n *node, sampling rollout.Sampling) (*Call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if call := s.repeated(p.key); call != nil {
		return call, nil
	}
	for _, sp := range p.from.spelled {
		sp.apply()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	c := &Call{
		session: s, node: n, turn: s.turns, replyID: engine.NewID(), cancel: cancel, waiting: 1, changed: make(chan struct{}),
		parser: s.cfg.Family.NewReplyParser(n.opts.reply), decoder: s.cfg.Family.NewDecoder(),
	}
	s.turns++
	s.flight[p.key] = c
	if s.running == 0 {
		s.busySince = time.Now()
	}
	s.running++
	if s.idle != nil {
		s.idle.Stop()
	}
	r := engine.Request{
		ID: engine.NewID(), Sampling: sampling, RoutingKey: s.cfg.RoutingKey, VocabSize: s.cfg.VocabSize, Turn: c.turn, Attempt: s.cfg.Attempt,
	}
	if s.cfg.Seed != nil {
		r.Seed = rollout.Ptr(s.cfg.Seed(c.turn))
	}
	s.calls.Go(func() {
		defer cancel()
		prompt := n.parent.appendTokens(make([]int32, 0, n.parent.length+len(n.gap)), n.base)
		r.PromptIDs = append(prompt, n.gap...)
		g, err := c.generate(ctx, r, req.Stream)
		c.finish(s.commit(p.key, c, g, err))
	})
	return c, nil
}

// apply remembers how the client spells a node's messages.
func (sp spelling) apply() {
	if sp.asked != nil {
		sp.node.asked = append([]byte(nil), sp.asked...)
	}
	if sp.echo != nil {
		sp.node.echo = append([]byte(nil), sp.echo...)
	}
}

// generate asks the engine and takes the reply apart as it comes. A fault in our
// own code costs this call and no other session's.
func (c *Call) generate(ctx context.Context, r engine.Request, stream bool) (g rollout.Generation, err error) {
	defer func() {
		if p := recover(); p != nil {
			g.GenerationRecord = rollout.GenerationRecord{
				ID: r.ID, Turn: r.Turn, Attempt: r.Attempt, PromptLen: len(r.PromptIDs), Fate: rollout.FateFailed,
				Failure: rollout.NewFailure(rollout.BoundarySession, "panic", false, fmt.Errorf("%v", p)),
			}
			err = g.Failure
		}
	}()
	engines := c.session.cfg.Engine
	seen := 0
	if stream {
		g, err = engine.Stream(ctx, engines, r, func(chunk engine.Chunk) error {
			seen += len(chunk.IDs)
			c.take(chunk.IDs)
			return nil
		})
	} else {
		g, err = engines.Generate(ctx, r)
	}
	if err != nil || g.Fate != rollout.FateFinished {
		return g, err
	}
	// What could not be merged into a sample must not become a part of the session.
	if err := c.check(g); err != nil {
		g.Fate = rollout.FateFailed
		g.Failure = rollout.NewFailure(rollout.BoundaryEngine, string(engine.BadReply), true, err)
		return g, &engine.Error{Reason: engine.BadReply, Engine: g.Engine, Err: err}
	}
	c.take(g.OutputIDs[min(seen, len(g.OutputIDs)):])
	c.publish(c.parser.Next(c.decoder.Next(c.session.cfg.Family.TrimStop(c.held)...) + c.decoder.Flush()))
	c.publish(c.parser.Finish())
	return g, nil
}

// check tells whether a generation may become part of the session: the engine saw
// the parent's tokens first, and the merger takes what it made.
func (c *Call) check(g rollout.Generation) error {
	if _, _, err := c.node.parent.prompt(g.PromptIDs, c.session.cfg.Family.MaxTrim()); err != nil {
		return err
	}
	g.PromptIDs = g.PromptIDs[max(0, len(g.PromptIDs)-1):] // the merger copies all of it
	return new(rollout.Sample).Append(g)
}

// take hands new tokens to the parser, but for one at the end that may be the end
// of the turn, which clients do not see.
func (c *Call) take(ids []int32) {
	if len(ids) == 0 {
		return
	}
	ids = append(c.held, ids...)
	keep := len(c.session.cfg.Family.TrimStop(ids))
	c.publish(c.parser.Next(c.decoder.Next(ids[:keep]...)))
	c.held = append([]int32(nil), ids[keep:]...)
}

func (c *Call) publish(pieces []chat.Piece) {
	if len(pieces) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pieces {
		if p.Kind == chat.CallPiece {
			p.Call.ID = c.callID()
		}
		c.pieces = append(c.pieces, p)
	}
	c.change()
}

// callID mints the id of the reply's next tool call.
func (c *Call) callID() string {
	n := 0
	for _, p := range c.pieces {
		if p.Kind == chat.CallPiece {
			n++
		}
	}
	return "call_" + c.replyID[:24] + strconv.Itoa(n)
}

// commit ends a call: its record is kept, and if all went well its node becomes
// part of the tree.
func (s *Session) commit(key flightKey, c *Call, g rollout.Generation, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flight, key)
	s.running--
	if s.running == 0 {
		s.busy += time.Since(s.busySince)
	}
	s.rearm()
	s.records = append(s.records, g.GenerationRecord)
	switch {
	case err != nil:
		return err
	case g.Fate != rollout.FateFinished:
		return ErrAborted
	}
	n := c.node
	n.replyID = c.replyID
	n.reply = c.plain()
	s.tree.add(n, g)
	return nil
}

// plain is the reply as history is compared with it.
func (c *Call) plain() plain {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := plain{role: "assistant"}
	var content, reasoning strings.Builder
	for _, piece := range c.pieces {
		switch piece.Kind {
		case chat.ReasoningPiece:
			reasoning.WriteString(piece.Text)
		case chat.ContentPiece:
			content.WriteString(piece.Text)
		case chat.CallPiece:
			p.calls = append(p.calls, piece.Call)
		}
	}
	p.content, p.reasoning = content.String(), reasoning.String()
	return p
}

func (c *Call) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.err = true, err
	c.change()
}

func (c *Call) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// replay is a call that ended before.
func replay(s *Session, n *node) *Call {
	c := &Call{session: s, node: n, replyID: n.replyID, waiting: 1, ended: true, changed: make(chan struct{}), cancel: func() {}}
	if n.reply.reasoning != "" {
		c.pieces = append(c.pieces, chat.Piece{Kind: chat.ReasoningPiece, Text: n.reply.reasoning})
	}
	if n.reply.content != "" {
		c.pieces = append(c.pieces, chat.Piece{Kind: chat.ContentPiece, Text: n.reply.content})
	}
	for _, call := range n.reply.calls {
		c.pieces = append(c.pieces, chat.Piece{Kind: chat.CallPiece, Call: call})
	}
	return c
}

// join adds one who waits, unless the call is given up already.
func (c *Call) join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == 0 && !c.ended {
		return false
	}
	c.waiting++
	return true
}

// Release says that the caller waits no longer. The last one cancels the call.
func (c *Call) Release() {
	c.mu.Lock()
	c.waiting--
	last := c.waiting == 0 && !c.ended
	c.mu.Unlock()
	if last {
		c.cancel()
	}
}

// ID names the reply to clients.
func (c *Call) ID() string { return c.replyID }

// Next returns the pieces of the reply from number from on, as soon as there are
// any. At the end of the reply it returns none and ended.
func (c *Call) Next(ctx context.Context, from int) (pieces []chat.Piece, ended bool, err error) {
	for {
		c.mu.Lock()
		pieces, ended, err = c.pieces[from:], c.ended, c.err
		changed := c.changed
		c.mu.Unlock()
		if len(pieces) > 0 {
			return pieces, false, nil
		}
		if ended {
			return nil, true, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// Wait returns the whole reply.
func (c *Call) Wait(ctx context.Context) (Reply, error) {
	for {
		c.mu.Lock()
		ended, err, changed := c.ended, c.err, c.changed
		c.mu.Unlock()
		if ended {
			if err != nil {
				return Reply{}, err
			}
			return c.Reply(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Reply{}, context.Cause(ctx)
		}
	}
}

// Reply is the reply of a call that ended well.
func (c *Call) Reply() Reply {
	n := c.node
	finish := n.record.Meta.Finish.Type
	if finish == rollout.FinishStop && len(n.reply.calls) > 0 {
		finish = rollout.FinishToolCalls
	}
	return Reply{
		ID: c.replyID, Content: n.reply.content, Reasoning: n.reply.reasoning, ToolCalls: n.reply.calls, Finish: finish,
		Prompt: n.base + len(n.gap), Completion: len(n.out),
		Cached: n.record.Meta.CachedTokens, Thinking: n.record.Meta.ReasoningTokens,
	}
}

// Delivered says that a client is being given the last of the reply. A request that
// repeats this one gets a reply of its own from then on. It is called before the last
// byte is written: the client may be faster than we are.
func (c *Call) Delivered() { c.count(1) }

// Lost takes Delivered back, for a client that went away.
func (c *Call) Lost() { c.count(-1) }

func (c *Call) count(n int) {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	c.node.delivered += n
}
