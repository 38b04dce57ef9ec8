package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// Completion is the engines' completion tokens since they started; nil unless
	// all of them show it.
	Completion(ctx context.Context) *int64
	// TakeProbeTokens returns the completion tokens of probes since the last call.
	TakeProbeTokens() int64
	// Rows are the engines as they stand.
	Rows() []rollout.EngineEntry
}

// Observer is told of a run's progress, from one goroutine.
type Observer interface {
	// StepStarted: a step wants so many episodes, of which some are stored already.
	StepStarted(step int64, episodes int)
	// EpisodeStored: a result arrived.
	EpisodeStored(r bus.Receipt)
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
	// Patience is how long nothing may arrive before the observer is told;
	// StallLimit how long before the run fails.
	Patience   time.Duration
	StallLimit time.Duration

	// Step is the step configuration; its Step field is set for each step.
	Step step.Config
	// Meter reads what the engines count themselves; it may be nil.
	Meter Meter
	// Slots tells how many episodes can run at once, for the report; it may be nil.
	Slots func() int
	// Dir is the run's folder.
	Dir      string
	Observer Observer
	Log      *slog.Logger
}

// ErrStalled: no result arrived for the stall limit.
var ErrStalled = errors.New("the step does not get on")

// Controller runs a run.
type Controller struct {
	Config
	inbox    chan bus.Receipt
	receipts map[rollout.EpisodeID]bus.Receipt
	metrics  *metricsFile
	metered  *int64 // the engines' completion tokens at the end of the last step
}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	if cfg.Groups < 1 || cfg.Episodes < 1 || cfg.Steps < 1 {
		return nil, fmt.Errorf("controller: %d steps of %d groups of %d episodes, want at least one of each", cfg.Steps, cfg.Groups, cfg.Episodes)
	}
	return &Controller{Config: cfg, inbox: make(chan bus.Receipt, 1024), receipts: map[rollout.EpisodeID]bus.Receipt{}}, nil
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
	if c.Meter != nil {
		c.metered = c.Meter.Completion(ctx)
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
	err = c.steps(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-followed
	return err
}

func (c *Controller) steps(ctx context.Context) error {
	for {
		state := c.Config.Run.State()
		// A commit whose trim did not happen any more is trimmed first.
		if done := committed(c.Config.Run.Open(), state); done > state.Trimmed {
			if err := c.trim(ctx, done); err != nil {
				return err
			}
		}
		if state.NextStep >= c.Steps {
			return c.Config.Run.Close(ctx)
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

// step does the next step: it takes up its wave where the ledger has one, and
// plans it otherwise.
func (c *Controller) step(ctx context.Context, state rollout.RunState) error {
	plan, err := c.wave(ctx, state)
	if err != nil {
		return err
	}
	started := time.Now()
	jobs, err := c.jobs(plan)
	if err != nil {
		return err
	}
	c.Observer.StepStarted(plan.Step, plan.Groups*plan.Episodes)
	if err := c.Config.Run.Submit(ctx, jobs); err != nil {
		return err
	}
	receipts, err := c.collect(ctx, plan, jobs)
	if err != nil {
		return err
	}
	groups, err := c.load(ctx, plan, jobs, receipts)
	if err != nil {
		return err
	}
	waste, wasteSeen, err := c.Config.Run.Waste(ctx, state.WasteSeen)
	if err != nil {
		return err
	}
	window := step.Window{Started: started, Finished: time.Now()}
	for _, w := range waste {
		window.Waste = append(window.Waste, step.Waste{Reason: w.Reason, Generations: w.Generations})
	}
	if c.Slots != nil {
		window.Slots = c.Slots()
	}
	cfg := c.Config.Step
	cfg.Step = plan.Step
	c.meter(ctx, &cfg, &window)
	groups = step.Dispose(cfg, groups)
	result, err := step.Reduce(cfg, groups, window)
	if err != nil {
		return err
	}
	dir, files, err := writeStep(c.Dir, c.Codec, cfg, groups, result)
	if err != nil {
		return err
	}
	if err := c.metrics.step(result.Report); err != nil {
		return err
	}
	manifest := rollout.Manifest{Step: plan.Step, Files: files, WasteSeen: wasteSeen}
	for _, r := range receipts {
		manifest.Items = append(manifest.Items, rollout.ManifestItem{Episode: r.Episode, Sequence: r.Sequence, SHA256: r.SHA256})
	}
	if err := c.Config.Run.Commit(ctx, manifest); err != nil {
		return err
	}
	c.Observer.StepDone(plan.Step, dir, result)
	return nil
}

// meter adds what the engines say of themselves.
func (c *Controller) meter(ctx context.Context, cfg *step.Config, window *step.Window) {
	if c.Meter == nil {
		return
	}
	window.ProbeTokens = c.Meter.TakeProbeTokens()
	now := c.Meter.Completion(ctx)
	// A total that fell is that of an engine that was restarted: then the growth is
	// not known.
	if c.metered != nil && now != nil && *now >= *c.metered {
		window.EngineTokens = rollout.Ptr(*now - *c.metered)
	}
	c.metered = now
	cfg.Speculates = map[string]bool{}
	for _, e := range c.Meter.Rows() {
		if e.Speculative != nil {
			cfg.Speculates[e.ID] = *e.Speculative
		}
	}
}

// wave is the plan of the next step, from the ledger or new.
func (c *Controller) wave(ctx context.Context, state rollout.RunState) (rollout.Plan, error) {
	for _, p := range c.Config.Run.Open() {
		if p.Step == state.NextStep {
			return p, nil
		}
	}
	p := rollout.Plan{
		Wave: state.NextWave, Step: state.NextStep, FirstGroup: state.NextGroup, FirstPosition: state.Cursor,
		Groups: c.Groups, Episodes: c.Episodes,
	}
	return p, c.Config.Run.Plan(ctx, p)
}

// jobs are the jobs of a wave: a pure function of its plan.
func (c *Controller) jobs(p rollout.Plan) ([]rollout.Job, error) {
	jobs := make([]rollout.Job, p.Groups)
	for i := range jobs {
		prompt, err := c.Prompts.At(p.FirstPosition + int64(i))
		if err != nil {
			return nil, err
		}
		group := p.FirstGroup + int64(i)
		jobs[i] = rollout.Job{
			Run: c.RunName, Wave: p.Wave, Group: group, Step: p.Step, Episodes: make([]int, p.Episodes),
			FirstRolloutID: group * int64(p.Episodes), Prompt: prompt, Sampling: c.Sampling,
			MaxContext: c.MaxContext, EpisodeDeadline: c.EpisodeDeadline,
		}
		for e := range p.Episodes {
			jobs[i].Episodes[e] = e
		}
	}
	return jobs, nil
}
