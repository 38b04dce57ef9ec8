package natsbus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// MemberConfig says who joins.
type MemberConfig struct {
	// Run to join; "" joins the only one on the bus.
	Run string
	// Worker is the worker's id, unique on the bus.
	Worker  string
	Version string
	// Wait bounds how long to look for the run; 0 looks once.
	Wait time.Duration
	// InProcess says that the worker shares its process with the server: a stop of
	// the one is a stop of the other, and no reason for the worker to leave.
	InProcess bool
	// Waiting is called, when set, each time the run was looked for in vain.
	Waiting func(error)
}

// Member is a worker's place in a run. It implements [bus.Member].
type Member struct {
	c        *Conn
	n        names
	cfg      MemberConfig
	spec     rollout.RunSpec
	table    jetstream.KeyValue
	results  jetstream.Stream
	consumer jetstream.Consumer
	blobs    jetstream.ObjectStore

	ended chan struct{}
	// stalled is closed when a fence shows that a lease ran out while the process
	// was stopped.
	stalled chan struct{}
	once    sync.Once
	work    sync.WaitGroup  // heartbeat and watch of the run's row
	ctx     context.Context // of both
	cancel  context.CancelFunc
	mu      sync.Mutex
	leases  map[*lease]struct{}
	beaten  time.Time // the last heartbeat
	late    bool      // some heartbeat came so late that leases may have run out
}

var _ bus.Member = (*Member)(nil)

const (
	heartbeat  = 700 * time.Millisecond // below AckWait by more than a stall that is to be forgiven
	joinPeriod = 250 * time.Millisecond
)

// Join finds the run, checks that controller and worker fit, and begins to keep
// the worker's leases alive. Close ends that.
func Join(ctx context.Context, c *Conn, cfg MemberConfig) (*Member, error) {
	m := &Member{c: c, cfg: cfg, leases: map[*lease]struct{}{}, ended: make(chan struct{}), stalled: make(chan struct{})}
	deadline := time.Now().Add(cfg.Wait)
	for {
		err := m.c.try(ctx, "look for the run", m.find)
		if err == nil {
			break
		}
		if !errors.Is(err, bus.ErrNoRun) && !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline) {
			return nil, err
		}
		if cfg.Waiting != nil {
			cfg.Waiting(err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-time.After(joinPeriod):
		}
	}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	updates, err := m.watch(m.ctx, runKey)
	if err != nil {
		m.cancel()
		return nil, err
	}
	m.beaten = time.Now()
	m.work.Go(m.beat)
	m.work.Go(func() { m.watchEnd(updates) })
	return m, nil
}

// watchEnd closes ended when the run's entry says that the run is finished.
func (m *Member) watchEnd(updates <-chan jetstream.KeyValueEntry) {
	ended := false
	for update := range updates {
		if ended || update == nil || update.Operation() != jetstream.KeyValuePut {
			continue
		}
		if rt, err := wire.DecodeRunTable(update.Value()); err == nil && rt.Ended {
			ended = true
			close(m.ended)
		}
	}
}

// find looks for the run once.
func (m *Member) find(ctx context.Context) error {
	run := m.cfg.Run
	if run == "" {
		var err error
		if run, err = m.onlyRun(ctx); err != nil {
			return err
		}
	}
	n, err := namesOf(run)
	if err != nil {
		return err
	}
	m.n = n
	if m.table, err = m.c.js.KeyValue(ctx, n.table()); err != nil {
		return m.missing(run, err)
	}
	entry, err := m.table.Get(ctx, runKey)
	if err != nil {
		return m.missing(run, err)
	}
	rt, err := wire.DecodeRunTable(entry.Value())
	if err != nil {
		return err
	}
	if rt.Ended {
		return fmt.Errorf("%w: run %s at %s is finished", bus.ErrNoRun, run, m.c.where())
	}
	if rt.Version != m.cfg.Version {
		return fmt.Errorf("run %s: %w: the controller is %s, this worker is %s: run both from one build", run, bus.ErrVersion, rt.Version, m.cfg.Version)
	}
	m.spec = rt.Spec
	if m.results, err = m.c.js.Stream(ctx, n.results()); err != nil {
		return m.missing(run, err)
	}
	if m.consumer, err = m.c.js.Consumer(ctx, n.jobs(), workers); err != nil {
		return m.missing(run, err)
	}
	m.blobs, err = m.c.js.ObjectStore(ctx, n.blobs())
	return m.missing(run, err)
}

func (m *Member) missing(run string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrKeyNotFound),
		errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		return fmt.Errorf("%w: run %s at %s: start its controller", bus.ErrNoRun, run, m.c.where())
	default:
		return classify("join run "+run, err)
	}
}

