package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-multierror"

	"github.com/sheaf-rl/sheaf/cmd/internal/assemble"
	"github.com/sheaf-rl/sheaf/internal/buildinfo"
	"github.com/sheaf-rl/sheaf/internal/config"
	"github.com/sheaf-rl/sheaf/internal/controller"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/pool"
	"github.com/sheaf-rl/sheaf/pkg/prompt"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

type runCmd struct {
	configFlags
	Steps   int    `help:"Number of steps of the whole run, instead of run.steps."`
	Out     string `help:"Folder for the run's own folder, instead of run.out." type:"path"`
	Fresh   bool   `help:"Throw away what is stored of this run and start anew."`
	Verbose bool   `short:"v" help:"Log what controller and worker do."`
}

const (
	patience  = 30 * time.Second
	farewell  = 3 * time.Second // for external workers to leave a finished run
	leaseTrys = 16              // leases of a job before it counts as poison
)

// Run runs the config to the end.
func (c runCmd) Run(ctx context.Context) error {
	var more []string
	if c.Steps != 0 {
		more = append(more, "run.steps="+strconv.Itoa(c.Steps))
	}
	if c.Out != "" {
		more = append(more, "run.out="+strconv.Quote(c.Out))
	}
	cfg, err := c.load(more...)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if c.Verbose {
		level = slog.LevelInfo
	}
	r := &runner{cfg: cfg, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
	return errors.Join(r.run(ctx, c.Fresh), r.release())
}

// runner is one run of the command: what it started, to be released in reverse
// order.
type runner struct {
	cfg     *config.Config
	log     *slog.Logger
	dir     string
	claim   *natsbus.Run
	started []func() error
}

func (r *runner) onRelease(f func() error) { r.started = append(r.started, f) }

func (r *runner) release() error {
	var all *multierror.Error
	for i := len(r.started) - 1; i >= 0; i-- {
		all = multierror.Append(all, r.started[i]())
	}
	return all.ErrorOrNil()
}

func (r *runner) run(ctx context.Context, fresh bool) error {
	cfg := r.cfg
	model, err := chat.Load(cfg.Model.Path)
	if err != nil {
		return usageError{err}
	}
	prompts, err := openPrompts(cfg)
	if err != nil {
		return err
	}
	r.dir = filepath.Join(cfg.Run.Out, cfg.Run.Name)
	if err := r.claimDir(fresh); err != nil {
		return err
	}
	conn, err := r.connect(ctx)
	if err != nil {
		return err
	}
	if fresh && !cfg.NATS.Embedded {
		if err := natsbus.DeleteRun(ctx, conn, cfg.Run.Name); err != nil {
			return err
		}
	}
	if prompts, err = r.within(conn, prompts); err != nil {
		return err
	}
	engines, err := r.engines(ctx, model)
	if err != nil {
		return err
	}
	if r.claim, err = r.open(ctx, conn, model); err != nil {
		return err
	}
	if err := r.admit(ctx, engines); err != nil {
		return err
	}
	if err := engines.Share(ctx, 1); err != nil {
		return err
	}
	if err := engines.Publish(ctx); err != nil {
		return err
	}
	state := r.claim.State()
	if err := checkSteps(r.dir, state.NextStep); err != nil {
		return err
	}
	if state.NextStep >= int64(cfg.Run.Steps) {
		fmt.Printf("run %s is finished: %d steps in %s (--steps N continues it, --fresh starts anew)\n", cfg.Run.Name, state.NextStep, r.dir)
		return r.claim.Close(ctx)
	}
	fmt.Printf("run %s: steps %d to %d of %d groups × %d episodes, %d engines, %s\n", cfg.Run.Name, state.NextStep, cfg.Run.Steps-1,
		cfg.Rollout.OverSamplingBatchSize, cfg.Rollout.NSamplesPerPrompt, len(engines.Rows()), r.where())
	return r.rollout(ctx, conn, engines, prompts)
}

func (r *runner) putEngine(ctx context.Context, e rollout.EngineEntry) error {
	return r.claim.PutEngine(ctx, e)
}

// where says how other workers reach the run.
func (r *runner) where() string {
	switch {
	case !r.cfg.NATS.Embedded:
		return "NATS at " + strings.Join(r.cfg.NATS.URLs, ", ")
	case r.cfg.NATS.Listen != "":
		return "NATS at " + r.cfg.NATS.Listen
	default:
		return "embedded NATS"
	}
}

// within leaves the prompts that can travel over the connection.
func (r *runner) within(conn *natsbus.Conn, prompts *prompt.Source) (*prompt.Source, error) {
	codec, err := wire.New()
	if err != nil {
		return nil, err
	}
	cfg := r.controllerConfig(nil, prompts, codec, nil)
	room, err := cfg.Room(conn.MaxRecord())
	if err != nil {
		return nil, usageError{err}
	}
	fit, err := prompts.Within(room)
	if err != nil {
		return nil, promptError(err)
	}
	for _, bad := range fit.Skipped()[len(prompts.Skipped()):] {
		fmt.Fprintln(os.Stderr, "skipped:", bad)
	}
	return fit, nil
}

// promptError says what to do about bad rows.
func promptError(err error) error {
	if row := (*prompt.RowError)(nil); errors.As(err, &row) {
		err = fmt.Errorf("%w\ncorrect the rows, or leave them out with data.skip_bad: true", err)
	}
	return usageError{err}
}

// openPrompts reads the prompts and names the rows that were skipped.
func openPrompts(cfg *config.Config) (*prompt.Source, error) {
	prompts, err := prompt.Open(prompt.Config{
		Path:     cfg.Data.Prompts,
		InputKey: cfg.Data.InputKey, LabelKey: cfg.Data.LabelKey, MetadataKey: cfg.Data.MetadataKey,
		ToolsKey: cfg.Data.ToolsKey, Shuffle: cfg.Data.Shuffle, Seed: cfg.Run.Seed, SkipBad: cfg.Data.SkipBad,
		NeedLabel: reward.NeedsLabel(cfg.Reward.Type),
	})
	if err != nil {
		return nil, promptError(err)
	}
	for _, bad := range prompts.Skipped() {
		fmt.Fprintln(os.Stderr, "skipped:", bad)
	}
	return prompts, nil
}

func (r *runner) connect(ctx context.Context) (*natsbus.Conn, error) {
	n := r.cfg.NATS
	conf := natsbus.Config{
		URLs: n.URLs, Name: "sheaf controller " + r.cfg.Run.Name, Token: n.Token.Reveal(), CredsFile: n.Creds, NKeyFile: n.NKey,
		CAFile: n.TLS.CA, CertFile: n.TLS.Cert, KeyFile: n.TLS.Key, Replicas: n.Replicas,
		Trouble: func(err error) { r.log.Info("trouble with NATS", "err", err) },
	}
	if n.Embedded {
		srv, err := natsbus.StartServer(natsbus.ServerConfig{
			Dir: filepath.Join(r.dir, ".state"), Listen: n.Listen, Token: n.Token.Reveal(), SyncAlways: n.Sync == "always",
		})
		if err != nil {
			return nil, err
		}
		r.onRelease(func() error { srv.Close(); return nil })
		conf.Server = srv
	}
	conn, err := natsbus.Connect(ctx, conf)
	if err != nil {
		return nil, err
	}
	r.onRelease(func() error { conn.Close(); return nil })
	return conn, nil
}

// open puts the run on the bus, or takes it over.
func (r *runner) open(ctx context.Context, conn *natsbus.Conn, model *chat.Model) (*natsbus.Run, error) {
	cfg := r.cfg
	redacted, err := cfg.Redacted()
	if err != nil {
		return nil, err
	}
	shown, err := json.Marshal(redacted)
	if err != nil {
		return nil, fmt.Errorf("config for the run table: %w", err)
	}
	print, err := cfg.Fingerprint(model.Hash())
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(cfg.Model.Path)
	if err != nil {
		return nil, fmt.Errorf("model.path: %w", err)
	}
	run, err := natsbus.OpenRun(ctx, conn, natsbus.RunConfig{
		Spec: rollout.RunSpec{
			Run: cfg.Run.Name, Seed: cfg.Run.Seed, Mode: cfg.Rollout.Mode,
			Model:  rollout.ModelSpec{Path: path, Hash: model.Hash(), Family: cfg.Model.Family, TemplateKwargs: cfg.Data.ChatTemplateKwargs},
			Reward: rollout.RewardSpec{Type: cfg.Reward.Type}, Session: sessionSpec(cfg), Slots: cfg.Worker.Slots, MaxAttempts: leaseTrys,
		},
		Version: buildinfo.Version(), Config: shown, Fingerprint: print,
	})
	if differs := (*bus.Differs)(nil); errors.As(err, &differs) {
		return nil, fmt.Errorf("%w%s", err, whatDiffers(cfg, model, differs))
	}
	return run, err
}

// whatDiffers names the keys by which a config is not that of the stored run.
func whatDiffers(cfg *config.Config, model *chat.Model, stored *bus.Differs) string {
	if stored.Config == nil {
		return ""
	}
	keys, err := cfg.Differences(stored.Config)
	if err != nil {
		return "" // written by another version, which explains itself
	}
	if stored.ModelHash != model.Hash() {
		keys = append(keys, "the model's tokenizer or chat template")
	}
	if len(keys) == 0 {
		return ""
	}
	const most = 5
	more := ""
	if n := len(keys) - most; n > 0 {
		keys, more = keys[:most], fmt.Sprintf(" and %d more", n)
	}
	return "\nwhat differs: " + strings.Join(keys, ", ") + more
}

// rollout runs the controller, the engines' warden and, where the config wants
// one, a worker beside them.
func (r *runner) rollout(ctx context.Context, conn *natsbus.Conn, engines *pool.Warden, prompts *prompt.Source) error {
	codec, err := wire.New()
	if err != nil {
		return err
	}
	shown := newProgress(os.Stdout, r.cfg.Run.Steps)
	defer shown.close()
	ctl, err := controller.New(r.controllerConfig(engines, prompts, codec, shown))
	if err != nil {
		return err
	}
	if err := r.openDoor(control{ctl, engines, r.claim.Workers}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel(nil)
	watching, watched := context.WithCancel(ctx)
	defer watched()
	beside.Go(func() {
		if err := engines.Run(watching); err != nil {
			cancel(fmt.Errorf("the engines' warden: %w", err))
		}
	})
	beside.Go(func() {
		if err := r.share(watching, engines); err != nil {
			cancel(fmt.Errorf("the engines' credits: %w", err))
		}
	})
	if r.cfg.Worker.Embedded {
		w, err := assemble.NewWorker(ctx, conn, assemble.Options{
			Member: natsbus.MemberConfig{Run: r.cfg.Run.Name, Worker: "w-" + uuid.NewString()[:8], InProcess: r.cfg.NATS.Embedded}, Log: r.log.With("part", "worker"),
			AgentEnv: agentEnv(r.cfg, true),
		})
		if err != nil {
			return err
		}
		beside.Go(func() {
			if err := errors.Join(w.Work(ctx), w.Close()); err != nil {
				cancel(fmt.Errorf("the embedded worker: %w", err))
			}
		})
	}
	if err := ctl.Run(ctx); err != nil {
		return err
	}
	r.waitForWorkers(ctx)
	return nil
}

func (r *runner) controllerConfig(engines *pool.Warden, prompts *prompt.Source, codec *wire.Codec, shown *progress) controller.Config {
	cfg := r.cfg
	ro := cfg.Rollout
	deadline := time.Duration(ro.EpisodeDeadline)
	if deadline == 0 {
		deadline = autoDeadline(cfg)
	}
	stall := time.Duration(ro.StepDeadline)
	if stall == 0 {
		stall = max(10*time.Minute, 4*deadline)
	}
	var skipped *int
	if cfg.Data.SkipBad {
		skipped = rollout.Ptr(len(prompts.Skipped()))
	}
	return controller.Config{
		Run: r.claim, Meter: engines, Prompts: prompts, Codec: codec, Steps: int64(cfg.Run.Steps), Groups: ro.OverSamplingBatchSize,
		Episodes: ro.NSamplesPerPrompt, RunName: cfg.Run.Name, Sampling: ro.Sampling.Spec(), MaxContext: ro.MaxContextLen,
		EpisodeDeadline: deadline, Retries: ro.Retries, AllowEmptySteps: ro.AllowEmptySteps,
		Patience: min(patience, stall/4), StallLimit: stall,
		Step: step.Config{
			Run: cfg.Run.Name, BatchSize: ro.BatchSize, SamplesPerPrompt: ro.NSamplesPerPrompt,
			MinValid: ro.MinValidPerGroup, Filter: step.Filter(ro.DynamicFilter),
			Estimator: step.Estimator(cfg.Train.Estimator), Normalize: cfg.Train.Normalize, StdNormalize: cfg.Train.StdNormalize,
			MaskTruncated: ro.MaskTruncated, Temperature: ro.Sampling.Temperature, MaxContext: ro.MaxContextLen, SkippedRows: skipped,
		},
		Dir: r.dir, Observer: shown, Log: r.log.With("part", "controller"),
	}
}

// autoDeadline gives an episode a minute and a tenth of a second per token: ten
// tokens a second is slower than any engine that is worth waiting for. An agent may
// fill its whole context, and its tools take time as well.
func autoDeadline(cfg *config.Config) time.Duration {
	tokens, base := cfg.Rollout.Sampling.MaxNewTokens, time.Minute
	if cfg.Rollout.Mode == rollout.ModeSession {
		tokens, base = min(cfg.Session.MaxSeqLen, cfg.Rollout.MaxContextLen), 5*time.Minute
	}
	return base + time.Duration(tokens)*100*time.Millisecond
}

// waitForWorkers lets the workers of a finished run hear of its end before the
// embedded server goes.
func (r *runner) waitForWorkers(ctx context.Context) {
	if !r.cfg.NATS.Embedded || r.cfg.NATS.Listen == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	for ctx.Err() == nil {
		if n, err := r.claim.Workers(ctx); err != nil || len(n) == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
