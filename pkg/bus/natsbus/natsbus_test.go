package natsbus_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const version = "test"

// bed is a server with a store that outlives it.
type bed struct {
	t   *testing.T
	dir string
	srv *natsbus.Server
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir()}
	b.start("")
	t.Cleanup(func() { b.srv.Close() })
	return b
}

func (b *bed) start(listen string) {
	b.t.Helper()
	srv, err := natsbus.StartServer(natsbus.ServerConfig{Dir: b.dir, Listen: listen})
	if err != nil {
		b.t.Fatal(err)
	}
	b.srv = srv
}

func (b *bed) conn() *natsbus.Conn {
	b.t.Helper()
	c, err := natsbus.Connect(b.t.Context(), natsbus.Config{Server: b.srv})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

func runConfig() natsbus.RunConfig {
	return natsbus.RunConfig{Spec: rollout.RunSpec{Run: "r1", Seed: 7, Slots: 4}, Version: version, Fingerprint: "f"}
}

func (b *bed) open() *natsbus.Run {
	b.t.Helper()
	r, err := natsbus.OpenRun(b.t.Context(), b.conn(), runConfig())
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bed) join(worker string) *natsbus.Member {
	b.t.Helper()
	m, err := natsbus.Join(b.t.Context(), b.conn(), natsbus.MemberConfig{Worker: worker, Version: version})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(m.Close)
	return m
}

// newWave is a bed whose run has one wave queued.
func newWave(t *testing.T, groups, episodes int) (*bed, *natsbus.Run) {
	t.Helper()
	b := newBed(t)
	r := b.open()
	must(t, r.Plan(t.Context(), rollout.Plan{Groups: groups, Episodes: episodes}))
	must(t, r.Submit(t.Context(), jobs(0, groups, episodes)))
	return b, r
}

func jobs(wave int64, groups, episodes int) []rollout.Job {
	out := make([]rollout.Job, groups)
	for g := range out {
		out[g] = rollout.Job{Run: "r1", Wave: wave, Group: int64(g), Prompt: rollout.Prompt{Text: "p"}}
		for e := range episodes {
			out[g].Episodes = append(out[g].Episodes, e)
		}
	}
	return out
}

func episode(j rollout.Job, index, attempt int) *rollout.Episode {
	var s rollout.Sample
	gen := rollout.Generation{PromptIDs: []int32{1}, OutputIDs: []int32{2, 3}, LogProbs: []float32{-1, -2}}
	gen.ID = fmt.Sprintf("%d-%d-%d-%d", j.Wave, j.Group, index, attempt)
	gen.OutputLen = 2
	gen.Meta.Finish.Type = rollout.FinishStop
	if err := s.Append(gen); err != nil {
		panic(err)
	}
	s.Reward = rollout.Ptr(1.0)
	return &rollout.Episode{
		ID: rollout.EpisodeID{Wave: j.Wave, Group: j.Group, Index: index}, Attempt: attempt, Outcome: rollout.OutcomeCompleted,
		Samples: []*rollout.Sample{&s}, Generations: []rollout.GenerationRecord{gen.GenerationRecord},
	}
}

func lease(t *testing.T, m *natsbus.Member) bus.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := m.Lease(ctx)
	if err != nil {
		t.Fatalf("lease: %v", err)
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// collect reads heads until n different episodes were seen.
func collect(t *testing.T, r *natsbus.Run, n int) []bus.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var got []bus.Receipt
	err := r.Follow(ctx, func(rec bus.Receipt) error {
		got = append(got, rec)
		if len(got) == n {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("collected %d of %d results: %v", len(got), n, err)
	}
	return got
}

func TestLifeOfAWave(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	r := b.open()
	must(t, r.Plan(ctx, rollout.Plan{Groups: 3, Episodes: 2}))
	want := jobs(0, 3, 2)
	must(t, r.Submit(ctx, want))
	must(t, r.Submit(ctx, want)) // idempotent: the queue holds each job once

	m := b.join("w1")
	if got := m.Spec(); !reflect.DeepEqual(got, runConfig().Spec) {
		t.Errorf("spec %+v, want %+v", got, runConfig().Spec)
	}
	for range 3 {
		l := lease(t, m)
		if l.Attempt() != 1 {
			t.Errorf("attempt %d, want 1", l.Attempt())
		}
		for _, e := range l.Job().Episodes {
			must(t, l.Publish(ctx, episode(l.Job(), e, l.Attempt())))
		}
		must(t, l.Done(ctx))
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if l, err := m.Lease(short); err == nil {
		t.Errorf("a fourth job: %+v", l.Job())
	}

	recs := collect(t, r, 6)
	for _, rec := range recs {
		if rec.Outcome != rollout.OutcomeCompleted || rec.Reward == nil || *rec.Reward != 1 || rec.CompletionTokens != 2 || rec.Attempt != 1 {
			t.Errorf("receipt %+v", rec)
		}
	}
	seen := map[rollout.EpisodeID]bool{}
	must(t, r.Load(ctx, recs, func(rec bus.Receipt, e *rollout.Episode) error {
		seen[e.ID] = true
		if got := e.Samples[0].Tokens(); !reflect.DeepEqual(got, []int32{1, 2, 3}) {
			t.Errorf("tokens %v", got)
		}
		return nil
	}))
	if len(seen) != 6 {
		t.Errorf("loaded %d episodes, want 6", len(seen))
	}
	must(t, r.Submit(ctx, want)) // all results are there: nothing to queue
	must(t, r.Commit(ctx, rollout.Manifest{Step: 0}))
	must(t, r.Trim(ctx, 1))
	if err := r.Load(ctx, recs, func(bus.Receipt, *rollout.Episode) error { return nil }); !errors.Is(err, bus.ErrDamaged) {
		t.Errorf("load after trim: %v", err)
	}
	must(t, r.Close(ctx))

	<-m.Ended()

	again := b.open()
	if s := again.State(); s.Closed || s.NextStep != 1 || s.NextGroup != 3 || s.Trimmed != 1 {
		t.Errorf("state after reopening %+v", s)
	}
}

func TestSecondLeaseTakesOver(t *testing.T) {
	ctx := t.Context()
	b, r := newWave(t, 1, 3)
	first, second := b.join("w1"), b.join("w2")

	stale := lease(t, first)
	must(t, stale.Publish(ctx, episode(stale.Job(), 0, 1)))
	must(t, stale.Release(ctx)) // as if it were dead: it goes on all the same
	fresh := lease(t, second)
	if fresh.Attempt() != 2 {
		t.Errorf("attempt %d, want 2", fresh.Attempt())
	}
	if got := fresh.Job().Episodes; !reflect.DeepEqual(got, []int{1, 2}) {
		t.Errorf("episodes wanted %v, want 1 and 2", got)
	}
	if err := stale.Publish(ctx, episode(stale.Job(), 1, 1)); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("stale publish: %v, want fenced", err)
	}
	select {
	case <-stale.Fenced():
	default:
		t.Error("the stale lease does not know that it is fenced")
	}
	for _, e := range fresh.Job().Episodes {
		must(t, fresh.Publish(ctx, episode(fresh.Job(), e, 2)))
	}
	must(t, fresh.Done(ctx))
	attempts := map[int]int{}
	for _, rec := range collect(t, r, 3) {
		attempts[rec.Episode.Index] = rec.Attempt
	}
	if want := map[int]int{0: 1, 1: 2, 2: 2}; !reflect.DeepEqual(attempts, want) {
		t.Errorf("attempts by episode %v, want %v", attempts, want)
	}
}

func TestDeadWorkersJobRunsElsewhere(t *testing.T) {
	b, _ := newWave(t, 1, 1)
	dead := b.join("w1")
	lease(t, dead)
	dead.Close() // no more heartbeats
	l := lease(t, b.join("w2"))
	if l.Attempt() != 2 {
		t.Errorf("attempt %d, want 2", l.Attempt())
	}
}

func TestHeartbeatKeepsALease(t *testing.T) {
	ctx := t.Context()
	b, _ := newWave(t, 1, 1)
	l := lease(t, b.join("w1"))
	other := b.join("w2")
	wait, cancel := context.WithTimeout(ctx, 3*time.Second) // longer than AckWait
	defer cancel()
	if again, err := other.Lease(wait); err == nil {
		t.Fatalf("a second lease, attempt %d", again.Attempt())
	}
	must(t, l.Publish(ctx, episode(l.Job(), 0, 1)))
	must(t, l.Done(ctx))
}

func TestStaleControllerIsFenced(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	stale := b.open()
	must(t, stale.Plan(ctx, rollout.Plan{Groups: 1, Episodes: 1}))
	fresh := b.open()
	if got := fresh.State(); got.Epoch != 2 || got.NextWave != 1 {
		t.Errorf("state %+v", got)
	}
	if got := fresh.Open(); len(got) != 1 {
		t.Errorf("open plans %+v", got)
	}
	cases := []struct {
		name string
		do   func() error
	}{
		{"plan", func() error {
			return stale.Plan(ctx, rollout.Plan{Wave: 1, FirstGroup: 1, FirstPosition: 1, Groups: 1})
		}},
		{"submit", func() error { return stale.Submit(ctx, jobs(0, 1, 1)) }},
		{"commit", func() error { return stale.Commit(ctx, rollout.Manifest{}) }},
		{"trim", func() error { return stale.Trim(ctx, 1) }},
		{"close", func() error { return stale.Close(ctx) }},
		{"held", func() error { return stale.Held(ctx) }},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.do(); !errors.Is(err, bus.ErrFenced) {
				t.Errorf("got %v, want fenced", err)
			}
		})
	}
}

// TestLostFencesAreWrittenAgain: a damaged store can take the fences with it.
func TestLostFencesAreWrittenAgain(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	r := b.open()
	must(t, r.Plan(ctx, rollout.Plan{Groups: 1, Episodes: 1}))
	nc, err := nats.Connect("", nats.InProcessServer(natsbus.NATS(b.srv)))
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	for _, name := range []string{"SHEAF_JOBS_r1", "SHEAF_RESULTS_r1"} {
		s, err := js.Stream(ctx, name)
		must(t, err)
		must(t, s.Purge(ctx))
	}
	must(t, r.Submit(ctx, jobs(0, 1, 1)))
	l := lease(t, b.join("w1"))
	must(t, l.Publish(ctx, episode(l.Job(), 0, 1)))
	must(t, l.Done(ctx))
}

func TestResultAfterTrimIsRefused(t *testing.T) {
	ctx := t.Context()
	b, r := newWave(t, 1, 1)
	l := lease(t, b.join("w1"))
	must(t, r.Commit(ctx, rollout.Manifest{}))
	must(t, r.Trim(ctx, 1))
	if err := l.Publish(ctx, episode(l.Job(), 0, 1)); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("got %v, want fenced", err)
	}
}

