package step

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// read reads groups into a view, on all processors. The result does not depend
// on their number.
func read(cfg Config, groups []rollout.Group) (*view, error) {
	groups = ordered(groups)
	for i := range groups {
		if i > 0 && compareGroups(&groups[i-1], &groups[i]) == 0 {
			return nil, fmt.Errorf("group %d of wave %d occurs twice: %w", groups[i].Index, groups[i].Wave, ErrIdentity)
		}
	}
	const grain = 64 // groups; enough work to be worth handing over
	parts := make([]view, (len(groups)+grain-1)/grain)
	errs := make([]error, len(parts))
	parallel(len(parts), func(i int) {
		p := &parts[i]
		p.groups = groups[i*grain : min((i+1)*grain, len(groups))]
		errs[i] = p.readGroups(cfg)
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return join(groups, parts), nil
}

// parallel calls work for 0 to n−1, each once, on all processors, and returns
// when all calls have.
func parallel(n int, work func(i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				work(i)
			}
		})
	}
	group.Wait()
}

// join puts the parts of a step together.
func join(groups []rollout.Group, parts []view) *view {
	v := &view{groups: groups, kept: make([]kept, 0, len(groups))}
	for i := range parts {
		v.kept = append(v.kept, parts[i].kept...)
		v.samples += parts[i].samples
		v.episodes += parts[i].episodes
	}
	var durations, queued, latencies int
	for i := range parts {
		durations += len(parts[i].durations)
		queued += len(parts[i].queued)
		latencies += len(parts[i].latencies)
	}
	v.tally.grow(durations, queued, latencies)
	for i := range parts {
		v.tally.merge(&parts[i].tally)
	}
	return v
}

// readGroups reads the groups of one part.
func (v *view) readGroups(cfg Config) error {
	episodes := 0
	for i := range v.groups {
		episodes += len(v.groups[i].Episodes)
	}
	r := reader{
		cfg: cfg, tally: &v.tally,
		episodes: make([]accepted, 0, episodes), samples: make([]*rollout.Sample, 0, episodes), rows: make([]row, 0, episodes),
	}
	v.tally.grow(episodes, episodes, episodes)
	for i := range v.groups {
		g := &v.groups[i]
		orderEpisodes(g)
		if err := r.group(g); err != nil {
			return fmt.Errorf("group %d: %w", g.Index, err)
		}
		if k := r.kept(g); len(k.rows) > 0 {
			v.kept = append(v.kept, k)
			v.episodes += len(k.episodes)
			v.samples += len(k.rows)
		}
	}
	return nil
}

// reader reads groups: it makes rows and tells the tally. Its buffers are as long
// as all episodes of its part; rows of a group are a piece of them.
type reader struct {
	cfg   Config
	tally *tally

	episodes []accepted
	samples  []*rollout.Sample
	rows     []row

	// What is worth keeping from one sample to the next.
	versions parsedVersions
	repeats  repetition
	chosen   []*rollout.Episode
	// Where the last group began in episodes and rows.
	firstEpisode, firstRow int
}

// group reads one group.
func (r *reader) group(g *rollout.Group) error {
	if len(g.Dispositions) != len(g.Episodes) {
		return fmt.Errorf("%w: %d, %d", ErrDispositions, len(g.Dispositions), len(g.Episodes))
	}
	r.firstEpisode, r.firstRow = len(r.episodes), len(r.rows)
	r.tally.group(g)
	chosen := r.chosen[:0]
	for j := range g.Episodes {
		e := &g.Episodes[j]
		if j > 0 && g.Episodes[j-1].ID.Index == e.ID.Index {
			return fmt.Errorf("episode %d occurs twice: %w", e.ID.Index, ErrIdentity)
		}
		r.tally.episode(e, g.Dispositions[j])
		if g.Dispositions[j].Verdict == rollout.Accepted {
			chosen = append(chosen, e)
		}
	}
	r.chosen = chosen
	slices.SortStableFunc(chosen, func(a, b *rollout.Episode) int { return cmp.Compare(a.RolloutID, b.RolloutID) })
	// All samples first, then all rows: memory that is asked for together comes
	// together.
	for i, e := range chosen {
		if i > 0 && chosen[i-1].RolloutID == e.RolloutID {
			return fmt.Errorf("rollout id %d occurs twice: %w", e.RolloutID, ErrIdentity)
		}
		if err := r.collect(g, e); err != nil {
			return err
		}
	}
	for _, e := range chosen {
		r.episode(e)
	}
	return nil
}

// collect appends an accepted episode's samples in order.
func (r *reader) collect(g *rollout.Group, e *rollout.Episode) error {
	start := len(r.samples)
	r.samples = append(r.samples, e.Samples...)
	samples := r.samples[start:]
	for _, s := range samples {
		if s.GroupIndex != g.Index || s.RolloutID != e.RolloutID {
			return fmt.Errorf("rollout %d holds a sample of group %d, rollout %d: %w", e.RolloutID, s.GroupIndex, s.RolloutID, ErrIdentity)
		}
	}
	if len(samples) > 1 {
		slices.SortStableFunc(samples, func(a, b *rollout.Sample) int { return cmp.Compare(a.Index, b.Index) })
	}
	return nil
}

// kept returns what the last group read left.
func (r *reader) kept(g *rollout.Group) kept {
	return kept{
		source: g.Prompt.Source, index: g.Index,
		episodes: r.episodes[r.firstEpisode:], samples: r.samples[r.firstRow:], rows: r.rows[r.firstRow:],
	}
}

// episode makes the rows of one accepted episode, whose samples are collected.
func (r *reader) episode(e *rollout.Episode) {
	start := len(r.rows)
	calls := unique(e.Generations)
	exit := ""
	for _, s := range r.samples[start : start+len(e.Samples)] {
		r.rows = append(r.rows, r.row(s, calls))
		if found := r.tally.metadata(s.Metadata, r.cfg.Category); exit == "" {
			exit = found
		}
	}
	if exit != "" {
		r.tally.exits.add(exit)
	}
	r.episodes = append(r.episodes, accepted{rolloutID: e.RolloutID, turns: r.tally.calls(calls), rows: r.rows[start:]})
}
