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
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// Submit makes sure that each job is queued, or was and has all its results. The
// jobs are of one wave. It writes what is missing: the first lease mark of a
// group, then its job.
//
// A fence that is not there may have been lost with a damaged store: it is
// written again once, which fails where somebody newer has the run.
func (r *Run) Submit(ctx context.Context, jobs []rollout.Job) error {
	err := r.submit(ctx, jobs)
	if !errors.Is(err, bus.ErrFenced) {
		return err
	}
	r.mu.Lock()
	err = r.refreshFences(ctx)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.submit(ctx, jobs)
}

func (r *Run) submit(ctx context.Context, jobs []rollout.Job) error {
	if len(jobs) == 0 {
		return nil
	}
	wave := jobs[0].Wave
	stored, err := r.subjects(ctx, r.results, fmt.Sprintf("%sres.%d.>", r.n.root, wave))
	if err != nil {
		return err
	}
	queued, err := r.subjects(ctx, r.jobs, fmt.Sprintf("%sjobs.%d.>", r.n.root, wave))
	if err != nil {
		return err
	}
	first, err := r.c.codec.EncodeMark(wire.LeaseMark{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	jobFence, resFence := r.jobFence, r.resFence
	r.mu.Unlock()
	// Ids tell repeated tries of this call apart from a later call, which queues
	// anew what was lost.
	call := uuid.NewString()

	var marks, msgs []fenced
	for _, j := range jobs {
		if j.Wave != wave {
			return fmt.Errorf("submit: jobs of waves %d and %d in one call", wave, j.Wave)
		}
		mark := r.n.mark(wave, j.Group)
		if stored[mark] == 0 {
			marks = append(marks, fenced{&nats.Msg{Subject: mark, Data: first}, resFence, r.n.resFence(), fmt.Sprintf("%s.mark.%d", call, j.Group)})
		}
		if r.complete(stored, j) || queued[r.n.job(wave, j.Group)] > 0 {
			continue
		}
		data, err := r.c.codec.EncodeJob(j)
		if err != nil {
			return err
		}
		msgs = append(msgs, fenced{&nats.Msg{Subject: r.n.job(wave, j.Group), Data: data}, jobFence, r.n.jobFence(), fmt.Sprintf("%s.job.%d", call, j.Group)})
	}
	if err := r.publishAll(ctx, "write lease marks", marks); err != nil {
		return err
	}
	failpoint.Hit("c3b")
	if err := r.publishAll(ctx, "queue jobs", msgs); err != nil {
		return err
	}
	failpoint.Hit("c5")
	return nil
}

func (r *Run) complete(stored map[string]uint64, j rollout.Job) bool {
	for _, e := range j.Episodes {
		if stored[r.n.result(rollout.EpisodeID{Wave: j.Wave, Group: j.Group, Index: e})] == 0 {
			return false
		}
	}
	return true
}

// subjects counts the stored messages by subject.
func (r *Run) subjects(ctx context.Context, stream jetstream.Stream, filter string) (map[string]uint64, error) {
	return subjects(ctx, r.c, stream, filter)
}

func subjects(ctx context.Context, c *Conn, stream jetstream.Stream, filter string) (map[string]uint64, error) {
	var found map[string]uint64
	err := c.retry(ctx, "list "+filter, func(ctx context.Context) error {
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return err
		}
		found = info.State.Subjects
		return nil
	})
	return found, err
}

// fenced is a message with what it expects: the last sequence of a subject.
type fenced struct {
	msg     *nats.Msg
	fence   uint64
	subject string
	id      string // for deduplication of repeated tries
}

// publishAll stores all messages. They go out together; those whose first try
// did not succeed are repeated one by one.
func (r *Run) publishAll(ctx context.Context, op string, msgs []fenced) error {
	futures := make([]jetstream.PubAckFuture, len(msgs))
	for i, m := range msgs {
		failpoint.Hit("c4")
		f, err := r.c.js.PublishMsgAsync(m.msg, jetstream.WithExpectLastSequenceForSubject(m.fence, m.subject), jetstream.WithMsgID(m.id))
		if err != nil {
			continue // repeated below
		}
		futures[i] = f
	}
	for i, f := range futures {
		var err error
		switch {
		case f == nil:
			err = errors.New("not sent")
		default:
			try, cancel := r.c.bound(ctx, tryTimeout)
			select {
			case <-f.Ok():
			case err = <-f.Err():
			case <-try.Done():
				err = context.Cause(try)
			}
			cancel()
		}
		if err == nil {
			continue
		}
		if err := classify(op, err); f != nil && !passing(err) {
			return err
		}
		m := msgs[i]
		_, err = r.c.publish(ctx, op, m.msg, jetstream.WithExpectLastSequenceForSubject(m.fence, m.subject), jetstream.WithMsgID(m.id))
		if err != nil {
			return err
		}
	}
	return nil
}
