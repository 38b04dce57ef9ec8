package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/internal/failpoint"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// RunConfig is what a controller says when it opens a run.
type RunConfig struct {
	Spec    rollout.RunSpec
	Version string
	// Config is the effective config without secrets, as JSON, for people.
	Config json.RawMessage
	// Fingerprint is over all of the config that must not change in a run.
	Fingerprint string
	// MaxResultBytes bounds the result stream; 0 = unbounded.
	MaxResultBytes int64
}

// Run is a controller's claim on a run. It implements [bus.Run].
type Run struct {
	c       *Conn
	n       names
	ledger  jetstream.Stream
	jobs    jetstream.Stream
	results jetstream.Stream
	table   jetstream.KeyValue
	blobs   jetstream.ObjectStore

	entry wire.RunTable // the run's own row in the table

	// mu keeps ledger appends one at a time and guards what follows.
	mu       sync.Mutex
	state    rollout.RunState
	open     []rollout.Plan
	entries  []logEntry // of the log, to know what may be compacted
	jobFence uint64
	resFence uint64
	swept    int // outages before the last sweep
}

// logEntry is where an entry of the log stands.
type logEntry struct {
	seq  uint64
	wave int64 // of a plan; -1 for any other entry
}

var _ bus.Run = (*Run)(nil)

const (
	ackWait         = 2 * time.Second
	ackWaitReplicas = 10 * time.Second // a leader election takes 4 to 9 s
	maxJobsInFlight = 4096
	nodeTTL         = 6 * time.Second
	openWait        = time.Minute
)

// OpenRun creates the run on the bus or takes it over, under a new epoch. From
// then on nothing that an earlier controller writes counts.
func OpenRun(ctx context.Context, c *Conn, cfg RunConfig) (*Run, error) {
	n, err := namesOf(cfg.Spec.Run)
	if err != nil {
		return nil, err
	}
	// The calls below outlive a restart of the server; a server that is gone ends
	// them.
	ctx, cancel := context.WithTimeoutCause(ctx, openWait, fmt.Errorf("run %s could not be opened within %s", n.run, openWait))
	defer cancel()
	r := &Run{c: c, n: n}
	if err := r.createStreams(ctx, cfg.MaxResultBytes); err != nil {
		return nil, err
	}
	if err := r.replay(ctx); err != nil {
		return nil, err
	}
	state := r.state
	if state.Fingerprint != "" && state.Fingerprint != cfg.Fingerprint {
		return nil, fmt.Errorf("run %s: %w: use another run.name, or --fresh to start this one anew", n.run, r.differs(ctx))
	}
	state.Epoch++
	state.Fingerprint = cfg.Fingerprint
	state.Closed = false // a finished run may be given more steps
	failpoint.Hit("c0")
	if err := r.append(ctx, rollout.LedgerEntry{Kind: rollout.EntryOpen, State: state}); err != nil {
		return nil, err
	}
	failpoint.Hit("c1")
	if err := r.refreshFences(ctx); err != nil {
		return nil, err
	}
	failpoint.Hit("c1b")
	r.swept = -1 // what came before this process may have been killed as well
	if err := r.Sweep(ctx); err != nil {
		return nil, err
	}
	r.entry = wire.RunTable{Schema: wire.Schema, Version: cfg.Version, Spec: cfg.Spec, Config: cfg.Config}
	return r, r.putEntry(ctx)
}

// differs says what the stored run was opened with. The table may lack it, after
// a crash or of another version: then nobody knows.
func (r *Run) differs(ctx context.Context) *bus.Differs {
	entry, err := r.table.Get(ctx, runKey)
	if err != nil {
		return &bus.Differs{}
	}
	stored, err := wire.DecodeRunTable(entry.Value())
	if err != nil {
		return &bus.Differs{}
	}
	return &bus.Differs{ModelHash: stored.Spec.Model.Hash, Config: stored.Config}
}