func (m *Member) onlyRun(ctx context.Context) (string, error) {
	var found []string
	names := m.c.js.KeyValueStoreNames(ctx)
	for bucket := range names.Name() {
		if run, ok := strings.CutPrefix(bucket, tablePrefix); ok && !m.hasEnded(ctx, bucket) {
			found = append(found, run)
		}
	}
	if err := names.Error(); err != nil {
		return "", classify("list runs", err)
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w at %s: start a controller", bus.ErrNoRun, m.c.where())
	case 1:
		return found[0], nil
	default:
		return "", fmt.Errorf("%w at %s (%s): name one with --run", bus.ErrManyRuns, m.c.where(), strings.Join(found, ", "))
	}
}

// hasEnded says that a bucket's run is finished; a finished run is no candidate
// for a worker that named none.
func (m *Member) hasEnded(ctx context.Context, bucket string) bool {
	table, err := m.c.js.KeyValue(ctx, bucket)
	if err != nil {
		return false
	}
	entry, err := table.Get(ctx, runKey)
	if err != nil {
		return false
	}
	rt, err := wire.DecodeRunTable(entry.Value())
	return err == nil && rt.Ended
}

// Close stops the heartbeat of all leases.
func (m *Member) Close() {
	m.cancel()
	m.work.Wait()
}

// Stalled is closed once this process was stopped and a lease was lost by it.
func (m *Member) Stalled() <-chan struct{} { return m.stalled }

// checkLate notes a heartbeat that is overdue by more than a lease lives: on the
// server it runs out whether this process runs or not. The caller holds mu.
func (m *Member) checkLate() { m.late = m.late || time.Since(m.beaten) > ackWait }

// fenced notes that a lease was lost.
func (m *Member) fenced() {
	m.mu.Lock()
	m.checkLate() // a fence may be met before the next heartbeat
	late := m.late
	m.mu.Unlock()
	if late && !m.cfg.InProcess {
		m.once.Do(func() { close(m.stalled) })
	}
}

// Ended is closed once the run is finished.
func (m *Member) Ended() <-chan struct{} { return m.ended }

// beat extends all live leases from one ticker.
func (m *Member) beat() {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		m.mu.Lock()
		m.checkLate()
		m.beaten = time.Now()
		live := slices.Collect(maps.Keys(m.leases))
		m.mu.Unlock()
		for _, l := range live {
			// It is sent without an answer; what was not heard shows in the next
			// fenced write.
			_ = l.msg.InProgress()
		}
	}
}

// Spec is what the worker must know of the run.
func (m *Member) Spec() rollout.RunSpec { return m.spec }

// Engines returns the engine table and each new state of it.
func (m *Member) Engines(ctx context.Context) (<-chan []rollout.EngineEntry, error) {
	updates, err := m.watch(ctx, engineKeys+"*")
	if err != nil {
		return nil, err
	}
	out := make(chan []rollout.EngineEntry, 1)
	go func() {
		defer close(out)
		table := map[string]rollout.EngineEntry{}
		complete := false
		for update := range updates {
			switch {
			case update == nil: // the state at the start was read
				complete = true
			case update.Operation() != jetstream.KeyValuePut:
				delete(table, update.Key())
			default:
				e, err := wire.DecodeTable[rollout.EngineEntry](update.Value())
				if err != nil {
					continue // not written by a controller of our version
				}
				table[update.Key()] = e
			}
			if !complete {
				continue
			}
			state := slices.SortedFunc(maps.Values(table), func(a, b rollout.EngineEntry) int { return strings.Compare(a.ID, b.ID) })
			select { // the newest state replaces one that nobody took
			case <-out:
			default:
			}
			out <- state
		}
	}()
	return out, nil
}

// Announce keeps the worker visible until ctx ends.
func (m *Member) Announce(ctx context.Context, slots int) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	data, err := wire.EncodeTable(wire.Node{ID: m.cfg.Worker, Host: host, PID: os.Getpid(), Version: m.cfg.Version, Slots: slots})
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("$KV.%s.%s%s", m.n.table(), nodeKeys, m.cfg.Worker)
	tick := time.NewTicker(nodeTTL / 3)
	defer tick.Stop()
	for {
		try, cancel := m.c.bound(ctx, tryTimeout)
		_, err := m.c.js.PublishMsg(try, &nats.Msg{Subject: subject, Data: data}, jetstream.WithMsgTTL(nodeTTL))
		cancel()
		if err = classify("announce worker", err); err != nil && !passing(err) && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			// Leave at once rather than after the TTL. The broker may be gone, in
			// which case the TTL does it.
			last, cancel := m.c.bound(context.WithoutCancel(ctx), tryTimeout)
			_ = m.table.Delete(last, nodeKeys+m.cfg.Worker)
			cancel()
			return nil
		case <-tick.C:
		}
	}
}
