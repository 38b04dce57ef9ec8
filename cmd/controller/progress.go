package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
)

// progress shows a run to the person who started it: a bar while a step runs (on
// a terminal), then its first and last sample, a table and the files.
type progress struct {
	out   io.Writer
	isTTY bool
	steps int64

	bars     *mpb.Progress
	bar      *mpb.Bar
	started  time.Time
	wave     int // episodes wanted
	stored   int
	tokens   int64
	reported time.Time
}

func newProgress(out *os.File, steps int) *progress {
	p := &progress{out: out, steps: int64(steps)}
	if info, err := out.Stat(); err == nil {
		p.isTTY = info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// reportEvery is how often progress is told where there is no terminal.
const reportEvery = 2 * time.Second

func (p *progress) StepStarted(n int64, episodes int) {
	p.started, p.reported, p.stored, p.tokens, p.wave = time.Now(), time.Now(), 0, 0, episodes
	if !p.isTTY {
		fmt.Fprintf(p.out, "step %d of %d: %d episodes\n", n, p.steps, episodes)
		return
	}
	p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))
	p.bar = p.bars.AddBar(int64(episodes), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(fmt.Sprintf("step %d of %d ", n, p.steps))),
		mpb.AppendDecorators(decor.CountersNoUnit("%d/%d episodes"), decor.Elapsed(decor.ET_STYLE_GO, decor.WC{W: 6})))
}

func (p *progress) Retrying(n int64, episodes int) {
	p.wave += episodes
	if p.bar != nil {
		p.bar.SetTotal(int64(p.wave), false)
		return
	}
	fmt.Fprintf(p.out, "step %d: %d failed episodes run again\n", n, episodes)
}

func (p *progress) EpisodeStored(r bus.Receipt) {
	p.stored++
	p.tokens += r.CompletionTokens
	if p.bar != nil {
		p.bar.Increment()
		return
	}
	if now := time.Now(); now.Sub(p.reported) >= reportEvery && p.stored < p.wave {
		p.reported = now
		fmt.Fprintf(p.out, "  %d of %d episodes, %.0f tokens/s\n", p.stored, p.wave, float64(p.tokens)/now.Sub(p.started).Seconds())
	}
}

func (p *progress) Failed(f *rollout.Failure) {
	p.line("  first failure of its kind: " + short(f.Error()))
}

func (p *progress) Waiting(on string) { p.line("  waiting for " + on) }

// line prints a line above the bar.
func (p *progress) line(text string) {
	if p.bars != nil {
		fmt.Fprintln(p.bars, text)
		return
	}
	fmt.Fprintln(p.out, text)
}

// close ends the bar of a step that ends, well or not.
func (p *progress) close() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
		p.bar, p.bars = nil, nil
	}
}

func (p *progress) StepDone(n int64, dir string, r *step.Result) {
	p.close()
	m := r.Report.Metrics
	fmt.Fprintf(p.out, "step %d: %s\n", n, headline(r))
	if k := len(r.Samples); k > 0 {
		p.sample("first", r.Samples[0])
		p.sample("last ", r.Samples[k-1])
	}
	tw := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range tableRows {
		value := "unknown: " + r.Report.Unavailable[row.key]
		if v, ok := m[row.key]; ok {
			value = strconv.FormatFloat(v, 'f', row.digits, 64)
		} else if r.Report.Unavailable[row.key] == "" {
			continue
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", row.title, value, row.key)
	}
	for _, line := range slices.Concat(counted(r.Report.Ledger.Retried, "tries, run again"), notAccepted(r)) {
		fmt.Fprintf(tw, "  %s\n", line)
	}
	tw.Flush()
	fmt.Fprintf(p.out, "  files: %s/{report.json,samples.jsonl,groups.cbor,batch/}\n", dir)
}

// tableRows are the metrics that people look at first; report.json has them all.
var tableRows = []struct {
	title, key string
	digits     int
}{
	{"reward", "rollout/raw_reward/mean", 4},
	{"response tokens", "rollout/response_len/mean", 1},
	{"truncated", "rollout/truncated_ratio", 3},
	{"prefix cache hits", "rollout/prefix_cache_hit_rate", 3},
	{"accept length", "rollout/spec_accept_length", 3},
	{"seconds", "perf/rollout_time", 2},
	{"tokens per second", "perf/generated_tokens_per_sec", 0},
}

func headline(r *step.Result) string {
	accepted, all := 0, 0
	for verdict, n := range r.Report.Ledger.Dispositions {
		all += n
		if verdict == string(rollout.Accepted) {
			accepted = n
		}
	}
	if accepted < all {
		return fmt.Sprintf("%d samples, %d of %d episodes accepted", len(r.Samples), accepted, all)
	}
	return fmt.Sprintf("%d samples of %d episodes", len(r.Samples), all)
}

// notAccepted names what did not get into the batch, most first.
func notAccepted(r *step.Result) []string {
	rest := maps.Clone(r.Report.Ledger.Dispositions)
	delete(rest, string(rollout.Accepted))
	return counted(rest, "episodes")
}

// counted prints counts by reason, most first.
func counted(count map[string]int, of string) []string {
	reasons := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	out := make([]string, len(reasons))
	for i, reason := range reasons {
		out[i] = fmt.Sprintf("%s\t%d %s", reason, count[reason], of)
	}
	return out
}

func (p *progress) sample(which string, s *rollout.Sample) {
	score := "no reward"
	if s.Reward != nil {
		score = "reward " + strconv.FormatFloat(*s.Reward, 'g', 4, 64)
	}
	fmt.Fprintf(p.out, "  %s  group %d, sample %d, %s, %s\n    > %s\n    < %s\n", which, s.GroupIndex, s.Index, s.Status(), score, short(s.Prompt), short(s.Response))
}

// short is a text on one line, cut in the middle.
func short(text string) string {
	const most = 160
	text = strings.NewReplacer("\n", "⏎", "\r", "", "\t", " ").Replace(text)
	// Controls, marks of writing direction and the like could rearrange a terminal.
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, text)
	r := []rune(text)
	if len(r) <= most {
		return text
	}
	return string(r[:most/2]) + " … " + string(r[len(r)-most/2:])
}
