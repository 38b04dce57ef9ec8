package step

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// view is a step laid out for reduction: the groups in order, and of their
// accepted episodes the samples in order of group index, rollout id and sample
// index, as flat columns.
type view struct {
	groups []rollout.Group

	kept     []kept
	episodes []accepted
	samples  []*rollout.Sample

	// One entry per sample, filled by measure.
	effective []int64   // tokens trained on, were the sample not excluded
	excluded  []bool    // see [Result.Excluded]
	logprob   []float64 // sum of log-probs over the effective tokens
}

// kept is a group with accepted samples, with the ranges of its accepted
// episodes and of their samples.
type kept struct {
	*rollout.Group
	firstEpisode, lastEpisode int // half open
	start, end                int
}

// accepted is an accepted episode with the range of its samples.
type accepted struct {
	*rollout.Episode
	start, end int // half open
}

// reward is the episode's own: that of its first sample, with which the others
// agree wherever it matters.
func (v *view) reward(e accepted) *float64 {
	if e.start == e.end {
		return nil
	}
	return v.samples[e.start].Reward
}

// collect sorts, checks and lays out the groups.
func collect(groups []rollout.Group) (*view, error) {
	v := &view{groups: ordered(groups)}
	episodes := 0
	for i := range v.groups {
		episodes += len(v.groups[i].Episodes)
	}
	v.episodes, v.samples = make([]accepted, 0, episodes), make([]*rollout.Sample, 0, episodes)
	for i := range v.groups {
		g := &v.groups[i]
		if len(g.Dispositions) != len(g.Episodes) {
			return nil, fmt.Errorf("group %d: %w: %d, %d", g.Index, ErrDispositions, len(g.Dispositions), len(g.Episodes))
		}
		if i > 0 && compareGroups(&v.groups[i-1], g) == 0 {
			return nil, fmt.Errorf("group %d of wave %d occurs twice: %w", g.Index, g.Wave, ErrIdentity)
		}
		if err := v.add(g); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// add lays out the accepted episodes of one group.
func (v *view) add(g *rollout.Group) error {
	k := kept{Group: g, firstEpisode: len(v.episodes), start: len(v.samples)}
	for j := range g.Episodes {
		e := &g.Episodes[j]
		if j > 0 && g.Episodes[j-1].ID.Index == e.ID.Index {
			return fmt.Errorf("group %d: episode %d occurs twice: %w", g.Index, e.ID.Index, ErrIdentity)
		}
		if g.Dispositions[j].Verdict == rollout.Accepted {
			v.episodes = append(v.episodes, accepted{Episode: e})
		}
	}
	own := v.episodes[k.firstEpisode:]
	slices.SortStableFunc(own, func(a, b accepted) int { return cmp.Compare(a.RolloutID, b.RolloutID) })
	for i := range own {
		e := &own[i]
		if i > 0 && own[i-1].RolloutID == e.RolloutID {
			return fmt.Errorf("group %d: rollout id %d occurs twice: %w", g.Index, e.RolloutID, ErrIdentity)
		}
		e.start = len(v.samples)
		for _, s := range e.Samples {
			if s.GroupIndex != g.Index || s.RolloutID != e.RolloutID {
				return fmt.Errorf("group %d, rollout %d holds a sample of group %d, rollout %d: %w",
					g.Index, e.RolloutID, s.GroupIndex, s.RolloutID, ErrIdentity)
			}
			v.samples = append(v.samples, s)
		}
		e.end = len(v.samples)
		slices.SortStableFunc(v.samples[e.start:], func(a, b *rollout.Sample) int { return cmp.Compare(a.Index, b.Index) })
	}
	k.lastEpisode, k.end = len(v.episodes), len(v.samples)
	if k.end > k.start {
		v.kept = append(v.kept, k)
	}
	return nil
}

// trained is the number of tokens of sample i that are in the loss.
func (v *view) trained(i int) int64 {
	if v.excluded[i] {
		return 0
	}
	return v.effective[i]
}

// maskSums adds up the tokens in the loss by rollout id.
func (v *view) maskSums() []int64 {
	sums := make([]int64, len(v.samples))
	for _, e := range v.episodes {
		var sum int64
		for i := e.start; i < e.end; i++ {
			sum += v.trained(i)
		}
		for i := e.start; i < e.end; i++ {
			sums[i] = sum
		}
	}
	return sums
}

// measure fills the columns that are read from the samples' token arrays.
func (v *view) measure(cfg Config) {
	n := len(v.samples)
	v.effective, v.excluded, v.logprob = make([]int64, n), make([]bool, n), make([]float64, n)
	for i, s := range v.samples {
		v.effective[i], v.logprob[i] = maskedSum(s.LossMask(), s.LogProbs())
		v.excluded[i] = s.Remove || s.Reward == nil || cfg.MaskTruncated && s.Status() == rollout.StatusTruncated
	}
}

// ones counts the tokens of a mask that are trained on.
func ones(mask []byte) int64 { return int64(bytes.Count(mask, []byte{1})) }

// maskedSum returns the number of ones in mask and the sum of the values there.
func maskedSum(mask []byte, values []float32) (ones int64, sum float64) {
	for i, m := range mask {
		if m != 0 {
			ones++
			sum += float64(values[i])
		}
	}
	return ones, sum
}

// ordered returns the groups in order of index and their episodes likewise, each
// disposition with its episode. It copies what it reorders.
func ordered(groups []rollout.Group) []rollout.Group {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareGroups(&groups[a], &groups[b]) })
	out := make([]rollout.Group, len(groups))
	for i, from := range order {
		out[i] = groups[from]
		orderEpisodes(&out[i])
	}
	return out
}

func orderEpisodes(g *rollout.Group) {
	inOrder := true
	for j := 1; j < len(g.Episodes) && inOrder; j++ {
		inOrder = g.Episodes[j-1].ID.Index <= g.Episodes[j].ID.Index
	}
	if inOrder {
		return
	}
	order := make([]int, len(g.Episodes))
	for j := range order {
		order[j] = j
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.Episodes[a].ID.Index, g.Episodes[b].ID.Index) })
	g.Episodes = permuted(g.Episodes, order)
	if len(g.Dispositions) == len(order) {
		g.Dispositions = permuted(g.Dispositions, order)
	}
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
