package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

type roundsCmd struct {
	Rounds   int    `default:"10" help:"Rounds to run."`
	Seed     int64  `default:"1" help:"Seed of the first round; the next has the next seed."`
	Parallel int    `default:"2" help:"Rounds that run at once."`
	Calm     bool   `help:"Inject nothing: then the books must balance to the token."`
	Keep     bool   `help:"Keep the folders of clean rounds too."`
	GoOn     bool   `help:"Run all rounds, also after a violation."`
	Dir      string `help:"Folder for the rounds' folders; a temporary one when left out." type:"path"`
}

// total sums over rounds.
type total struct {
	findings
	mu       sync.Mutex
	rounds   int
	failed   []int64
	injected map[string]int
	classes  map[string]int
	unforced map[string]int
}

// Run runs the rounds.
func (c roundsCmd) Run(ctx context.Context) error {
	dir := c.Dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "sheaf-chaos-*"); err != nil {
			return err
		}
	}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	bins, err := build(ctx, bin)
	if err != nil {
		return err
	}
	begun := time.Now()
	ports := newPortRange()
	sum := &total{injected: map[string]int{}, classes: map[string]int{}, unforced: map[string]int{}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	seeds := make(chan int64)
	var running sync.WaitGroup
	for range max(1, c.Parallel) {
		running.Go(func() {
			for seed := range seeds {
				if err := c.one(ctx, filepath.Join(dir, fmt.Sprintf("round-%d", seed)), bins, ports, seed, sum); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range int64(c.Rounds) {
		select {
		case seeds <- c.Seed + i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(seeds)
	running.Wait()
	sum.print(time.Since(begun))
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if len(sum.failed) > 0 {
		slices.Sort(sum.failed)
		return fmt.Errorf("%d of %d rounds violated: seeds %v, kept in %s", len(sum.failed), sum.rounds, sum.failed, dir)
	}
	if c.Keep {
		return nil
	}
	return os.RemoveAll(dir)
}

// one runs and reports one round. A violation is an error unless the rounds go on.
func (c roundsCmd) one(ctx context.Context, dir string, bins programs, ports *portRange, seed int64, sum *total) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	sched := newSchedule(seed)
	if c.Calm {
		sched.faults = nil
	}
	out, err := round(ctx, dir, bins, ports, sched)
	if out == nil || ctx.Err() != nil {
		return err
	}
	if err != nil {
		out.problems = append(out.problems, "harness: "+err.Error())
	}
	sum.add(seed, out)
	if len(out.problems) == 0 {
		fmt.Printf("round %d: ok, %.1f s, epochs %d, again %d tokens; %s\n", seed, out.took.Seconds(), out.Epochs, out.Again, sched)
		if c.Keep {
			return nil
		}
		return os.RemoveAll(dir)
	}
	fmt.Printf("round %d: VIOLATED after %.1f s; %s\n  kept in %s\n", seed, out.took.Seconds(), sched, dir)
	for i, p := range out.problems {
		if i == 12 {
			fmt.Printf("  and %d more\n", len(out.problems)-i)
			break
		}
		fmt.Println("  " + p)
	}
	if c.GoOn {
		return nil
	}
	return fmt.Errorf("round of seed %d: %s; kept in %s; run it again with --rounds 1 --seed %d", seed, out.problems[0], dir, seed)
}

func (t *total) add(seed int64, out *outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds++
	if len(out.problems) > 0 {
		t.failed = append(t.failed, seed)
	}
	for _, p := range out.problems {
		class, _, _ := strings.Cut(p, ":")
		t.classes[class]++
	}
	for k, n := range out.injected {
		t.injected[k] += n
	}
	for _, u := range out.unforced {
		t.unforced[u]++
	}
	f := &out.findings
	t.Steps, t.Planned, t.Results, t.Accepted = t.Steps+f.Steps, t.Planned+f.Planned, t.Results+f.Results, t.Accepted+f.Accepted
	t.Failed, t.Retried, t.Epochs, t.Unseen = t.Failed+f.Failed, t.Retried+f.Retried, t.Epochs+f.Epochs, t.Unseen+f.Unseen
	t.Logged, t.Claimed, t.Probes, t.Again = t.Logged+f.Logged, t.Claimed+f.Claimed, t.Probes+f.Probes, t.Again+f.Again
}

func (t *total) print(took time.Duration) {
	faults := 0
	for _, n := range t.injected {
		faults += n
	}
	fmt.Printf("\n%d rounds in %.0f s, %d violated; %d faults: %s\n", t.rounds, took.Seconds(), len(t.failed), faults, counts(t.injected))
	fmt.Printf("%d steps, %d episodes planned, %d results committed, %d samples trained, %d episodes failed, %d by a later attempt, %d epochs\n",
		t.Steps, t.Planned, t.Results, t.Accepted, t.Failed, t.Retried, t.Epochs)
	fmt.Printf("tokens: %d logged by engines, %d in the books, %d of probes, %d generated again; log entries not seen: %d\n",
		t.Logged, t.Claimed, t.Probes, t.Again, t.Unseen)
	fmt.Printf("violations by class: %s\n", counts(t.classes))
	fmt.Println("ends that no fault forced:")
	for _, how := range slices.Sorted(maps.Keys(t.unforced)) {
		fmt.Printf("  %d × %s\n", t.unforced[how], how)
	}
}

// counts prints a map in order of its keys.
func counts(m map[string]int) string {
	if len(m) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}
