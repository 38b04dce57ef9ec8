package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind is what a fault does.
type kind string

// Kinds of faults.
const (
	killing      kind = "kill"      // SIGKILL; the supervisor starts it again after a while
	freezing     kind = "freeze"    // SIGSTOP, and SIGCONT after a while
	doubling     kind = "duplicate" // a worker frozen beyond the lease: its jobs are leased again
	cutting      kind = "cut"       // connections to NATS reset
	stalling     kind = "stall"     // bytes to and from NATS held up
	losing       kind = "lose"      // bytes to and from NATS swallowed, then a reset
	starving     kind = "starve"    // busy processes take the CPUs
	splitting    kind = "split"     // a second controller takes over while the first runs
	resurrection kind = "resurrect" // the same while the first is frozen, which then wakes
)

// fault is one entry of a schedule.
type fault struct {
	at     time.Duration
	kind   kind
	target string // of kill and freeze: controller, nats, worker-N, engine-N; of the network faults: controller, workers
	length time.Duration
}

func (f fault) String() string {
	return fmt.Sprintf("%.2fs %s %s %.2fs", f.at.Seconds(), f.kind, f.target, f.length.Seconds())
}

// sort is the fault's kind with what it hits, all workers being alike.
func (f fault) sort() string {
	what, _, _ := strings.Cut(f.target, "-")
	return string(f.kind) + " " + what
}

// schedule is all that a seed decides.
type schedule struct {
	seed   int64
	early  bool // the clock starts with the controller's process, not with its first entry in the log
	faults []fault
}

func (s schedule) String() string {
	lines := make([]string, len(s.faults))
	for i, f := range s.faults {
		lines[i] = f.String()
	}
	return fmt.Sprintf("early %v; %s", s.early, strings.Join(lines, "; "))
}

// window is the time in which a round's faults begin: as long as the round takes
// without any.
const window = 2 * time.Second

// dish is what can happen, how likely, to whom and for how long.
type dish struct {
	weight   int
	kind     kind
	targets  []string
	min, max time.Duration
}

func menu() []dish {
	return []dish{
		{4, killing, []string{"controller"}, 0, 500 * time.Millisecond},
		{4, killing, []string{"worker-0", "worker-1", "worker-2"}, 0, 500 * time.Millisecond},
		{4, killing, []string{"nats"}, 0, 800 * time.Millisecond},
		{2, killing, []string{"engine-0", "engine-1", "engine-2", "engine-3"}, 0, 300 * time.Millisecond},
		{2, freezing, []string{"controller", "nats"}, 500 * time.Millisecond, 4 * time.Second},
		{2, freezing, []string{"worker-0", "worker-1", "worker-2", "engine-0", "engine-1", "engine-2", "engine-3"}, 500 * time.Millisecond, 3 * time.Second},
		{2, doubling, []string{"worker-0", "worker-1", "worker-2"}, 2300 * time.Millisecond, 3500 * time.Millisecond},
		{2, cutting, []string{"controller", "workers"}, 0, 0},
		{1, stalling, []string{"controller", "workers"}, 300 * time.Millisecond, 2500 * time.Millisecond},
		{1, losing, []string{"controller", "workers"}, 100 * time.Millisecond, 1500 * time.Millisecond},
		{1, starving, []string{"cpu"}, 500 * time.Millisecond, 2 * time.Second},
		{1, splitting, []string{"controller"}, 0, 0},
		{1, resurrection, []string{"controller"}, 500 * time.Millisecond, 3 * time.Second},
	}
}

// newSchedule draws a schedule: a pure function of the seed.
func newSchedule(seed int64) schedule {
	r := rand.New(rand.NewPCG(uint64(seed), 0x5ea5))
	s := schedule{seed: seed, early: r.IntN(5) == 0}
	sum := 0
	for _, m := range menu() {
		sum += m.weight
	}
	for range 2 + r.IntN(4) {
		pick := r.IntN(sum)
		for _, m := range menu() {
			if pick -= m.weight; pick >= 0 {
				continue
			}
			f := fault{kind: m.kind, target: m.targets[r.IntN(len(m.targets))], at: time.Duration(r.Int64N(int64(window)))}
			f.length = m.min
			if m.max > m.min {
				f.length += time.Duration(r.Int64N(int64(m.max - m.min)))
			}
			s.faults = append(s.faults, f)
			break
		}
	}
	slices.SortFunc(s.faults, func(a, b fault) int { return int(a.at - b.at) })
	return s
}
