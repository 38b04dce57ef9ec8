//go:build e2e && crash

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/internal/failpoint"
)

// The crash table: controller and worker are stopped at every place that
// docs/ledger.md lists, in four ways, and the run has to come to the same end as
// one that nobody disturbed.

// way is what happens at a place.
type way string

const (
	self  way = "itself"      // kill -9
	bus   way = "NATS"        // kill -9 of the server while the process stands there; it goes on afterwards
	both  way = "both"        // kill -9 of the process, then of the server
	split way = "split brain" // SIGSTOP, a replacement, and SIGCONT
	late  way = "late wake"   // SIGSTOP, a replacement that comes to the end, and SIGCONT
	until     = 50 * time.Second
)

var ways = []way{self, bus, both, split}

func (w way) action() string {
	if w == self || w == both {
		return "exit"
	}
	return "stop"
}

const (
	crashSteps = 4
	groupSize  = 4
	stepSize   = 4 * groupSize
)

// bed is one run on a NATS server of its own.
type bed struct {
	t      *testing.T
	engine string
	addr   string
	store  string
	server *process
	outs   []string
}

var beds atomic.Int64

func newBed(t *testing.T, engine string) *bed {
	t.Helper()
	b := &bed{t: t, engine: engine, addr: portOf(t), store: t.TempDir()}
	b.server = startNATS(t, b.store, b.addr)
	return b
}

// portOf is a free port that no other bed takes.
func portOf(t *testing.T) string {
	t.Helper()
	for range 1000 {
		addr := fmt.Sprintf("127.0.0.1:%d", 22000+(int64(os.Getpid())*37+beds.Add(1))%9000)
		if l, err := net.Listen("tcp", addr); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// killNATS kills the server and starts it again on its store.
func (b *bed) killNATS() {
	b.server.kill()
	b.server = startNATS(b.t, b.store, b.addr)
}

func (b *bed) url() string { return "nats://" + b.addr }

// controller starts a controller that writes to a folder.
func (b *bed) controller(out, place string, w way) *process {
	b.t.Helper()
	cfg := config(b.t,
		"run: {name: crash, steps: "+fmt.Sprint(crashSteps)+", seed: 7, out: "+out+"}",
		"nats: {embedded: false, urls: ['"+b.url()+"']}",
		"model: {path: configs/models/tiny}",
		"data: {prompts: configs/data/arithmetic.jsonl}",
		"engines: [{url: '"+b.engine+"'}]",
		fmt.Sprintf("rollout: {batch_size: %d, n_samples_per_prompt: %d, max_context_len: 512, sampling: {max_new_tokens: 16}}", stepSize/groupSize, groupSize),
		"reward: {type: exact}",
		"worker: {embedded: false, slots: 4}",
	)
	return startWith(b.t, arm(place, w), filepath.Join(bin, "controller"), "run", cfg, "-v")
}

func (b *bed) worker(id, place string, w way) *process {
	b.t.Helper()
	return startWith(b.t, arm(place, w), filepath.Join(bin, "worker"), "--nats", b.url(), "--id", id, "-v")
}

func arm(place string, w way) []string {
	if place == "" {
		return nil
	}
	return []string{failpoint.Env + "=" + place + "=" + w.action()}
}

// folder is a new folder for a controller's files: one that is stopped holds the
// lock of its own.
func (b *bed) folder() string {
	b.outs = append(b.outs, b.t.TempDir())
	return b.outs[len(b.outs)-1]
}

// reached waits until the process has come to its place and is dead or stopped.
func (p *process) reached(place string, w way) {
	p.t.Helper()
	name, _, _ := strings.Cut(place, ":")
	p.until("failpoint "+name+"\n", until)
	if w.action() == "exit" {
		p.wait(until)
		return
	}
	for deadline := time.Now().Add(until); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			p.t.Fatal(err)
		}
		if _, state, ok := strings.Cut(string(stat), ") "); ok && state[0] == 'T' {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not stop at %s", p.name, place)
		}
	}
}

func (p *process) ends(codes ...int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(until):
		p.signal(syscall.SIGQUIT) // its stacks say what it waits for
	}
	code, text := p.wait(until)
	for _, want := range codes {
		if code == want {
			return
		}
	}
	p.t.Errorf("%s: exit code %d, want one of %v\n%s", p.name, code, codes, text)
}

