package pool

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Ward is an engine in a warden's care.
type Ward struct {
	// Entry is the engine's row in the table, Name what the config calls it.
	Entry  rollout.EngineEntry
	Name   string
	Engine Candidate
}

// WardenConfig configures a warden.
type WardenConfig struct {
	Terms Terms
	// Put writes a row of the engine table.
	Put func(ctx context.Context, e rollout.EngineEntry) error
	// Period is the time between two looks at an engine, 10 s where 0; Failures
	// how many must fail in a row before it counts as dead, 3 where 0.
	Period   time.Duration
	Failures int
	Log      *slog.Logger
}

// Warden owns the states of a run's engines:
//
//	probing ──admitted──> serving ──health fails N times──> dead ──admitted again──> serving
//	                                                                 (incarnation + 1)
//
// Its methods may be called from several goroutines.
type Warden struct {
	cfg WardenConfig

	mu    sync.Mutex
	wards []*Ward
	probe int64 // completion tokens of canaries since they were last taken
	// counted are the engines' own totals at the last look.
	counted []engine.Counters
}

// NewWarden returns a warden of the engines.
func NewWarden(cfg WardenConfig, wards []*Ward) *Warden {
	if cfg.Period == 0 {
		cfg.Period = 10 * time.Second
	}
	if cfg.Failures == 0 {
		cfg.Failures = 3
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Warden{cfg: cfg, wards: wards}
}

// Admit probes all engines at once. Its error names every one that is refused.
func (w *Warden) Admit(ctx context.Context) error {
	failed := make(chan error, len(w.wards))
	for _, ward := range w.wards {
		go func() {
			err := w.admit(ctx, ward)
			switch {
			case err == nil:
			case engine.ReasonOf(err) == engine.Unreachable || engine.ReasonOf(err) == engine.Timeout:
				err = fmt.Errorf("%s: no engine answers (%w): start it, or correct its address", ward.Name, err)
			default:
				err = fmt.Errorf("%s: the engine is not fit to serve: %w", ward.Name, err)
			}
			failed <- err
		}()
	}
	all := &multierror.Error{ErrorFormat: lines}
	for range w.wards {
		if err := <-failed; err != nil {
			all = multierror.Append(all, err)
		}
	}
	return all.ErrorOrNil()
}

// lines prints errors one to a line.
func lines(errs []error) string {
	text := make([]string, len(errs))
	for i, err := range errs {
		text[i] = err.Error()
	}
	slices.Sort(text)
	return strings.Join(text, "\n")
}

// admit probes one engine and fills in its row.
func (w *Warden) admit(ctx context.Context, ward *Ward) error {
	a, err := Admit(ctx, ward.Engine, w.cfg.Terms)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probe += a.Canary.Completion()
	if err != nil {
		ward.Entry.State = rollout.EngineDead
		return err
	}
	if a.Unverified != "" && ward.Entry.Incarnation == 0 {
		w.cfg.Log.Warn("an engine's token ids could not be compared with ours", "engine", ward.Entry.ID, "reason", a.Unverified)
	}
	ward.Entry.State, ward.Entry.Version, ward.Entry.Deterministic = rollout.EngineServing, a.Info.Version, a.Info.Deterministic
	ward.Entry.Speculative = a.Info.Speculative
	return nil
}

// Share deals each engine's MaxInflight out to so many workers, and writes the
// rows that change. A worker gets at least 1, so that the sum stays within the
// bound as long as there are no more workers than requests allowed.
func (w *Warden) Share(ctx context.Context, workers int) error {
	for _, ward := range w.wards {
		row := w.row(ward)
		credits := 0
		if row.MaxInflight > 0 {
			credits = max(1, row.MaxInflight/max(1, workers))
		}
		if credits == row.Credits {
			continue
		}
		if err := w.change(ctx, ward, func(e *rollout.EngineEntry) { e.Credits = credits }); err != nil {
			return err
		}
	}
	return nil
}

// Publish writes every row of the table.
func (w *Warden) Publish(ctx context.Context) error {
	for _, ward := range w.wards {
		if err := w.cfg.Put(ctx, w.row(ward)); err != nil {
			return err
		}
	}
	return nil
}

func (w *Warden) row(ward *Ward) rollout.EngineEntry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return ward.Entry
}

