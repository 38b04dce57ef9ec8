package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fake is an engine whose calls are answered by a function.
type fake struct {
	id     string
	answer func(ctx context.Context, req engine.Request) error

	mu       sync.Mutex
	seen     []engine.Request
	inFlight int
	most     int
	closed   bool
}

func (f *fake) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	f.mu.Lock()
	if f.closed {
		panic("a call on a closed engine")
	}
	f.seen = append(f.seen, req)
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	answer := f.answer
	f.mu.Unlock()
	var err error
	if answer != nil {
		err = answer(ctx, req)
	}
	f.mu.Lock()
	f.inFlight--
	f.mu.Unlock()
	g := rollout.Generation{GenerationRecord: rollout.GenerationRecord{ID: req.ID, Engine: f.id, Fate: rollout.FateFinished}}
	if err != nil {
		g.Fate = rollout.FateFailed
	}
	return g, err
}

func (f *fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.inFlight > 0 {
		panic("closed twice or in use")
	}
	f.closed = true
}

func (f *fake) set(answer func(context.Context, engine.Request) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fake) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

// fleet is a pool of fakes.
type fleet struct {
	*Pool
	fakes map[string]*fake
}

// newFleet returns a pool of engines e0, e1, … that all serve.
func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{fakes: map[string]*fake{}}
	f.Pool = New(Config{Dial: func(e rollout.EngineEntry) (Engine, error) {
		if e.URL == "bad" {
			return nil, errors.New("bad URL")
		}
		name := e.ID
		if e.URL != "" {
			name = e.URL
		}
		f.fakes[name] = &fake{id: name}
		return f.fakes[name], nil
	}})
	t.Cleanup(func() {
		f.Close()
		for name, e := range f.fakes {
			if !e.closed {
				t.Errorf("engine %s was not closed", name)
			}
		}
	})
	f.Set(table(n))
	return f
}

func table(n int) []rollout.EngineEntry {
	out := make([]rollout.EngineEntry, n)
	for i := range out {
		out[i] = rollout.EngineEntry{ID: fmt.Sprintf("e%d", i), State: rollout.EngineServing}
	}
	return out
}

func failure(reason engine.Reason) func(context.Context, engine.Request) error {
	return func(context.Context, engine.Request) error {
		return &engine.Error{Reason: reason, Engine: "e", Err: errors.New("scripted")}
	}
}

// hold answers when release is closed.
func hold(release <-chan struct{}) func(context.Context, engine.Request) error {
	return func(ctx context.Context, _ engine.Request) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return &engine.Error{Reason: engine.Canceled, Err: ctx.Err()}
		}
	}
}

func call(t *testing.T, f *fleet, key string) (rollout.Generation, error) {
	t.Helper()
	return f.Generate(t.Context(), engine.Request{ID: engine.NewID(), RoutingKey: key, PromptIDs: []int32{1}})
}

func TestFewestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		release := make(chan struct{})
		for _, e := range f.fakes {
			e.set(hold(release))
		}
		for range 31 {
			go func() { _, _ = call(t, f, "") }()
		}
		synctest.Wait()
		for id, e := range f.fakes {
			if e.inFlight < 10 || e.inFlight > 11 {
				t.Errorf("engine %s has %d of 31 calls", id, e.inFlight)
			}
		}
		close(release)
		synctest.Wait()
	})
}

func TestRoutingKeyStaysUntilItsEngineIsNotFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		first := map[string]string{}
		for round := range 3 {
			for i := range 20 {
				key := fmt.Sprint("group-", i)
				g, err := call(t, f, key)
				if err != nil {
					t.Fatal(err)
				}
				if round == 0 {
					first[key] = g.Engine
				} else if first[key] != g.Engine {
					t.Errorf("key %s went from %s to %s", key, first[key], g.Engine)
				}
			}
		}
		for id, e := range f.fakes {
			if e.calls() != 15 {
				t.Errorf("engine %s got %d of 60 calls", id, e.calls())
			}
		}
		// Its engine drains: the key moves, and stays where it went.
		entries := table(4)
		for i := range entries {
			if entries[i].ID == first["group-0"] {
				entries[i].State = rollout.EngineDraining
			}
		}
		f.Set(entries)
		moved, err := call(t, f, "group-0")
		if err != nil || moved.Engine == first["group-0"] {
			t.Errorf("served by %s, %v", moved.Engine, err)
		}
		f.Set(table(4))
		if again, err := call(t, f, "group-0"); err != nil || again.Engine != moved.Engine {
			t.Errorf("moved to %s, then to %s, %v", moved.Engine, again.Engine, err)
		}
	})
}

func TestCreditsBoundCallsAndWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		entries := table(2)
		entries[0].Credits, entries[1].Credits = 2, 3
		f.Set(entries)
		next := make(chan struct{})
		for _, e := range f.fakes {
			e.set(func(context.Context, engine.Request) error { <-next; return nil })
		}
		var order []int
		var mu sync.Mutex
		for i := range 20 {
			go func() {
				if _, err := call(t, f, ""); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		for range 20 {
			next <- struct{}{}
			synctest.Wait()
		}
		if f.fakes["e0"].most != 2 || f.fakes["e1"].most != 3 {
			t.Errorf("most in flight: %d, %d", f.fakes["e0"].most, f.fakes["e1"].most)
		}
		for at, i := range order {
			if i > at+5 || i < at-5 {
				t.Errorf("call %d ended as number %d", i, at)
			}
		}
	})
}

func TestUnreachableGoesToTheNextEngineUnderANewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.fakes["e0"].set(failure(engine.Unreachable))
		f.fakes["e1"].set(failure(engine.Unreachable))
		id := engine.NewID()
		g, err := f.Generate(t.Context(), engine.Request{ID: id})
		if err != nil || g.Engine != "e2" || g.ID == id || len(g.ID) != 32 {
			t.Errorf("served by %s as %s (first id %s), %v", g.Engine, g.ID, id, err)
		}
		// Both are out of the choice after one failure each.
		for range 10 {
			if g, err := call(t, f, ""); err != nil || g.Engine != "e2" {
				t.Errorf("served by %s, %v", g.Engine, err)
			}
		}
	})
}

func TestFailuresAreReturnedOnceAndAsTheyAre(t *testing.T) {
	for _, reason := range []engine.Reason{engine.Reset, engine.Timeout, engine.Overloaded, engine.Faulty, engine.BadReply, engine.Rejected, engine.TooLarge, engine.Canceled} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2)
				f.fakes["e0"].set(failure(reason))
				f.fakes["e1"].set(failure(reason))
				_, err := call(t, f, "")
				if engine.ReasonOf(err) != reason {
					t.Errorf("%v", err)
				}
				if n := f.fakes["e0"].calls() + f.fakes["e1"].calls(); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		})
	}
}

// TestFailingEngineIsNoBlackHole: an engine that fails at once has always the
// fewest calls in flight, and must not win them for that.
func TestFailingEngineIsNoBlackHole(t *testing.T) {
	for _, reason := range []engine.Reason{engine.Reset, engine.Faulty, engine.BadReply, engine.Overloaded} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2)
				f.fakes["e0"].set(failure(reason))
				f.fakes["e1"].set(func(context.Context, engine.Request) error { time.Sleep(time.Second); return nil })
				var failed atomic.Int32
				var group sync.WaitGroup
				for range 16 {
					group.Go(func() {
						for range 60 {
							if _, err := call(t, f, ""); err != nil {
								failed.Add(1)
							}
						}
					})
				}
				start := time.Now()
				group.Wait()
				// Three calls before it cools down, then one trial after 1, 2, 4, 8, 16, 30, …
				// seconds; calls on their way when it failed may fail too.
				if n, took := failed.Load(), time.Since(start); n > 3+16+7 {
					t.Errorf("%d of 960 calls failed in %v", n, took)
				}
			})
		})
	}
}

func TestCooledEngineComesBackByTrialCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		e := f.fakes["e0"]
		e.set(failure(engine.Faulty))
		for range 3 {
			if _, err := call(t, f, ""); engine.ReasonOf(err) != engine.Faulty {
				t.Fatal(err)
			}
		}
		// Now calls wait; the trials come after 1, 2, 4 seconds, one call each.
		start := time.Now()
		for _, want := range []time.Duration{1, 3, 7} {
			if _, err := call(t, f, ""); engine.ReasonOf(err) != engine.Faulty {
				t.Fatal(err)
			}
			if at := time.Since(start); at != want*time.Second {
				t.Errorf("a trial after %v, want %v", at, want*time.Second)
			}
		}
		release := make(chan struct{})
		e.set(hold(release))
		for range 10 {
			go func() { _, _ = call(t, f, "") }()
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if e.inFlight != 1 {
			t.Errorf("%d calls in flight on trial, want 1", e.inFlight)
		}
		close(release)
		synctest.Wait()
		if e.calls() != 3+3+10 {
			t.Errorf("%d calls after the trial succeeded", e.calls())
		}
		// One failure is no reason to leave any more.
		e.set(failure(engine.Faulty))
		_, _ = call(t, f, "")
		e.set(nil)
		start = time.Now()
		if _, err := call(t, f, ""); err != nil || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestCrashCountsOnce: all calls of an engine that dies fail together. That is
// one cool-down, not many.
func TestCrashCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		e := f.fakes["e0"]
		die := make(chan struct{})
		e.set(func(context.Context, engine.Request) error {
			<-die
			return &engine.Error{Reason: engine.Reset, Err: errors.New("gone")}
		})
		for range 50 {
			go func() { _, _ = call(t, f, "") }()
		}
		synctest.Wait()
		close(die)
		synctest.Wait()
		e.set(nil)
		start := time.Now()
		if _, err := call(t, f, ""); err != nil || time.Since(start) != time.Second {
			t.Errorf("back after %v, %v", time.Since(start), err)
		}
	})
}

func TestWaitEndsWithTheContext(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(*fleet)
		text  string
	}{
		{"no engine", func(f *fleet) {}, "there is none"},
		{"none serves", func(f *fleet) {
			f.Set([]rollout.EngineEntry{{ID: "e0", State: rollout.EngineDead}, {ID: "e1", State: rollout.EngineProbing}})
		}, "e0 is dead, e1 is probing"},
		{"not to be dialled", func(f *fleet) { f.Set([]rollout.EngineEntry{{ID: "e0", URL: "bad", State: rollout.EngineServing}}) }, "there is none"},
		{"unreachable", func(f *fleet) { f.Set(table(1)); f.fakes["e0"].set(failure(engine.Unreachable)) }, "e0 cools down after: engine e: unreachable: scripted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 0)
				tc.setup(f)
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				start := time.Now()
				g, err := f.Generate(ctx, engine.Request{ID: engine.NewID(), PromptIDs: []int32{1, 2}, Turn: 3, Attempt: 4})
				if engine.ReasonOf(err) != engine.NoEngine || !strings.Contains(err.Error(), "waited 40s") || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("%v", err)
				}
				if time.Since(start) != 40*time.Second {
					t.Errorf("after %v", time.Since(start))
				}
				if g.Fate != rollout.FateFailed || g.Failure == nil || g.PromptLen != 2 || g.Turn != 3 || g.Attempt != 4 || g.ID == "" {
					t.Errorf("record %+v", g.GenerationRecord)
				}
			})
		})
	}
	t.Run("all full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 0)
			entries := table(1)
			entries[0].Credits = 1
			f.Set(entries)
			release := make(chan struct{})
			f.fakes["e0"].set(hold(release))
			go func() { _, _ = call(t, f, "") }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := f.Generate(ctx, engine.Request{}); engine.ReasonOf(err) != engine.NoEngine || !strings.Contains(err.Error(), "e0 is full with 1 calls") {
				t.Errorf("%v", err)
			}
			close(release)
			synctest.Wait()
			if _, err := call(t, f, ""); err != nil {
				t.Errorf("the credit is lost: %v", err)
			}
		})
	})
	t.Run("canceled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 0)
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			go cancel(enough)
			if _, err := f.Generate(ctx, engine.Request{}); engine.ReasonOf(err) != engine.Canceled || !errors.Is(err, enough) {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestTableChangesWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		// A call that waits is served by the engine that joins.
		served := make(chan string, 1)
		go func() {
			g, err := call(t, f, "k")
			if err != nil {
				t.Error(err)
			}
			served <- g.Engine
		}()
		synctest.Wait()
		f.Set([]rollout.EngineEntry{{ID: "e0", URL: "first", State: rollout.EngineServing}})
		if got := <-served; got != "first" {
			t.Errorf("served by %s", got)
		}
		// Its successor takes over; the old one finishes what it has, then closes.
		release := make(chan struct{})
		old := f.fakes["first"]
		old.set(hold(release))
		go func() { _, _ = call(t, f, "k") }()
		synctest.Wait()
		f.Set([]rollout.EngineEntry{{ID: "e0", URL: "second", State: rollout.EngineServing, Incarnation: 1}})
		if g, err := call(t, f, "k"); err != nil || g.Engine != "second" {
			t.Errorf("served by %s, %v", g.Engine, err)
		}
		synctest.Wait()
		if old.closed {
			t.Error("the old engine is closed under its call")
		}
		close(release)
		synctest.Wait()
		if !old.closed {
			t.Error("the old engine is not closed")
		}
		// A changed limit keeps the engine.
		f.Set([]rollout.EngineEntry{{ID: "e0", URL: "second", State: rollout.EngineServing, Incarnation: 1, Credits: 7}})
		if f.fakes["second"].closed || f.members["e0"].entry.Credits != 7 {
			t.Error("a changed limit does not reach the engine")
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		release := make(chan struct{})
		f.fakes["e0"].set(hold(release))
		entries := table(1)
		entries[0].Credits = 1
		f.Set(entries)
		ended := make(chan error, 2)
		for range 2 {
			go func() { _, err := call(t, f, ""); ended <- err }()
			synctest.Wait()
		}
		closed := make(chan struct{})
		go func() { f.Close(); close(closed) }()
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("the waiting call: %v", err)
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed under a call")
		default:
		}
		close(release)
		<-closed
		if err := <-ended; err != nil {
			t.Errorf("the running call: %v", err)
		}
		if _, err := call(t, f, ""); !errors.Is(err, ErrClosed) {
			t.Errorf("a call after: %v", err)
		}
		f.Set(table(3))
	})
}

