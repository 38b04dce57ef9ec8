package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Engine is one engine as the pool uses it.
type Engine interface {
	engine.Generator
	// Close releases the engine's connections. No call is under way.
	Close()
}

// Config makes a pool. Dial is required.
type Config struct {
	// Dial returns the engine of an entry, without connecting to it.
	Dial func(rollout.EngineEntry) (Engine, error)
	// Failures is how many calls must fail in a row before an engine cools down;
	// 3 where 0. One is enough where it cannot be reached.
	Failures int
	// CoolDown is the first time out of the choice, doubled by each failed trial up
	// to MaxCoolDown; 1 s and 30 s where 0.
	CoolDown, MaxCoolDown time.Duration
	// Log is told of engines that leave the choice and come back; nil is no log.
	Log *slog.Logger
}

// Pool is many engines. It is safe for concurrent use, and implements
// [engine.Generator].
type Pool struct {
	cfg Config

	mu      sync.Mutex
	closed  bool
	members map[string]*member
	// waiting are the calls that found no engine, oldest first.
	waiting []*waiter
	keys    affinity
	// retiring are the engines being closed.
	retiring sync.WaitGroup
}

var (
	_ engine.Generator = (*Pool)(nil)
	_ engine.Streamer  = (*Pool)(nil)
)

// ErrClosed reports a call on a pool that is closed.
var ErrClosed = errors.New("the pool of engines is closed")

// New returns a pool without engines.
func New(cfg Config) *Pool {
	if cfg.Failures == 0 {
		cfg.Failures = 3
	}
	if cfg.CoolDown == 0 {
		cfg.CoolDown = time.Second
	}
	if cfg.MaxCoolDown == 0 {
		cfg.MaxCoolDown = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Pool{cfg: cfg, members: map[string]*member{}}
}

// Set makes the pool's engines those of the table. An engine whose address or
// incarnation changed is a new one; one that is gone gets no new call. An entry
// that cannot be dialled is logged, and tried again at the next Set.
func (p *Pool) Set(table []rollout.EngineEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	gone := p.members
	p.members = make(map[string]*member, len(table))
	for _, e := range table {
		if m, ok := gone[e.ID]; ok && m.entry.URL == e.URL && m.entry.Incarnation == e.Incarnation {
			m.entry = e
			p.members[e.ID] = m
			delete(gone, e.ID)
			continue
		}
		eng, err := p.cfg.Dial(e)
		if err != nil {
			p.cfg.Log.Error("an engine of the table cannot be used", "engine", e.ID, "error", err)
			continue
		}
		p.members[e.ID] = &member{entry: e, engine: eng}
	}
	for _, m := range gone {
		p.retire(m)
	}
	p.dispatch()
}

// Close ends the calls that wait for an engine, and waits for those under way
// and for the engines to close.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	for _, w := range p.waiting {
		close(w.ready)
	}
	p.waiting = nil
	for _, m := range p.members {
		p.retire(m)
	}
	p.members = nil
	p.mu.Unlock()
	p.retiring.Wait()
	return nil
}

// retire closes an engine once it is idle.
func (p *Pool) retire(m *member) {
	m.retired = true
	m.stopTimer()
	m.idle = make(chan struct{})
	if m.inFlight == 0 {
		close(m.idle)
	}
	p.retiring.Go(func() {
		<-m.idle
		m.engine.Close()
	})
}

// Generate implements [engine.Generator] with the engine that has the fewest
// calls in flight, or the one that served the request's routing key last. While
// none is free it waits, until ctx ends.
func (p *Pool) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	return p.call(ctx, req, func(e Engine, req engine.Request) (rollout.Generation, error) {
		return e.Generate(ctx, req)
	})
}

// Stream is Generate that hands on tokens as they arrive.
func (p *Pool) Stream(ctx context.Context, req engine.Request, emit func(engine.Chunk) error) (rollout.Generation, error) {
	return p.call(ctx, req, func(e Engine, req engine.Request) (rollout.Generation, error) {
		return engine.Stream(ctx, e, req, emit)
	})
}