// Run watches the engines until ctx ends. An engine's trouble is no error of Run;
// a table that cannot be written is.
func (w *Warden) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	for _, ward := range w.wards {
		watching.Go(func() {
			if err := w.watch(ctx, ward); err != nil {
				cancel(err)
			}
		})
	}
	watching.Wait()
	if err := context.Cause(ctx); err != nil && err != context.Canceled {
		return err
	}
	return nil
}

// watch looks after one engine. It returns the error of a write to the table.
func (w *Warden) watch(ctx context.Context, ward *Ward) error {
	tick := time.NewTicker(w.cfg.Period)
	defer tick.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if w.row(ward).State == rollout.EngineDead {
			if err := w.admit(ctx, ward); err != nil {
				w.cfg.Log.Info("a dead engine is not fit to serve yet", "engine", ward.Entry.ID, "err", err)
				continue
			}
			failures = 0
			if err := w.change(ctx, ward, func(e *rollout.EngineEntry) { e.Incarnation++ }); err != nil {
				return err
			}
			w.cfg.Log.Warn("an engine is back", "engine", ward.Entry.ID)
			continue
		}
		err := ward.Engine.Health(ctx)
		if err == nil || ctx.Err() != nil {
			failures = 0
			continue
		}
		if failures++; failures < w.cfg.Failures {
			continue
		}
		if err := w.change(ctx, ward, func(e *rollout.EngineEntry) { e.State = rollout.EngineDead }); err != nil {
			return err
		}
		w.cfg.Log.Warn("an engine is dead", "engine", ward.Entry.ID, "err", err)
	}
}

func (w *Warden) change(ctx context.Context, ward *Ward, f func(*rollout.EngineEntry)) error {
	w.mu.Lock()
	f(&ward.Entry)
	row := ward.Entry
	w.mu.Unlock()
	if err := w.cfg.Put(ctx, row); err != nil && ctx.Err() == nil {
		return fmt.Errorf("engine table: %w", err)
	}
	return nil
}

// Serving counts the engines that serve.
func (w *Warden) Serving() int {
	n := 0
	for _, e := range w.Rows() {
		if e.State == rollout.EngineServing {
			n++
		}
	}
	return n
}

// Rows returns the table as it stands.
func (w *Warden) Rows() []rollout.EngineEntry {
	rows := make([]rollout.EngineEntry, len(w.wards))
	for i, ward := range w.wards {
		rows[i] = w.row(ward)
	}
	return rows
}

// Grown is what the engines' own completion counters grew by since the last call.
// It is nil at the first, unless every engine shows a counter, and where one was
// started anew in between: what it made before nobody counts any more.
func (w *Warden) Grown(ctx context.Context) *int64 {
	now := make([]engine.Counters, len(w.wards))
	var asking sync.WaitGroup
	for i, ward := range w.wards {
		asking.Go(func() {
			if c, err := ward.Engine.Counters(ctx); err == nil {
				now[i] = c
			}
		})
	}
	asking.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.counted
	w.counted = now
	var sum int64
	for i, c := range now {
		if before == nil || c.Completion == nil || before[i].Completion == nil || *c.Completion < *before[i].Completion || !same(c.Started, before[i].Started) {
			return nil
		}
		sum += *c.Completion - *before[i].Completion
	}
	return &sum
}

func same(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }

// TakeProbeTokens returns the completion tokens of probes since the last call.
func (w *Warden) TakeProbeTokens() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.probe
	w.probe = 0
	return n
}
