package controller

import (
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
)

// Phase is where the controller stands in a step.
type Phase string

// Phases, in order.
const (
	PhaseStarting   Phase = "starting"
	PhaseQueueing   Phase = "queueing"
	PhaseCollecting Phase = "collecting"
	PhaseReducing   Phase = "reducing"
	PhaseCommitting Phase = "committing"
	PhaseTrimming   Phase = "trimming"
	PhaseFinished   Phase = "finished"
	PhaseFailed     Phase = "failed"
)

// Status is what a controller is doing.
type Status struct {
	Run   string `json:"run"`
	Phase Phase  `json:"phase"`
	// Step is the step being made, of Steps.
	Step  int64 `json:"step"`
	Steps int64 `json:"steps"`
	// Episodes are wanted in the step, Stored of them have a result.
	Episodes int `json:"episodes"`
	Stored   int `json:"stored"`
	// WaitingOn says what the phase waits for; "" when it gets on.
	WaitingOn string `json:"waiting_on,omitempty"`
	// Since is when the phase began, Progress when a result last arrived.
	Since    time.Time `json:"since"`
	Progress time.Time `json:"last_progress"`
	// Error ended the run.
	Error string `json:"error,omitempty"`
}

// board holds what the outside may ask at any time.
type board struct {
	mu       sync.Mutex
	status   Status
	outcomes map[rollout.Outcome]int64
	last     *step.Report
}

func (b *board) update(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.status)
}

func (b *board) phase(p Phase) {
	b.update(func(s *Status) { s.Phase, s.Since, s.WaitingOn = p, time.Now(), "" })
}

// Status is what the controller is doing now.
func (c *Controller) Status() Status {
	c.board.mu.Lock()
	defer c.board.mu.Unlock()
	return c.board.status
}

// Outcomes counts the episodes stored since this controller started, by outcome.
func (c *Controller) Outcomes() map[rollout.Outcome]int64 {
	c.board.mu.Lock()
	defer c.board.mu.Unlock()
	out := make(map[rollout.Outcome]int64, len(c.board.outcomes))
	for k, n := range c.board.outcomes {
		out[k] = n
	}
	return out
}

// LastReport is the report of the last committed step; nil before the first.
func (c *Controller) LastReport() *step.Report {
	c.board.mu.Lock()
	defer c.board.mu.Unlock()
	return c.board.last
}