// call finds an engine and calls it. An engine that cannot be reached has emitted
// nothing, so that the next one may begin anew.
func (p *Pool) call(ctx context.Context, req engine.Request, do func(Engine, engine.Request) (rollout.Generation, error)) (rollout.Generation, error) {
	start := time.Now()
	var unreached error
	for {
		t, err := p.acquire(ctx, req.RoutingKey)
		if err != nil {
			return unsent(req, p.noEngine(ctx, time.Since(start), errors.Join(err, unreached)))
		}
		g, err := do(t.member.engine, req)
		reason := engine.ReasonOf(err)
		p.release(t, reason, err)
		if reason != engine.Unreachable {
			return g, err
		}
		unreached = err
		req.ID = engine.NewID()
	}
}

// unsent is the record of a call that no engine saw.
func unsent(req engine.Request, fault *engine.Error) (rollout.Generation, error) {
	return rollout.Generation{PromptIDs: req.PromptIDs, GenerationRecord: rollout.GenerationRecord{
		ID: req.ID, Turn: req.Turn, Attempt: req.Attempt, PromptLen: len(req.PromptIDs),
		Fate: rollout.FateFailed, Failure: fault.Failure(),
	}}, fault
}

// noEngine is the error of a call that waited in vain.
func (p *Pool) noEngine(ctx context.Context, waited time.Duration, cause error) *engine.Error {
	fault := &engine.Error{Reason: engine.NoEngine, Engine: "pool"}
	if errors.Is(ctx.Err(), context.Canceled) || errors.Is(cause, ErrClosed) {
		fault.Reason = engine.Canceled
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fault.Err = fmt.Errorf("waited %v for a free engine (%s): %w", waited.Round(time.Millisecond), p.describe(), cause)
	return fault
}

// describe says why no engine is free.
func (p *Pool) describe() string {
	if len(p.members) == 0 {
		return "there is none"
	}
	words := make([]string, 0, len(p.members))
	for id, m := range p.members {
		words = append(words, id+" "+m.describe())
	}
	slices.Sort(words)
	const most = 8
	if len(words) > most {
		words = append(words[:most], fmt.Sprintf("and %d more", len(words)-most))
	}
	return strings.Join(words, ", ")
}

// waiter is a call that waits. ready gets its engine, or is closed with the pool.
type waiter struct {
	key   string
	ready chan ticket
}

// ticket is the right to one call.
type ticket struct {
	member *member
	trial  bool
}

// acquire takes an engine for one call; release gives it back. Calls get engines
// in the order in which they came.
func (p *Pool) acquire(ctx context.Context, key string) (ticket, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ticket{}, ErrClosed
	}
	w := &waiter{key: key, ready: make(chan ticket, 1)}
	p.waiting = append(p.waiting, w)
	p.dispatch()
	p.mu.Unlock()

	select {
	case t, ok := <-w.ready:
		if !ok {
			return ticket{}, ErrClosed
		}
		return t, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return ticket{}, context.Cause(ctx)
	}
	// An engine came at the same time.
	if t, ok := <-w.ready; ok {
		p.put(t)
		p.dispatch()
	}
	return ticket{}, context.Cause(ctx)
}

// dispatch gives free engines to waiting calls. It is called after every change
// that may free one, with the lock held.
func (p *Pool) dispatch() {
	for len(p.waiting) > 0 {
		m := p.choose(p.waiting[0].key)
		if m == nil {
			return
		}
		w := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		w.ready <- p.take(m, w.key)
	}
}

// choose returns the engine for a key: the one that has its prefix in the cache,
// else the one with the fewest calls, and of those the one used least so far. It
// is nil when none is free.
func (p *Pool) choose(key string) *member {
	now := time.Now()
	if m := p.members[p.keys.get(key)]; m != nil && m.free(now) {
		return m
	}
	var best *member
	for _, m := range p.members {
		if m.free(now) && (best == nil || m.before(best)) {
			best = m
		}
	}
	return best
}

