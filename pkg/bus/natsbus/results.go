package natsbus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/internal/failpoint"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// Headers of a result. They repeat what collection and filtering need, so that
// these read no bodies.
const (
	hdrSHA     = "Sheaf-Sha256"
	hdrAttempt = "Sheaf-Attempt"
	hdrOutcome = "Sheaf-Outcome"
	hdrReward  = "Sheaf-Reward"
	hdrTokens  = "Sheaf-Tokens"
	hdrSize    = "Sheaf-Size"
	hdrFailure = "Sheaf-Failure"
	hdrRetry   = "Sheaf-Retryable" // "true" or absent
	hdrBlob    = "Sheaf-Blob"      // name of the object that holds the record
)

const (
	// maxInline is the largest result stored in one message.
	maxInline = 8 << 20
	// headroom is kept free of a message's limit for its headers.
	headroom = 64 << 10
	// fetchBatch and fetchWait shape a reader's pulls; a reader that was lost
	// with a server restart notices after fetchWait.
	fetchBatch = 256
	fetchWait  = 5 * time.Second
)

// resultHeader builds the head of a result.
func resultHeader(e *rollout.Episode, sum [32]byte, size int) nats.Header {
	h := nats.Header{}
	h.Set(hdrSHA, hex.EncodeToString(sum[:]))
	h.Set(hdrAttempt, strconv.Itoa(e.Attempt))
	h.Set(hdrOutcome, string(e.Outcome))
	h.Set(hdrTokens, strconv.FormatInt(e.CompletionTokens(), 10))
	h.Set(hdrSize, strconv.Itoa(size))
	if e.Failure != nil {
		h.Set(hdrFailure, e.Failure.Key())
		if e.Failure.Retryable {
			h.Set(hdrRetry, "true")
		}
	}
	if reward := commonReward(e); reward != nil {
		h.Set(hdrReward, strconv.FormatFloat(*reward, 'g', -1, 64))
	}
	return h
}

// commonReward is the reward that all samples share, nil when they share none.
func commonReward(e *rollout.Episode) *float64 {
	var common *float64
	for _, s := range e.Samples {
		if s.Reward == nil || common != nil && *common != *s.Reward {
			return nil
		}
		common = s.Reward
	}
	return common
}

// receipt reads the head of a stored result.
func receipt(id rollout.EpisodeID, seq uint64, h nats.Header) (bus.Receipt, error) {
	r := bus.Receipt{
		Episode: id, Sequence: seq, Outcome: rollout.Outcome(h.Get(hdrOutcome)),
		Failure: h.Get(hdrFailure), Retryable: h.Get(hdrRetry) == "true",
	}
	sum, err := hex.DecodeString(h.Get(hdrSHA))
	if err != nil || len(sum) != len(r.SHA256) {
		return r, fmt.Errorf("result %d: %w: digest header %q", seq, bus.ErrDamaged, h.Get(hdrSHA))
	}
	copy(r.SHA256[:], sum)
	if r.Attempt, err = strconv.Atoi(h.Get(hdrAttempt)); err != nil {
		return r, fmt.Errorf("result %d: %w: attempt header %q", seq, bus.ErrDamaged, h.Get(hdrAttempt))
	}
	if r.CompletionTokens, err = strconv.ParseInt(h.Get(hdrTokens), 10, 64); err != nil {
		return r, fmt.Errorf("result %d: %w: tokens header %q", seq, bus.ErrDamaged, h.Get(hdrTokens))
	}
	if r.Size, err = strconv.Atoi(h.Get(hdrSize)); err != nil {
		return r, fmt.Errorf("result %d: %w: size header %q", seq, bus.ErrDamaged, h.Get(hdrSize))
	}
	if text := h.Get(hdrReward); text != "" {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return r, fmt.Errorf("result %d: %w: reward header %q", seq, bus.ErrDamaged, text)
		}
		r.Reward = &v
	}
	return r, nil
}

// Follow calls f for the head of every stored result from the first on. There is
// no cursor to trust: what is stored is the truth, and it is read anew.
func (r *Run) Follow(ctx context.Context, f func(bus.Receipt) error) error {
	cfg := jetstream.ConsumerConfig{FilterSubject: r.n.root + "res.*.*.*", HeadersOnly: true}
	return r.read(ctx, cfg, false, func(m jetstream.Msg, seq uint64, _ uint64) (bool, error) {
		id, ok := r.n.parseResult(m.Subject())
		if !ok {
			return true, nil // a lease mark
		}
		rec, err := receipt(id, seq, m.Headers())
		if err != nil {
			return false, err
		}
		failpoint.Hit("c6")
		return true, f(rec)
	})
}

