package step

import "github.com/sheaf-rl/sheaf/pkg/rollout"

// Ledger counts what became of everything in the step. Every map is by reason or
// name; an absent entry is a count of 0.
type Ledger struct {
	Groups   int `json:"groups"`
	Episodes int `json:"episodes"`
	// Outcomes, Failures and Dispositions count episodes; failures by boundary and
	// reason, dispositions as [rollout.Disposition.String] prints them.
	Outcomes     map[string]int `json:"outcomes"`
	Failures     map[string]int `json:"failures"`
	Dispositions map[string]int `json:"dispositions"`
	// Generations counts engine calls by fate.
	Generations map[string]int `json:"generations"`
	Books       Books          `json:"books"`
}

// Books account for the step's completion tokens:
//
//	generated = trained + masked + filtered + surplus + recycled + Σ discarded + unaccounted
type Books struct {
	// Generated sums over every generation record received, once each: those of
	// all episodes, failed ones included, and the waste.
	Generated int64 `json:"generated"`
	// Trained tokens are in the loss. Masked ones belong to accepted episodes and
	// are not: excluded samples, tokens cut off, turns that no sample kept.
	Trained   int64            `json:"trained"`
	Masked    int64            `json:"masked"`
	Filtered  int64            `json:"filtered"`
	Surplus   int64            `json:"surplus"`
	Recycled  int64            `json:"recycled"`
	Discarded map[string]int64 `json:"discarded"`
	// Unaccounted must be 0. It is not when more tokens were trained than their
	// generations reported, or when an episode has no verdict.
	Unaccounted int64 `json:"unaccounted"`
	// Probe tokens were generated outside any episode. EngineUnclaimed is what the
	// engines' own counters grew by beyond generated and probe; null when those
	// counters are not known.
	Probe           int64  `json:"probe"`
	EngineUnclaimed *int64 `json:"engine_unclaimed"`
}

// discarded sums the discarded tokens over all reasons.
func (b Books) discarded() int64 {
	var n int64
	for _, tokens := range b.Discarded {
		n += tokens
	}
	return n
}

// books posts every generation to the disposition of its episode.
func (v *view) books(w Window) Books {
	b := Books{Discarded: map[string]int64{}, Probe: w.ProbeTokens}
	var kept int64
	for i := range v.groups {
		g := &v.groups[i]
		for j := range g.Episodes {
			tokens := completionTokens(g.Episodes[j].Generations)
			b.Generated += tokens
			switch d := g.Dispositions[j]; d.Verdict {
			case rollout.Accepted:
				kept += tokens
			case rollout.Filtered:
				b.Filtered += tokens
			case rollout.Surplus:
				b.Surplus += tokens
			case rollout.Recycled:
				b.Recycled += tokens
			case rollout.Discarded:
				b.Discarded[d.Reason] += tokens
			}
		}
	}
	for i := range v.samples {
		b.Trained += v.trained(i)
	}
	b.Masked = max(kept-b.Trained, 0)
	for reason, tokens := range v.waste(w) {
		b.Generated += tokens
		b.Discarded[reason] += tokens
	}
	b.Unaccounted = b.Generated - b.Trained - b.Masked - b.Filtered - b.Surplus - b.Recycled - b.discarded()
	if w.EngineTokens != nil {
		b.EngineUnclaimed = rollout.Ptr(*w.EngineTokens - b.Generated - b.Probe)
	}
	return b
}

// completionTokens sums over the records, each id once.
func completionTokens(records []rollout.GenerationRecord) int64 {
	var n int64
	records = unique(records)
	for i := range records {
		n += records[i].Completion()
	}
	return n
}

// waste sums the wasted tokens by reason. The subject that carries waste delivers
// at least once, and a fenced attempt may have been accepted after all: an id
// that was seen already is not counted again.
func (v *view) waste(w Window) map[string]int64 {
	if len(w.Waste) == 0 {
		return nil
	}
	seen := map[string]bool{}
	for i := range v.groups {
		for j := range v.groups[i].Episodes {
			for _, g := range v.groups[i].Episodes[j].Generations {
				seen[g.ID] = true
			}
		}
	}
	tokens := map[string]int64{}
	for _, waste := range w.Waste {
		for i := range waste.Generations {
			g := &waste.Generations[i]
			if g.ID != "" && seen[g.ID] {
				continue
			}
			seen[g.ID] = true
			tokens[waste.Reason] += g.Completion()
		}
	}
	return tokens
}

// ledger counts groups, episodes and calls.
func (v *view) ledger(books Books) Ledger {
	l := Ledger{
		Groups: len(v.groups), Books: books,
		Outcomes: map[string]int{}, Failures: map[string]int{},
		Dispositions: map[string]int{}, Generations: map[string]int{},
	}
	outcomes, fates, verdicts := map[rollout.Outcome]int{}, map[rollout.Fate]int{}, map[rollout.Disposition]int{}
	for i := range v.groups {
		g := &v.groups[i]
		l.Episodes += len(g.Episodes)
		for j := range g.Episodes {
			e := &g.Episodes[j]
			outcomes[e.Outcome]++
			verdicts[g.Dispositions[j]]++
			if e.Failure != nil {
				l.Failures[e.Failure.Key()]++
			}
			for k := range e.Generations {
				fates[e.Generations[k].Fate]++
			}
		}
	}
	for outcome, n := range outcomes {
		l.Outcomes[string(outcome)] = n
	}
	for fate, n := range fates {
		l.Generations[string(fate)] = n
	}
	for d, n := range verdicts {
		l.Dispositions[d.String()] = n
	}
	return l
}
