package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sheaf-rl/sheaf/internal/controller"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/engine/pool"
	"github.com/sheaf-rl/sheaf/pkg/feed"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// control is a run as its door sees it.
type control struct {
	*controller.Controller
	engines *pool.Warden
	workers func(context.Context) ([]bus.Worker, error)
}

func (c control) Status() any                              { return c.Controller.Status() }
func (c control) Engines() []rollout.EngineEntry           { return c.engines.Rows() }
func (c control) Workers(ctx context.Context) (any, error) { return c.workers(ctx) }
func (c control) Healthy() error {
	if s := c.Controller.Status(); s.Phase == controller.PhaseFailed {
		return errors.New(s.Error)
	}
	return nil
}

// addressFile is where a running controller leaves the address of its door, in
// the run's folder.
const addressFile = ".state/api"

// openDoor serves the read-only door on a free port of the loopback interface.
func (r *runner) openDoor(c control) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("local status port: %w", err)
	}
	server := &http.Server{
		Handler: feed.Handler(r.cfg.Run.Name, c), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	path := filepath.Join(r.dir, addressFile)
	r.onRelease(func() error {
		err := errors.Join(os.Remove(path), server.Close())
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	})
	return os.WriteFile(path, []byte("http://"+listener.Addr().String()+"\n"), 0o644)
}

type statusCmd struct {
	Dir    string `arg:"" name:"run" optional:"" help:"The run's folder, such as runs/quickstart." type:"path"`
	Server string `help:"Address of the run's door, instead of its folder." placeholder:"URL"`
	JSON   bool   `name:"json" help:"Print the answer as it is."`
}

// Run prints what a running controller does.
func (c statusCmd) Run(ctx context.Context) error {
	server, err := c.address()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(server, "/")+"/v1/status", nil)
	if err != nil {
		return usageError{err}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no controller answers at %s (%w): it may have been killed; the run goes on with controller run", server, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", server, resp.Status, body)
	}
	if c.JSON {
		_, err := os.Stdout.Write(body)
		return err
	}
	return printStatus(body)
}

func (c statusCmd) address() (string, error) {
	if c.Server != "" {
		return c.Server, nil
	}
	if c.Dir == "" {
		return "", usageError{errors.New("name the run's folder, or its address with --server")}
	}
	text, err := os.ReadFile(filepath.Join(c.Dir, addressFile))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no controller runs in %s", c.Dir)
	}
	return strings.TrimSpace(string(text)), err
}

func printStatus(body []byte) error {
	var s struct {
		Status  controller.Status     `json:"status"`
		Workers []bus.Worker          `json:"workers"`
		Engines []rollout.EngineEntry `json:"engines"`
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("the answer is not a status: %w", err)
	}
	st := s.Status
	fmt.Printf("run %s: step %d of %d, %s for %s, %d of %d episodes stored\n", st.Run, st.Step, st.Steps, st.Phase,
		time.Since(st.Since).Round(100*time.Millisecond), st.Stored, st.Episodes)
	if st.WaitingOn != "" {
		fmt.Println("waiting for", st.WaitingOn)
	}
	if st.Error != "" {
		fmt.Println("failed:", st.Error)
	}
	for _, w := range s.Workers {
		fmt.Printf("  worker %s on %s, %d slots\n", w.ID, w.Host, w.Slots)
	}
	if s.Workers == nil {
		fmt.Println("  workers unknown: the bus does not answer")
	}
	for _, e := range s.Engines {
		fmt.Printf("  engine %s %s, version %q, at %s\n", e.ID, e.State, e.Version, e.URL)
	}
	return nil
}
