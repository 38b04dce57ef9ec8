package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// Prompts is an endless row of prompts: a pure function of the position.
type Prompts interface {
	At(position int64) (rollout.Prompt, error)
}

// Meter reads the engines' own books.
type Meter interface {
	// Grown is what the engines' own completion counters grew by since the last
	// call; nil at the first, and where it is not known.
	Grown(ctx context.Context) *int64
	// TakeProbeTokens returns the completion tokens of probes since the last call.
	TakeProbeTokens() int64
	// Rows are the engines as they stand.
	Rows() []rollout.EngineEntry
}

// Observer is told of a run's progress, from one goroutine.
type Observer interface {
	// StepStarted: a step wants so many episodes.
	StepStarted(step int64, episodes int)
	// Retrying: so many failed episodes of the step run again.
	Retrying(step int64, episodes int)
	// EpisodeStored: a result arrived.
	EpisodeStored(r bus.Receipt)
	// Failed: the first failure of its key, once its step was loaded.
	Failed(f *rollout.Failure)
	// Waiting: nothing arrived for a while.
	Waiting(on string)
	// StepDone: a step is committed and its files are in dir.
	StepDone(step int64, dir string, r *step.Result)
}

// Config is what a controller is made of.
type Config struct {
	Run     bus.Run
	Prompts Prompts
	Codec   *wire.Codec
	// Steps is the number of steps of the whole run.
	Steps int64
	// Groups and Episodes are the groups of a step and the episodes of a group.
	Groups   int
	Episodes int

	RunName         string
	Sampling        rollout.Sampling
	MaxContext      int
	EpisodeDeadline time.Duration
	Retries         Retries
	// AllowEmptySteps commits a step of which every episode failed.
	AllowEmptySteps bool
	// Patience is how long nothing may arrive before the observer is told;
	// StallLimit how long before the run fails.
	Patience   time.Duration
	StallLimit time.Duration

	// Step is the step configuration; its Step field is set for each step.
	Step step.Config
	// Meter reads what the engines count themselves; it may be nil.
	Meter Meter
	// Dir is the run's folder.
	Dir      string
	Observer Observer
	Log      *slog.Logger
}

// DefaultRetries is how often an episode runs again for a reason without a budget
// of its own.
const DefaultRetries = 2

// Retries is how often an episode that failed for a passing reason runs again: by
// the failure's key ("engine/reset"), its boundary ("engine"), or "default".
type Retries map[string]int

// Budget is the number of retries for a failure's key.
func (r Retries) Budget(key string) int {
	if n, ok := r[key]; ok {
		return n
	}
	boundary, _, _ := strings.Cut(key, "/")
	if n, ok := r[boundary]; ok {
		return n
	}
	if n, ok := r["default"]; ok {
		return n
	}
	return DefaultRetries
}

// Ends of a run that name what was waited for.
var (
	// ErrStalled: no result arrived for the stall limit.
	ErrStalled = errors.New("the step does not get on")
	// ErrNoEngine: all engines were dead for the stall limit.
	ErrNoEngine = errors.New("no engine serves")
	// ErrAllFailed: every episode of a step failed.
	ErrAllFailed = errors.New("every episode failed")
	// ErrNoBus: there was no connection to the bus for the stall limit.
	ErrNoBus = errors.New("no connection to NATS")
)

// Controller runs a run.
type Controller struct {
	Config
	inbox    chan bus.Receipt
	receipts map[rollout.EpisodeID]bus.Receipt
	refollow trigger // fired when known receipts turned out to be wrong
	metrics  *metricsFile
	board    board
	told     map[string]bool // keys of failures that the observer knows
	tookOver bool            // from a controller before, and no step committed since
}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	if cfg.Groups < 1 || cfg.Episodes < 1 || cfg.Steps < 1 {
		return nil, fmt.Errorf("controller: %d steps of %d groups of %d episodes, want at least one of each", cfg.Steps, cfg.Groups, cfg.Episodes)
	}
	c := &Controller{Config: cfg, inbox: make(chan bus.Receipt, 1024), receipts: map[rollout.EpisodeID]bus.Receipt{}, told: map[string]bool{}}
	c.board.status = Status{Run: cfg.RunName, Phase: PhaseStarting, Steps: cfg.Steps, Since: time.Now()}
	c.board.outcomes = map[rollout.Outcome]int64{}
	return c, nil
}

