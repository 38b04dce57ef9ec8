package natsbus

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/internal/failpoint"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// logEntry is where an entry of the log stands.
type logEntry struct {
	seq  uint64
	wave int64 // of a plan; -1 for any other entry
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