// DeleteRun removes all of a run from the bus. A run that is not there is no
// error.
func DeleteRun(ctx context.Context, c *Conn, run string) error {
	n, err := namesOf(run)
	if err != nil {
		return err
	}
	for _, stream := range []string{n.jobs(), n.results(), n.ledger(), "KV_" + n.table(), "OBJ_" + n.blobs()} {
		if err := c.js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return classify("delete "+stream, err)
		}
	}
	return nil
}

func (r *Run) putEntry(ctx context.Context) error {
	data, err := wire.EncodeTable(r.entry)
	if err != nil {
		return err
	}
	return r.put(ctx, runKey, data)
}

func (r *Run) createStreams(ctx context.Context, maxResultBytes int64) error {
	replicas := r.c.cfg.Replicas
	stream := func(name, subjects string, retention jetstream.RetentionPolicy, maxBytes int64) (s jetstream.Stream, err error) {
		err = r.c.retry(ctx, "create stream "+name, func(ctx context.Context) error {
			var err error
			s, err = r.c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
				Name: name, Subjects: []string{subjects}, Retention: retention, Storage: jetstream.FileStorage,
				Replicas: replicas, MaxBytes: maxBytes, Discard: jetstream.DiscardNew,
				// A replica may answer a direct get from the past; a lease mark not yet
				// there would then look like a trimmed wave.
				AllowDirect: replicas == 1,
			})
			return err
		})
		return s, err
	}
	if maxResultBytes == 0 {
		maxResultBytes = -1
	}
	var err error
	if r.ledger, err = stream(r.n.ledger(), r.n.root+"led.>", jetstream.LimitsPolicy, -1); err != nil {
		return err
	}
	if r.jobs, err = stream(r.n.jobs(), r.n.root+"jobs.>", jetstream.WorkQueuePolicy, -1); err != nil {
		return err
	}
	if r.results, err = stream(r.n.results(), r.n.root+"res.>", jetstream.LimitsPolicy, maxResultBytes); err != nil {
		return err
	}
	wait := ackWait
	if replicas > 1 {
		wait = ackWaitReplicas
	}
	// No BackOff: it would replace AckWait. No delivery limit: a job past it would
	// lie in the stream for ever; poison is judged by lease marks.
	err = r.c.retry(ctx, "create job consumer", func(ctx context.Context) error {
		_, err := r.jobs.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: workers, AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxDeliver: -1,
			MaxAckPending: maxJobsInFlight, FilterSubject: r.n.root + "jobs.*.*",
		})
		return err
	})
	if err != nil {
		return err
	}
	err = r.c.retry(ctx, "create run table", func(ctx context.Context) error {
		var err error
		r.table, err = r.c.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: r.n.table(), History: 1, Replicas: replicas, LimitMarkerTTL: time.Minute,
		})
		return err
	})
	if err != nil {
		return err
	}
	return r.c.retry(ctx, "create blob store", func(ctx context.Context) error {
		var err error
		r.blobs, err = r.c.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: r.n.blobs(), Replicas: replicas})
		return err
	})
}

// replay reads the log as it stands.
func (r *Run) replay(ctx context.Context) error {
	var entries []rollout.LedgerEntry
	r.entries = nil
	for seq := uint64(1); ; {
		var raw *jetstream.RawStreamMsg
		err := r.c.retry(ctx, "read ledger", func(ctx context.Context) error {
			var err error
			raw, err = r.ledger.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(r.n.log()))
			return err
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return err
		}
		e, err := r.c.codec.DecodeEntry(raw.Data)
		if err != nil {
			return fmt.Errorf("ledger entry %d: %w", raw.Sequence, err)
		}
		if n := len(r.entries); n > 0 && raw.Sequence != r.entries[n-1].seq+1 {
			// The log was shortened meanwhile, or a crash brought some of its front
			// back: what stands before a gap is not needed any more.
			entries, r.entries = nil, nil
		}
		entries = append(entries, e)
		r.entries = append(r.entries, entryAt(raw.Sequence, e))
		seq = raw.Sequence + 1
		failpoint.Hit("c0b")
	}
	var err error
	r.state, r.open, err = rollout.Replay(entries)
	return err
}

func entryAt(seq uint64, e rollout.LedgerEntry) logEntry {
	if e.Plan != nil {
		return logEntry{seq: seq, wave: e.Plan.Wave}
	}
	return logEntry{seq: seq, wave: -1}
}

// append writes one entry behind the last one known. The caller holds mu, or is
// the only user.
func (r *Run) append(ctx context.Context, e rollout.LedgerEntry) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("ledger nonce: %w", err)
	}
	e.Nonce = id.String()
	data, err := r.c.codec.EncodeEntry(e)
	if err != nil {
		return err
	}
	last := uint64(0)
	if len(r.entries) > 0 {
		last = r.entries[len(r.entries)-1].seq
	}
	var seq uint64
	ack, err := r.c.publish(ctx, fmt.Sprintf("append %s to ledger", e.Kind), &nats.Msg{Subject: r.n.log(), Data: data},
		jetstream.WithExpectLastSequenceForSubject(last, r.n.log()))
	switch {
	case err == nil:
		seq = ack.Sequence
	case errors.Is(err, bus.ErrFenced):
		// Perhaps an earlier try of ours was stored and only its answer was lost.
		tail, own, lookErr := r.tail(ctx)
		if lookErr != nil {
			return lookErr
		}
		if own.Nonce != e.Nonce {
			return err
		}
		seq = tail
	default:
		return err
	}
	r.entries = append(r.entries, entryAt(seq, e))
	r.state = e.State
	return nil
}

// tail reads the log's last entry.
func (r *Run) tail(ctx context.Context) (uint64, rollout.LedgerEntry, error) {
	var raw *jetstream.RawStreamMsg
	err := r.c.retry(ctx, "read ledger's tail", func(ctx context.Context) error {
		var err error
		raw, err = r.ledger.GetLastMsgForSubject(ctx, r.n.log())
		return err
	})
	if err != nil {
		return 0, rollout.LedgerEntry{}, err
	}
	e, err := r.c.codec.DecodeEntry(raw.Data)
	return raw.Sequence, e, err
}

// refreshFences writes both fence marks anew. It reads a mark, makes sure that
// the log's tail is still ours, and replaces the mark only if nobody did
// meanwhile: a controller that woke up late cannot arm itself again.
//
// A new mark also moves the front of its stream. Messages purged behind an old
// front can come back when the server is killed.
func (r *Run) refreshFences(ctx context.Context) error {
	for _, f := range []struct {
		stream  jetstream.Stream
		subject string
		seq     *uint64
	}{{r.jobs, r.n.jobFence(), &r.jobFence}, {r.results, r.n.resFence(), &r.resFence}} {
		seq, err := r.refreshFence(ctx, f.stream, f.subject)
		if err != nil {
			return err
		}
		*f.seq = seq
	}
	return nil
}

func (r *Run) refreshFence(ctx context.Context, stream jetstream.Stream, subject string) (uint64, error) {
	op := "write fence " + subject
	last, err := r.lastSequence(ctx, stream, subject)
	if err != nil {
		return 0, err
	}
	tail, _, err := r.tail(ctx)
	if err != nil {
		return 0, err
	}
	if own := r.entries[len(r.entries)-1].seq; tail != own {
		return 0, fmt.Errorf("%s: %w: the ledger's tail is %d, ours was %d", op, bus.ErrFenced, tail, own)
	}
	// The nonce makes a retry after a lost answer recognisable.
	nonce := uuid.NewString()
	failpoint.Hit("c1c")
	ack, err := r.c.publish(ctx, op, &nats.Msg{Subject: subject, Data: []byte(nonce)},
		jetstream.WithExpectLastSequenceForSubject(last, subject))
	seq := uint64(0)
	switch {
	case err == nil:
		seq = ack.Sequence
	case errors.Is(err, bus.ErrFenced):
		raw, lookErr := stream.GetLastMsgForSubject(ctx, subject)
		if lookErr != nil {
			return 0, classify(op, lookErr)
		}
		if string(raw.Data) != nonce {
			// Whoever was faster may have been fenced by our own entry: the log
			// says who is newest.
			return r.refreshFence(ctx, stream, subject)
		}
		seq = raw.Sequence
	default:
		return 0, err
	}
	return seq, classify(op, stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq)))
}

// lastSequence is the sequence of a subject's last message, 0 for none.
func (r *Run) lastSequence(ctx context.Context, stream jetstream.Stream, subject string) (uint64, error) {
	var seq uint64
	err := r.c.retry(ctx, "read "+subject, func(ctx context.Context) error {
		raw, err := stream.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			seq = 0
			return nil
		}
		if err != nil {
			return err
		}
		seq = raw.Sequence
		return nil
	})
	return seq, err
}

// State is where the ledger stands.
func (r *Run) State() rollout.RunState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Open returns the plans of the waves that are not trimmed.
func (r *Run) Open() []rollout.Plan {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]rollout.Plan(nil), r.open...)
}

// Plan appends a wave's plan.
func (r *Run) Plan(ctx context.Context, p rollout.Plan) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failpoint.Hit("c2")
	if err := r.append(ctx, rollout.LedgerEntry{Kind: rollout.EntryPlan, State: r.state.Planned(p), Plan: &p}); err != nil {
		return err
	}
	r.open = append(r.open, p)
	failpoint.Hit("c3")
	return nil
}

// Commit appends a step's manifest: from here on the step is what it lists.
func (r *Run) Commit(ctx context.Context, m rollout.Manifest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state
	state.NextStep++
	state.WasteSeen = max(state.WasteSeen, m.WasteSeen)
	failpoint.Hit("c6c")
	if err := r.append(ctx, rollout.LedgerEntry{Kind: rollout.EntryManifest, State: state, Manifest: &m}); err != nil {
		return err
	}
	failpoint.Hit("c7")
	return nil
}

// Close appends the end of the run and tells the workers.
func (r *Run) Close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state
	state.Closed = true
	if err := r.append(ctx, rollout.LedgerEntry{Kind: rollout.EntryClosed, State: state}); err != nil {
		return err
	}
	failpoint.Hit("c13")
	r.entry.Ended = true
	return r.putEntry(ctx)
}

// Trim removes the results and jobs of all waves below the given one. It may be
// repeated, and is after a crash in the middle.
func (r *Run) Trim(ctx context.Context, below int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failpoint.Hit("c8")
	for wave := r.state.Trimmed; wave < below; wave++ {
		for _, p := range []struct {
			stream jetstream.Stream
			kind   string
		}{{r.results, "res"}, {r.jobs, "jobs"}} {
			failpoint.Hit("c9") // the second time: results purged, jobs not
			subject := fmt.Sprintf("%s%s.%d.>", r.n.root, p.kind, wave)
			err := r.c.retry(ctx, "purge "+subject, func(ctx context.Context) error {
				return p.stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
			})
			if err != nil {
				return err
			}
		}
	}
	failpoint.Hit("c10")
	if below > r.state.Trimmed {
		state := r.state
		state.Trimmed = below
		if err := r.append(ctx, rollout.LedgerEntry{Kind: rollout.EntryTrimmed, State: state}); err != nil {
			return err
		}
	}
	failpoint.Hit("c11")
	if seen := r.state.WasteSeen; seen > 0 {
		err := r.c.retry(ctx, "purge waste", func(ctx context.Context) error {
			return r.results.Purge(ctx, jetstream.WithPurgeSubject(r.n.waste()), jetstream.WithPurgeSequence(seen+1))
		})
		if err != nil {
			return err
		}
	}
	keep := r.open[:0]
	for _, p := range r.open {
		if p.Wave >= below {
			keep = append(keep, p)
		}
	}
	r.open = keep
	if err := r.refreshFences(ctx); err != nil {
		return err
	}
	failpoint.Hit("c12")
	return r.compact(ctx)
}

