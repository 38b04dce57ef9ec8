package controller_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/internal/controller"
	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// prompts deals out prompts without end.
type prompts struct{}

func (prompts) At(position int64) (rollout.Prompt, error) {
	return rollout.Prompt{Text: fmt.Sprintf("prompt %d", position), Row: position}, nil
}

// watcher notes what the controller tells.
type watcher struct {
	mu      sync.Mutex
	done    []int64
	waiting []string
	stored  int
	retried int
	failed  []string
	onStep  func(n int64)
}

func (w *watcher) StepStarted(int64, int) {}
func (w *watcher) Retrying(_ int64, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retried += n
}
func (w *watcher) EpisodeStored(bus.Receipt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stored++
}
func (w *watcher) Failed(f *rollout.Failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, f.Error())
}
func (w *watcher) Waiting(on string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, on)
}
func (w *watcher) StepDone(n int64, _ string, _ *step.Result) {
	w.mu.Lock()
	w.done = append(w.done, n)
	f := w.onStep
	w.mu.Unlock()
	if f != nil {
		f(n)
	}
}

// bed is a store on disk and a folder for files.
type bed struct {
	t     *testing.T
	conn  *natsbus.Conn
	dir   string
	codec *wire.Codec
}

func newBed(t *testing.T) *bed {
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
	codec, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	return &bed{t: t, conn: conn, dir: t.TempDir(), codec: codec}
}

