package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// roundLimit bounds a round. It is far above what the longest faults add.
	roundLimit = 60 * time.Second
	// fencedWithin is how long a replaced controller may take to notice.
	fencedWithin = 15 * time.Second
)

// findings are what the oracle says of a round, and what the harness saw itself.
type findings struct {
	Steps    int64  `json:"steps"`
	Planned  int    `json:"episodes_planned"`
	Results  int    `json:"results_committed"`
	Accepted int    `json:"samples_trained"`
	Failed   int    `json:"episodes_failed"`
	Retried  int    `json:"episodes_of_a_later_attempt"`
	Epochs   int    `json:"epochs"`
	Unseen   uint64 `json:"log_entries_unseen"`
	Logged   int64  `json:"tokens_logged"`
	Claimed  int64  `json:"tokens_claimed"`
	Probes   int64  `json:"tokens_probes"`
	Again    int64  `json:"tokens_generated_again"`

	Violations []struct {
		Class string `json:"class"`
		Text  string `json:"text"`
	} `json:"violations"`
}

// outcome is a finished round.
type outcome struct {
	findings
	took     time.Duration
	injected map[string]int
	unforced []string
	problems []string // violations and complaints, as text
}

// round runs one round in dir.
func round(ctx context.Context, dir string, bins programs, ports *portRange, sched schedule) (*outcome, error) {
	// Without faults this takes about as long as the schedule's window, and every
	// worker has work in flight most of the time.
	usual := size{steps: 4, groups: 4, episodes: 4, slots: 3, latency: 12}
	b, err := newBed(dir, bins, ports, usual, sched.seed)
	if b == nil {
		return nil, err
	}
	out := &outcome{injected: map[string]int{}}
	if err == nil {
		err = out.run(ctx, b, sched)
	}
	out.problems = append(out.problems, b.close()...)
	out.unforced = b.unforced
	if err != nil {
		return out, err
	}
	if err := b.evidence(len(sched.faults) == 0); err != nil {
		return out, err
	}
	return out, out.judge(ctx, dir, bins)
}

// run starts the controller, injects the faults and waits for the end.
func (out *outcome) run(ctx context.Context, b *bed, sched schedule) error {
	limit, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	if _, err := b.startController(); err != nil {
		return err
	}
	if !sched.early {
		select {
		case <-b.observer.first:
		case <-limit.Done():
		}
	}
	start := time.Now()
	injecting, done := context.WithCancel(limit)
	in := injector{b: b, out: out}
	var faults sync.WaitGroup
	faults.Go(func() {
		for _, f := range sched.faults {
			wait(injecting, time.Until(start.Add(f.at)))
			if injecting.Err() != nil {
				return
			}
			// A fault that lasts must not hold up the next.
			faults.Go(func() { in.inject(injecting, f) })
		}
	})
	select {
	case <-b.finished:
	case <-limit.Done():
	}
	out.took = time.Since(start)
	done()
	faults.Wait() // thaws what is frozen
	if limit.Err() != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		out.problems = append(out.problems, fmt.Sprintf("liveness: the run has not ended after %s: %s", roundLimit, b.status(ctx)))
		return nil
	}
	out.fenced(b)
	return out.ending(ctx, b)
}

// ending waits until the observer has seen the run closed, and looks at what it
// left in the streams.
func (out *outcome) ending(ctx context.Context, b *bed) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	left, err := b.observer.left(ctx)
	for err != nil && ctx.Err() == nil { // NATS may just be coming back
		wait(ctx, 50*time.Millisecond)
		left, err = b.observer.left(ctx)
	}
	if err != nil {
		return err
	}
	if len(left) > 0 {
		slices.Sort(left)
		out.problems = append(out.problems, fmt.Sprintf("left behind: %d messages of trimmed waves: %s", len(left), strings.Join(left[:min(8, len(left))], " ")))
	}
	// The closing entry is in the stream; the observer reads it at its next glance.
	wait(ctx, 5*glance)
	return nil
}

// fenced waits for replaced controllers. Each must say that it was fenced, or, if
// it came back later than the one that was to replace it, have finished the run.
func (out *outcome) fenced(b *bed) {
	for name, s := range b.replaced {
		select {
		case <-s.done:
		case <-time.After(fencedWithin):
			out.problems = append(out.problems, fmt.Sprintf("stale: %s still runs %s after the run ended", name, fencedWithin))
			continue
		}
		if code := s.last.code; code != 3 && code != 0 && !s.last.forced {
			out.problems = append(out.problems, fmt.Sprintf("stale: %s was replaced and ended with code %d, not 3", name, code))
		}
	}
}

// judge has the oracle read what the round left.
func (out *outcome) judge(ctx context.Context, dir string, bins programs) error {
	cmd := exec.CommandContext(ctx, bins.oracle, dir)
	var said, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return fmt.Errorf("oracle: %w: %s", err, &errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "verdict.json"), said.Bytes(), 0o644); err != nil {
		return err
	}
	if err := json.Unmarshal(said.Bytes(), &out.findings); err != nil {
		return fmt.Errorf("oracle: %w", err)
	}
	for _, v := range out.Violations {
		out.problems = append(out.problems, v.Class+": "+v.Text)
	}
	return nil
}

// injector lets faults happen.
type injector struct {
	b   *bed
	out *outcome
	mu  sync.Mutex
}

func (in *injector) inject(ctx context.Context, f fault) {
	happened := true
	switch f.kind {
	case killing:
		happened = in.b.service(f.target).kill(f.length)
	case freezing, doubling:
		happened = in.freeze(ctx, f)
	case cutting:
		in.b.nets[f.target].cut()
	case stalling:
		in.b.nets[f.target].stall(ctx, f.length)
	case losing:
		in.b.nets[f.target].lose(ctx, f.length)
	case starving:
		in.starve(ctx, f.length)
	case splitting:
		happened = in.split(ctx)
	case resurrection:
		happened = in.resurrect(ctx, f)
	}
	if happened {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.out.injected[f.sort()]++
	}
}

func (in *injector) freeze(ctx context.Context, f fault) bool {
	thaw := in.b.service(f.target).freeze()
	if thaw == nil {
		return false
	}
	wait(ctx, f.length)
	thaw()
	return true
}

// starve keeps both CPUs of a small machine busy.
func (in *injector) starve(ctx context.Context, d time.Duration) {
	var burning sync.WaitGroup
	for range 4 {
		burning.Go(func() {
			// Its only result is the load that it made.
			_ = exec.CommandContext(ctx, in.b.bins.self, "burn", "--for", d.String()).Run()
		})
	}
	burning.Wait()
}

// split starts a controller beside the one that runs, which is not restarted: it
// has to notice by itself that it was replaced.
func (in *injector) split(ctx context.Context) bool {
	select {
	case <-in.b.finished:
		return false
	default:
	}
	before, err := in.b.startController()
	if err != nil {
		return false
	}
	before.retire()
	return true
}

// resurrect does the same while the old one is frozen, and wakes it later.
func (in *injector) resurrect(ctx context.Context, f fault) bool {
	thaw := in.b.service(f.target).freeze()
	if thaw == nil {
		return false
	}
	defer thaw()
	if !in.split(ctx) {
		return false
	}
	wait(ctx, f.length)
	return true
}