// Load reads stored results.
func (r *Run) Load(ctx context.Context, receipts []bus.Receipt, f func(bus.Receipt, *rollout.Episode) error) error {
	failpoint.Hit("c6b")
	want := make(map[uint64]bus.Receipt, len(receipts))
	waves := map[int64]bool{}
	var filters []string
	first := uint64(0)
	for _, rec := range receipts {
		want[rec.Sequence] = rec
		if first == 0 || rec.Sequence < first {
			first = rec.Sequence
		}
		if !waves[rec.Episode.Wave] {
			waves[rec.Episode.Wave] = true
			filters = append(filters, fmt.Sprintf("%sres.%d.*.*", r.n.root, rec.Episode.Wave))
		}
	}
	if len(want) == 0 {
		return nil
	}
	cfg := jetstream.ConsumerConfig{FilterSubjects: filters, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: first}
	var damaged bus.Damaged
	report := func(rec bus.Receipt, err error) {
		damaged.Receipts = append(damaged.Receipts, rec)
		if damaged.Err == nil {
			damaged.Err = err
		}
	}
	err := r.read(ctx, cfg, true, func(m jetstream.Msg, seq uint64, pending uint64) (bool, error) {
		if rec, ok := want[seq]; ok {
			delete(want, seq)
			e, err := r.record(ctx, rec, m)
			switch {
			case errors.Is(err, bus.ErrDamaged):
				report(rec, err)
			case err != nil:
				return false, err
			default:
				if err := f(rec, e); err != nil {
					return false, err
				}
			}
		}
		return len(want) > 0 && pending > 0, nil
	})
	if err != nil {
		return err
	}
	for seq, rec := range want {
		report(rec, fmt.Errorf("result %d of episode %+v: it is not stored any more", seq, rec.Episode))
	}
	if len(damaged.Receipts) > 0 {
		return &damaged
	}
	return nil
}

