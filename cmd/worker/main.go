// Command worker runs episodes of a rollout run. It finds the run on the bus and
// learns everything else from it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"

	"github.com/sheaf-rl/sheaf/cmd/internal/assemble"
	"github.com/sheaf-rl/sheaf/internal/buildinfo"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
)

type cli struct {
	NATS    []string         `name:"nats" help:"Address of the run's NATS server, as nats://host:port." placeholder:"URL" required:""`
	Run     string           `help:"Name of the run; needed only when the server carries several."`
	Model   string           `help:"Folder with the model's tokenizer and chat template, if it is not where the run says." type:"path"`
	Slots   int              `help:"Episodes to run at once, if not as many as the run says."`
	Wait    time.Duration    `help:"How long to wait for the server and the run." default:"1h"`
	ID      string           `help:"Name of this worker; made up when left out."`
	Token   string           `help:"NATS token." env:"SHEAF_NATS_TOKEN"`
	Creds   string           `help:"NATS credentials file." type:"path"`
	NKey    string           `name:"nkey" help:"NATS nkey seed file." type:"path"`
	CA      string           `name:"tls-ca" help:"PEM file with the authority of the server's certificate." type:"path"`
	Cert    string           `name:"tls-cert" help:"PEM file with this client's certificate." type:"path"`
	Key     string           `name:"tls-key" help:"PEM file with its key." type:"path"`
	Verbose bool             `short:"v" help:"Log more."`
	Version kong.VersionFlag `help:"Print the version."`
}

func main() { os.Exit(run(os.Args[1:])) }

// Exit codes, as of every Sheaf command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitFenced = 3
)

func run(args []string) int {
	var c cli
	parser, err := kong.New(&c, kong.Name("worker"), kong.Description("Runs episodes of a Sheaf rollout run."),
		kong.Vars{"version": buildinfo.Version()}, kong.Exit(func(code int) { os.Exit(code) }))
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return exitFailed
	}
	if _, err := parser.Parse(args); err != nil {
		fmt.Fprintf(os.Stderr, "worker: %v (see worker --help)\n", err)
		return exitUsage
	}
	if err := c.work(); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		if errors.Is(err, bus.ErrFenced) {
			return exitFenced
		}
		return exitFailed
	}
	return exitDone
}

func (c *cli) work() error {
	level := slog.LevelInfo
	if c.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if c.ID == "" {
		c.ID = "w-" + uuid.NewString()[:8]
	}
	log = log.With("worker", c.ID)

	// The first signal drains; the second gives back what still runs.
	drain, hard, stop := signals()
	defer stop()

	conn, w, err := c.join(drain, log)
	if drain.Err() != nil && err != nil {
		return nil // nothing was begun
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	log.Info("joined", "run", w.Run.Run, "mode", w.Run.Mode, "slots", w.Slots)
	defer context.AfterFunc(drain, func() {
		log.Info("draining: finishing the jobs held; a second signal gives them back")
		w.Drain()
	})()
	err = w.Work(hard)
	if err == nil {
		if drain.Err() != nil {
			log.Info("drained")
		} else {
			log.Info("the run is finished")
		}
	}
	return errors.Join(err, w.Close())
}

// signals returns a context that ends at the first SIGINT or SIGTERM and one
// that ends at the second.
func signals() (first, second context.Context, stop func()) {
	first, cancelFirst := context.WithCancel(context.Background())
	second, cancelSecond := context.WithCancel(context.Background())
	got := make(chan os.Signal, 2)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	go func() {
		for _, cancel := range []context.CancelFunc{cancelFirst, cancelSecond} {
			select {
			case <-got:
			case <-second.Done():
			}
			cancel()
		}
	}()
	return first, second, func() { signal.Stop(got); cancelSecond() }
}

func (c *cli) join(ctx context.Context, log *slog.Logger) (*natsbus.Conn, *assemble.Worker, error) {
	// waiting tells the first time, and then once a minute.
	waiting := func(text string) func(error) {
		var told time.Time
		return func(err error) {
			if time.Since(told) >= time.Minute {
				log.Info(text, "reason", err, "at most", c.Wait)
				told = time.Now()
			}
		}
	}
	conn, err := natsbus.Connect(ctx, natsbus.Config{
		URLs: c.NATS, Name: "sheaf worker " + c.ID, Token: c.Token, CredsFile: c.Creds, NKeyFile: c.NKey,
		CAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, ConnectWait: c.Wait,
		Waiting: waiting("waiting for the NATS server"), Trouble: func(err error) { log.Info("trouble with NATS", "err", err) },
	})
	if err != nil {
		return nil, nil, err
	}
	w, err := assemble.NewWorker(ctx, conn, assemble.Options{
		Member:   natsbus.MemberConfig{Run: c.Run, Worker: c.ID, Wait: c.Wait, Waiting: waiting("waiting for the run")},
		ModelDir: c.Model, Slots: c.Slots, Log: log,
	})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, w, nil
}
