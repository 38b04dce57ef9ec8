// Command chaos runs rounds of a whole Sheaf run under faults. A round starts a
// NATS server, a controller, three workers and four simulated engines as
// processes, injects faults at random times from a seeded schedule, restarts what
// was killed, and ends when the controller is done. Then the oracle, a program of
// its own, judges what the round left behind.
//
//	go run ./e2e/chaos --rounds 50 --seed 1
//	go run ./e2e/chaos --rounds 1 --seed 17 --keep   # replay the round of seed 17
//	go run ./e2e/chaos bench
//
// A seed fixes the schedule: which faults hit what, when and for how long. What
// they meet there is up to the machine. docs/chaos.md says more.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
)

type cli struct {
	Rounds roundsCmd `cmd:"" default:"withargs" help:"Run rounds of random faults, each judged by the oracle."`
	Bench  benchCmd  `cmd:"" help:"Measure how fast a run recovers from kills, beside the budgets."`
	NATS   natsCmd   `cmd:"" name:"nats" hidden:""`
	Burn   burnCmd   `cmd:"" hidden:""`
}

// natsCmd is the NATS server of a round: the embedded one as a process of its
// own, which can be killed and comes back on the same store.
type natsCmd struct {
	Listen string `required:""`
	Store  string `required:""`
}

// Run serves until it is told to stop.
func (c natsCmd) Run(ctx context.Context) error {
	srv, err := natsbus.StartServer(natsbus.ServerConfig{Dir: c.Store, Listen: c.Listen})
	if err != nil {
		return err
	}
	<-ctx.Done()
	srv.Close()
	return nil
}

// burnCmd is a process that takes a CPU from the others.
type burnCmd struct {
	For time.Duration `required:""`
}

// Run computes for a while.
func (c burnCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.For)
	defer cancel()
	for x := uint64(1); ctx.Err() == nil; {
		for range 1 << 20 {
			x ^= x<<13 ^ x>>7
		}
	}
	return nil
}

func main() {
	var c cli
	command := kong.Parse(&c, kong.Name("chaos"), kong.Description("Runs Sheaf under faults and has an oracle judge what is left."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command.BindTo(ctx, (*context.Context)(nil))
	if err := command.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// programs are the binaries under test, and this program itself for the roles
// that it plays in a round.
type programs struct{ controller, worker, simengine, oracle, self string }

// build builds the binaries into a folder.
func build(ctx context.Context, dir string) (programs, error) {
	if _, err := os.Stat("go.mod"); err != nil {
		return programs{}, errors.New("run it in the repository's folder")
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator), "./cmd/...", "./e2e/chaos/oracle")
	if out, err := cmd.CombinedOutput(); err != nil {
		return programs{}, fmt.Errorf("go build: %w\n%s", err, out)
	}
	self, err := os.Executable()
	in := func(name string) string { return filepath.Join(dir, name) }
	return programs{in("controller"), in("worker"), in("simengine"), in("oracle"), self}, err
}
