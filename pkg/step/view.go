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

// view is a step, or a run of its groups, read for reduction. Episodes, samples
// and their arrays lie scattered in memory, so each is visited once, here, and
// leaves a row and its share of the tally; every metric is computed from those.
type view struct {
	groups []rollout.Group // in order, all of them

	// Of the accepted episodes, in order of group index, rollout id and sample
	// index:
	kept     []kept
	episodes []accepted
	samples  []*rollout.Sample
	rows     []row // one per sample

	tally

	work []float64 // see scratch
}

// scratch returns an empty slice with room for n values. It is the same memory
// each time: what the last call returned must not be needed any more.
func (v *view) scratch(n int) []float64 {
	if cap(v.work) < n {
		v.work = make([]float64, n)
	}
	return v.work[:0]
}

// column collects a value of each sample that has it, in scratch memory.
func (v *view) column(of func(*row) (float64, bool)) []float64 {
	xs := v.scratch(len(v.rows))
	for i := range v.rows {
		if x, ok := of(&v.rows[i]); ok {
			xs = append(xs, x)
		}
	}
	return xs
}

// kept is a group with accepted samples, with the half-open ranges of its
// accepted episodes and of their samples.
type kept struct {
	group                     *rollout.Group
	firstEpisode, lastEpisode int
	start, end                int
}

// accepted is an accepted episode with the half-open range of its samples.
type accepted struct {
	rolloutID  int64
	turns      int // engine calls that did not fail
	start, end int
}

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
	v := &view{groups: groups}
	var keptN, episodeN, sampleN int
	for i := range parts {
		keptN, episodeN, sampleN = keptN+len(parts[i].kept), episodeN+len(parts[i].episodes), sampleN+len(parts[i].samples)
	}
	v.kept, v.episodes = make([]kept, 0, keptN), make([]accepted, 0, episodeN)
	v.samples, v.rows = make([]*rollout.Sample, 0, sampleN), make([]row, 0, sampleN)
	for i := range parts {
		p := &parts[i]
		e, s := len(v.episodes), len(v.samples)
		for _, k := range p.kept {
			k.firstEpisode, k.lastEpisode, k.start, k.end = k.firstEpisode+e, k.lastEpisode+e, k.start+s, k.end+s
			v.kept = append(v.kept, k)
		}
		for _, a := range p.episodes {
			a.start, a.end = a.start+s, a.end+s
			v.episodes = append(v.episodes, a)
		}
		v.samples, v.rows = append(v.samples, p.samples...), append(v.rows, p.rows...)
		v.tally.merge(&p.tally)
	}
	return v
}

