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
)

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