// Drop removes a stored result. The message at its sequence may be another by
// now, or gone: then there is nothing to remove.
func (r *Run) Drop(ctx context.Context, rec bus.Receipt) error {
	return r.c.retry(ctx, "drop result", func(ctx context.Context) error {
		raw, err := r.results.GetMsg(ctx, rec.Sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && raw.Subject != r.n.result(rec.Episode) {
			return nil
		}
		if err != nil {
			return err
		}
		err = r.results.DeleteMsg(ctx, rec.Sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		return err
	})
}

// record reads one record and checks that it is the one of the receipt.
func (r *Run) record(ctx context.Context, rec bus.Receipt, m jetstream.Msg) (*rollout.Episode, error) {
	if m.Subject() != r.n.result(rec.Episode) {
		return nil, fmt.Errorf("result %d of episode %+v: %w: %s stands there", rec.Sequence, rec.Episode, bus.ErrDamaged, m.Subject())
	}
	data := m.Data()
	if name := m.Headers().Get(hdrBlob); name != "" {
		obj, err := r.blobs.Get(ctx, name)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, fmt.Errorf("result %d of episode %+v: %w: its blob is gone", rec.Sequence, rec.Episode, bus.ErrDamaged)
		}
		if err != nil {
			return nil, classify("read blob "+name, err)
		}
		data, err = io.ReadAll(obj)
		closeErr := obj.Close()
		if err = errors.Join(err, closeErr); err != nil {
			return nil, classify("read blob "+name, err)
		}
	}
	if sha256.Sum256(data) != rec.SHA256 {
		return nil, fmt.Errorf("result %d of episode %+v: %w: its digest is another", rec.Sequence, rec.Episode, bus.ErrDamaged)
	}
	e, err := r.c.codec.DecodeEpisode(data)
	switch {
	case errors.Is(err, wire.ErrSchema):
		// All the store is another version's. That is said, not worked around.
		return nil, fmt.Errorf("result %d: %w", rec.Sequence, err)
	case err == nil && e.ID != rec.Episode:
		err = fmt.Errorf("it is of episode %+v", e.ID)
	}
	if err != nil {
		return undecodable(rec, fmt.Errorf("result %d of episode %+v: %w", rec.Sequence, rec.Episode, err)), nil
	}
	return e, nil
}

// undecodable is the episode of a record that is stored as it was written and
// that nobody can read. Reading it again would not help, nor would its worker,
// which would write the same; so it costs this episode. One call stands for what
// its head says was generated.
func undecodable(rec bus.Receipt, err error) *rollout.Episode {
	f := rollout.NewFailure(rollout.BoundaryWorker, "undecodable", false, err)
	e := &rollout.Episode{ID: rec.Episode, Attempt: rec.Attempt, Outcome: rollout.OutcomeFailed, Failure: f}
	if n := rec.CompletionTokens; n > 0 {
		e.Generations = []rollout.GenerationRecord{{Attempt: rec.Attempt, OutputLen: int(n), Fate: rollout.FateFailed, Failure: f}}
	}
	return e
}

// Waste returns the waste reported behind a sequence.
func (r *Run) Waste(ctx context.Context, behind uint64) ([]rollout.Waste, uint64, error) {
	var all []rollout.Waste
	for {
		var raw *jetstream.RawStreamMsg
		err := r.c.retry(ctx, "read waste", func(ctx context.Context) error {
			var err error
			raw, err = r.results.GetMsg(ctx, behind+1, jetstream.WithGetMsgSubject(r.n.waste()))
			return err
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all, behind, nil
		}
		if err != nil {
			return nil, 0, err
		}
		w, err := r.c.codec.DecodeWaste(raw.Data)
		if err != nil {
			return nil, 0, fmt.Errorf("waste record %d: %w", raw.Sequence, err)
		}
		all = append(all, w)
		behind = raw.Sequence
	}
}

// read feeds f the messages of the result stream until f says that it has
// enough, ctx ends or, with stored set, no more are stored. Its consumer lives in
// the server's memory. When it is lost, another begins from the first message: a
// server that came back from a damaged store uses sequences again, so that new
// messages may stand before the last one seen.
func (r *Run) read(ctx context.Context, cfg jetstream.ConsumerConfig, stored bool, f func(m jetstream.Msg, seq, pending uint64) (more bool, err error)) error {
	cfg.AckPolicy = jetstream.AckNonePolicy
	cfg.MemoryStorage = true
	cfg.Replicas = 1
	cfg.InactiveThreshold = 6 * fetchWait
	for {
		var cons jetstream.Consumer
		err := r.c.retry(ctx, "read results", func(ctx context.Context) error {
			var err error
			cons, err = r.results.CreateConsumer(ctx, cfg)
			return err
		})
		if err != nil {
			return err
		}
		done := stored && cons.CachedInfo().NumPending == 0
		if !done {
			done, err = r.drain(ctx, cons, stored, f)
		}
		// The consumer is of no use any more; the server would drop it by itself
		// after a while, so a failure to do it now is no error.
		del, cancel := r.c.bound(context.WithoutCancel(ctx), tryTimeout)
		_ = r.results.DeleteConsumer(del, cons.CachedInfo().Name)
		cancel()
		if done || err != nil {
			return err
		}
	}
}

// drain reads one consumer until f has enough (done), or the consumer is lost
// (not done, no error).
func (r *Run) drain(ctx context.Context, cons jetstream.Consumer, stored bool, f func(m jetstream.Msg, seq, pending uint64) (bool, error)) (done bool, err error) {
	for {
		if ctx.Err() != nil {
			return true, context.Cause(ctx)
		}
		pull, cancel := r.c.bound(ctx, fetchWait)
		batch, err := cons.Fetch(fetchBatch, jetstream.FetchContext(pull))
		if err != nil {
			cancel()
			return false, nil
		}
		got := 0
		for m := range batch.Messages() {
			got++
			meta, err := m.Metadata()
			if err != nil {
				cancel()
				return true, fmt.Errorf("read results: %w", err)
			}
			more, err := f(m, meta.Sequence.Stream, meta.NumPending)
			if err != nil || !more {
				cancel()
				return true, err
			}
		}
		cancel()
		if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return false, nil
		}
		if stored && got == 0 {
			// What was pending may have been purged by another controller: count anew.
			return false, nil
		}
	}
}
