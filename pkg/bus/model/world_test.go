package model

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime/debug"
	"slices"
)

// flaw is a mistake in the protocol that the invariants must find.
type flaw string

const (
	none              flaw = ""
	markNotChecked    flaw = "results do not expect their lease mark"
	fenceForced       flaw = "a fence is rewritten without a look at the log and at the mark before it"
	fenceGivesUp      flaw = "a controller whose fence write was overtaken gives up at once"
	expectZero        flaw = "first marks, jobs and results expect 0 on their own subject"
	attemptByDelivery flaw = "the attempt is the broker's delivery count"
	trimAtCommit      flaw = "a wave is trimmed when its step is committed, not when it is durable"
	idleUnwatched     flaw = "a controller that waits does not look at the log"
	sweepEarly        flaw = "a run ends without a last sweep"
	noSweep           flaw = "what comes back is not swept"
	gapIgnored        flaw = "a log with a gap is read over it"
	cursorTrusted     flaw = "a reader goes on behind its last sequence after a restart of the broker"
	idPerEpoch        flaw = "a job that is queued again has the id of the first time"
	wasteAfterLostPut flaw = "a result whose answer was lost is reported as waste when its retry is fenced"
	notVerified       flaw = "a result's digest is not compared before the commit"
	rewindForgets     flaw = "a rewind drops the prompts of the groups that it makes void"
	firstMarkPerLease flaw = "a worker that finds no mark writes the first one"
)

// chance is where the walk's decisions come from: a script, then a generator that
// the script remembers.
type chance struct {
	script []uint16
	pos    int
	rng    *rand.Rand // nil: the script alone
}

func (c *chance) n(k int) int {
	if c.pos == len(c.script) {
		if c.rng == nil {
			return 0
		}
		c.script = append(c.script, uint16(c.rng.Uint32()))
	}
	v := int(c.script[c.pos])
	c.pos++
	return v % k
}

func (c *chance) spent() bool { return c.rng == nil && c.pos >= len(c.script) }

// setting is what a walk is about.
type setting struct {
	flaw   flaw
	among  int // faults to draw from
	always int // faults that every walk has
}

// world is the broker, everybody who talks to it, and the truth.
type world struct {
	chance
	flaw    flaw
	among   int  // faults that this walk may have
	faults  int  // faults that it has
	calm    bool // no more faults; everybody gets a turn
	tracing bool
	trace   []string

	led, jobs, res stream
	crashes        int
	actors         []*actor
	made           int
	unique         int
	request        *request
	trainer        trainer
	truth          truth
	events         int
	seen           map[string]int // what the walk came through
}

func newWorld(s setting) *world {
	w := &world{flaw: s.flaw, among: s.among, faults: s.always, truth: newTruth(), seen: map[string]int{}}
	for _, s := range []struct {
		s    *stream
		name string
	}{{&w.led, "LEDGER"}, {&w.jobs, "JOBS"}, {&w.res, "RESULTS"}} {
		*s.s = stream{name: s.name, ids: map[string]int{}}
	}
	w.spawn("trainer", func(a *actor) { w.trainer.run(a) })
	return w
}

func (w *world) fresh() int {
	w.unique++
	return w.unique
}

func (w *world) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

// violation ends a walk.
type violation struct{ text string }

func (w *world) violated(format string, args ...any) {
	panic(violation{fmt.Sprintf(format, args...)})
}

// actor is a process: code that stops before and after each request to the
// broker. Between two stops it may be killed, or sleep while others go on.
type actor struct {
	w      *world
	name   string
	asleep bool
	dead   bool
	seen   int // crashes of the broker that its connection has noticed
	resume func() (struct{}, bool)
	stop   func()
	pause  func()
}

// errKilled unwinds a killed actor; errExit ends one by its own will.
var (
	errKilled = errors.New("killed")
	errExit   = errors.New("exit")
)

func (w *world) spawn(role string, body func(*actor)) *actor {
	w.made++
	a := &actor{w: w, name: fmt.Sprintf("%s%d", role, w.made), seen: w.crashes}
	a.resume, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		a.pause = func() {
			if !yield(struct{}{}) {
				panic(errKilled)
			}
		}
		defer func() {
			a.dead = true
			switch r := recover(); r.(type) {
			case nil, violation:
				if r != nil {
					panic(r)
				}
			default:
				if r != errKilled && r != errExit {
					panic(fmt.Sprintf("%v\n%s", r, debug.Stack()))
				}
			}
		}()
		body(a)
	})
	w.actors = append(w.actors, a)
	return a
}

// call is one request. It is executed late, perhaps not at all, and perhaps its
// answer is lost; the caller cannot tell these apart.
func (a *actor) call(do func()) error {
	a.pause()
	w := a.w
	if a.seen != w.crashes {
		a.seen = w.crashes
		return errUnavailable
	}
	if w.loses(40) {
		return errUnavailable
	}
	do()
	a.pause()
	if a.seen != w.crashes {
		a.seen = w.crashes
		return errUnavailable
	}
	if w.loses(25) {
		w.note("%s: the answer is lost", a.name)
		return errUnavailable
	}
	return nil
}

func (w *world) loses(one int) bool { return !w.calm && w.faults&faultLoss != 0 && w.n(one) == 0 }

// retry repeats a request until there is an answer (natsbus.Conn.retry).
func (a *actor) retry(do func()) {
	for a.call(do) != nil {
	}
}

// publish stores a message, repeating the same bytes while there is no answer
// (natsbus.Conn.publish). unsure says that an earlier try may have been stored.
func (a *actor) publish(s *stream, m message, want *expectation, accepted func(seq int)) (seq int, unsure bool, err error) {
	for {
		var stored bool
		lost := a.call(func() {
			seq, stored, err = s.publish(m, want)
			a.w.note("%s: publish %v expecting %v: seq %d, %v", a.name, m.subject, want, seq, err)
			if stored {
				accepted(seq)
			}
		})
		if lost == nil {
			return seq, unsure, err
		}
		unsure = true
	}
}

