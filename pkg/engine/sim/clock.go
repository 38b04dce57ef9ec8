package sim

import (
	"context"
	"sync"
	"time"
)

// Clock is the time an engine lives in.
type Clock interface {
	Now() time.Time
	// Sleep returns after d, or earlier when ctx is done.
	Sleep(ctx context.Context, d time.Duration)
}

// WallClock is real time.
type WallClock struct{}

// Now is the current time.
func (WallClock) Now() time.Time { return time.Now() }

// Sleep waits for d or for ctx.
func (WallClock) Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// VirtualClock is a time that passes only by sleeping, at once: an engine with a
// latency model runs at full speed on it and still reports the model's times.
type VirtualClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewVirtualClock returns a clock that stands at start.
func NewVirtualClock(start time.Time) *VirtualClock { return &VirtualClock{now: start} }

// Now is the virtual time.
func (c *VirtualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep advances the clock by d.
func (c *VirtualClock) Sleep(_ context.Context, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(max(0, d))
}

// Latency is how long the steps of the engine take. All of it is multiplied by
// Scale; at the default scale of 0 the engine is as fast as its host.
type Latency struct {
	Scale float64
	// PrefillToken is the cost of one prompt token that is not cached.
	PrefillToken time.Duration
	// Step and StepRequest are the fixed and the per-request cost of a decode step.
	Step, StepRequest time.Duration
	// VerifyFactor is how much longer the target's part of a verify step is than a
	// decode step; DraftFactor is the cost of one draft position in units of Step.
	VerifyFactor, DraftFactor float64
}

// DefaultLatency resembles a mid-size model on one node, at scale 0. Decode steps
// cost 4 ms + 0.06 ms per request: the share per request is above this package's
// own CPU cost, else latencies would depend on the host's load.
func DefaultLatency() Latency {
	return Latency{
		PrefillToken: 50 * time.Microsecond,
		Step:         4 * time.Millisecond,
		StepRequest:  60 * time.Microsecond,
		VerifyFactor: 1.3,
		DraftFactor:  0.1,
	}
}

// prefill is the time of a prefill of that many uncached tokens.
func (l Latency) prefill(tokens int) time.Duration {
	return time.Duration(l.Scale * float64(tokens) * float64(l.PrefillToken))
}

// decode is the time of one decode step of a batch that verifies that many drafted
// tokens per request (0 = plain decoding).
func (l Latency) decode(batch, drafted int) time.Duration {
	d := float64(l.Step) + float64(batch)*float64(l.StepRequest)
	if drafted > 0 {
		d = d*l.VerifyFactor + float64(drafted)*l.DraftFactor*float64(l.Step)
	}
	return time.Duration(l.Scale * d)
}