func (p *Pool) take(m *member, key string) ticket {
	p.keys.set(key, m.entry.ID)
	m.inFlight++
	m.sent++
	m.onTrial = m.cooling
	return ticket{member: m, trial: m.cooling}
}

// put gives back a ticket, used or not.
func (p *Pool) put(t ticket) {
	m := t.member
	m.inFlight--
	if t.trial {
		m.onTrial = false
	}
	if m.retired && m.inFlight == 0 {
		close(m.idle)
	}
}

// release gives back a ticket after its call, and judges the engine by it.
func (p *Pool) release(t ticket, reason engine.Reason, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(t)
	m := t.member
	switch {
	case m.retired:
	case err == nil:
		if m.cooling {
			p.cfg.Log.Info("engine takes calls again", "engine", m.entry.ID)
		}
		m.recover()
	case !blames(err):
	case m.cooling && !t.trial:
		// It began before the cool-down, which answers it already.
	default:
		m.failures++
		m.lastError = err
		if t.trial || m.failures >= p.cfg.Failures || reason == engine.Unreachable {
			p.coolDown(m)
		}
	}
	p.dispatch()
}

// coolDown takes an engine out of the choice for a while.
func (p *Pool) coolDown(m *member) {
	d := p.cfg.MaxCoolDown
	if m.coolings < 16 {
		d = min(d, p.cfg.CoolDown<<m.coolings)
	}
	m.coolings++
	m.failures, m.cooling, m.until = 0, true, time.Now().Add(d)
	m.stopTimer()
	m.timer = time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dispatch()
	})
	p.cfg.Log.Warn("engine leaves the choice", "engine", m.entry.ID, "for", d, "error", m.lastError)
}

// blames tells a failure that speaks against the engine from one that the request
// or the caller brought about.
func blames(err error) bool {
	var e *engine.Error
	if !errors.As(err, &e) {
		return true
	}
	switch e.Reason {
	case engine.Canceled, engine.TooLarge:
		return false
	case engine.Rejected:
		// It refuses not this request but every one.
		return e.Status == 401 || e.Status == 403 || e.Status == 404 || e.Status == 405
	default:
		return true
	}
}

// member is one engine and what the pool knows of it. The pool's lock guards it.
type member struct {
	entry    rollout.EngineEntry
	engine   Engine
	inFlight int
	sent     uint64

	// failures counts calls failed in a row, coolings the cool-downs since the
	// last success.
	failures, coolings int
	lastError          error
	// cooling is true until a call succeeds; from until on, one call at a time may
	// try, and onTrial is true while one does.
	cooling, onTrial bool
	until            time.Time
	timer            *time.Timer

	retired bool
	// idle is closed when a retired engine has no call left.
	idle chan struct{}
}

func (m *member) free(now time.Time) bool {
	switch {
	case m.entry.State != rollout.EngineServing, m.full():
		return false
	case m.cooling:
		return !m.onTrial && !now.Before(m.until)
	default:
		return true
	}
}

func (m *member) full() bool { return m.entry.Credits > 0 && m.inFlight >= m.entry.Credits }

// before orders engines by how much they would like a call.
func (m *member) before(o *member) bool {
	return cmp.Or(cmp.Compare(m.inFlight, o.inFlight), cmp.Compare(m.sent, o.sent), cmp.Compare(m.entry.ID, o.entry.ID)) < 0
}

func (m *member) recover() {
	m.failures, m.coolings, m.cooling, m.lastError = 0, 0, false, nil
	m.stopTimer()
}

func (m *member) stopTimer() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

func (m *member) describe() string {
	switch {
	case m.entry.State != rollout.EngineServing:
		return "is " + string(m.entry.State)
	case m.cooling:
		return fmt.Sprintf("cools down after: %v", m.lastError)
	case m.full():
		return fmt.Sprintf("is full with %d calls", m.inFlight)
	default:
		return "is free"
	}
}
