package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sheaf-rl/sheaf/internal/config"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/pool"
	"github.com/sheaf-rl/sheaf/pkg/engine/sglang"
	"github.com/sheaf-rl/sheaf/pkg/prompt"
)

type checkCmd struct {
	configFlags
	Family string `help:"Chat family to test a model's folder against: default, qwen3, qwen35 or glm47." default:"default"`
	Live   bool   `help:"Also ask the engines and the NATS server."`
	JSON   bool   `name:"json" help:"Print the effective config, without secrets, as JSON."`
}

// Run checks the config and prints what would run; of a model's folder it prints
// what holds for it.
func (c checkCmd) Run(ctx context.Context) error {
	if info, err := os.Stat(c.Config); err == nil && info.IsDir() {
		return checkModel(c.Config, c.Family)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	model, err := chat.Load(cfg.Model.Path)
	if err != nil {
		return usageError{err}
	}
	prompts, err := openPrompts(cfg)
	if err != nil {
		return err
	}
	if c.JSON {
		redacted, err := cfg.Redacted()
		if err != nil {
			return err
		}
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(redacted)
	}
	printPlan(cfg, model, prompts)
	if err := printFamily(model, cfg.Model.Family); err != nil {
		return err
	}
	if c.Live {
		return live(ctx, cfg, model, prompts)
	}
	return nil
}

// checkModel prints what holds for a model's folder.
func checkModel(dir, family string) error {
	model, err := chat.Load(dir)
	if err != nil {
		return usageError{err}
	}
	fmt.Printf("model    %s: %d tokens, hash %.12s\n", dir, model.Tokenizer().VocabSize(), model.Hash())
	return printFamily(model, family)
}

// printFamily prints which roles can be appended to a conversation.
func printFamily(model *chat.Model, name string) error {
	family, err := model.Family(name)
	if err != nil {
		return usageError{fmt.Errorf("model.family: %w", err)}
	}
	for _, report := range family.SelfTest() {
		fmt.Printf("family   %s: %s\n", name, report)
	}
	return nil
}

func printPlan(cfg *config.Config, model *chat.Model, prompts *prompt.Source) {
	ro := cfg.Rollout
	perStep := ro.OverSamplingBatchSize * ro.NSamplesPerPrompt
	fmt.Printf("run      %s: %d steps, seed %d, files in %s/%s\n", cfg.Run.Name, cfg.Run.Steps, cfg.Run.Seed, cfg.Run.Out, cfg.Run.Name)
	fmt.Printf("model    %s: %d tokens, hash %.12s\n", cfg.Model.Path, model.Tokenizer().VocabSize(), model.Hash())
	fmt.Printf("prompts  %s: %d, %d skipped; %.2f epochs in all\n", cfg.Data.Prompts, prompts.Len(), len(prompts.Skipped()),
		float64(cfg.Run.Steps*ro.OverSamplingBatchSize)/float64(prompts.Len()))
	fmt.Printf("step     %d groups × %d episodes = %d episodes, up to %d new tokens each\n", ro.OverSamplingBatchSize, ro.NSamplesPerPrompt, perStep, ro.Sampling.MaxNewTokens)
	fmt.Printf("reward   %s\n", cfg.Reward.Type)
	for i, e := range cfg.Engines {
		switch {
		case e.Sim != nil:
			fmt.Printf("engine   %d: %d simulated, in the controller\n", i, e.Sim.Count)
		default:
			fmt.Printf("engine   %d: %s\n", i, e.URL)
		}
	}
}

// liveEngine probes one engine as a run would.
func liveEngine(ctx context.Context, i int, url string, t pool.Terms) error {
	client, err := sglang.New(sglang.Config{ID: fmt.Sprintf("engine-%d", i), URL: url})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	a, err := pool.Admit(ctx, client, t)
	if err != nil {
		return err
	}
	tokens := "the same as ours"
	if a.Unverified != "" {
		tokens = "not compared: " + a.Unverified
	}
	fmt.Printf("live     engine %d: version %q, deterministic %t, token ids %s\n", i, a.Info.Version, a.Info.Deterministic, tokens)
	return nil
}

// live probes everything outside the process that the run needs.
func live(ctx context.Context, cfg *config.Config, model *chat.Model, prompts *prompt.Source) error {
	for i, e := range cfg.Engines {
		if e.URL == "" {
			continue
		}
		if err := liveEngine(ctx, i, e.URL, terms(cfg, model)); err != nil {
			return fmt.Errorf("engines.%d.url: the engine is not fit to serve: %w", i, err)
		}
	}
	if cfg.NATS.Embedded {
		return nil
	}
	conn, err := natsbus.Connect(ctx, natsbus.Config{
		URLs: cfg.NATS.URLs, Name: "sheaf check", Token: cfg.NATS.Token.Reveal(), CredsFile: cfg.NATS.Creds, NKeyFile: cfg.NATS.NKey,
		CAFile: cfg.NATS.TLS.CA, CertFile: cfg.NATS.TLS.Cert, KeyFile: cfg.NATS.TLS.Key, ConnectWait: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := (&runner{cfg: cfg, log: slog.New(slog.DiscardHandler)}).within(conn, prompts); err != nil {
		return err
	}
	fmt.Printf("live     NATS at %v\n", cfg.NATS.URLs)
	return nil
}