// check compares the run with one that was not disturbed: every step once, its
// batch the same bytes, no sample in two steps, and nothing of a trimmed wave in
// any stream.
func (b *bed) check(want []string) {
	b.t.Helper()
	seen := map[int64]int{}
	for n := range crashSteps {
		dir := ""
		for _, out := range b.outs {
			if d := stepDir(out, "crash", n); exists(filepath.Join(d, "report.json")) {
				dir = d
				if got := batchBytes(b.t, d); want != nil && got != want[n] {
					b.t.Errorf("step %d in %s: the batch is another than without the crash", n, out)
				}
			}
		}
		if dir == "" {
			b.t.Errorf("step %d is missing", n)
			continue
		}
		checkStep(b.t, dir, stepSize)
		for _, s := range readSamples(b.t, dir) {
			if was, twice := seen[s.Index]; twice {
				b.t.Errorf("sample %d is in steps %d and %d", s.Index, was, n)
			}
			seen[s.Index] = n
		}
	}
	if len(seen) != crashSteps*stepSize {
		b.t.Errorf("%d samples, want %d", len(seen), crashSteps*stepSize)
	}
	b.checkStreams()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkStreams reads the streams with the stock client.
func (b *bed) checkStreams() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	nc, err := nats.Connect(b.url())
	if err != nil {
		b.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, allowed := range map[string]string{
		"SHEAF_JOBS_crash": "sheaf.crash.jobs.fence", "SHEAF_RESULTS_crash": "sheaf.crash.res.fence sheaf.crash.res.waste", "SHEAF_LEDGER_crash": "sheaf.crash.led.log",
	} {
		s, err := js.Stream(ctx, name)
		if err != nil {
			b.t.Fatal(err)
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
		if err != nil {
			b.t.Fatal(err)
		}
		for subject, n := range info.State.Subjects {
			if !strings.Contains(allowed, subject) {
				b.t.Errorf("%s still holds %d of %s", name, n, subject)
			}
		}
	}
}

// TestCrash kills at every place in every way.
func TestCrash(t *testing.T) {
	engine := startSimengine(t)
	want := undisturbed(t, engine)
	for _, tc := range []struct {
		place string
		codes []int // of a controller that wakes up and was replaced; 3 when empty
	}{
		{place: "c0"}, {place: "c1"}, {place: "c1b"}, {place: "c2"}, {place: "c2:2"}, {place: "c3"}, {place: "c3b"},
		{place: "c4:3"}, {place: "c4:7"}, {place: "c5"}, {place: "c6:5"}, {place: "c6b"}, {place: "c6c:2"}, {place: "c7"},
		{place: "c8"}, {place: "c9"}, {place: "c9:2"}, {place: "c10"}, {place: "c11"}, {place: "c12"},
		{place: "c13", codes: []int{0}}, // it has closed the run before it was replaced
		{place: "answer:1"}, {place: "answer:2"}, {place: "answer:3"}, {place: "answer:4"}, {place: "answer:5"}, {place: "answer:6"},
	} {
		if tc.codes == nil {
			tc.codes = []int{3}
		}
		for _, w := range append(ways, late) {
			t.Run("controller/"+tc.place+"/"+string(w), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, engine)
				b.worker("w1", "", "")
				b.worker("w2", "", "")
				b.crashController(tc.place, w, tc.codes)
				b.check(want)
			})
		}
	}
	for _, tc := range []struct {
		place string
		codes []int // of a worker that wakes up when the others have done it all; what else it may have held at w4 and w5 is left to chance
	}{
		{"w0", []int{0}}, {"w1", []int{3}}, {"w2:2", []int{3}}, {"answer:1", []int{0}}, {"answer:3", []int{3}}, {"w4", []int{0, 3}}, {"w5", []int{0, 3}},
	} {
		for _, w := range ways {
			t.Run("worker/"+tc.place+"/"+string(w), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, engine)
				b.crashWorker(tc.place, w, tc.codes)
				b.check(want)
			})
		}
	}
}

// TestCrashTakeOver lets two controllers meet inside a take-over: the one that
// opened the run last must come through.
func TestCrashTakeOver(t *testing.T) {
	engine := startSimengine(t)
	want := undisturbed(t, engine)
	t.Run("both write the fence", func(t *testing.T) {
		b := newBed(t, engine)
		b.worker("w1", "", "")
		old := b.controller(b.folder(), "c1c", split)
		old.reached("c1c", split)
		next := b.controller(b.folder(), "c1c", split)
		next.reached("c1c", split)
		old.signal(syscall.SIGCONT) // its fence goes through: the new one's was not written yet
		old.ends(3)
		next.signal(syscall.SIGCONT)
		next.ends(0)
		b.check(want)
	})
	t.Run("the log is shortened while it is read", func(t *testing.T) {
		b := newBed(t, engine)
		b.worker("w1", "", "")
		old := b.controller(b.folder(), "c7", split) // holds the log long enough to be met
		old.reached("c7", split)
		next := b.controller(b.folder(), "c0b", split)
		next.reached("c0b", split)
		old.signal(syscall.SIGCONT)
		old.ends(0)
		next.signal(syscall.SIGCONT)
		next.ends(0)
		b.check(want)
	})
}

// undisturbed returns the batches of a run that nothing happens to.
func undisturbed(t *testing.T, engine string) (batches []string) {
	b := newBed(t, engine)
	out := b.folder()
	b.worker("w1", "", "")
	b.controller(out, "", "").ends(0)
	b.check(nil)
	for n := range crashSteps {
		batches = append(batches, batchBytes(t, stepDir(out, "crash", n)))
	}
	return batches
}

func (b *bed) crashController(place string, w way, codes []int) {
	b.t.Helper()
	out := b.folder()
	p := b.controller(out, place, w)
	p.reached(place, w)
	switch w {
	case self:
		b.controller(out, "", "").ends(0)
	case both:
		b.killNATS()
		b.controller(out, "", "").ends(0)
	case bus:
		b.killNATS()
		p.signal(syscall.SIGCONT)
		p.ends(0)
	case split, late:
		next := b.controller(b.folder(), "", "")
		if w == split {
			next.until("step 0: |step 1: |is finished", until)
		} else {
			next.ends(0)
		}
		p.signal(syscall.SIGCONT)
		p.ends(codes...)
		next.ends(0)
	}
}

func (b *bed) crashWorker(place string, w way, codes []int) {
	b.t.Helper()
	ctl := b.controller(b.folder(), "", "")
	p := b.worker("w1", place, w)
	p.reached(place, w)
	if w == both || w == bus {
		b.killNATS()
	}
	b.worker("w2", "", "")
	if w == bus {
		p.signal(syscall.SIGCONT)
		p.ends(0)
	}
	ctl.ends(0)
	if w == split { // the other worker has done it all
		p.signal(syscall.SIGCONT)
		p.ends(codes...)
	}
}
