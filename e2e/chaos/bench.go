package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

type benchCmd struct {
	Kills int    `default:"20" help:"Kills of each kind."`
	Keep  bool   `help:"Keep the folders."`
	Dir   string `help:"Folder for the runs' folders; a temporary one when left out." type:"path"`
}

// figure is one line of the table.
type figure struct {
	name   string
	budget string
	took   []time.Duration
}

// Run measures one kind of kill after the other, each in a run of its own with a
// kill in every step. The oracle judges these runs too.
func (c benchCmd) Run(ctx context.Context) error {
	dir := c.Dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "sheaf-chaos-bench-*"); err != nil {
			return err
		}
	}
	bins, err := build(ctx, filepath.Join(dir, "bin"))
	if err != nil {
		return err
	}
	ports := newPortRange()
	var violated []string
	var costs []string
	fmt.Printf("%-52s %5s %9s %9s   %s\n", "kill → ", "n", "p50", "p99", "budget")
	for _, part := range []struct {
		name    string
		measure func(context.Context, *bench) ([]*figure, error)
	}{{"controller", benchController}, {"worker", benchWorker}, {"nats", benchNATS}} {
		figures, out, err := c.part(ctx, filepath.Join(dir, part.name), bins, ports, part.measure)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		for _, f := range figures {
			fmt.Printf("%-52s %5d %9s %9s   %s\n", f.name, len(f.took), shown(quantile(f.took, 0.5)), shown(quantile(f.took, 0.99)), f.budget)
		}
		kills := out.injected[part.name]
		costs = append(costs, fmt.Sprintf("%s: %d kills, %d tokens generated again (%.1f per kill) of %d",
			part.name, kills, out.Again, float64(out.Again)/float64(max(1, kills)), out.Logged))
		for _, p := range out.problems {
			violated = append(violated, part.name+": "+p)
		}
	}
	fmt.Println(strings.Join(costs, "\n"))
	if len(violated) > 0 {
		return fmt.Errorf("violated, kept in %s:\n%s", dir, strings.Join(violated, "\n"))
	}
	if c.Keep {
		return nil
	}
	return os.RemoveAll(dir)
}

func shown(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// quantile is the value at or above which a share of the values does not lie.
func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// bench is a run that is measured.
type bench struct {
	*bed
	watch *watcher
	out   *outcome
}

// benchLimit bounds one run.
const benchLimit = 4 * time.Minute

func (c benchCmd) part(ctx context.Context, dir string, bins programs, ports *portRange, measure func(context.Context, *bench) ([]*figure, error)) ([]*figure, *outcome, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, benchLimit)
	defer cancel()
	out := &outcome{injected: map[string]int{}}
	// A decode step of 26 ms is at the slow end of real engines, so that a restart
	// does not look worse than it is for the wait for its canaries.
	b, err := newBed(dir, bins, ports, size{steps: c.Kills + 1, groups: 32, episodes: 8, slots: 6, latency: 4}, 1)
	if b == nil {
		return nil, nil, err
	}
	var figures []*figure
	if err == nil {
		figures, err = out.measure(ctx, b, measure)
	}
	out.problems = append(out.problems, b.close()...)
	if err == nil {
		err = b.evidence(false)
	}
	if err == nil {
		err = out.judge(ctx, dir, bins)
	}
	return figures, out, err
}

func (out *outcome) measure(ctx context.Context, b *bed, measure func(context.Context, *bench) ([]*figure, error)) ([]*figure, error) {
	if _, err := b.startController(); err != nil {
		return nil, err
	}
	select {
	case <-b.observer.first:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w, err := b.observer.watch(ctx)
	for err != nil && ctx.Err() == nil { // the stream is made right after the log
		wait(ctx, glance)
		w, err = b.observer.watch(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer w.stop()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-b.finished:
		case <-ctx.Done():
		}
	}()
	figures, err := measure(running, &bench{bed: b, watch: w, out: out})
	if err != nil {
		return nil, err
	}
	select {
	case <-b.finished:
	case <-ctx.Done():
		return nil, fmt.Errorf("the run has not ended after %s", benchLimit)
	}
	return figures, out.ending(ctx, b)
}

// midWave waits until a wave behind the given one has some of its results, and
// returns it; false when the run has ended.
func (b *bench) midWave(ctx context.Context, behind int64) (int64, bool) {
	var wave int64
	ok := b.watch.until(ctx, func() bool {
		wave = b.watch.wave
		return wave > behind && b.watch.resultsOf(wave, time.Now()) >= b.size.groups*b.size.episodes/4
	})
	return wave, ok
}

// kill kills a service and has it started again at once.
func (b *bench) kill(name string) (time.Time, bool) {
	ok := b.service(name).kill(0)
	if ok {
		b.out.injected[strings.TrimRight(name, "-0123456789")]++
	}
	return time.Now(), ok
}

func benchController(ctx context.Context, b *bench) ([]*figure, error) {
	opened := &figure{name: "controller → the run is open again", budget: "-"}
	admitting := &figure{name: "  of that, waiting for the engines' canaries", budget: "-"}
	accepted := &figure{name: "controller → first newly accepted sample", budget: "500 ms (goal 100 ms)"}
	var kills []time.Time
	for wave := int64(-1); ; {
		var ok bool
		if wave, ok = b.midWave(ctx, wave); !ok {
			break
		}
		at, ok := b.kill("controller")
		if !ok {
			continue
		}
		kills = append(kills, at)
		b.watch.mu.Lock()
		before := b.watch.resultsOf(wave, at)
		b.watch.mu.Unlock()
		if took, ok := b.acceptedMore(ctx, at, before); ok {
			accepted.took = append(accepted.took, took)
		}
	}
	opens, err := b.opens()
	if err != nil {
		return nil, err
	}
	canaries, err := b.canaries()
	if err != nil {
		return nil, err
	}
	for _, at := range kills {
		i := slices.IndexFunc(opens, func(t time.Time) bool { return t.After(at) })
		if i < 0 {
			continue
		}
		opened.took = append(opened.took, opens[i].Sub(at))
		var first, last time.Time
		for _, c := range canaries {
			if c.received.After(at) && c.finished.Before(opens[i]) {
				if first.IsZero() || c.received.Before(first) {
					first = c.received
				}
				if c.finished.After(last) {
					last = c.finished
				}
			}
		}
		admitting.took = append(admitting.took, last.Sub(first))
	}
	return []*figure{opened, admitting, accepted}, nil
}

// canary is a generation by which a controller admits an engine: it brings no
// seed.
type canary struct{ received, finished time.Time }

// canaries reads them from the engines' logs.
func (b *bench) canaries() ([]canary, error) {
	var out []canary
	for i := range engines {
		text, err := os.ReadFile(filepath.Join(b.dir, fmt.Sprintf("engine-%d.jsonl", i)))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			var l struct {
				Seed     *int64 `json:"sampling_seed"`
				Received int64  `json:"received_ns"`
				Finished int64  `json:"finished_ns"`
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				return nil, err
			}
			if l.Seed == nil {
				out = append(out, canary{time.Unix(0, l.Received), time.Unix(0, l.Finished)})
			}
		}
	}
	return out, nil
}

