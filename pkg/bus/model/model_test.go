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

const defaultEvents = 1_000_000

var (
	events   = flag.Int("events", defaultEvents, "random events to check")
	shortest = flag.Bool("shortest", false, "print a short trace of each flaw")
	seed     = flag.Uint64("seed", 1, "seed of the first walk")
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
	for w.events < length && !w.spent() && !(w.truth.finished && w.n(10) == 0) {
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
func search(set setting, limit int, first uint64) (seen int, came map[string]int, bad *found) {
	came = map[string]int{}
	for s := first; seen < limit; s++ {
		w := newWorld(set)
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
func replay(set setting, script []uint16, tracing bool) (string, *world) {
	w := newWorld(set)
	w.script, w.tracing = script, tracing
	return walk(w, faulty), w
}

// shrink makes a script shorter while it still breaks an invariant, by its first
// words the same.
func (b *found) shrink(set setting, until time.Time) {
	numbers := regexp.MustCompile(`[0-9]+`)
	words := func(text string) string { return fmt.Sprintf("%.20s", numbers.ReplaceAllString(text, "")) }
	want := words(b.broke)
	for size := len(b.script) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(b.script) && time.Now().Before(until); {
			shorter := append(append([]uint16(nil), b.script[:at]...), b.script[at+size:]...)
			if text, _ := replay(set, shorter, false); words(text) == want {
				b.script, b.broke = shorter, text
			} else {
				at += size
			}
		}
	}
}

func (b *found) report(set setting) string {
	b.shrink(set, time.Now().Add(10*time.Second))
	_, w := replay(set, b.script, true)
	trace := w.trace
	if len(trace) > 400 {
		trace = append([]string{"..."}, trace[len(trace)-400:]...)
	}
	return fmt.Sprintf("%s\nseed %d, %d decisions:\n  %s", b.broke, b.seed, len(b.script), strings.Join(trace, "\n  "))
}

func TestLedger(t *testing.T) {
	for _, tc := range []struct {
		name  string
		among int
	}{
		{"crashes", allFaults &^ faultDamage},
		{"crashes and damaged blocks", allFaults},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Now()
			set := setting{among: tc.among}
			seen, came, bad := search(set, *events/2, *seed)
			if bad != nil {
				t.Fatal(bad.report(set))
			}
			// A walk that comes through nothing checks nothing.
			for _, what := range []string{
				"entry: open", "entry: plan", "entry: manifest", "entry: consumed", "entry: durable", "entry: rewind", "entry: trimmed", "entry: closed",
				"accepted", "discarded(run again)", "discarded(failed)", "discarded(short)", "waste", "results fenced", "controllers fenced",
				"a step of several waves", "failed siblings run again", "committed steps made void", "swept",
			} {
				if came[what] == 0 && *events >= defaultEvents {
					t.Errorf("no walk came through %q", what)
				}
			}
			t.Logf("%d events in %s: %v", seen, time.Since(start).Round(time.Millisecond), came)
		})
	}
}

// TestFlawsAreFound breaks the protocol in one place at a time: a model that
// finds nothing proves nothing.
func TestFlawsAreFound(t *testing.T) {
	const crashes = allFaults &^ faultDamage
	for _, tc := range []struct {
		setting
		want string // matches the violation
	}{
		{setting{markNotChecked, crashes, 0}, "under a lease that was lost"},
		{setting{fenceForced, 0, faultReplace | faultSleep}, "newest controller|had written its fences"},
		{setting{fenceGivesUp, 0, faultReplace | faultSleep}, "newest controller, is told"},
		{setting{expectZero, crashes, 0}, "of a trimmed wave|had written its fences|under a lease that was lost"},
		{setting{attemptByDelivery, crashes, 0}, "given out before|under a lease that was lost"},
		{setting{trimAtCommit, crashes, 0}, "the trainer's checkpoint"},
		{setting{idleUnwatched, 0, faultReplace | faultSleep}, "does not end"},
		{setting{noSweep, crashes, 0}, "still holds"},
		{setting{sweepEarly, 0, faultCrash | faultUndo}, "still holds"},
		{setting{gapIgnored, 0, faultReplace | faultSleep}, "contradicts itself"},
		{setting{wasteAfterLostPut, 0, faultLoss | faultExpire}, "generation .* counts as"},
		{setting{rewindForgets, crashes, 0}, "prompt .* stands in"},
		{setting{firstMarkPerLease, crashes, 0}, "of a trimmed wave|given out before"},
		{setting{cursorTrusted, 0, faultCrash | faultDamage}, "does not end"},
		{setting{idPerEpoch, 0, faultCrash | faultDamage}, "does not end"},
		{setting{notVerified, allFaults, faultCrash | faultDamage}, "never stored under its lease"},
	} {
		t.Run(string(tc.flaw), func(t *testing.T) {
			seen, _, bad := search(tc.setting, 20_000_000, *seed)
			if bad == nil {
				t.Fatalf("nothing was found in %d events", seen)
			}
			if !regexp.MustCompile(tc.want).MatchString(bad.broke) {
				t.Errorf("found %q, want %q", bad.broke, tc.want)
			}
			t.Logf("found after %d events: %s", seen, bad.broke)
			if *shortest {
				t.Log(bad.report(tc.setting))
			}
		})
	}
}
