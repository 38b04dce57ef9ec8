package step

import (
	"cmp"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// view is a step, or a run of its groups, read for reduction. Episodes, samples
// and their arrays lie scattered in memory, so each is visited once, here, and
// leaves a row and its share of the tally; every metric is computed from those.
type view struct {
	groups []rollout.Group // in order, all of them
	kept   []kept          // those with accepted samples, in order
	tally

	samples, episodes int // accepted ones
}

// kept is a group with accepted samples: its accepted episodes in order of
// rollout id, and their samples, of one episode in order of index, with their
// rows.
type kept struct {
	source   string // of the prompt
	index    int64
	episodes []accepted
	samples  []*rollout.Sample
	rows     []row
}

// accepted is an accepted episode.
type accepted struct {
	rolloutID int64
	turns     int   // engine calls that did not fail
	rows      []row // a part of its group's
}

// reward is the episode's own: that of its first sample, with which the others
// agree wherever it matters.
func (e *accepted) reward() (reward float64, scored bool) {
	if len(e.rows) == 0 {
		return 0, false
	}
	return e.rows[0].reward, e.rows[0].scored
}

// rows visits the rows of all samples in order.
func (v *view) rows(yield func(*row) bool) {
	for k := range v.kept {
		rows := v.kept[k].rows
		for i := range rows {
			if !yield(&rows[i]) {
				return
			}
		}
	}
}

// eachEpisode visits all accepted episodes in order.
func (v *view) eachEpisode(yield func(*accepted) bool) {
	for k := range v.kept {
		episodes := v.kept[k].episodes
		for i := range episodes {
			if !yield(&episodes[i]) {
				return
			}
		}
	}
}

// column collects a value of each sample that has it, in m's scratch memory.
func (v *view) column(m *metrics, of func(*row) (float64, bool)) []float64 {
	xs := m.scratch(v.samples)
	for r := range v.rows {
		if x, ok := of(r); ok {
			xs = append(xs, x)
		}
	}
	return xs
}

// episodeColumn collects a value of each episode, likewise.
func (v *view) episodeColumn(m *metrics, of func(*accepted) float64) []float64 {
	xs := m.scratch(v.episodes)
	for e := range v.eachEpisode {
		xs = append(xs, of(e))
	}
	return xs
}

// ordered returns the groups in order of index.
func ordered(groups []rollout.Group) []rollout.Group {
	order := sequence(len(groups))
	slices.SortStableFunc(order, func(a, b int) int { return compareGroups(&groups[a], &groups[b]) })
	return permuted(groups, order)
}

// orderEpisodes brings a group's episodes in order of index, each disposition
// with its episode. It replaces the slices and leaves what was in them.
func orderEpisodes(g *rollout.Group) {
	inOrder := true
	for j := 1; j < len(g.Episodes) && inOrder; j++ {
		inOrder = g.Episodes[j-1].ID.Index <= g.Episodes[j].ID.Index
	}
	if inOrder {
		return
	}
	order := sequence(len(g.Episodes))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.Episodes[a].ID.Index, g.Episodes[b].ID.Index) })
	if len(g.Dispositions) == len(order) {
		g.Dispositions = permuted(g.Dispositions, order)
	}
	g.Episodes = permuted(g.Episodes, order)
}

// sequence is 0 to n−1.
func sequence(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
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