func TestLargeResultTravelsAsBlob(t *testing.T) {
	ctx := t.Context()
	b, r := newWave(t, 1, 1)
	l := lease(t, b.join("w1"))
	e := episode(l.Job(), 0, 1)
	e.Samples[0].Response = strings.Repeat("x", 9<<20)
	must(t, l.Publish(ctx, e))
	recs := collect(t, r, 1)
	if recs[0].Size < 9<<20 {
		t.Errorf("size %d", recs[0].Size)
	}
	must(t, r.Load(ctx, recs, func(_ bus.Receipt, got *rollout.Episode) error {
		if got.Samples[0].Response != e.Samples[0].Response {
			t.Error("the response changed on the way")
		}
		return nil
	}))
}

func TestStoreOutlivesServer(t *testing.T) {
	ctx := t.Context()
	b, _ := newWave(t, 2, 1)
	l := lease(t, b.join("w1"))
	must(t, l.Publish(ctx, episode(l.Job(), 0, 1)))
	must(t, l.Done(ctx))
	b.srv.Close()
	b.start("")
	again := b.open()
	must(t, again.Submit(ctx, jobs(0, 2, 1)))
	l = lease(t, b.join("w2"))
	must(t, l.Publish(ctx, episode(l.Job(), 0, 1)))
	must(t, l.Done(ctx))
	groups := map[int64]bool{}
	for _, rec := range collect(t, again, 2) {
		groups[rec.Episode.Group] = true
	}
	if len(groups) != 2 {
		t.Errorf("results of groups %v, want both", groups)
	}
}

