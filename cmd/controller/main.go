// Command controller owns a rollout run: it plans the steps, has workers run
// their episodes, and writes each step's files.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/sheaf-rl/sheaf/internal/buildinfo"
	"github.com/sheaf-rl/sheaf/internal/config"
	"github.com/sheaf-rl/sheaf/pkg/bus"
)

type cli struct {
	Run     runCmd     `cmd:"" help:"Run a config to the end, going on from where it stopped."`
	Check   checkCmd   `cmd:"" help:"Check a config, or a model's folder, and print what would run or holds."`
	Status  statusCmd  `cmd:"" help:"Print what a running controller does."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run() error {
	fmt.Println("sheaf", buildinfo.Version())
	return nil
}

// configFlags are the flags of every command that reads a config.
type configFlags struct {
	Config string   `arg:"" help:"The config file." type:"path"`
	Set    []string `help:"Replace a value of the config, such as rollout.batch_size=4. May be repeated." placeholder:"KEY=VALUE" sep:"none"`
}

// load reads the config with the overrides.
func (f configFlags) load(more ...string) (*config.Config, error) {
	cfg, err := config.Load(f.Config, config.Options{Set: append(f.Set, more...)})
	if err != nil {
		return nil, usageError{err}
	}
	for _, w := range cfg.Warnings() {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	return cfg, nil
}

// usageError is an error of the command line or the config.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Exit codes, as of every Sheaf command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitFenced = 3
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var c cli
	parser, err := kong.New(&c, kong.Name("controller"), kong.Description("Runs LLM rollouts for reinforcement learning."),
		kong.UsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		return report(err)
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "controller: %v (see controller --help)\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("stopped by a signal; the same command goes on from here")
	}
	return report(err)
}

// report prints the error that ends the process and chooses its exit code.
func report(err error) int {
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(os.Stderr, "controller:", err)
	var usage usageError
	switch {
	case errors.As(err, &usage), errors.Is(err, bus.ErrFingerprint):
		return exitUsage
	case errors.Is(err, bus.ErrFenced):
		fmt.Fprintln(os.Stderr, "controller: another controller has taken over this run; this one has stopped and changed nothing")
		return exitFenced
	default:
		return exitFailed
	}
}
