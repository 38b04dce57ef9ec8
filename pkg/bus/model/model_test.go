// Package model checks the ledger's protocol, apart from its code: controllers,
// workers, the trainer and the broker as state machines that stop before and
// after every request, a random scheduler that lets any of them go on, sleep or
// die at any of these points, and invariants that watch every accepted write.
//
// The processes mirror the code operation by operation; each names the function
// that it stands for. The broker has the weaknesses that were measured on
// JetStream: answers lost, jobs delivered again at any time, delivery records
// lost, purges undone by a crash, a damaged block that drops the tail of a stream
// so that sequences are used again.
//
// A walk is a list of decisions. One that breaks an invariant is made shorter by
// replay, and printed as a trace.
package model

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	events = flag.Int("events", 200_000, "random events to check")
	seed   = flag.Uint64("seed", 1, "seed of the first walk")
)

// faulty is how many events of a walk may be faults, before it settles.
const faulty = 12_000

// walk plays one walk and returns what it broke, "" for nothing.
func walk(w *world, length int) (broke string) {
	defer w.end()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			broke = r.text
		default:
			panic(r)
		}
	}()
	for w.events < length && !w.spent() {
		w.event()
	}
	w.settle()
	w.truth.settled(w)
	return ""
}

// found is a broken walk.
type found struct {
	broke  string
	script []uint16
	seed   uint64
}

// search walks until so many events were seen or an invariant broke.
func search(f flaw, damage bool, limit int, first uint64) (seen int, came map[string]int, bad *found) {
	came = map[string]int{}
	for s := first; seen < limit; s++ {
		w := newWorld(f, damage)
		w.rng = rand.New(rand.NewPCG(s, 0))
		broke := walk(w, faulty)
		seen += w.events
		for what, n := range w.seen {
			came[what] += n
		}
		if broke != "" {
			return seen, came, &found{broke, w.script, s}
		}
	}
	return seen, came, nil
}

// replay plays a script again.
func replay(f flaw, damage bool, script []uint16, tracing bool) (string, *world) {
	w := newWorld(f, damage)
	w.script, w.tracing = script, tracing
	return walk(w, faulty), w
}

// shrink makes a script shorter while it still breaks an invariant, the same by
// its first words.
func (b *found) shrink(f flaw, damage bool, until time.Time) {
	same := func(text string) bool {
		return text != "" && strings.Fields(text)[0][:1] == strings.Fields(b.broke)[0][:1]
	}
	for size := len(b.script) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(b.script) && time.Now().Before(until); {
			shorter := append(append([]uint16(nil), b.script[:at]...), b.script[at+size:]...)
			if text, _ := replay(f, damage, shorter, false); same(text) {
				b.script, b.broke = shorter, text
			} else {
				at += size
			}
		}
	}
}

func (b *found) report(f flaw, damage bool) string {
	b.shrink(f, damage, time.Now().Add(10*time.Second))
	_, w := replay(f, damage, b.script, true)
	trace := w.trace
	if len(trace) > 400 {
		trace = trace[len(trace)-400:]
	}
	return fmt.Sprintf("%s\nseed %d, %d decisions:\n  %s", b.broke, b.seed, len(b.script), strings.Join(trace, "\n  "))
}

func TestLedger(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage bool
	}{{"crashes", false}, {"crashes and damaged blocks", true}} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Now()
			seen, came, bad := search(none, tc.damage, *events/2, *seed)
			if bad != nil {
				t.Fatal(bad.report(none, tc.damage))
			}
			t.Logf("%d events in %s: %v", seen, time.Since(start).Round(time.Millisecond), came)
		})
	}
}

// TestFlawsAreFound breaks the protocol in one place at a time: a model that
// finds nothing proves nothing.
func TestFlawsAreFound(t *testing.T) {
	for _, tc := range []struct {
		flaw   flaw
		damage bool
		want   string // matches the violation
	}{
		{flaw: markNotChecked, want: "under a lease that was lost"},
		{flaw: fenceForced, want: "newest controller|had written its fences"},
		{flaw: fenceGivesUp, want: "the newest controller, is told"},
		{flaw: expectZero, want: ""},
		{flaw: attemptByDelivery, want: "was given out before"},
		{flaw: trimAtCommit, want: "the trainer's checkpoint"},
		{flaw: noSweep, want: "still holds"},
		{flaw: gapIgnored, want: "contradicts itself"},
		{flaw: wasteAfterLostPut, want: "generation"},
		{flaw: rewindForgets, want: "prompt"},
		{flaw: firstMarkPerLease, want: "of a trimmed wave"},
		{flaw: cursorTrusted, damage: true, want: ""},
		{flaw: idPerEpoch, damage: true, want: "does not end"},
		{flaw: notVerified, damage: true, want: ""},
	} {
		t.Run(string(tc.flaw), func(t *testing.T) {
			_, _, bad := search(tc.flaw, tc.damage, 5_000_000, *seed)
			if bad == nil {
				t.Fatal("nothing was found")
			}
			if !regexp.MustCompile(tc.want).MatchString(bad.broke) {
				t.Errorf("found %q, want %q", bad.broke, tc.want)
			}
			t.Logf("found: %s", bad.broke)
		})
	}
}