func TestJoinRefuses(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	if _, err := natsbus.Join(ctx, b.conn(), natsbus.MemberConfig{Worker: "w", Version: version}); !errors.Is(err, bus.ErrNoRun) {
		t.Errorf("without a run: %v", err)
	}
	b.open()
	cases := []struct {
		name string
		cfg  natsbus.MemberConfig
		want error
	}{
		{"another version", natsbus.MemberConfig{Worker: "w", Version: "other"}, bus.ErrVersion},
		{"a run that is not there", natsbus.MemberConfig{Worker: "w", Version: version, Run: "r2"}, bus.ErrNoRun},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := natsbus.Join(ctx, b.conn(), tc.cfg); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	t.Run("two runs and no name", func(t *testing.T) {
		cfg := runConfig()
		cfg.Spec.Run = "r2"
		if _, err := natsbus.OpenRun(ctx, b.conn(), cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := natsbus.Join(ctx, b.conn(), natsbus.MemberConfig{Worker: "w", Version: version}); !errors.Is(err, bus.ErrManyRuns) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOpenRefusesAnotherConfig(t *testing.T) {
	b := newBed(t)
	b.open()
	cfg := runConfig()
	cfg.Fingerprint = "another"
	_, err := natsbus.OpenRun(t.Context(), b.conn(), cfg)
	var differs *bus.Differs
	if !errors.Is(err, bus.ErrFingerprint) || !errors.As(err, &differs) || differs.ModelHash != cfg.Spec.Model.Hash || string(differs.Config) != string(cfg.Config) {
		t.Errorf("got %v, %+v", err, differs)
	}
}

func TestEnginesShowsEveryChange(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	r := b.open()
	must(t, r.PutEngine(ctx, rollout.EngineEntry{ID: "e0", URL: "u0", State: rollout.EngineServing}))
	m := b.join("w1")
	tables, err := m.Engines(ctx)
	must(t, err)
	if got := <-tables; len(got) != 1 || got[0].URL != "u0" {
		t.Errorf("table %+v", got)
	}
	must(t, r.PutEngine(ctx, rollout.EngineEntry{ID: "e1", URL: "u1", State: rollout.EngineServing}))
	if got := <-tables; len(got) != 2 || got[1].URL != "u1" {
		t.Errorf("table %+v", got)
	}
}

func TestAnnounceShowsAndLeaves(t *testing.T) {
	b := newBed(t)
	r := b.open()
	m := b.join("w1")
	ctx, cancel := context.WithCancel(t.Context())
	var done atomic.Bool
	ended := make(chan error, 1)
	go func() { ended <- m.Announce(ctx, 4); done.Store(true) }()
	for {
		n, err := r.Workers(t.Context())
		must(t, err)
		if len(n) == 1 && n[0].ID == "w1" && n[0].Slots == 4 {
			break
		}
	}
	cancel()
	must(t, <-ended)
	if n, err := r.Workers(t.Context()); err != nil || len(n) != 0 {
		t.Errorf("workers after leaving: %v, %v", n, err)
	}
}

func TestConnectSaysWhatToDo(t *testing.T) {
	_, err := natsbus.Connect(t.Context(), natsbus.Config{URLs: []string{"nats://user:secret@127.0.0.1:1"}, ConnectWait: 300 * time.Millisecond})
	if !errors.Is(err, bus.ErrUnavailable) || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestPortInUse(t *testing.T) {
	b := newBed(t)
	b.srv.Close()
	b.start("127.0.0.1:0")
	addr := strings.TrimPrefix(b.srv.URL(), "nats://")
	_, err := natsbus.StartServer(natsbus.ServerConfig{Dir: t.TempDir(), Listen: addr})
	if err == nil || !strings.Contains(err.Error(), "nats.listen") {
		t.Errorf("got %v", err)
	}
}

func TestWasteIsNotFencedAndCountedOnce(t *testing.T) {
	ctx := t.Context()
	b, r := newWave(t, 1, 1)
	stale := lease(t, b.join("w1"))
	must(t, stale.Release(ctx))
	fresh := lease(t, b.join("w2"))
	if err := stale.Publish(ctx, episode(stale.Job(), 0, 1)); !errors.Is(err, bus.ErrFenced) {
		t.Fatalf("got %v, want fenced", err)
	}
	want := rollout.Waste{Attempt: 1, Worker: "w1", Reason: "fenced", Generations: episode(stale.Job(), 0, 1).Generations}
	must(t, stale.Waste(ctx, want))
	must(t, stale.Waste(ctx, want)) // a repeated report is one
	got, seen, err := r.Waste(ctx, 0)
	must(t, err)
	if !reflect.DeepEqual(got, []rollout.Waste{want}) {
		t.Errorf("got %+v, want %+v once", got, want)
	}
	must(t, fresh.Publish(ctx, episode(fresh.Job(), 0, 2)))
	collect(t, r, 1) // waste is no result
	must(t, r.Commit(ctx, rollout.Manifest{WasteSeen: seen}))
	must(t, r.Trim(ctx, 1))
	if s := r.State(); s.WasteSeen != seen {
		t.Errorf("state %+v, want waste seen to %d", s, seen)
	}
	again, _, err := r.Waste(ctx, 0)
	must(t, err)
	if len(again) != 0 {
		t.Errorf("waste left after it was counted: %+v", again)
	}
}
