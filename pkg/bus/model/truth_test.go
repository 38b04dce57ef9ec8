package model

import (
	"fmt"
	"slices"
)

// truth watches every write that the broker accepts. It knows what no process
// knows: who is newest, and what has happened.
type truth struct {
	state    state
	newest   *controller
	armed    int // epoch whose fences were written last
	damaged  bool
	undone   bool
	finished bool

	leases   map[subject]lease
	results  map[episodeKey][]storedResult
	counted  map[int]string // generations in the books
	planned  map[episodeKey]bool
	position map[int]int  // of each group
	steps    []*manifest  // that count
	voided   map[int]bool // groups that count no more
	gone     map[int]bool // waves of which something was purged
}

type lease struct {
	attempt int // highest ever
	nonce   int // of the newest mark
}

type storedResult struct{ seq, digest int }

func newTruth() truth {
	return truth{
		leases: map[subject]lease{}, results: map[episodeKey][]storedResult{}, counted: map[int]string{},
		planned: map[episodeKey]bool{}, position: map[int]int{}, voided: map[int]bool{}, gone: map[int]bool{},
	}
}

// appended checks an entry of the log.
func (t *truth) appended(w *world, c *controller, e *entry) {
	if e.kind == opened {
		t.newest = c
	} else if t.newest != c {
		w.violated("%s appended %s after %s had taken over", c.name, e.kind, t.newest.name)
	}
	before := t.state
	t.state = e.state
	w.seen["entry: "+string(e.kind)]++
	w.note("%s: LEDGER %s %+v", c.name, e.kind, e.state)
	switch e.kind {
	case planned:
		if len(e.plan.reruns) > 0 {
			w.seen["failed siblings run again"]++
		}
		for _, g := range e.plan.groups {
			if _, known := t.position[g.group]; known {
				w.violated("group %d is planned twice", g.group)
			}
			t.position[g.group] = g.position
		}
		for _, j := range e.plan.jobs() {
			for _, ep := range j.episodes {
				t.planned[episodeKey{e.plan.wave, j.group, ep}] = true
			}
		}
	case committed:
		t.committed(w, e.manifest)
	case rewound:
		if e.state.nextStep < before.nextStep {
			for _, m := range t.steps[e.state.nextStep:] {
				for _, g := range m.groups {
					t.voided[g] = true
				}
			}
			w.seen["committed steps made void"]++
			t.steps = t.steps[:e.state.nextStep]
			for g := range t.position {
				if t.stepOf(g) < 0 {
					t.voided[g] = true
				}
			}
		} else if e.state.void > before.void {
			for g := range t.position {
				if t.stepOf(g) < 0 {
					t.voided[g] = true
				}
			}
		}
	case closed:
		t.finished = true
	}
	t.prompts(w)
}

func (t *truth) stepOf(group int) int {
	for _, m := range t.steps {
		if slices.Contains(m.groups, group) {
			return m.step
		}
	}
	return -1
}

// committed checks a manifest.
func (t *truth) committed(w *world, m *manifest) {
	if m.step != len(t.steps) {
		w.violated("step %d is committed after step %d", m.step, len(t.steps)-1)
	}
	accepted := 0
	for _, it := range m.items {
		if it.verdict == "surplus" {
			continue // left over at the end; it may never have run
		}
		if !slices.Contains(t.results[it.episodeKey], storedResult{it.seq, it.digest}) {
			w.violated("step %d names %+v, which was never stored under its lease", m.step, it)
		}
		if !t.damaged {
			if first := t.results[it.episodeKey][0]; first != (storedResult{it.seq, it.digest}) {
				w.violated("step %d names %+v, not the first result %+v", m.step, it, first)
			}
		}
		if it.verdict == "accepted" {
			accepted++
		}
		w.seen[it.verdict]++
		if m.step > 0 && len(t.planned) > 0 && it.wave < m.items[len(m.items)-1].wave {
			w.seen["a step of several waves"]++
		}
		t.count(w, it.digest, fmt.Sprintf("step %d, %s", m.step, it.verdict))
	}
	for _, run := range m.waste {
		w.seen["waste"]++
		t.count(w, run, fmt.Sprintf("waste of step %d", m.step))
	}
	if accepted != batch*siblings {
		w.violated("step %d has %d accepted episodes, want %d", m.step, accepted, batch*siblings)
	}
	for _, g := range m.groups {
		if s := t.stepOf(g); s >= 0 || t.voided[g] {
			w.violated("step %d disposes of group %d, which step %d or a rewind has disposed of", m.step, g, s)
		}
	}
	t.steps = append(t.steps, m)
	t.dispositions(w, m)
}

