package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Text is the model's text side: its chat template and tokenizer.
type Text interface {
	// EncodePrompt returns the prompt as the engine sees it and as people read it.
	EncodePrompt(p rollout.Prompt) (ids []int32, text string, err error)
	// Decode returns the text of ids, with or without special tokens.
	Decode(ids []int32, skipSpecial bool) string
	// VocabSize is one more than the highest id that Decode knows.
	VocabSize() int
}

// Config is what a worker is made of.
type Config struct {
	ID     string
	Member bus.Member
	Engine engine.Generator
	Text   Text
	// Scorer is nil where agents alone give rewards.
	Scorer reward.Scorer
	// Sessions is needed by a run in session mode.
	Sessions *Sessions
	// Slots is the number of episodes that run at once.
	Slots int
	Log   *slog.Logger
}

// Worker runs episodes of one run.
type Worker struct {
	Config
	spec  rollout.RunSpec
	slots *slots
	drain chan struct{}
	once  sync.Once
}

// Causes of cancellation inside a worker.
var (
	errFenced   = errors.New("the lease was lost")
	errDeadline = errors.New("episode deadline")
)

// giveBack bounds how long a stopping worker tries to give jobs back.
const giveBack = 2 * time.Second

// New returns a worker.
func New(cfg Config) (*Worker, error) {
	if cfg.Slots < 1 {
		return nil, fmt.Errorf("worker slots: %d, want at least 1", cfg.Slots)
	}
	spec := cfg.Member.Spec()
	if spec.Mode == rollout.ModeSession && (cfg.Sessions == nil || spec.Session == nil) {
		return nil, errors.New("the run is in session mode and this worker has no sessions")
	}
	return &Worker{Config: cfg, spec: spec, slots: newSlots(cfg.Slots), drain: make(chan struct{})}, nil
}

// Drain makes Run return once the jobs it holds are done. It may be called at
// any time, and more than once.
func (w *Worker) Drain() { w.once.Do(func() { close(w.drain) }) }

// ErrStalled: the process was stopped for so long that another worker took over
// what it held. It is an [bus.ErrFenced].
var ErrStalled = fmt.Errorf("this worker was stopped for a while and its jobs went to others: %w", bus.ErrFenced)

// Run leases and runs jobs until the run is finished, the worker is drained, or
// ctx ends, which gives back at once what is not done. It ends with ErrStalled
// when the process was stopped and lost a lease by it.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := w.run(ctx, cancel)
	if isClosed(w.Member.Stalled()) {
		return ErrStalled
	}
	return err
}

func (w *Worker) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	leasing, stop := context.WithCancel(ctx)
	defer stop()
	var held sync.WaitGroup
	defer held.Wait()
	held.Go(func() {
		select {
		case <-leasing.Done():
		case <-w.drain:
		case <-w.Member.Ended():
		case <-w.Member.Stalled():
			cancel(ErrStalled)
		}
		stop()
	})
	held.Go(func() {
		if err := w.Member.Announce(leasing, w.Slots); err != nil {
			w.Log.Warn("this worker is not visible to the controller", "err", err)
		}
	})
	for {
		if !w.slots.room(leasing) {
			return nil
		}
		l, err := w.Member.Lease(leasing)
		if err != nil {
			if leasing.Err() != nil {
				return nil
			}
			return fmt.Errorf("lease a job: %w", err)
		}
		w.slots.add(len(l.Job().Episodes))
		held.Go(func() { w.work(ctx, l) })
	}
}

// work runs one lease, whose episodes are due in the slots.
func (w *Worker) work(ctx context.Context, l bus.Lease) {
	job := l.Job()
	log := w.Log.With("job", job.ID(), "attempt", l.Attempt())
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-l.Fenced():
			cancel(errFenced)
		case <-ctx.Done():
		}
	})

	err := w.episodes(ctx, l, job)
	if err == nil {
		err = l.Done(ctx)
	}
	switch {
	case err == nil:
	case errors.Is(err, bus.ErrFenced) || errors.Is(context.Cause(ctx), errFenced):
		log.Info("the job went to another worker")
	default:
		if ctx.Err() != nil { // the worker stops: nothing is wrong with the job
			log.Info("the job is given back")
		} else {
			log.Warn("the job is given back", "err", err)
		}
		back, done := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer done()
		if err := l.Release(back); err != nil {
			// Without an answer its lease runs out by itself.
			log.Warn("the job could not be given back", "err", err)
		}
	}
}

// episodes runs and stores the job's episodes, each in a slot.
func (w *Worker) episodes(ctx context.Context, l bus.Lease, job rollout.Job) error {
	var ids []int32
	var text string
	var promptErr error
	if w.spec.Mode != rollout.ModeSession { // an agent makes its own prompts
		ids, text, promptErr = w.Text.EncodePrompt(job.Prompt)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = err
		}
	}
	for i, index := range job.Episodes {
		if !w.slots.take(ctx) {
			w.slots.drop(len(job.Episodes) - i)
			fail(context.Cause(ctx))
			break
		}
		wg.Go(func() {
			defer w.slots.release()
			a := attempt{w: w, job: job, index: index, number: l.Attempt(), promptIDs: ids, promptText: text}
			e := a.run(ctx, promptErr)
			if !a.taken {
				err := l.Publish(ctx, e)
				if err == nil {
					return
				}
				fail(err)
				if errors.Is(err, bus.ErrMaybeStored) {
					return // as waste it might count a second time
				}
			} else {
				fail(context.Cause(ctx))
			}
			w.waste(ctx, l, e)
		})
	}
	wg.Wait()
	return first
}

// waste reports the generations of an episode whose result is not stored.
func (w *Worker) waste(ctx context.Context, l bus.Lease, e *rollout.Episode) {
	if len(e.Generations) == 0 {
		return
	}
	reason := "given_back"
	if errors.Is(context.Cause(ctx), errFenced) || isClosed(l.Fenced()) {
		reason = "fenced"
	}
	err := l.Waste(context.WithoutCancel(ctx), rollout.Waste{
		Episode: e.ID, Attempt: e.Attempt, Worker: w.ID, Reason: reason, Generations: e.Generations,
	})
	if err != nil {
		w.Log.Warn("generated tokens are missing in the books", "episode", e.ID, "tokens", e.CompletionTokens(), "err", err)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
