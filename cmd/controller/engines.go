package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/sglang"
	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// attachWait bounds how long an engine may take to say what it is.
const attachWait = 10 * time.Second

// engines starts the simulated engines and asks every engine what it is. One that
// does not answer ends the run before it begins.
func (r *runner) engines(ctx context.Context, model *chat.Model) ([]rollout.EngineEntry, error) {
	var entries []rollout.EngineEntry
	var named []string // where each entry stands in the config
	for i, e := range r.cfg.Engines {
		switch {
		case e.Sim != nil:
			for range e.Sim.Count {
				url, err := r.startSim(model)
				if err != nil {
					return nil, err
				}
				entries = append(entries, rollout.EngineEntry{ID: fmt.Sprintf("sim-%d", len(entries)), URL: url, Owner: "controller", MaxInflight: e.MaxInflight})
				named = append(named, fmt.Sprintf("engines.%d.sim", i))
			}
		case e.URL != "":
			entries = append(entries, rollout.EngineEntry{ID: fmt.Sprintf("engine-%d", len(entries)), URL: e.URL, MaxInflight: e.MaxInflight})
			named = append(named, fmt.Sprintf("engines.%d.url", i))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	failed := make(chan error, len(entries))
	for i := range entries {
		go func() { failed <- attach(ctx, &entries[i], named[i]) }()
	}
	var all *multierror.Error
	for range entries {
		if err := <-failed; err != nil {
			all = multierror.Append(all, err)
		}
	}
	return entries, all.ErrorOrNil()
}

// attach fills in what an engine says of itself.
func attach(ctx context.Context, e *rollout.EngineEntry, named string) error {
	client, err := sglang.New(sglang.Config{ID: e.ID, URL: e.URL})
	if err != nil {
		return fmt.Errorf("%s: %w", named, err)
	}
	defer client.Close()
	info, err := client.Info(ctx)
	if err != nil {
		return fmt.Errorf("%s: no SGLang engine answers there (%w): start it, or correct the address", named, err)
	}
	e.State, e.Version, e.Deterministic = rollout.EngineServing, info.Version, info.Deterministic
	return nil
}

// startSim serves a simulated engine on a free port of the loopback interface.
func (r *runner) startSim(model *chat.Model) (string, error) {
	eng, err := sim.New(sim.Config{ModelPath: r.cfg.Model.Path, Tokenizer: model.Tokenizer(), RandomSeed: r.cfg.Run.Seed, Log: r.log.With("part", "simengine")})
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