// count puts a generation into the books, once.
func (t *truth) count(w *world, run int, where string) {
	if was, twice := t.counted[run]; twice {
		w.violated("generation %d counts as %s and as %s", run, was, where)
	}
	t.counted[run] = where
}

// dispositions checks that a manifest gives every planned episode of its groups
// exactly one disposition.
func (t *truth) dispositions(w *world, m *manifest) {
	given := map[episodeKey]int{}
	for _, it := range m.items {
		given[it.episodeKey]++
	}
	for key := range t.planned {
		if slices.Contains(m.groups, key.group) && given[key] != 1 {
			w.violated("step %d gives episode %+v %d dispositions", m.step, key, given[key])
		}
	}
	for key := range given {
		if !t.planned[key] {
			w.violated("step %d disposes of %+v, which was never planned", m.step, key)
		}
	}
}

// prompts checks that every prompt position was given out and stands in exactly
// one place: a group that counts, or the list of those owed.
func (t *truth) prompts(w *world) {
	places := make([]int, t.state.cursor)
	for _, p := range t.state.owed {
		places[p]++
	}
	for g, p := range t.position {
		if !t.voided[g] {
			places[p]++
		}
	}
	for p, n := range places {
		if n != 1 {
			w.violated("prompt %d stands in %d places", p, n)
		}
	}
}

// submitted checks the controller's first mark of a group, or its job.
func (t *truth) submitted(w *world, c *controller, sub subject) {
	if c.state.epoch < t.armed && !t.damaged {
		w.violated("%s of epoch %d wrote %v after epoch %d had written its fences", c.name, c.state.epoch, sub, t.armed)
	}
	t.late(w, c.name, sub)
}

// back says that some of a wave that was purged may be there again. It counts no
// more; an old lease mark without the newer one is then possible.
func (t *truth) back(wave int) bool { return t.undone && t.gone[wave] }

// late checks that nothing is written of a trimmed wave.
func (t *truth) late(w *world, who string, sub subject) {
	if sub.wave < t.state.trimmed && !t.back(sub.wave) && !t.damaged {
		w.violated("%s wrote %v, of a trimmed wave", who, sub)
	}
}

// leased checks a lease mark.
func (t *truth) leased(w *world, k *worker, m message) {
	t.late(w, k.name, m.subject)
	was := t.leases[m.subject]
	if m.attempt <= was.attempt && !t.damaged && !t.back(m.subject.wave) {
		w.violated("%s holds %v as attempt %d; attempt %d was given out before", k.name, m.subject, m.attempt, was.attempt)
	}
	t.leases[m.subject] = lease{max(m.attempt, was.attempt), m.nonce}
}

// stored checks a result.
func (t *truth) stored(w *world, k *worker, nonce int, m message, seq int) {
	holder := subject{kind: mark, wave: m.subject.wave, group: m.subject.group}
	if t.leases[holder].nonce != nonce && !t.damaged && !t.back(m.subject.wave) {
		w.violated("%s stored %v under a lease that was lost", k.name, m.subject)
	}
	t.late(w, k.name, m.subject)
	key := episodeKey{m.subject.wave, m.subject.group, m.subject.episode}
	w.seen["results"]++
	t.results[key] = append(t.results[key], storedResult{seq, m.digest})
}

// purged checks that nothing was removed that somebody may still ask for.
func (t *truth) purged(w *world, c *controller, removed []*message) {
	for _, m := range removed {
		t.gone[m.subject.wave] = true
		if m.subject.kind != result || t.voided[m.subject.group] {
			continue
		}
		if s := t.stepOf(m.subject.group); s < 0 || s >= t.state.durable {
			w.violated("%s removed %v of step %d; the trainer's checkpoint is of step %d", c.name, m.subject, s, t.state.durable)
		}
	}
}

// settled checks what must hold after the run.
func (t *truth) settled(w *world) {
	if len(t.steps) != steps {
		w.violated("the run ended with %d steps of %d", len(t.steps), steps)
	}
	if t.state.trimmed != t.state.nextWave {
		w.violated("the run ended trimmed to wave %d of %d", t.state.trimmed, t.state.nextWave)
	}
	for _, s := range []*stream{&w.jobs, &w.res} {
		for _, m := range s.msgs {
			if m.subject.ofWave() {
				w.violated("%s still holds %v", s.name, m.subject)
			}
		}
	}
	for key := range t.planned {
		if !t.voided[key.group] && t.stepOf(key.group) < 0 {
			w.violated("episode %+v was never disposed of", key)
		}
	}
	if got := w.trainer.trained; len(got) != steps {
		w.violated("the trainer trained %d steps of %d", len(got), steps)
	}
	for i, m := range w.trainer.trained {
		if m != t.steps[i] {
			w.violated("the trainer trained step %d on what does not count", i)
		}
	}
}