// Run does the steps that are left and closes the run. What it did up to a
// failure stays; a later Run goes on from there.
func (c *Controller) Run(ctx context.Context) error {
	state := c.Config.Run.State()
	var err error
	if c.metrics, err = openMetrics(c.Dir, state.NextStep); err != nil {
		return err
	}
	if err := c.metrics.event(event{Kind: "event", Event: "opened", Epoch: state.Epoch, Step: state.NextStep}); err != nil {
		return err
	}
	if n := c.Config.Step.SkippedRows; n != nil && *n > 0 {
		if err := c.metrics.event(event{Kind: "event", Event: "prompts_skipped", Epoch: state.Epoch, Step: state.NextStep, Count: *n}); err != nil {
			return err
		}
	}
	c.tookOver = state.Epoch > 1
	if c.Meter != nil {
		c.Meter.Grown(ctx)
		c.Meter.TakeProbeTokens() // made before the books of this process began
	}
	ctx, cancel := context.WithCancelCause(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if err := c.follow(ctx); err != nil {
			cancel(err)
		}
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.watch(ctx, cancel)
	}()
	guarded := make(chan struct{})
	go func() {
		defer close(guarded)
		c.guard(ctx, cancel)
	}()
	err = c.steps(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-followed
	<-watched
	<-guarded
	if err != nil {
		c.board.update(func(s *Status) { s.Phase, s.Since, s.Error = PhaseFailed, time.Now(), err.Error() })
	} else {
		c.board.phase(PhaseFinished)
	}
	return err
}

// guard ends a controller that was replaced while it waits for results: they go
// to its successor, and only a write would tell.
func (c *Controller) guard(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// What else may fail shows where it is waited for.
		if err := c.Config.Run.Held(ctx); errors.Is(err, bus.ErrFenced) {
			cancel(err)
			return
		}
	}
}

// watch shows what the run cannot do without while it is missing, and ends the
// run by its name at the stall limit: calls to the bus wait for it to come back,
// and workers hold their episodes for an engine.
func (c *Controller) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var dead time.Time // since when all engines are
	shown := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.Config.Run.Broken(); err != nil {
			cancel(err)
			return
		}
		missing, since := error(nil), time.Duration(0)
		if c.engines() > 0 {
			dead = time.Time{}
		} else {
			if dead.IsZero() {
				dead = time.Now()
			}
			missing, since = ErrNoEngine, time.Since(dead)
		}
		if out := c.Config.Run.Outage(); out > 0 {
			missing, since = ErrNoBus, out
		}
		switch {
		case missing != nil && since >= c.StallLimit:
			cancel(fmt.Errorf("%w for %s; the run can be resumed", missing, since.Round(time.Second)))
		case missing != nil:
			shown = true
			c.board.update(func(s *Status) {
				s.WaitingOn = fmt.Sprintf("%s for %s, at most %s", missing, since.Round(time.Second), c.StallLimit)
			})
		case shown:
			shown = false
			c.board.update(func(s *Status) { s.WaitingOn = "" })
		}
	}
}

// engines counts those that serve; 1 when nobody can tell.
func (c *Controller) engines() int {
	if c.Meter == nil {
		return 1
	}
	n := 0
	for _, e := range c.Meter.Rows() {
		if e.State == rollout.EngineServing {
			n++
		}
	}
	return n
}

func (c *Controller) steps(ctx context.Context) error {
	for {
		if err := c.Config.Run.Sweep(ctx); err != nil {
			return err
		}
		state := c.Config.Run.State()
		// A commit whose trim did not happen any more is trimmed first.
		if done := committed(c.Config.Run.Open(), state); done > state.Trimmed {
			if err := c.trim(ctx, done); err != nil {
				return err
			}
		}
		if state.NextStep >= c.Steps {
			if err := c.Config.Run.Close(ctx); err != nil {
				return err
			}
			// Nobody comes after this one: what a crash of the server has brought
			// back since the last sweep would stay.
			return c.Config.Run.Sweep(ctx)
		}
		if err := c.step(ctx, state); err != nil {
			return err
		}
	}
}

// committed is the first wave that a step not committed may still need.
func committed(open []rollout.Plan, state rollout.RunState) int64 {
	first := state.NextWave
	for _, p := range open {
		if p.Step >= state.NextStep {
			first = min(first, p.Wave)
		}
	}
	return first
}

func (c *Controller) trim(ctx context.Context, below int64) error {
	c.board.phase(PhaseTrimming)
	if err := c.Config.Run.Trim(ctx, below); err != nil {
		return err
	}
	for id := range c.receipts {
		if id.Wave < below {
			delete(c.receipts, id)
		}
	}
	return nil
}

// meter adds what the engines say of themselves.
func (c *Controller) meter(ctx context.Context, cfg *step.Config, window *step.Window) {
	if c.Meter == nil {
		return
	}
	window.ProbeTokens = c.Meter.TakeProbeTokens()
	// What was generated under the controller before is in no count of ours, though
	// its results may be in this step.
	if grown := c.Meter.Grown(ctx); !c.tookOver {
		window.EngineTokens = grown
	}
	c.tookOver = false
	cfg.Speculates = map[string]bool{}
	for _, e := range c.Meter.Rows() {
		if e.Speculative != nil {
			cfg.Speculates[e.ID] = *e.Speculative
		}
	}
}