// acceptedMore waits until the controller that follows the one killed has taken
// more results than were stored at its death.
func (b *bench) acceptedMore(ctx context.Context, at time.Time, before int) (time.Duration, bool) {
	b.mu.Lock()
	path := filepath.Join(b.dir, b.folders[0], runName, ".state", "api")
	b.mu.Unlock()
	for ctx.Err() == nil {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(at) {
			if n, err := outcomes(ctx, path); err == nil && n > before {
				return time.Since(at), true
			}
		}
		wait(ctx, 2*time.Millisecond)
	}
	return 0, false
}

// outcomes sums the episodes that the controller behind a door has taken.
func outcomes(ctx context.Context, path string) (int, error) {
	url, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSpace(string(url))+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	sum := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "sheaf_episodes_total{") {
			n, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]))
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// opens are the times at which controllers took the run over, by the log.
func (b *bench) opens() ([]time.Time, error) {
	codec, err := wire.New()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(b.dir, "ledger.jsonl"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	var opens []time.Time
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var l struct {
			Time time.Time `json:"time"`
			Data string    `json:"data"`
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, err
		}
		data, err := base64.StdEncoding.DecodeString(l.Data)
		if err != nil {
			return nil, err
		}
		e, err := codec.DecodeEntry(data)
		if err != nil {
			return nil, err
		}
		if e.Kind == rollout.EntryOpen {
			opens = append(opens, l.Time)
		}
	}
	return opens, lines.Err()
}

var errNoMark = errors.New("no job of a killed worker was seen elsewhere")

func benchWorker(ctx context.Context, b *bench) ([]*figure, error) {
	f := &figure{name: "worker → its job is leased elsewhere", budget: "1900 ms / 2500 ms"}
	for wave, n := int64(-1), 0; ; n++ {
		var ok bool
		if wave, ok = b.midWave(ctx, wave); !ok {
			break
		}
		name := fmt.Sprintf("worker-%d", n%workers)
		at, ok := b.kill(name)
		if !ok {
			continue
		}
		// Groups whose last lease is the dead worker's and that are not complete.
		b.watch.mu.Lock()
		held := map[*watched]int{}
		for _, g := range b.watch.groups {
			if k := len(g.marks); k > 0 && len(g.results) < b.size.episodes && g.marks[k-1].at.Before(at) && strings.HasPrefix(g.marks[k-1].worker, name+"-") {
				held[g] = k
			}
		}
		b.watch.mu.Unlock()
		for g, k := range held {
			if b.watch.until(ctx, func() bool { return len(g.marks) > k }) {
				f.took = append(f.took, g.marks[k].at.Sub(at))
			}
		}
	}
	if len(f.took) == 0 {
		return nil, errNoMark
	}
	return []*figure{f}, nil
}

func benchNATS(ctx context.Context, b *bench) ([]*figure, error) {
	f := &figure{name: "NATS → the next result is stored", budget: "-"}
	for wave := int64(-1); ; {
		var ok bool
		if wave, ok = b.midWave(ctx, wave); !ok {
			break
		}
		at, ok := b.kill("nats")
		if !ok {
			continue
		}
		// What the server stored as it died is not it; it is up again later than that.
		at = at.Add(10 * time.Millisecond)
		var next time.Time
		if b.watch.until(ctx, func() bool {
			i := slices.IndexFunc(b.watch.stored, func(t time.Time) bool { return t.After(at) })
			if i >= 0 {
				next = b.watch.stored[i]
			}
			return i >= 0
		}) {
			f.took = append(f.took, next.Sub(at))
		}
	}
	return []*figure{f}, nil
}
