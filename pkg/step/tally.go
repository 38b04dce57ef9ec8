package step

import (
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// tally holds what is counted over a step or a part of one. The parts are the
// same however many processors read them, and are merged in order, so that the
// one sum of fractions comes out the same to the last bit.
type tally struct {
	outcomes counter[rollout.Outcome]
	failures counter[string]
	verdicts counter[rollout.Disposition]
	fates    counter[rollout.Fate]
	drops    counter[string] // groups dropped by the dynamic filter, by reason

	untrainable counter[string] // calls, by reason
	implausible counter[string] // calls, by the number that could not be
	counters    Counters
	tokens      tokens

	// Of accepted episodes' calls:
	all               counters
	engines, versions byName

	// Of accepted samples:
	trained               int64   // tokens in the loss
	versioned, offPolicy  int64   // of those, with a numbered version; with another than the step's
	logprob               float64 // sum over the tokens that the masks leave in
	ends                  [endings]int
	truncated, repetitive int
	named, mixed          int // with a weight version; with several
	facts

	// In seconds, over all episodes and calls that were timed.
	durations, queued, latencies []float64
}

// tokens are completion tokens by verdict.
type tokens struct {
	generated, accepted, filtered, surplus, recycled int64
	discarded                                        map[string]int64
}

// group counts one group.
func (t *tally) group(g *rollout.Group) {
	for _, d := range g.Dispositions {
		if d.Verdict == rollout.Filtered {
			t.drops.add(d.Reason)
			return
		}
	}
}

// episode counts one episode and all its calls.
func (t *tally) episode(e *rollout.Episode, d rollout.Disposition) {
	t.outcomes.add(e.Outcome)
	t.verdicts.add(d)
	if e.Failure != nil {
		t.failures.add(e.Failure.Key())
	}
	if e.Timing.Total > 0 {
		t.durations = append(t.durations, e.Timing.Total)
	}
	var n int64
	calls := unique(e.Generations)
	for i := range calls {
		n = rollout.Add(n, calls[i].Completion())
		t.call(&calls[i])
	}
	t.tokens.post(d, n)
}

// call counts one call, of whatever episode.
func (t *tally) call(g *rollout.GenerationRecord) {
	t.fates.add(g.Fate)
	if g.Untrainable != "" {
		t.untrainable.add(g.Untrainable)
	}
	for _, name := range g.Meta.Implausible {
		t.implausible.add(name)
	}
	t.counters.add(&g.Meta)
	if g.Meta.QueueTime != nil {
		t.queued = append(t.queued, *g.Meta.QueueTime)
	}
	if g.Meta.E2ELatency != nil {
		t.latencies = append(t.latencies, *g.Meta.E2ELatency)
	}
}

// post books tokens under a verdict. Tokens without one stay unaccounted.
func (t *tokens) post(d rollout.Disposition, n int64) {
	t.generated = rollout.Add(t.generated, n)
	switch d.Verdict {
	case rollout.Accepted:
		t.accepted = rollout.Add(t.accepted, n)
	case rollout.Filtered:
		t.filtered = rollout.Add(t.filtered, n)
	case rollout.Surplus:
		t.surplus = rollout.Add(t.surplus, n)
	case rollout.Recycled:
		t.recycled = rollout.Add(t.recycled, n)
	case rollout.Discarded:
		if t.discarded == nil {
			t.discarded = map[string]int64{}
		}
		t.discarded[d.Reason] = rollout.Add(t.discarded[d.Reason], n)
	}
}

// calls counts the calls of an accepted episode, and returns how many of them
// did not fail.
func (t *tally) calls(calls []rollout.GenerationRecord) int {
	turns := 0
	for i := range calls {
		g := &calls[i]
		if g.Fate != rollout.FateFailed {
			turns++
		}
		if countable(g) {
			t.all.add(g)
			t.engines.of(g.Engine).add(g)
			t.versions.of(versionOf(&g.Meta)).add(g)
		}
	}
	return turns
}

// grow makes room in the lists, which are empty.
func (t *tally) grow(durations, queued, latencies int) {
	t.durations, t.queued, t.latencies = make([]float64, 0, durations), make([]float64, 0, queued), make([]float64, 0, latencies)
}

// merge adds what another tally counted.
func (t *tally) merge(o *tally) {
	t.outcomes.merge(&o.outcomes)
	t.failures.merge(&o.failures)
	t.verdicts.merge(&o.verdicts)
	t.fates.merge(&o.fates)
	t.drops.merge(&o.drops)
	t.untrainable.merge(&o.untrainable)
	t.implausible.merge(&o.implausible)
	t.counters.merge(&o.counters)
	t.tokens.merge(&o.tokens)
	t.all.merge(&o.all)
	t.engines.merge(&o.engines)
	t.versions.merge(&o.versions)
	t.trained += o.trained
	t.versioned += o.versioned
	t.offPolicy += o.offPolicy
	t.logprob += o.logprob
	for end := range t.ends {
		t.ends[end] += o.ends[end]
	}
	t.truncated += o.truncated
	t.named += o.named
	t.mixed += o.mixed
	t.repetitive += o.repetitive
	t.facts.merge(&o.facts)
	t.durations = append(t.durations, o.durations...)
	t.queued = append(t.queued, o.queued...)
	t.latencies = append(t.latencies, o.latencies...)
}

func (t *tokens) merge(o *tokens) {
	t.generated = rollout.Add(t.generated, o.generated)
	t.accepted = rollout.Add(t.accepted, o.accepted)
	t.filtered = rollout.Add(t.filtered, o.filtered)
	t.surplus = rollout.Add(t.surplus, o.surplus)
	t.recycled = rollout.Add(t.recycled, o.recycled)
	for reason, n := range o.discarded {
		if t.discarded == nil {
			t.discarded = map[string]int64{}
		}
		t.discarded[reason] = rollout.Add(t.discarded[reason], n)
	}
}

// counter counts by key. Equal keys come in runs, so the last one is kept at
// hand; the zero value is ready.
type counter[K comparable] struct {
	counts map[K]int
	last   K
	n      int // of last, not yet in counts
}

func (c *counter[K]) add(key K) {
	if c.n > 0 && key == c.last {
		c.n++
		return
	}
	c.settle()
	c.last, c.n = key, 1
}

func (c *counter[K]) settle() {
	if c.n == 0 {
		return
	}
	if c.counts == nil {
		c.counts = map[K]int{}
	}
	c.counts[c.last] += c.n
	c.n = 0
}

func (c *counter[K]) merge(o *counter[K]) {
	for key, n := range o.all() {
		c.settle()
		c.last, c.n = key, n
	}
}

// all returns the counts by key, which may be nil.
func (c *counter[K]) all() map[K]int {
	c.settle()
	return c.counts
}

// unique returns the records with each id once, in order: records itself when no
// id repeats. An episode lists each call once; this keeps the counts right should
// one not. Records without an id are all kept.
func unique(records []rollout.GenerationRecord) []rollout.GenerationRecord {
	if len(records) < 2 {
		return records
	}
	seen := make(map[string]bool, len(records))
	repeats := func(g rollout.GenerationRecord) bool {
		again := g.ID != "" && seen[g.ID]
		seen[g.ID] = true
		return again
	}
	if !slices.ContainsFunc(records, repeats) {
		return records
	}
	clear(seen)
	return slices.DeleteFunc(slices.Clone(records), repeats)
}