const (
	maxControllers = 3
	maxWorkers     = 3
)

func (w *world) count(role byte) (n int) {
	for _, a := range w.actors {
		if a.name[0] == role {
			n++
		}
	}
	return n
}

// Kinds of faults. A walk draws which of them it has: with all of them at once
// there is little that goes on for long enough to go wrong.
const (
	faultReplace = 1 << iota // a second controller
	faultKill
	faultSleep
	faultExpire
	faultCrash
	faultUndo
	faultLoss
	faultWindow
	faultDamage
	allFaults = 1<<iota - 1
)

// event lets one thing happen.
func (w *world) event() {
	if w.events == 0 {
		w.faults |= w.n(allFaults+1) & w.among
	}
	w.events++
	w.actors = slices.DeleteFunc(w.actors, func(a *actor) bool { return a.dead })
	may := func(fault int) bool { return w.faults&fault != 0 }
	switch p := w.n(1000); {
	case p < 4 && may(faultReplace) && w.count('c') < maxControllers, p < 100 && w.count('c') == 0:
		w.start('c')
	case p < 15 && w.count('w') < maxWorkers:
		w.start('w')
	case p < 18 && may(faultKill):
		w.kill(w.actors[w.n(len(w.actors))])
	case p < 30 && may(faultSleep):
		a := w.actors[w.n(len(w.actors))]
		a.asleep = !a.asleep
		w.note("%s asleep: %v", a.name, a.asleep)
	case p < 36 && may(faultExpire):
		w.expire(func(*message) bool { return w.n(2) == 0 })
	case p < 37 && may(faultCrash):
		w.crash()
	case p < 38 && may(faultWindow):
		w.note("the deduplication window passes")
		for _, s := range []*stream{&w.led, &w.jobs, &w.res} {
			clear(s.ids)
		}
	default:
		a := w.actors[w.n(len(w.actors))]
		for i := 0; a.asleep && i < 3; i++ {
			a = w.actors[w.n(len(w.actors))]
		}
		if !a.asleep {
			a.resume()
		}
	}
}

func (w *world) start(role byte) *actor {
	if role == 'c' {
		c := &controller{w: w}
		c.actor = w.spawn("c", func(*actor) { c.run() })
		w.note("%s starts", c.name)
		return c.actor
	}
	k := &worker{w: w}
	k.actor = w.spawn("w", func(*actor) { k.run() })
	w.note("%s starts", k.name)
	return k.actor
}

// kill ends a process at once. The trainer comes back from its checkpoint.
func (w *world) kill(a *actor) {
	w.note("%s is killed", a.name)
	a.stop()
	a.dead = true
	if a.name[0] == 't' {
		w.trainer.crashed = true
		w.spawn("trainer", func(a *actor) { w.trainer.run(a) })
	}
}

// expire ends leases, as a stall or a restart does.
func (w *world) expire(chosen func(*message) bool) {
	for _, m := range w.jobs.msgs {
		if m.pending && chosen(m) {
			w.note("the lease of %v expires", m.subject)
			m.pending, m.holder = false, nil
		}
	}
}

// crash kills the broker and starts it again on its store.
func (w *world) crash() {
	w.crashes++
	w.note("the broker crashes")
	back := 1 + w.n(3)
	for _, s := range []*stream{&w.led, &w.jobs, &w.res} {
		if w.faults&faultUndo != 0 && w.n(2) == 0 {
			if n := s.restore(func() bool { return w.n(back) == 0 }); n > 0 {
				w.note("%s: %d purged messages are back", s.name, n)
				w.truth.undone = true
			}
		}
	}
	if w.faults&faultDamage != 0 && w.n(2) == 0 {
		s := []*stream{&w.jobs, &w.res, &w.res}[w.n(3)]
		n := 1 + w.n(6)
		s.cut(n)
		w.truth.damaged = true
		w.note("%s lost its last %d messages", s.name, n)
	}
	for _, s := range []*stream{&w.led, &w.jobs, &w.res} {
		s.restart()
	}
	w.expire(func(m *message) bool {
		m.tries -= w.n(2) // the record of a delivery may be lost
		return w.n(2) == 0
	})
}

// lastCrashes is how often the broker may still crash while a walk settles.
const lastCrashes = 3

// settle lets everybody go on until the run has ended, without any more faults
// but a few crashes of the broker: what these bring back must go as well.
func (w *world) settle() {
	w.calm = true
	for _, a := range w.actors {
		a.asleep = false
	}
	w.note("no more faults")
	crashes := 0
	for round := 0; ; round++ {
		w.actors = slices.DeleteFunc(w.actors, func(a *actor) bool { return a.dead })
		if w.truth.finished && w.count('c') == 0 {
			return
		}
		if round > 20_000 {
			w.violated("the run does not end: %v", w.truth.state)
		}
		if w.faults&faultCrash != 0 && crashes < lastCrashes && !w.truth.finished && w.n(200) == 199 {
			crashes++
			w.crash()
		}
		if w.count('c') == 0 {
			w.start('c')
		}
		if w.count('w') == 0 {
			w.start('w')
		}
		w.expire(func(m *message) bool { return m.holder == nil || m.holder.dead || m.holder.holds != m.seq })
		for _, a := range slices.Clone(w.actors) {
			if !a.dead {
				w.events++
				a.resume()
			}
		}
	}
}

// end stops whoever is left.
func (w *world) end() {
	for _, a := range w.actors {
		a.stop()
	}
}