func (b *bed) open() *natsbus.Run {
	b.t.Helper()
	run, err := natsbus.OpenRun(b.t.Context(), b.conn, natsbus.RunConfig{Spec: rollout.RunSpec{Run: "r"}, Version: "v", Fingerprint: "f"})
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

func (b *bed) controller(run *natsbus.Run, w *watcher, steps int64) *controller.Controller {
	b.t.Helper()
	return b.controllerOn(run, w, steps)
}

func (b *bed) controllerOn(run bus.Run, w *watcher, steps int64, edit ...func(*controller.Config)) *controller.Controller {
	b.t.Helper()
	cfg := controller.Config{
		Run: run, Prompts: prompts{}, Codec: b.codec, Steps: steps, Groups: 3, Episodes: 4, RunName: "r",
		Sampling: rollout.Sampling{MaxNewTokens: 4}, EpisodeDeadline: time.Second, Patience: 100 * time.Millisecond, StallLimit: time.Minute,
		Step: step.Config{Run: "r", BatchSize: 3, SamplesPerPrompt: 4, Estimator: step.GRPO, Normalize: true, Temperature: 1},
		Dir:  b.dir, Observer: w, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := controller.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func allowEmpty(c *controller.Config) { c.AllowEmptySteps = true }

// work answers jobs until the test ends, episodes and jobs in an order of the
// seed. fail says which episodes fail.
func (b *bed) work(seed uint64, fail func(rollout.EpisodeID) bool) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	b.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	wg.Go(func() {
		m, err := natsbus.Join(ctx, b.conn, natsbus.MemberConfig{Worker: fmt.Sprintf("w%d", seed), Version: "v", Wait: 10 * time.Second})
		if err != nil {
			b.t.Error(err)
			return
		}
		defer m.Close()
		r := rand.New(rand.NewPCG(seed, seed))
		for {
			l, err := m.Lease(ctx)
			if err != nil {
				return
			}
			episodes := l.Job().Episodes
			r.Shuffle(len(episodes), func(i, j int) { episodes[i], episodes[j] = episodes[j], episodes[i] })
			for _, e := range episodes {
				if err := l.Publish(ctx, result(l.Job(), e, fail)); err != nil {
					return
				}
			}
			if err := l.Done(ctx); err != nil {
				return
			}
		}
	})
}

// result is a pure function of the episode.
func result(j rollout.Job, index int, fail func(rollout.EpisodeID) bool) *rollout.Episode {
	id := rollout.EpisodeID{Wave: j.Wave, Group: j.Group, Index: index}
	g := rollout.Generation{PromptIDs: []int32{1, 2}, OutputIDs: []int32{int32(j.Group), int32(index)}, LogProbs: []float32{-0.5, -0.25}}
	g.ID, g.Fate, g.PromptLen, g.OutputLen = fmt.Sprintf("%d-%d-%d", j.Wave, j.Group, index), rollout.FateFinished, 2, 2
	g.Meta.Finish.Type = rollout.FinishStop
	g.Meta.CompletionTokens = rollout.Ptr(int64(2))
	e := &rollout.Episode{ID: id, RolloutID: j.FirstRolloutID + int64(index), Attempt: 1, Generations: []rollout.GenerationRecord{g.GenerationRecord}}
	if fail != nil && fail(id) {
		e.Outcome, e.Failure = rollout.OutcomeFailed, rollout.NewFailure(rollout.BoundaryEngine, "reset", true, errors.New("gone"))
		return e
	}
	s := &rollout.Sample{SampleInfo: rollout.SampleInfo{GroupIndex: j.Group, Index: e.RolloutID, RolloutID: e.RolloutID, Prompt: j.Prompt.Text}}
	if err := s.Append(g); err != nil {
		panic(err)
	}
	s.Reward = rollout.Ptr(float64(index % 2))
	e.Outcome, e.Samples = rollout.OutcomeCompleted, []*rollout.Sample{s}
	return e
}

func (b *bed) files(n int64) string {
	b.t.Helper()
	var all bytes.Buffer
	for _, name := range []string{"samples.jsonl", "groups.cbor", "batch/rank-00000-of-00001.safetensors"} {
		data, err := os.ReadFile(filepath.Join(controller.StepDir(b.dir, n), name))
		if err != nil {
			b.t.Fatal(err)
		}
		all.Write(data)
	}
	return all.String()
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestFilesDoNotDependOnTheOrderOfArrival(t *testing.T) {
	var want string
	for seed := range uint64(4) {
		b := newBed(t)
		b.work(seed+1, nil)
		if err := b.controller(b.open(), &watcher{}, 2).Run(bounded(t)); err != nil {
			t.Fatal(err)
		}
		got := b.files(0) + b.files(1)
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("order %d gives other files", seed)
		}
	}
}

// TestFailedSiblingsRunAgain: an episode that fails once is run again, alone; one
// that keeps failing ends failed after its budget, and costs its group.
func TestFailedSiblingsRunAgain(t *testing.T) {
	b := newBed(t)
	b.work(1, func(id rollout.EpisodeID) bool {
		return id.Group == 0 && id.Index == 1 && id.Wave == 0 || id.Group == 2 && id.Index == 3
	})
	w := &watcher{}
	run := b.open()
	if err := b.controller(run, w, 1).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if w.retried != 3 { // two in the second wave, one in the third
		t.Errorf("%d episodes run again, want 3", w.retried)
	}
	if s := run.State(); s.NextWave != 3 || s.NextGroup != 3 || s.Cursor != 3 || s.Trimmed != 3 {
		t.Errorf("state %+v", s)
	}
	data, err := os.ReadFile(filepath.Join(controller.StepDir(b.dir, 0), "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rep step.Report
	if err := json.Unmarshal(data, &rep); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"accepted": 8, "discarded(engine/reset)": 1, "discarded(group_incomplete)": 3}
	if !maps.Equal(rep.Ledger.Dispositions, want) {
		t.Errorf("dispositions %v, want %v", rep.Ledger.Dispositions, want)
	}
	if books := rep.Ledger.Books; books.Generated != 30 || books.Discarded["engine/reset"] != 8 || books.Unaccounted != 0 {
		t.Errorf("books %+v; want 12 episodes and 3 tries of 2 tokens", books)
	}
}

func TestRetryBudgets(t *testing.T) {
	r := controller.Retries{"engine/reset": 5, "reward": 0, "engine": 1}
	for key, want := range map[string]int{"engine/reset": 5, "engine/timeout": 1, "reward/error": 0, "worker/panic": controller.DefaultRetries} {
		if got := r.Budget(key); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
	if got := (controller.Retries{"default": 7}).Budget("x/y"); got != 7 {
		t.Errorf("default: %d", got)
	}
}

// TestDamagedResultsAreMadeAnew removes stored results behind the controller's
// back, as a damaged block does.
func TestDamagedResultsAreMadeAnew(t *testing.T) {
	b := newBed(t)
	b.work(1, nil)
	run := b.open()
	w := &watcher{}
	lossy := &lossyRun{Run: run}
	if err := b.controllerOn(lossy, w, 1).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	undisturbed := newBed(t)
	undisturbed.work(1, nil)
	if err := undisturbed.controller(undisturbed.open(), &watcher{}, 1).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if !lossy.lost || b.files(0) != undisturbed.files(0) {
		t.Error("the files are not those of an undisturbed run")
	}
	data, err := os.ReadFile(filepath.Join(b.dir, "metrics.jsonl"))
	if err != nil || !strings.Contains(string(data), `"event":"damaged_results_regenerated"`) {
		t.Errorf("%v in\n%s", err, data)
	}
}

// lossyRun drops two results before they are loaded for the first time.
type lossyRun struct {
	*natsbus.Run
	lost bool
}

func (l *lossyRun) Load(ctx context.Context, recs []bus.Receipt, f func(bus.Receipt, *rollout.Episode) error) error {
	if !l.lost {
		l.lost = true
		for _, r := range recs[:2] {
			if err := l.Drop(ctx, r); err != nil {
				return err
			}
		}
	}
	return l.Run.Load(ctx, recs, f)
}

// TestUndecodableResultCostsItsEpisode: a result that is stored well and cannot be
// read is a failed episode of the step, and the run goes on.
func TestUndecodableResultCostsItsEpisode(t *testing.T) {
	b := newBed(t)
	b.work(1, nil)
	w := &watcher{}
	if err := b.controllerOn(&unreadRun{Run: b.open()}, w, 2).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(controller.StepDir(b.dir, 0), "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rep step.Report
	if err := json.Unmarshal(data, &rep); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"accepted": 8, "discarded(worker/undecodable)": 1, "discarded(group_incomplete)": 3}
	if len(w.done) != 2 || w.retried != 0 || !maps.Equal(rep.Ledger.Dispositions, want) || rep.Ledger.Failures["worker/undecodable"] != 1 {
		t.Errorf("steps %v, %d run again, dispositions %v, failures %v", w.done, w.retried, rep.Ledger.Dispositions, rep.Ledger.Failures)
	}
}

// unreadRun loads the result of one episode as the bus does when it cannot be decoded.
type unreadRun struct{ *natsbus.Run }

func (u *unreadRun) Load(ctx context.Context, recs []bus.Receipt, f func(bus.Receipt, *rollout.Episode) error) error {
	return u.Run.Load(ctx, recs, func(r bus.Receipt, e *rollout.Episode) error {
		if r.Episode == (rollout.EpisodeID{Index: 2}) {
			e = &rollout.Episode{
				ID: r.Episode, Attempt: r.Attempt, Outcome: rollout.OutcomeFailed,
				Failure: rollout.NewFailure(rollout.BoundaryWorker, "undecodable", false, nil),
			}
		}
		return f(r, e)
	})
}

func TestEmptyStepIsAStep(t *testing.T) {
	b := newBed(t)
	b.work(1, func(rollout.EpisodeID) bool { return true })
	w := &watcher{}
	if err := b.controllerOn(b.open(), w, 2, allowEmpty).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if len(w.done) != 2 {
		t.Errorf("steps %v", w.done)
	}
	report, err := os.ReadFile(filepath.Join(controller.StepDir(b.dir, 0), "report.json"))
	if err != nil || !strings.Contains(string(report), `"discarded(engine/reset)": 12`) {
		t.Errorf("%s %v", report, err)
	}
}

// TestStepThatFailedAsAWhole: it ends the run before the commit, by the name of
// its most frequent failure, and its last tries run again in the next run.
func TestStepThatFailedAsAWhole(t *testing.T) {
	var healed atomic.Bool
	for _, tc := range []struct {
		name string
		fail func(rollout.EpisodeID) bool
		edit func(*controller.Config)
		ends bool
	}{
		{name: "every episode failed", fail: func(rollout.EpisodeID) bool { return !healed.Load() }, ends: true},
		{name: "every episode failed, and that is allowed", fail: func(rollout.EpisodeID) bool { return true }, edit: allowEmpty},
		{name: "one of each group failed", fail: func(id rollout.EpisodeID) bool { return id.Index == 0 }},
		{name: "all were filtered", edit: func(c *controller.Config) { c.Step.Filter = step.FilterNoAborted; c.Step.MinValid = 100 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			healed.Store(false)
			b := newBed(t)
			b.work(1, tc.fail)
			edit := func(c *controller.Config) {
				c.Retries = controller.Retries{"default": 1}
				if tc.edit != nil {
					tc.edit(c)
				}
			}
			w := &watcher{}
			err := b.controllerOn(b.open(), w, 1, edit).Run(bounded(t))
			if tc.fail != nil && !slices.Equal(w.failed, []string{"engine/reset: gone"}) {
				t.Errorf("the observer was told %q", w.failed)
			}
			if !tc.ends {
				if err != nil || len(w.done) != 1 {
					t.Errorf("steps %v, %v", w.done, err)
				}
				return
			}
			if !errors.Is(err, controller.ErrAllFailed) || !strings.Contains(err.Error(), "step 0: every episode failed: 12 of 12 with engine/reset: gone; ") || len(w.done) != 0 {
				t.Fatalf("steps %v, %v", w.done, err)
			}
			if files, err := filepath.Glob(filepath.Join(b.dir, "step-*")); err != nil || len(files) > 0 {
				t.Errorf("files %v, %v", files, err)
			}
			if err := b.controllerOn(b.open(), w, 1, edit).Run(bounded(t)); !errors.Is(err, controller.ErrAllFailed) {
				t.Fatalf("while the cause is there: %v", err)
			}
			healed.Store(true)
			run := b.open()
			if err := b.controllerOn(run, w, 1, edit).Run(bounded(t)); err != nil || len(w.done) != 1 {
				t.Fatalf("steps %v, %v", w.done, err)
			}
			report, err := os.ReadFile(filepath.Join(controller.StepDir(b.dir, 0), "report.json"))
			if err != nil || !strings.Contains(string(report), `"accepted": 12`) || !strings.Contains(string(report), `"unaccounted": 0`) {
				t.Errorf("%s %v", report, err)
			}
		})
	}
}

func TestSkippedRowsAreInTheFiles(t *testing.T) {
	for _, tc := range []struct {
		name          string
		rows          *int
		event, metric string // "" for none
	}{
		{"skipping is off", nil, "", ""},
		{"nothing to skip", rollout.Ptr(0), "", `"data/skipped_rows":0`},
		{"three rows", rollout.Ptr(3), `"event":"prompts_skipped","epoch":1,"step":0,"count":3`, `"data/skipped_rows":3`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBed(t)
			b.work(1, nil)
			if err := b.controllerOn(b.open(), &watcher{}, 1, func(c *controller.Config) { c.Step.SkippedRows = tc.rows }).Run(bounded(t)); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(b.dir, "metrics.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			for word, want := range map[string]string{"prompts_skipped": tc.event, "data/skipped_rows": tc.metric} {
				if !strings.Contains(string(data), want) || want == "" && strings.Contains(string(data), word) {
					t.Errorf("want %q in\n%s", want, data)
				}
			}
		})
	}
}

func TestRoom(t *testing.T) {
	b := newBed(t)
	cfg := func(groups, episodes int) *controller.Config {
		return &controller.Config{Codec: b.codec, RunName: "r", Groups: groups, Episodes: episodes}
	}
	for _, tc := range []struct {
		name             string
		groups, episodes int
		err              string
	}{
		{"usual", 32, 8, ""},
		{"more episodes than a job can name", 1, 1 << 20, "lower rollout.n_samples_per_prompt"},
		{"more episodes than a manifest can name", 1 << 12, 16, "lower rollout.batch_size to"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const maxRecord = 1 << 20
			room, err := cfg(tc.groups, tc.episodes).Room(maxRecord)
			if tc.err == "" && (err != nil || room < maxRecord-1000 || room >= maxRecord) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("room %d, %v", room, err)
			}
		})
	}
}

// TestResume stops a controller after each step, at any moment of the next, and
// lets another go on; the files are those of an undisturbed run.
func TestResume(t *testing.T) {
	const steps = 4
	undisturbed := newBed(t)
	undisturbed.work(1, nil)
	if err := undisturbed.controller(undisturbed.open(), &watcher{}, steps).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	b := newBed(t)
	b.work(2, nil)
	for n := int64(0); n < steps-1; n++ {
		ctx, cancel := context.WithCancelCause(bounded(t))
		stopped := errors.New("stopped")
		w := &watcher{onStep: func(int64) { cancel(stopped) }}
		if err := b.controller(b.open(), w, steps).Run(ctx); !errors.Is(err, stopped) {
			t.Fatalf("step %d: %v", n, err)
		}
	}
	run := b.open()
	if err := b.controller(run, &watcher{}, steps).Run(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if s := run.State(); !s.Closed || s.NextStep != steps || s.NextGroup != 3*steps || s.Trimmed != s.NextWave {
		t.Errorf("state %+v", s)
	}
	for n := range int64(steps) {
		if b.files(n) != undisturbed.files(n) {
			t.Errorf("step %d differs from the undisturbed run's", n)
		}
	}
	data, err := os.ReadFile(filepath.Join(b.dir, "metrics.jsonl"))
	if err != nil || strings.Count(string(data), `"kind":"step"`) != steps {
		t.Errorf("%v in\n%s", err, data)
	}
}

func TestStaleControllerEndsFenced(t *testing.T) {
	b := newBed(t)
	stale := b.open()
	fresh := b.open()
	b.work(1, nil)
	if err := b.controller(stale, &watcher{}, 1).Run(bounded(t)); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("stale: %v", err)
	}
	if err := b.controller(fresh, &watcher{}, 1).Run(bounded(t)); err != nil {
		t.Errorf("fresh: %v", err)
	}
}

// TestIdleStaleControllerEndsFenced: a controller that waits for results writes
// nothing, and notices all the same that another has taken over.
func TestIdleStaleControllerEndsFenced(t *testing.T) {
	b := newBed(t)
	ctl := b.controller(b.open(), &watcher{}, 1) // and no worker
	ended := make(chan error, 1)
	go func() { ended <- ctl.Run(bounded(t)) }()
	for ctl.Status().Phase != controller.PhaseCollecting {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	b.open()
	if err := <-ended; !errors.Is(err, bus.ErrFenced) {
		t.Errorf("got %v, want fenced", err)
	}
}

func TestStallNamesWhatItWaitsFor(t *testing.T) {
	b := newBed(t)
	w := &watcher{}
	run := b.open()
	c, err := controller.New(controller.Config{
		Run: run, Prompts: prompts{}, Codec: b.codec, Steps: 1, Groups: 1, Episodes: 2, RunName: "r", EpisodeDeadline: time.Second,
		Patience: 20 * time.Millisecond, StallLimit: 200 * time.Millisecond, Dir: b.dir, Observer: w, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Run(bounded(t))
	if !errors.Is(err, controller.ErrStalled) || !strings.Contains(err.Error(), "2 of 2 episodes of step 0; 0 workers") {
		t.Errorf("got %v", err)
	}
	if len(w.waiting) == 0 {
		t.Error("the observer was not told")
	}
}
