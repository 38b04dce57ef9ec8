package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/internal/worker"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestMain(m *testing.M) {
	if os.Getenv("SHEAF_TEST_AGENT") != "" {
		testAgent() // this process is an agent of one of the tests
		return
	}
	leaktest.Main(m)
}

// bed is a run on a real bus with one worker.
type bed struct {
	t      *testing.T
	conn   *natsbus.Conn
	run    *natsbus.Run
	worker *worker.Worker
	ended  chan struct{}
	err    error // of Run, once ended
	stop   context.CancelFunc
}

// generator answers as the test says.
type generator func(ctx context.Context, req engine.Request) (rollout.Generation, error)

func (g generator) Generate(ctx context.Context, req engine.Request) (rollout.Generation, error) {
	return g(ctx, req)
}

type scorer func(ctx context.Context, in reward.Input) (reward.Result, error)

func (s scorer) Score(ctx context.Context, in reward.Input) (reward.Result, error) { return s(ctx, in) }

// text encodes a prompt's text as its bytes.
type text struct{}

func (text) EncodePrompt(p rollout.Prompt) ([]int32, string, error) {
	if p.Text == "unrenderable" {
		return nil, "", errors.New("the template raised")
	}
	ids := make([]int32, len(p.Text))
	for i := range ids {
		ids[i] = int32(p.Text[i])
	}
	return ids, p.Text, nil
}

func (text) Decode(ids []int32, _ bool) string {
	out := make([]byte, len(ids))
	for i, id := range ids {
		out[i] = byte(id)
	}
	return string(out)
}

func (text) VocabSize() int { return 256 }

func answer(_ context.Context, req engine.Request) (rollout.Generation, error) {
	g := rollout.Generation{PromptIDs: req.PromptIDs, OutputIDs: []int32{'o', 'k'}, LogProbs: []float32{-1, -1}}
	g.ID, g.Attempt, g.Fate, g.PromptLen, g.OutputLen = req.ID, req.Attempt, rollout.FateFinished, len(req.PromptIDs), 2
	g.Meta.Finish.Type = rollout.FinishStop
	g.Meta.CompletionTokens = rollout.Ptr(int64(2))
	return g, nil
}

func one(context.Context, reward.Input) (reward.Result, error) {
	return reward.Result{Reward: rollout.Ptr(1.0)}, nil
}

func newBed(t *testing.T, gen generator, score scorer, slots int) *bed {
	t.Helper()
	return newBedOf(t, rollout.RunSpec{Run: "r", Seed: 1, Slots: slots, MaxAttempts: 3}, worker.Config{Engine: gen, Text: text{}, Scorer: score})
}

