package pool

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// guarded is a candidate whose health and counters change while it is watched.
type guarded struct {
	candidate
	mu  sync.Mutex
	ill error
}

func (g *guarded) set(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ill = err
}

func (g *guarded) Health(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ill
}

func (g *guarded) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	if err := g.Health(ctx); err != nil {
		return rollout.Generation{}, err
	}
	return g.candidate.Generate(ctx, req)
}

func fit(tokens int64) *guarded {
	g := &guarded{}
	g.info = engine.Info{Version: "1", NoTokenizer: true, Speculative: rollout.Ptr(true)}
	g.reply.Fate = rollout.FateFinished
	g.reply.Meta.CompletionTokens = rollout.Ptr(int64(8))
	g.counters.Completion = &tokens
	return g
}

func ward(id string, g *guarded) *Ward {
	return &Ward{Entry: rollout.EngineEntry{ID: id, State: rollout.EngineProbing}, Name: "engines." + id, Engine: g}
}

func TestWardenTakesAnEngineOutAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fit(5)
		rows := make(chan rollout.EngineEntry, 8)
		w := NewWarden(WardenConfig{Terms: Terms{CanaryIDs: []int32{1}}, Put: func(_ context.Context, e rollout.EngineEntry) error {
			rows <- e
			return nil
		}}, []*Ward{ward("0", g)})
		if err := w.Admit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := <-rows; e.State != rollout.EngineServing || e.Version != "1" || e.Speculative == nil || e.Incarnation != 0 {
			t.Errorf("admitted as %+v", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()

		g.set(errors.New("ill"))
		time.Sleep(29 * time.Second) // two looks: not yet
		synctest.Wait()
		if len(rows) != 0 {
			t.Errorf("changed too early: %+v", <-rows)
		}
		time.Sleep(2 * time.Second)
		if e := <-rows; e.State != rollout.EngineDead {
			t.Errorf("after three failures: %+v", e)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(rows) != 0 {
			t.Errorf("a dead engine came back ill: %+v", <-rows)
		}
		g.set(nil)
		time.Sleep(11 * time.Second)
		if e := <-rows; e.State != rollout.EngineServing || e.Incarnation != 1 {
			t.Errorf("after it is well: %+v", e)
		}
		if got := w.TakeProbeTokens(); got != 16 {
			t.Errorf("%d probe tokens, want those of two canaries", got)
		}
		if got := w.TakeProbeTokens(); got != 0 {
			t.Errorf("%d probe tokens twice", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWardenNamesEveryEngineItRefuses(t *testing.T) {
	bad := fit(0)
	bad.infoErr = errors.New("nobody there")
	worse := fit(0)
	worse.reply.Untrainable = "missing_logprob"
	w := NewWarden(WardenConfig{Terms: Terms{CanaryIDs: []int32{1}}}, []*Ward{ward("0", bad), ward("1", fit(0)), ward("2", worse)})
	err := w.Admit(t.Context())
	if err == nil || !strings.Contains(err.Error(), "engines.0") || !strings.Contains(err.Error(), "engines.2") || strings.Contains(err.Error(), "engines.1") {
		t.Errorf("got %v", err)
	}
}

func TestWardenEndsWhenTheTableCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fit(0)
		fenced := errors.New("fenced")
		w := NewWarden(WardenConfig{Failures: 1, Put: func(context.Context, rollout.EngineEntry) error { return fenced }}, []*Ward{ward("0", g)})
		g.set(errors.New("ill"))
		if err := w.Run(t.Context()); !errors.Is(err, fenced) {
			t.Errorf("got %v", err)
		}
	})
}

func TestWardenKnowsGrowthOnlyOfEnginesThatStayed(t *testing.T) {
	count := func(g *guarded, completion, started int64) {
		g.counters.Completion, g.counters.Started = rollout.Ptr(completion), rollout.Ptr(started)
	}
	a, b := fit(0), fit(0)
	w := NewWarden(WardenConfig{}, []*Ward{ward("0", a), ward("1", b)})
	for i, tc := range []struct {
		of0, of1, start1 int64
		want             *int64
	}{
		{3, 4, 1, nil}, // the first look
		{5, 9, 1, rollout.Ptr(int64(7))},
		{6, 2, 2, nil}, // started anew
		{7, 3, 2, rollout.Ptr(int64(2))},
		{8, 9, 3, nil}, // started anew, and beyond the old count
	} {
		count(a, tc.of0, 1)
		count(b, tc.of1, tc.start1)
		if got := w.Grown(t.Context()); !same(got, tc.want) {
			t.Errorf("look %d: got %v, want %v", i, got, tc.want)
		}
	}
	b.counters.Completion = nil
	if got := w.Grown(t.Context()); got != nil {
		t.Errorf("got %d of an engine that shows none", *got)
	}
}

func TestWardenSharesCredits(t *testing.T) {
	bounded, free := ward("0", fit(0)), ward("1", fit(0))
	bounded.Entry.MaxInflight = 8
	var rows []rollout.EngineEntry
	w := NewWarden(WardenConfig{Put: func(_ context.Context, e rollout.EngineEntry) error {
		rows = append(rows, e)
		return nil
	}}, []*Ward{bounded, free})
	for _, tc := range []struct{ workers, credits int }{{0, 8}, {1, 8}, {3, 2}, {3, 2}, {20, 1}, {2, 4}} {
		if err := w.Share(t.Context(), tc.workers); err != nil {
			t.Fatal(err)
		}
		if got := w.Rows(); got[0].Credits != tc.credits || got[1].Credits != 0 {
			t.Errorf("%d workers: %d and %d credits, want %d and none", tc.workers, got[0].Credits, got[1].Credits, tc.credits)
		}
	}
	if len(rows) != 4 { // the first, and each change
		t.Errorf("%d rows written, want 4", len(rows))
	}
}
