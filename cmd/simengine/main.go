// Command simengine serves the simulated engine of pkg/engine/sim: a stand-in for
// an SGLang server that runs on a laptop, under SGLang's flag names. It is not a
// language model server; docs/sim-engine.md says what it does and does not imitate.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is the whole program. It prints where it listens, one line, on stdout.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f flags
	exit := -1
	parser, err := kong.New(&f,
		kong.Name("simengine"),
		kong.Description("A simulated engine that speaks SGLang's HTTP protocol. It stands in for a real engine in tests and demos."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
	)
	if err != nil {
		fmt.Fprintln(stderr, "simengine:", err)
		return exitFailed
	}
	_, err = parser.Parse(args)
	if exit >= 0 { // --help has been answered
		return exit
	}
	if err != nil {
		fmt.Fprintf(stderr, "simengine: %v; simengine --help lists the flags\n", err)
		return exitUsage
	}
	if err := serve(ctx, &f, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "simengine:", err)
		if errors.Is(err, errUsage) {
			return exitUsage
		}
		return exitFailed
	}
	return exitDone
}

func serve(ctx context.Context, f *flags, stdout, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: f.level()}))
	config, err := f.config(log)
	if err != nil {
		return err
	}
	if f.NodeRank > 0 {
		log.Warn("a rank above 0 of a simulated engine has nothing to do", "rank", f.NodeRank)
		<-ctx.Done()
		return nil
	}
	if f.RequestLog != "" {
		file, openErr := os.OpenFile(f.RequestLog, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if openErr != nil {
			return fmt.Errorf("%w: --request-log: %w", errUsage, openErr)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		config.RequestLog = file
	}
	engine, err := sim.New(config)
	if err != nil {
		return err
	}
	defer engine.Close()
	listener, err := net.Listen("tcp", net.JoinHostPort(f.Host, strconv.Itoa(f.Port)))
	if err != nil {
		return fmt.Errorf("cannot listen on port %d: %w; choose another --port, or 0 for any free one", f.Port, err)
	}
	log.Warn("this is a simulated engine, not a language model server",
		"model", f.ModelPath, "dialect", config.Dialect.Name, "address", listener.Addr().String())
	fmt.Fprintf(stdout, "simengine listening on http://%s\n", listener.Addr())
	return engine.Serve(ctx, listener, time.Duration(f.DrainSeconds*float64(time.Second)))
}