// TestChaos has engines fail, hang, leave and join under load, in real time and
// under the race detector, and checks that calls and answers match in number.
func TestChaos(t *testing.T) {
	f := newFleet(t, 0)
	var sent atomic.Int64
	dial := f.cfg.Dial
	f.cfg.Dial = func(e rollout.EngineEntry) (Engine, error) {
		eng, err := dial(e)
		if err == nil {
			eng.(*fake).set(func(context.Context, engine.Request) error {
				switch rand.IntN(20) {
				case 0:
					return failure(engine.Unreachable)(nil, engine.Request{})
				case 1:
					return failure(engine.Reset)(nil, engine.Request{})
				}
				sent.Add(1)
				return nil
			})
		}
		return eng, err
	}
	f.cfg.CoolDown, f.cfg.MaxCoolDown = time.Microsecond, time.Millisecond
	stop := make(chan struct{})
	var tables sync.WaitGroup
	tables.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			entries := table(1 + rand.IntN(5))
			for j := range entries {
				entries[j].URL = fmt.Sprint("u", i, "-", j)
				entries[j].Credits = rand.IntN(4)
			}
			f.Set(entries)
		}
	})
	var good, reset, other atomic.Int64
	var group sync.WaitGroup
	for w := range 16 {
		group.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := f.Generate(ctx, engine.Request{ID: engine.NewID(), RoutingKey: fmt.Sprint(w, i/4)})
				cancel()
				switch {
				case err == nil:
					good.Add(1)
				case engine.ReasonOf(err) == engine.Reset:
					reset.Add(1)
				default:
					other.Add(1)
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	close(stop)
	tables.Wait()
	if good.Load() != sent.Load() || good.Load()+reset.Load() != 1600 {
		t.Errorf("%d answers to %d calls, %d resets, %d others", good.Load(), sent.Load(), reset.Load(), other.Load())
	}
}

func TestAffinityForgetsOldKeys(t *testing.T) {
	var a affinity
	for i := range 5 * maxKeys {
		a.set(fmt.Sprint(i), "e")
		a.set("used", "mine")
	}
	if len(a.young)+len(a.old) > 2*maxKeys+2 || a.get("used") != "mine" || a.get("0") != "" || a.get("") != "" {
		t.Errorf("%d keys, used %q, first %q", len(a.young)+len(a.old), a.get("used"), a.get("0"))
	}
}
