package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/bus"
)

// follow puts the head of every stored result into the inbox until ctx ends.
func (c *Controller) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		once, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(c.refollow.wait(), func() { cancel(errAgain) })
		err := c.Config.Run.Follow(once, func(r bus.Receipt) error {
			select {
			case c.inbox <- r:
				return nil
			case <-once.Done():
				return context.Cause(once)
			}
		})
		stop()
		ended := once.Err() != nil // by us, or with the run: no fault of the bus
		cancel(nil)
		if err != nil && !ended {
			return err
		}
	}
	return nil
}

// errAgain ends one reading of the heads, so that another begins from the first.
var errAgain = errors.New("read the stored results again")

// trigger lets one goroutine wait for the next call of another.
type trigger struct {
	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
}

// wait returns a context that ends with the next fire.
func (t *trigger) wait() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx == nil || t.ctx.Err() != nil {
		t.ctx, t.cancel = context.WithCancel(context.Background())
	}
	return t.ctx
}

func (t *trigger) fire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancel != nil {
		t.cancel()
	}
}

// take notes a receipt. The first one of an episode counts.
func (c *Controller) take(r bus.Receipt, trimmed int64) {
	if _, known := c.receipts[r.Episode]; known || r.Episode.Wave < trimmed {
		return
	}
	c.receipts[r.Episode] = r
	c.board.mu.Lock()
	c.board.status.Stored++
	c.board.status.Progress, c.board.status.WaitingOn = time.Now(), ""
	c.board.outcomes[r.Outcome]++
	c.board.mu.Unlock()
	c.Observer.EpisodeStored(r)
}

// collect waits until every episode of the wave has a stored result. It returns
// their receipts in order of group and episode.
func (c *Controller) collect(ctx context.Context, w *wave) ([]bus.Receipt, error) {
	p := w.plan
	trimmed := c.Config.Run.State().Trimmed
	want := w.episodes()
	have := make([]bus.Receipt, 0, want)
	for id, r := range c.receipts { // of an earlier step, or stored before a restart
		if id.Wave == p.Wave {
			have = append(have, r)
		}
	}
	c.board.update(func(s *Status) { s.Stored = len(have) })
	last := time.Now()
	patience := time.NewTimer(c.Patience)
	defer patience.Stop()
	for len(have) < want {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case r := <-c.inbox:
			before := len(c.receipts)
			c.take(r, trimmed)
			if len(c.receipts) > before && r.Episode.Wave == p.Wave {
				have = append(have, r)
			}
			last = time.Now()
			patience.Reset(c.Patience)
		case <-patience.C:
			if err := c.wait(ctx, w, want-len(have), time.Since(last)); err != nil {
				return nil, err
			}
			patience.Reset(c.Patience)
		}
	}
	slices.SortFunc(have, func(a, b bus.Receipt) int {
		return cmp.Or(cmp.Compare(a.Episode.Group, b.Episode.Group), cmp.Compare(a.Episode.Index, b.Episode.Index))
	})
	return have, nil
}

// wait says what the step waits for, makes sure that its jobs are still queued,
// and ends it at the stall limit.
func (c *Controller) wait(ctx context.Context, w *wave, missing int, idle time.Duration) error {
	workers, err := c.Config.Run.Workers(ctx)
	if err != nil {
		return err
	}
	on := fmt.Sprintf("%d of %d episodes of step %d; %d workers; nothing stored for %s",
		missing, w.episodes(), w.plan.Step, len(workers), idle.Round(time.Second))
	if c.engines() == 0 {
		on += "; no engine serves"
	}
	if len(workers) == 0 {
		on += "; start one with: worker --nats URL"
	}
	c.board.update(func(s *Status) { s.WaitingOn = on })
	c.Observer.Waiting(on)
	if idle >= c.StallLimit {
		cause := ErrStalled
		if c.engines() == 0 {
			cause = ErrNoEngine
		}
		return fmt.Errorf("%w: waited for %s; the run can be resumed", cause, on)
	}
	if err := c.Config.Run.Sweep(ctx); err != nil {
		return err
	}
	return c.Config.Run.Submit(ctx, w.jobs)
}