// readGroups reads the groups of one part.
func (v *view) readGroups(cfg Config) error {
	r := reader{cfg: cfg}
	episodes := 0
	for i := range v.groups {
		episodes += len(v.groups[i].Episodes)
	}
	v.episodes, v.rows = make([]accepted, 0, episodes), make([]row, 0, episodes)
	v.samples = make([]*rollout.Sample, 0, episodes)
	for i := range v.groups {
		g := &v.groups[i]
		orderEpisodes(g)
		if len(g.Dispositions) != len(g.Episodes) {
			return fmt.Errorf("group %d: %w: %d, %d", g.Index, ErrDispositions, len(g.Dispositions), len(g.Episodes))
		}
		if err := v.readGroup(&r, g); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) readGroup(r *reader, g *rollout.Group) error {
	k := kept{group: g, firstEpisode: len(v.episodes), start: len(v.samples)}
	chosen := r.chosen[:0]
	for j := range g.Episodes {
		e := &g.Episodes[j]
		if j > 0 && g.Episodes[j-1].ID.Index == e.ID.Index {
			return fmt.Errorf("group %d: episode %d occurs twice: %w", g.Index, e.ID.Index, ErrIdentity)
		}
		v.tally.episode(e, g.Dispositions[j])
		if g.Dispositions[j].Verdict == rollout.Accepted {
			chosen = append(chosen, e)
		}
	}
	v.tally.group(g)
	r.chosen = chosen
	slices.SortStableFunc(chosen, func(a, b *rollout.Episode) int { return cmp.Compare(a.RolloutID, b.RolloutID) })
	for i, e := range chosen {
		if i > 0 && chosen[i-1].RolloutID == e.RolloutID {
			return fmt.Errorf("group %d: rollout id %d occurs twice: %w", g.Index, e.RolloutID, ErrIdentity)
		}
		if err := v.readEpisode(r, g, e); err != nil {
			return err
		}
	}
	k.lastEpisode, k.end = len(v.episodes), len(v.samples)
	if k.end > k.start {
		v.kept = append(v.kept, k)
	}
	return nil
}

// readEpisode reads one accepted episode.
func (v *view) readEpisode(r *reader, g *rollout.Group, e *rollout.Episode) error {
	calls := unique(e.Generations)
	a := accepted{rolloutID: e.RolloutID, start: len(v.samples), turns: v.tally.calls(calls)}
	for _, s := range e.Samples {
		if s.GroupIndex != g.Index || s.RolloutID != e.RolloutID {
			return fmt.Errorf("group %d, rollout %d holds a sample of group %d, rollout %d: %w",
				g.Index, e.RolloutID, s.GroupIndex, s.RolloutID, ErrIdentity)
		}
		v.samples = append(v.samples, s)
	}
	a.end = len(v.samples)
	slices.SortStableFunc(v.samples[a.start:], func(a, b *rollout.Sample) int { return cmp.Compare(a.Index, b.Index) })
	exit := ""
	for _, s := range v.samples[a.start:] {
		v.rows = append(v.rows, r.row(s, calls))
		if found := v.tally.metadata(s.Metadata, r.cfg.Category); exit == "" {
			exit = found
		}
	}
	if exit != "" {
		v.tally.exits.add(exit)
	}
	v.episodes = append(v.episodes, a)
	return nil
}

// reward is the episode's own: that of its first sample, with which the others
// agree wherever it matters.
func (v *view) reward(e accepted) (reward float64, scored bool) {
	if e.start == e.end {
		return 0, false
	}
	return v.rows[e.start].reward, v.rows[e.start].scored
}

// maskSums adds up the tokens in the loss by rollout id.
func (v *view) maskSums() []int64 {
	sums := make([]int64, len(v.rows))
	for _, e := range v.episodes {
		var sum int64
		for i := e.start; i < e.end; i++ {
			sum += v.rows[i].trained()
		}
		for i := e.start; i < e.end; i++ {
			sums[i] = sum
		}
	}
	return sums
}

// ordered returns the groups in order of index.
func ordered(groups []rollout.Group) []rollout.Group {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareGroups(&groups[a], &groups[b]) })
	return permuted(groups, order)
}

// orderEpisodes brings a group's episodes in order of index, each disposition
// with its episode. It replaces the slices and leaves what was in them.
func orderEpisodes(g *rollout.Group) {
	order := make([]int, len(g.Episodes))
	inOrder := true
	for j := range order {
		order[j] = j
		inOrder = inOrder && (j == 0 || g.Episodes[j-1].ID.Index <= g.Episodes[j].ID.Index)
	}
	if inOrder {
		return
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.Episodes[a].ID.Index, g.Episodes[b].ID.Index) })
	if len(g.Dispositions) == len(order) {
		g.Dispositions = permuted(g.Dispositions, order)
	}
	g.Episodes = permuted(g.Episodes, order)
}

func permuted[T any](xs []T, order []int) []T {
	out := make([]T, len(order))
	for i, from := range order {
		out[i] = xs[from]
	}
	return out
}

// compareGroups orders by group index, and by wave for groups of different
// sources that share one.
func compareGroups(a, b *rollout.Group) int {
	return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Wave, b.Wave))
}
