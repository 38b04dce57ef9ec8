package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sheaf-rl/sheaf/internal/config"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/pool"
	"github.com/sheaf-rl/sheaf/pkg/engine/sglang"
	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// simDraftSteps is what the model cards of GLM recommend for EAGLE: 3 steps, and
// thus 4 draft tokens.
const simDraftSteps = 3

// attachWait bounds how long an engine may take to say what it is.
const attachWait = 10 * time.Second

// engines starts the simulated engines and makes a warden of all engines.
func (r *runner) engines(ctx context.Context, model *chat.Model) (*pool.Warden, error) {
	var wards []*pool.Ward
	add := func(kind, named, url, owner string, inflight int) error {
		entry := rollout.EngineEntry{ID: fmt.Sprintf("%s-%d", kind, len(wards)), URL: url, Owner: owner, MaxInflight: inflight}
		client, err := sglang.New(sglang.Config{ID: entry.ID, URL: url})
		if err != nil {
			return fmt.Errorf("%s: %w", named, err)
		}
		r.onRelease(func() error { client.Close(); return nil })
		wards = append(wards, &pool.Ward{Entry: entry, Name: named, Engine: client})
		return nil
	}
	for i, e := range r.cfg.Engines {
		switch {
		case e.Sim != nil:
			for range e.Sim.Count {
				url, err := r.startSim(model, *e.Sim)
				if err != nil {
					return nil, err
				}
				if err := add("sim", fmt.Sprintf("engines.%d.sim", i), url, "controller", e.MaxInflight); err != nil {
					return nil, err
				}
			}
		case e.URL != "":
			if err := add("engine", fmt.Sprintf("engines.%d.url", i), e.URL, "", e.MaxInflight); err != nil {
				return nil, err
			}
		}
	}
	return pool.NewWarden(pool.WardenConfig{Terms: terms(r.cfg, model), Put: r.putEngine, Period: healthPeriod(r.cfg), Log: r.log.With("part", "warden")}, wards), nil
}

// admit probes the engines. A run that begins must have all of them: one that is
// missing is most likely a mistake in the config. A run that goes on takes those
// that answer, and leaves the others to the warden.
func (r *runner) admit(ctx context.Context, engines *pool.Warden) error {
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	err := engines.Admit(ctx)
	if err == nil || r.claim.State().Epoch == 1 || engines.Serving() == 0 {
		return err
	}
	fmt.Fprintln(os.Stderr, "warning: going on without an engine until it answers:", err)
	return nil
}

// healthPeriod lets a dead engine be noticed well within the step's deadline.
func healthPeriod(cfg *config.Config) time.Duration {
	const usual = 10 * time.Second
	if d := time.Duration(cfg.Rollout.StepDeadline); d > 0 {
		return min(usual, d/4)
	}
	return usual
}

// probeTexts are those on which an engine's token ids must be ours: letters,
// digits, blanks, marks, several scripts, and what is no character of its own.
var probeTexts = []string{
	"3+4=7", "Hello, world!\n\n  It's 12345.67 o'clock.", "caf\u00e9 cafe\u0301 \u4f60\u597d \u3053\u3093\u306b\u3061\u306f \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600\U0001f3fd", "\tdef f(x):\r\n\t\treturn x**2  # \u2028",
}

// terms are what the run demands of an engine.
func terms(cfg *config.Config, model *chat.Model) pool.Terms {
	encode := func(text string) []int32 { return model.Tokenizer().Encode(text, false) }
	return pool.Terms{CanaryIDs: encode("1+1="), Sampling: cfg.Rollout.Sampling.Spec(), Texts: probeTexts, Encode: encode}
}

// startSim serves a simulated engine on a free port of the loopback interface.
func (r *runner) startSim(model *chat.Model, s config.Sim) (string, error) {
	conf := sim.Config{ModelPath: r.cfg.Model.Path, Tokenizer: model.Tokenizer(), RandomSeed: r.cfg.Run.Seed, Log: r.log.With("part", "simengine")}
	if s.Script != "" {
		text, err := os.ReadFile(s.Script)
		if err != nil {
			return "", usageError{fmt.Errorf("simulated engine: %w", err)}
		}
		if conf.Script, err = sim.ParseScript(text); err != nil {
			return "", usageError{fmt.Errorf("%s: %w", s.Script, err)}
		}
	}
	if s.Speculative {
		conf.Speculation = &sim.Speculation{Algorithm: "EAGLE", Steps: simDraftSteps}
	}
	eng, err := sim.New(conf)
	if err != nil {
		return "", fmt.Errorf("simulated engine: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		eng.Close()
		return "", fmt.Errorf("simulated engine: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- eng.Serve(ctx, listener, time.Second) }()
	r.onRelease(func() error {
		cancel()
		err := <-served
		eng.Close()
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	return "http://" + listener.Addr().String(), nil
}

// sharePeriod is how soon the engines' credits follow the number of workers.
const sharePeriod = 2 * time.Second

// share hands the engines' credits out to the workers there are, until ctx ends.
func (r *runner) share(ctx context.Context, engines *pool.Warden) error {
	tick := time.NewTicker(sharePeriod)
	defer tick.Stop()
	for {
		workers, err := r.claim.Workers(ctx)
		if err == nil {
			err = engines.Share(ctx, len(workers))
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
