package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// size is how much a round runs.
type size struct {
	steps, groups, episodes, slots int
	latency                        float64 // of the engines, as a factor
}

const (
	runName    = "chaos"
	workers    = 3
	engines    = 4
	maxContext = 512
)

// bed is a run as processes, with the network between them.
type bed struct {
	dir  string
	bins programs
	size size

	ports struct{ nats, controllers, workers int }

	observer *observer
	nets     map[string]*proxy   // controller, workers
	services map[string]*service // nats, controller, worker-N, engine-N

	mu       sync.Mutex
	folders  []string            // output folders, one per controller that may run beside another
	replaced map[string]*service // controllers that another took over from
	unforced []string            // ends that nobody forced, other than 0
	finished chan struct{}       // closed when a controller ended with 0
}

// newBed starts all but the controller.
func newBed(dir string, bins programs, ports *portRange, sz size, seed int64) (*bed, error) {
	b := &bed{
		dir: dir, bins: bins, size: sz, nets: map[string]*proxy{}, services: map[string]*service{}, replaced: map[string]*service{},
		finished: make(chan struct{}),
	}
	var err error
	take := func() int {
		var port int
		if err == nil {
			port, err = ports.take()
		}
		return port
	}
	b.ports.nats, b.ports.controllers, b.ports.workers = take(), take(), take()
	enginePorts := make([]int, engines)
	for i := range enginePorts {
		enginePorts[i] = take()
	}
	if err != nil {
		return nil, err
	}
	if err := b.writeConfig(enginePorts, seed); err != nil {
		return nil, err
	}
	if err := b.start("nats", func(int) []string {
		return []string{bins.self, "nats", "--listen", addr(b.ports.nats), "--store", filepath.Join(dir, "store")}
	}); err != nil {
		return b, err
	}
	for name, port := range map[string]int{"controller": b.ports.controllers, "workers": b.ports.workers} {
		if b.nets[name], err = newProxy(addr(port), addr(b.ports.nats)); err != nil {
			return b, err
		}
	}
	if b.observer, err = observe("nats://"+addr(b.ports.nats), runName, filepath.Join(dir, "ledger.jsonl")); err != nil {
		return b, err
	}
	for i, port := range enginePorts {
		name := fmt.Sprintf("engine-%d", i)
		err := b.start(name, func(incarnation int) []string {
			// Each incarnation has a weight version of its own: a sample under another's
			// shows.
			version := strconv.Itoa(1000*(i+1) + incarnation)
			return []string{bins.simengine, "--model-path", "configs/models/tiny", "--host", "127.0.0.1", "--port", strconv.Itoa(port),
				"--latency-scale", fmt.Sprint(sz.latency), "--weight-version", version, "--speculative-algorithm", "EAGLE",
				"--drain-seconds", "1", "--log-level", "error", "--request-log", filepath.Join(dir, name+".jsonl")}
		})
		if err != nil {
			return b, err
		}
	}
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i)
		err := b.start(name, func(incarnation int) []string {
			return []string{bins.worker, "--nats", "nats://" + addr(b.ports.workers), "--run", runName, "--id", fmt.Sprintf("%s-%d", name, incarnation)}
		})
		if err != nil {
			return b, err
		}
	}
	// The controller refuses to begin without its engines.
	for _, port := range enginePorts {
		if err := reachable(addr(port), 20*time.Second); err != nil {
			return b, err
		}
	}
	return b, nil
}

func addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// reachable waits until something listens.
func reachable(address string, within time.Duration) error {
	for end := time.Now().Add(within); ; {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("nothing listens on %s after %s: %w", address, within, err)
		}
		wait(context.Background(), 10*time.Millisecond)
	}
}

func (b *bed) writeConfig(enginePorts []int, seed int64) error {
	type list = []any
	type object = map[string]any
	var urls list
	for _, port := range enginePorts {
		urls = append(urls, object{"url": "http://" + addr(port)})
	}
	text, err := json.MarshalIndent(object{ // JSON is YAML
		"run":     object{"name": runName, "steps": b.size.steps, "seed": seed, "out": filepath.Join(b.dir, "out-0")},
		"nats":    object{"embedded": false, "urls": list{"nats://" + addr(b.ports.controllers)}},
		"model":   object{"path": "configs/models/tiny"},
		"data":    object{"prompts": "configs/data/arithmetic.jsonl"},
		"engines": urls,
		"rollout": object{
			"batch_size": b.size.groups, "n_samples_per_prompt": b.size.episodes, "min_valid_per_group": 1, "max_context_len": maxContext,
			"episode_deadline": "10s", "allow_empty_steps": true, "sampling": object{"temperature": 1.0, "max_new_tokens": 24},
		},
		"reward": object{"type": "exact"},
		"worker": object{"embedded": false, "slots": b.size.slots},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "config.yaml"), append(text, '\n'), 0o644)
}