func newBedOf(t *testing.T, spec rollout.RunSpec, cfg worker.Config) *bed {
	t.Helper()
	srv, err := natsbus.StartServer(natsbus.ServerConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	conn, err := natsbus.Connect(t.Context(), natsbus.Config{Server: srv})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	run, err := natsbus.OpenRun(t.Context(), conn, natsbus.RunConfig{
		Spec: spec, Version: "v", Fingerprint: "f",
	})
	if err != nil {
		t.Fatal(err)
	}
	member, err := natsbus.Join(t.Context(), conn, natsbus.MemberConfig{Worker: "w", Version: "v"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	cfg.ID, cfg.Member, cfg.Slots, cfg.Log = "w", member, spec.Slots, slog.New(slog.DiscardHandler)
	w, err := worker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, conn: conn, run: run, worker: w, ended: make(chan struct{})}
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	go func() {
		defer close(b.ended)
		b.err = w.Run(ctx)
	}()
	t.Cleanup(func() {
		b.stop()
		b.wait()
	})
	return b
}

func (b *bed) join() *natsbus.Member {
	b.t.Helper()
	m, err := natsbus.Join(b.t.Context(), b.conn, natsbus.MemberConfig{Worker: "other", Version: "v"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(m.Close)
	return m
}

// wait waits for the worker's end; it may be called again.
func (b *bed) wait() {
	b.t.Helper()
	select {
	case <-b.ended:
		if b.err != nil {
			b.t.Errorf("worker: %v", b.err)
		}
	case <-time.After(10 * time.Second):
		b.t.Error("the worker did not end within 10 s")
	}
}

// submit plans and queues one wave.
func (b *bed) submit(jobs ...rollout.Job) {
	b.t.Helper()
	s := b.run.State()
	if err := b.run.Plan(b.t.Context(), rollout.Plan{Wave: s.NextWave, FirstGroup: s.NextGroup, FirstPosition: s.Cursor, Groups: len(jobs), Episodes: len(jobs[0].Episodes)}); err != nil {
		b.t.Fatal(err)
	}
	for i := range jobs {
		jobs[i].Run, jobs[i].Wave, jobs[i].Group = "r", s.NextWave, s.NextGroup+int64(i)
		if jobs[i].EpisodeDeadline == 0 {
			jobs[i].EpisodeDeadline = 10 * time.Second
		}
		if jobs[i].Sampling.MaxNewTokens == 0 {
			jobs[i].Sampling.MaxNewTokens = 8
		}
	}
	if err := b.run.Submit(b.t.Context(), jobs); err != nil {
		b.t.Fatal(err)
	}
}

// results waits for n results and loads them.
func (b *bed) results(n int) map[rollout.EpisodeID]*rollout.Episode {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 15*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var recs []bus.Receipt
	if err := b.run.Follow(ctx, func(r bus.Receipt) error {
		if recs = append(recs, r); len(recs) == n {
			return enough
		}
		return nil
	}); !errors.Is(err, enough) {
		b.t.Fatalf("%d of %d results: %v", len(recs), n, err)
	}
	out := map[rollout.EpisodeID]*rollout.Episode{}
	if err := b.run.Load(ctx, recs, func(_ bus.Receipt, e *rollout.Episode) error {
		out[e.ID] = e
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return out
}

func job(prompt string, episodes ...int) rollout.Job {
	return rollout.Job{Prompt: rollout.Prompt{Text: prompt, Label: []byte(`"ok"`)}, Episodes: episodes}
}

func TestEpisodesCompleteAndAreStored(t *testing.T) {
	var mu sync.Mutex
	seeds := map[int64]bool{}
	b := newBed(t, func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
		mu.Lock()
		defer mu.Unlock()
		if req.VocabSize != 256 {
			t.Errorf("a vocabulary of %d", req.VocabSize)
		}
		if seeds[*req.Seed] {
			t.Errorf("seed %d twice", *req.Seed)
		}
		seeds[*req.Seed] = true
		return answer(ctx, req)
	}, one, 2)
	b.submit(job("a", 0, 1, 2), job("b", 0, 1, 2))
	for id, e := range b.results(6) {
		if e.Outcome != rollout.OutcomeCompleted || len(e.Samples) != 1 || len(e.Generations) != 1 || e.Attempt != 1 || e.Worker != "w" {
			t.Fatalf("episode %+v: %+v", id, e)
		}
		s := e.Samples[0]
		if s.Response != "ok" || s.Reward == nil || *s.Reward != 1 || s.GroupIndex != id.Group || s.Index != int64(id.Index) || string(s.Label) != `"ok"` {
			t.Errorf("episode %+v: sample %+v", id, s.State())
		}
	}
}

func TestFailuresAreResults(t *testing.T) {
	engineError := func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
		err := &engine.Error{Reason: engine.Reset, Engine: "e0", Err: errors.New("connection reset")}
		var g rollout.Generation
		g.ID, g.Fate, g.Failure = req.ID, rollout.FateFailed, err.Failure()
		return g, err
	}
	cases := []struct {
		name  string
		gen   generator
		score scorer
		job   rollout.Job
		want  string
		gens  int
	}{
		{"the engine fails", engineError, one, job("a", 0), "engine/reset", 1},
		{"the engine hangs", func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
			<-ctx.Done()
			return rollout.Generation{}, &engine.Error{Reason: engine.Timeout, Err: context.Cause(ctx)}
		}, one, rollout.Job{Prompt: rollout.Prompt{Text: "a"}, Episodes: []int{0}, EpisodeDeadline: 50 * time.Millisecond}, "engine/episode_deadline", 1},
		{"the reply contradicts itself", func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
			g, err := answer(ctx, req)
			g.LogProbs = g.LogProbs[:1]
			return g, err
		}, one, job("a", 0), "engine/bad_reply", 1},
		{"the versions are of other tokens", func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
			g, err := answer(ctx, req)
			g.Meta.WeightVersions = []rollout.VersionSpan{{Version: "1", Start: 0, End: 99}, {Version: "2", Start: -4, End: 1}}
			return g, err
		}, one, job("a", 0), "engine/bad_reply", 1},
		{"the verifier fails", answer, func(context.Context, reward.Input) (reward.Result, error) {
			return reward.Result{}, errors.New("no label")
		}, job("a", 0), "reward/error", 1},
		{"the verifier hangs", answer, func(ctx context.Context, _ reward.Input) (reward.Result, error) {
			<-ctx.Done()
			return reward.Result{}, ctx.Err()
		}, rollout.Job{Prompt: rollout.Prompt{Text: "a"}, Episodes: []int{0}, EpisodeDeadline: 50 * time.Millisecond}, "reward/episode_deadline", 1},
		{"the prompt does not render", answer, one, job("unrenderable", 0), "prompt/encode", 0},
		{"the prompt is too long", answer, one, rollout.Job{Prompt: rollout.Prompt{Text: "abcdef"}, Episodes: []int{0}, MaxContext: 6}, "prompt/too_long", 0},
		{"our own code panics", func(context.Context, engine.Request) (rollout.Generation, error) { panic("boom") }, one, job("a", 0), "worker/panic", 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			b := newBed(t, tc.gen, tc.score, 1)
			b.submit(tc.job)
			for _, e := range b.results(1) {
				if e.Outcome != rollout.OutcomeFailed || e.Failure == nil || e.Failure.Key() != tc.want || len(e.Samples) != 0 || len(e.Generations) != tc.gens {
					t.Errorf("got %+v with failure %v, want %s", e, e.Failure, tc.want)
				}
			}
		})
	}
}

func TestAbortedEpisodeHasNoReward(t *testing.T) {
	b := newBed(t, func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
		g, err := answer(ctx, req)
		g.Fate, g.Meta.Finish.Type = rollout.FateAborted, rollout.FinishAbort
		return g, err
	}, func(context.Context, reward.Input) (reward.Result, error) {
		t.Error("an aborted episode was scored")
		return reward.Result{}, nil
	}, 1)
	b.submit(job("a", 0))
	for _, e := range b.results(1) {
		if e.Outcome != rollout.OutcomeAborted || e.Samples[0].Reward != nil {
			t.Errorf("got %+v", e)
		}
	}
}

func TestDrainFinishesWhatIsHeld(t *testing.T) {
	begun, finish := make(chan struct{}, 8), make(chan struct{})
	b := newBed(t, func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
		begun <- struct{}{}
		select {
		case <-finish:
			return answer(ctx, req)
		case <-ctx.Done():
			return rollout.Generation{}, &engine.Error{Reason: engine.Canceled, Err: ctx.Err()}
		}
	}, one, 1)
	b.submit(job("a", 0), job("b", 0))
	<-begun
	b.worker.Drain()
	b.worker.Drain() // twice is fine
	close(finish)
	b.wait()
	if got := b.results(1); len(got) != 1 {
		t.Errorf("%d results", len(got))
	}
	if len(begun) != 0 {
		t.Error("a drained worker began another episode")
	}
}

func TestStopGivesBack(t *testing.T) {
	begun := make(chan struct{}, 8)
	b := newBed(t, func(ctx context.Context, req engine.Request) (rollout.Generation, error) {
		begun <- struct{}{}
		<-ctx.Done()
		var g rollout.Generation
		g.ID = req.ID
		return g, &engine.Error{Reason: engine.Canceled, Err: ctx.Err()}
	}, one, 1)
	b.submit(job("a", 0))
	<-begun
	b.stop()
	b.wait()
	waste, _, err := b.run.Waste(t.Context(), 0)
	if err != nil || len(waste) != 1 || waste[0].Reason != "given_back" || len(waste[0].Generations) != 1 {
		t.Errorf("waste %+v, %v; want the generation begun", waste, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.run.Follow(ctx, func(r bus.Receipt) error {
		t.Errorf("a stopped worker stored %+v", r)
		return nil
	}); ctx.Err() == nil {
		t.Error(err)
	}
}

// TestPoison: a job whose leases keep ending without results fails its episodes.
func TestPoison(t *testing.T) {
	b := newBed(t, answer, one, 1)
	b.stop()
	b.wait()
	b.submit(job("a", 0, 1))
	for range 3 {
		m := b.join()
		l, err := m.Lease(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m := b.join()
	w, err := worker.New(worker.Config{ID: "w2", Member: m, Engine: generator(answer), Text: text{}, Scorer: scorer(one), Slots: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for _, e := range b.results(2) {
		if e.Failure == nil || e.Failure.Key() != "worker/poison" || e.Attempt != 4 {
			t.Errorf("attempt %d: %v", e.Attempt, e.Failure)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
