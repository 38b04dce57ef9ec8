package step

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Errors of a reduction. They report groups that contradict themselves, which
// only a bug upstream can make; nothing is reduced then.
var (
	// ErrDispositions reports a group without one disposition for each episode.
	ErrDispositions = errors.New("dispositions and episodes differ in number")
	// ErrIdentity reports a sample under a group or episode that it does not name,
	// or a group or episode that occurs twice.
	ErrIdentity = errors.New("contradicting identities")
)

// Result is a reduced step. Samples and the slices beside it have one entry for
// each accepted sample, in order of group index, rollout id and sample index.
type Result struct {
	Samples []*rollout.Sample
	// Rewards are normalised as the estimator asks.
	Rewards []float64
	// Excluded says that a sample stays out of the loss: it was removed, nothing
	// scored it, or it was truncated and the run masks those.
	Excluded []bool
	// MaskSums counts, for each sample, the tokens in the loss over all samples of
	// its rollout id.
	MaskSums []int64

	Report *Report
}

// Reduce reduces disposed groups to a batch and its report. The groups given are
// not changed; samples are shared with them.
func Reduce(cfg Config, groups []rollout.Group, w Window) (*Result, error) {
	v, err := collect(groups)
	if err != nil {
		return nil, fmt.Errorf("reduce step %d: %w", cfg.Step, err)
	}
	rewards, err := normalized(cfg, v.samples, v.ends)
	if err != nil {
		return nil, fmt.Errorf("reduce step %d: %w", cfg.Step, err)
	}
	v.measure(cfg)
	r := &Result{Samples: v.samples, Rewards: rewards, Excluded: v.excluded, MaskSums: v.maskSums()}
	r.Report = v.report(cfg, w)
	return r, nil
}

// view is a step laid out for reduction.
type view struct {
	groups []rollout.Group
	// samples are the accepted ones in order; ends[i] is the end, in samples, of
	// the i-th group that has any, and kept that group.
	samples []*rollout.Sample
	ends    []int
	kept    []*rollout.Group
	// episodes are the accepted ones in the order of their first sample, each
	// with the range of its samples.
	episodes []accepted

	// Filled by measure, one entry per sample.
	effective []int64 // tokens trained on, before exclusion
	excluded  []bool
	logprob   []float64 // sum of log-probs over those tokens
}

type accepted struct {
	*rollout.Episode
	start, end int
}

// collect sorts, checks and lays out the groups.
func collect(groups []rollout.Group) (*view, error) {
	v := &view{groups: arranged(groups)}
	for i := range v.groups {
		g := &v.groups[i]
		if len(g.Dispositions) != len(g.Episodes) {
			return nil, fmt.Errorf("group %d: %w: %d, %d", g.Index, ErrDispositions, len(g.Dispositions), len(g.Episodes))
		}
		if i > 0 && v.groups[i-1].Index == g.Index && v.groups[i-1].Wave == g.Wave {
			return nil, fmt.Errorf("group %d of wave %d occurs twice: %w", g.Index, g.Wave, ErrIdentity)
		}
		if err := v.add(g); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// arranged is sorted for groups that have dispositions: those move with their
// episodes.
func arranged(groups []rollout.Group) []rollout.Group {
	out := slices.Clone(groups)
	slices.SortStableFunc(out, compareGroups)
	for i := range out {
		g := &out[i]
		if slices.IsSortedFunc(g.Episodes, compareEpisodes) || len(g.Dispositions) != len(g.Episodes) {
			continue
		}
		order := make([]int, len(g.Episodes))
		for j := range order {
			order[j] = j
		}
		slices.SortStableFunc(order, func(a, b int) int { return compareEpisodes(g.Episodes[a], g.Episodes[b]) })
		episodes, dispositions := g.Episodes, g.Dispositions
		g.Episodes, g.Dispositions = nil, nil
		for _, j := range order {
			g.Episodes = append(g.Episodes, episodes[j])
			g.Dispositions = append(g.Dispositions, dispositions[j])
		}
	}
	return out
}

// add lays out the accepted episodes of one group.
func (v *view) add(g *rollout.Group) error {
	first, firstSample := len(v.episodes), len(v.samples)
	for j := range g.Episodes {
		e := &g.Episodes[j]
		if j > 0 && g.Episodes[j-1].ID.Index == e.ID.Index {
			return fmt.Errorf("group %d: episode %d occurs twice: %w", g.Index, e.ID.Index, ErrIdentity)
		}
		if g.Dispositions[j].Verdict == rollout.Accepted {
			v.episodes = append(v.episodes, accepted{Episode: e})
		}
	}
	slices.SortStableFunc(v.episodes[first:], func(a, b accepted) int { return cmp.Compare(a.RolloutID, b.RolloutID) })
	for k := first; k < len(v.episodes); k++ {
		e := &v.episodes[k]
		if k > first && v.episodes[k-1].RolloutID == e.RolloutID {
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
	if len(v.samples) > firstSample {
		v.ends = append(v.ends, len(v.samples))
		v.kept = append(v.kept, g)
	}
	return nil
}

// measure fills what must be read from the samples' token arrays.
func (v *view) measure(cfg Config) {
	n := len(v.samples)
	v.effective, v.excluded, v.logprob = make([]int64, n), make([]bool, n), make([]float64, n)
	for i, s := range v.samples {
		v.effective[i], v.logprob[i] = maskedSum(s.LossMask(), s.LogProbs())
		v.excluded[i] = s.Remove || s.Reward == nil || cfg.MaskTruncated && s.Status() == rollout.StatusTruncated
	}
}

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

// Lengths returns prompt plus response of each sample, in tokens.
func (r *Result) Lengths() []int64 {
	lengths := make([]int64, len(r.Samples))
	for i, s := range r.Samples {
		lengths[i] = int64(len(s.Tokens()))
	}
	return lengths
}