// start supervises a service of the round under its name.
func (b *bed) start(name string, args func(int) []string) error {
	s, err := supervise(name, filepath.Join(b.dir, name+".log"), b.ended, args)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.services[name] = s
	return nil
}

// ended notes how a process ended.
func (b *bed) ended(s *service, e ending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !e.forced && e.code != 0 && b.replaced[s.name] != s {
		how := fmt.Sprintf("%s exit %d", s.name, e.code)
		if e.code != 3 { // which says it all
			how += ": " + s.lastWords()
		}
		b.unforced = append(b.unforced, how)
	}
	if s == b.services["controller"] && e.code == 0 {
		select {
		case <-b.finished:
		default:
			close(b.finished)
		}
	}
}

// startController starts a controller with an output folder of its own, as one on
// another machine would have; a controller that runs is replaced by it and not
// restarted any more.
func (b *bed) startController() (before *service, err error) {
	b.mu.Lock()
	n := len(b.folders)
	folder := fmt.Sprintf("out-%d", n)
	b.folders = append(b.folders, folder)
	name := "controller"
	if n > 0 {
		name = fmt.Sprintf("controller-%d", n)
		before = b.services["controller"]
		b.replaced[before.name] = before
	}
	b.mu.Unlock()
	s, err := supervise(name, filepath.Join(b.dir, name+".log"), b.ended, func(int) []string {
		return []string{b.bins.controller, "run", filepath.Join(b.dir, "config.yaml"), "--out", filepath.Join(b.dir, folder), "-v"}
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.services["controller"] = s
	return before, nil
}

// service is the service of a name now: the controller may be another one.
func (b *bed) service(name string) *service {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.services[name]
}

// status is what the newest controller says that it does.
func (b *bed) status(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b.mu.Lock()
	folder := b.folders[len(b.folders)-1]
	b.mu.Unlock()
	text, err := exec.CommandContext(ctx, b.bins.controller, "status", filepath.Join(b.dir, folder, runName)).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("no status: %v: %s", err, text)
	}
	return string(text)
}

// evidence writes down for the oracle what was run.
func (b *bed) evidence(calm bool) error {
	text, err := json.MarshalIndent(map[string]any{
		"run": runName, "folders": b.folders, "steps": b.size.steps, "batch": b.size.groups, "samples": b.size.episodes,
		"min_valid": 1, "max_context": maxContext, "calm": calm,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "evidence.json"), append(text, '\n'), 0o644)
}

// close ends every process that is left and returns what went against what they
// promise: a worker that is told to go, goes with code 0, or with 3 where it was
// frozen until now and its jobs went to others.
func (b *bed) close() (complaints []string) {
	var stopping sync.WaitGroup
	var mu sync.Mutex
	for name, s := range b.services {
		if name == "nats" {
			continue
		}
		stopping.Go(func() {
			e := s.stop(leave)
			if name[0] == 'w' && e.code != 0 && e.code != 3 {
				mu.Lock()
				defer mu.Unlock()
				complaints = append(complaints, fmt.Sprintf("%s was told to go and ended with code %d (-1: killed after %s)", name, e.code, leave))
			}
		})
	}
	for _, s := range b.replaced {
		stopping.Go(func() { s.stop(0) })
	}
	stopping.Wait()
	if b.observer != nil {
		if err := b.observer.close(); err != nil {
			complaints = append(complaints, err.Error())
		}
	}
	for _, p := range b.nets {
		p.close()
	}
	if s := b.services["nats"]; s != nil {
		s.stop(leave)
	}
	return complaints
}

// leave is how long a process may take to go.
const leave = 10 * time.Second

// portRange hands out ports that nobody listens on. They lie below the range
// from which systems take ports for outgoing connections: a client that tries to
// reconnect could else take a killed server's port.
type portRange struct {
	mu   sync.Mutex
	next int
}

const firstPort, lastPort = 20000, 32000

func newPortRange() *portRange {
	// Two programs at once begin at different places.
	return &portRange{next: firstPort + os.Getpid()*64%(lastPort-firstPort)}
}

func (r *portRange) take() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range lastPort - firstPort {
		port := r.next
		if r.next++; r.next == lastPort {
			r.next = firstPort
		}
		l, err := net.Listen("tcp", addr(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}
