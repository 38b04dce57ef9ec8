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

// Broken is an error when the embedded server can no longer store.
func (r *Run) Broken() error {
	if r.c.cfg.Server == nil {
		return nil
	}
	return r.c.cfg.Server.Broken()
}