// Outage is for how long there has been no connection to the server.
func (r *Run) Outage() time.Duration {
	d, _ := r.c.outage()
	return d
}

// Sweep purges the subjects of trimmed waves that are there again.
func (r *Run) Sweep(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, outages := r.c.outage()
	if outages == r.swept {
		return nil
	}
	for _, p := range []struct {
		stream jetstream.Stream
		prefix string
	}{{r.results, r.n.root + "res."}, {r.jobs, r.n.root + "jobs."}} {
		found, err := subjects(ctx, r.c, p.stream, p.prefix+">")
		if err != nil {
			return err
		}
		waves := map[int64]bool{}
		for subject := range found {
			head, _, _ := strings.Cut(strings.TrimPrefix(subject, p.prefix), ".")
			if wave, err := strconv.ParseInt(head, 10, 64); err == nil && wave < r.state.Trimmed {
				waves[wave] = true
			}
		}
		for wave := range waves {
			subject := fmt.Sprintf("%s%d.>", p.prefix, wave)
			err := r.c.retry(ctx, "sweep "+subject, func(ctx context.Context) error {
				return p.stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
			})
			if err != nil {
				return err
			}
		}
	}
	r.swept = outages
	return nil
}

// compact drops the front of the log: everything before the last entry that is
// not, or does not stand behind, the plan of an open wave.
func (r *Run) compact(ctx context.Context) error {
	first := len(r.entries) - 1
	for i, e := range r.entries {
		if e.wave >= r.state.Trimmed {
			first = i
			break
		}
	}
	if first <= 0 {
		return nil
	}
	err := r.c.retry(ctx, "compact ledger", func(ctx context.Context) error {
		return r.ledger.Purge(ctx, jetstream.WithPurgeSubject(r.n.log()), jetstream.WithPurgeSequence(r.entries[first].seq))
	})
	if err != nil {
		return err
	}
	r.entries = r.entries[first:]
	return nil
}

func (r *Run) put(ctx context.Context, key string, value []byte) error {
	return r.c.retry(ctx, "write run table "+key, func(ctx context.Context) error {
		_, err := r.table.Put(ctx, key, value)
		return err
	})
}

// PutEngine writes a row of the engine table.
func (r *Run) PutEngine(ctx context.Context, e rollout.EngineEntry) error {
	data, err := wire.EncodeTable(e)
	if err != nil {
		return err
	}
	return r.put(ctx, engineKeys+e.ID, data)
}

// Workers lists the workers that announced themselves lately.
func (r *Run) Workers(ctx context.Context) ([]bus.Worker, error) {
	var found []bus.Worker
	err := r.c.retry(ctx, "list workers", func(ctx context.Context) error {
		keys, err := r.table.ListKeysFiltered(ctx, nodeKeys+"*")
		if err != nil {
			return err
		}
		found = nil
		for key := range keys.Keys() {
			entry, err := r.table.Get(ctx, key)
			if errors.Is(err, jetstream.ErrKeyNotFound) {
				continue // it left meanwhile
			}
			if err != nil {
				return err
			}
			n, err := wire.DecodeTable[wire.Node](entry.Value())
			if err != nil {
				return err
			}
			found = append(found, bus.Worker{ID: n.ID, Host: n.Host, Slots: n.Slots})
		}
		return nil
	})
	return found, err
}

// Held looks at the log's tail.
func (r *Run) Held(ctx context.Context) error {
	_, last, err := r.tail(ctx)
	if err != nil {
		return err
	}
	if mine := r.State().Epoch; last.State.Epoch > mine {
		return fmt.Errorf("run %s: %w: epoch %d is open, this one is %d", r.n.run, bus.ErrFenced, last.State.Epoch, mine)
	}
	return nil
}

// Broken is an error when the embedded server can no longer store.
func (r *Run) Broken() error {
	if r.c.cfg.Server == nil {
		return nil
	}
	return r.c.cfg.Server.Broken()
}
