package step

import (
	"strconv"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Reasons of dispositions that this package gives. A failed episode is discarded
// under its failure's key instead.
const (
	// ReasonAborted: the episode was cut short and is not continued.
	ReasonAborted = "aborted"
	// ReasonNoSamples: the episode ended well and yet holds nothing to train on.
	ReasonNoSamples = "no_samples"
	// ReasonIncomplete: too few of the group's episodes can be trained on.
	ReasonIncomplete = "group_incomplete"
	// ReasonHasAborted: the group was filtered for an aborted episode.
	ReasonHasAborted = "group_has_aborted"
	// ReasonNoReward: the group was filtered because nothing scored it.
	ReasonNoReward = "no_reward"
	// reasonZeroStd is followed by the group's first reward, to one decimal.
	reasonZeroStd = "zero_std_"
)

// zeroStd is the standard deviation up to which rewards count as equal; the
// bound that miles uses.
const zeroStd = 1e-8

// Dispose decides what becomes of every episode. It returns the groups in order
// of index, their episodes in order of index, each with exactly one disposition:
//
//   - an episode that failed or holds no sample is discarded, an aborted one is
//     discarded, or recycled in a partial run;
//   - the rest of a group that the filter drops is filtered, the rest of a group
//     with fewer than [Config.MinValid] such episodes is discarded;
//   - of the groups left, the first [Config.BatchSize] are accepted and the others
//     are surplus.
//
// The groups given are not changed.
func Dispose(cfg Config, groups []rollout.Group) []rollout.Group {
	out := ordered(groups)
	accepted := 0
	for i := range out {
		g := &out[i]
		g.Dispositions = make([]rollout.Disposition, len(g.Episodes))
		var rest []int
		aborted := false
		for j := range g.Episodes {
			d, settled := own(cfg, &g.Episodes[j])
			g.Dispositions[j] = d
			aborted = aborted || g.Episodes[j].Outcome == rollout.OutcomeAborted
			if !settled {
				rest = append(rest, j)
			}
		}
		d := together(cfg, g, rest, aborted)
		if d.Verdict == rollout.Accepted && len(rest) > 0 {
			if cfg.BatchSize > 0 && accepted == cfg.BatchSize {
				d.Verdict = rollout.Surplus
			} else {
				accepted++
			}
		}
		for _, j := range rest {
			g.Dispositions[j] = d
		}
	}
	return out
}

// own returns the disposition that an episode has by itself; settled is false
// for one whose group decides.
func own(cfg Config, e *rollout.Episode) (d rollout.Disposition, settled bool) {
	switch {
	case e.Outcome == rollout.OutcomeFailed || e.Failure != nil:
		reason := string(rollout.OutcomeFailed)
		if e.Failure != nil {
			reason = e.Failure.Key()
		}
		return rollout.Disposition{Verdict: rollout.Discarded, Reason: reason}, true
	case e.Outcome == rollout.OutcomeAborted && cfg.Partial:
		return rollout.Disposition{Verdict: rollout.Recycled}, true
	case e.Outcome == rollout.OutcomeAborted:
		return rollout.Disposition{Verdict: rollout.Discarded, Reason: ReasonAborted}, true
	case len(e.Samples) == 0:
		return rollout.Disposition{Verdict: rollout.Discarded, Reason: ReasonNoSamples}, true
	default:
		return rollout.Disposition{}, false
	}
}

// together returns the disposition that the remaining episodes of a group share.
func together(cfg Config, g *rollout.Group, rest []int, aborted bool) rollout.Disposition {
	if cfg.Filter == FilterNoAborted && aborted {
		return rollout.Disposition{Verdict: rollout.Filtered, Reason: ReasonHasAborted}
	}
	need := cfg.MinValid
	if need == 0 {
		need = g.Want
	}
	if len(rest) < need {
		return rollout.Disposition{Verdict: rollout.Discarded, Reason: ReasonIncomplete}
	}
	if cfg.Filter == FilterNonzeroStd {
		var rewards []float64
		for _, j := range rest {
			for _, s := range g.Episodes[j].Samples {
				if r, scored := score(s); scored {
					rewards = append(rewards, r)
				}
			}
		}
		if len(rewards) == 0 {
			return rollout.Disposition{Verdict: rollout.Filtered, Reason: ReasonNoReward}
		}
		if !(sampleStd(rewards) > zeroStd) {
			return rollout.Disposition{Verdict: rollout.Filtered, Reason: reasonZeroStd + oneDecimal(rewards[0])}
		}
	}
	return rollout.Disposition{Verdict: rollout.Accepted}
}

// oneDecimal prints a reward rounded to one decimal, half to even, always as a
// float: an integer reward of 1 and a float one must not be two keys.
func oneDecimal(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }
