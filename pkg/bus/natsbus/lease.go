package natsbus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
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

// lease is a claim on one job.
type lease struct {
	m       *Member
	msg     jetstream.Msg
	job     rollout.Job
	attempt int
	mark    uint64 // sequence of our lease mark: the fence of every result

	// publish lets one result of a lease be under way at a time: with replicas a
	// second one under the same fence is refused for the moment.
	publish sync.Mutex
	once    sync.Once
	fenced  chan struct{}
}

var _ bus.Lease = (*lease)(nil)

// leaseWait bounds one pull, so that a pull that the server forgot is renewed.
const leaseWait = 5 * time.Second

// Lease waits for a job until ctx ends.
func (m *Member) Lease(ctx context.Context) (bus.Lease, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		msg, err := m.pull(ctx)
		if err != nil {
			return nil, err
		}
		if msg == nil {
			continue
		}
		l, err := m.claim(ctx, msg)
		if errors.Is(err, bus.ErrFenced) {
			continue
		}
		if err != nil {
			// Another worker, or we ourselves a little later, may do better.
			_ = msg.NakWithDelay(time.Second)
			if errors.Is(err, bus.ErrUnavailable) {
				continue
			}
			return nil, err
		}
		return l, nil
	}
}

// pull waits for one message for a while; nil when there was none.
func (m *Member) pull(ctx context.Context) (jetstream.Msg, error) {
	wait, cancel := m.c.bound(ctx, leaseWait)
	defer cancel()
	batch, err := m.consumer.Fetch(1, jetstream.FetchContext(wait))
	if err == nil {
		for msg := range batch.Messages() {
			return msg, nil
		}
		err = batch.Error()
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout):
		return nil, nil
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("%w: run %s was removed", bus.ErrNoRun, m.n.run)
	}
	// Disconnected, or the server restarts: try again a little later.
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return nil, nil
	}
}

// claim turns a delivered job into a lease: it leaves the next lease mark and
// lists what is stored already. ErrFenced means that there is nothing to claim.
func (m *Member) claim(ctx context.Context, msg jetstream.Msg) (*lease, error) {
	job, err := m.c.codec.DecodeJob(msg.Data())
	if err != nil {
		return nil, err
	}
	l := &lease{m: m, msg: msg, job: job, fenced: make(chan struct{})}
	failpoint.Hit("w0")
	if err := l.writeMark(ctx); err != nil {
		if errors.Is(err, errNoMark) {
			_ = msg.TermWithReason("its wave is trimmed")
		}
		return nil, err
	}
	failpoint.Hit("w1")
	if l.attempt > 1 {
		filter := m.n.result(rollout.EpisodeID{Wave: job.Wave, Group: job.Group})
		filter = filter[:len(filter)-1] + "*"
		stored, err := subjects(ctx, m.c, m.results, filter)
		if err != nil {
			return nil, err
		}
		l.job.Episodes = slices.DeleteFunc(l.job.Episodes, func(e int) bool {
			return stored[m.n.result(rollout.EpisodeID{Wave: job.Wave, Group: job.Group, Index: e})] > 0
		})
	}
	m.mu.Lock()
	m.leases[l] = struct{}{}
	m.mu.Unlock()
	return l, nil
}

// errNoMark: the group has no lease mark, so its wave is gone.
var errNoMark = fmt.Errorf("%w: the job's wave is trimmed", bus.ErrFenced)

// writeMark leaves the next lease mark by compare-and-set on the last one.
func (l *lease) writeMark(ctx context.Context) error {
	subject := l.m.n.mark(l.job.Wave, l.job.Group)
	last, lastSeq, err := l.lastMark(ctx, subject)
	if err != nil {
		return err
	}
	mine := wire.LeaseMark{Attempt: last.Attempt + 1, Worker: l.m.cfg.Worker, Nonce: uuid.NewString()}
	data, err := l.m.c.codec.EncodeMark(mine)
	if err != nil {
		return err
	}
	l.attempt = mine.Attempt
	ack, err := l.m.c.publish(ctx, "write lease mark "+subject, &nats.Msg{Subject: subject, Data: data},
		jetstream.WithExpectLastSequenceForSubject(lastSeq, subject))
	switch {
	case err == nil:
		l.mark = ack.Sequence
		return nil
	case errors.Is(err, bus.ErrFenced):
		// Somebody was faster, unless it was an earlier try of ours.
		now, seq, lookErr := l.lastMark(ctx, subject)
		if lookErr != nil {
			return lookErr
		}
		if now == mine {
			l.mark = seq
			return nil
		}
	}
	return err
}

func (l *lease) lastMark(ctx context.Context, subject string) (wire.LeaseMark, uint64, error) {
	var raw *jetstream.RawStreamMsg
	err := l.m.c.retry(ctx, "read lease mark "+subject, func(ctx context.Context) error {
		var err error
		raw, err = l.m.results.GetLastMsgForSubject(ctx, subject)
		return err
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return wire.LeaseMark{}, 0, errNoMark
	}
	if err != nil {
		return wire.LeaseMark{}, 0, err
	}
	mark, err := l.m.c.codec.DecodeMark(raw.Data)
	return mark, raw.Sequence, err
}

func (l *lease) Job() rollout.Job        { return l.job }
func (l *lease) Attempt() int            { return l.attempt }
func (l *lease) Fenced() <-chan struct{} { return l.fenced }

// Publish stores one result under the lease's fence.
func (l *lease) Publish(ctx context.Context, e *rollout.Episode) error {
	data, err := l.m.c.codec.EncodeEpisode(e)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	msg := &nats.Msg{Subject: l.m.n.result(e.ID), Data: data, Header: resultHeader(e, sum, len(data))}
	op := "store result " + msg.Subject

	l.publish.Lock()
	defer l.publish.Unlock()
	if limit := min(maxInline, l.m.c.MaxRecord()); len(data) > limit {
		// The record goes first, its fenced reference second: a reference never
		// names what is not there.
		err := l.m.c.retry(ctx, op, func(ctx context.Context) error {
			_, err := l.m.blobs.Put(ctx, jetstream.ObjectMeta{Name: digest}, bytes.NewReader(data))
			return err
		})
		if err != nil {
			return err
		}
		msg.Data = nil
		msg.Header.Set(hdrBlob, digest)
	}
	_, err = l.m.c.publish(ctx, op, msg,
		jetstream.WithExpectLastSequenceForSubject(l.mark, l.m.n.mark(e.ID.Wave, e.ID.Group)),
		// Of this lease: the same bytes under a later one are another result.
		jetstream.WithMsgID(fmt.Sprintf("%d.%s", l.mark, digest)))
	if errors.Is(err, bus.ErrFenced) {
		l.drop()
		l.once.Do(func() { close(l.fenced) })
		l.m.fenced()
	}
	failpoint.Hit("w2")
	return err
}

// wasteWait bounds how long waste is tried to be reported: a worker that lost its
// broker has nothing to tell it.
const wasteWait = 10 * time.Second

// Waste reports what was generated in vain.
func (l *lease) Waste(ctx context.Context, w rollout.Waste) error {
	data, err := l.m.c.codec.EncodeWaste(w)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wasteWait)
	defer cancel()
	sum := sha256.Sum256(data)
	_, err = l.m.c.publish(ctx, "report waste", &nats.Msg{Subject: l.m.n.waste(), Data: data}, jetstream.WithMsgID(hex.EncodeToString(sum[:])))
	return err
}

// Done removes the job.
func (l *lease) Done(ctx context.Context) error {
	defer l.drop()
	defer failpoint.Hit("w5")
	failpoint.Hit("w4")
	return l.m.c.retry(ctx, "acknowledge job "+l.job.ID(), func(ctx context.Context) error {
		err := l.msg.DoubleAck(ctx)
		if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return nil
		}
		return err
	})
}

// Release gives the job back for another worker.
func (l *lease) Release(context.Context) error {
	l.drop()
	if err := l.msg.Nak(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return classify("release job "+l.job.ID(), err)
	}
	return nil
}

// drop ends the lease's heartbeat.
func (l *lease) drop() {
	l.m.mu.Lock()
	delete(l.m.leases, l)
	l.m.mu.Unlock()
}
