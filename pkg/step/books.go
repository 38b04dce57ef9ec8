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
	// Retried counts failed tries that were run again, by boundary and reason.
	Retried map[string]int `json:"retried"`
	// Generations counts engine calls by fate, waste included.
	Generations map[string]int `json:"generations"`
	// Untrainable counts the calls whose tokens are kept out of the loss for what
	// the engine sent of them, by reason.
	Untrainable map[string]int `json:"untrainable"`
	// Implausible counts the numbers that engines did send and that cannot be, by
	// name: no sum holds them.
	Implausible map[string]int `json:"implausible"`
	// Counters sum over the same calls.
	Counters Counters `json:"counters"`
	Books    Books    `json:"books"`
}

// Counters are sums of what the engines reported. A sum is null when no call
// reported it, and stays at the largest number of 64 bits when it would be more.
type Counters struct {
	Completion *int64 `json:"completion"`
	Prompt     *int64 `json:"prompt"`
	Cached     *int64 `json:"cached"`
	Verify     *int64 `json:"verify"`
	Correct    *int64 `json:"correct"`
	Proposed   *int64 `json:"proposed"`
	// Reported says how many calls each sum is over: replies of aborted calls lack
	// some or all of them.
	Reported Reported `json:"reported"`
}

// Reported counts calls by what their replies said.
type Reported struct {
	Completion int `json:"completion"`
	Prompt     int `json:"prompt"`
	Cached     int `json:"cached"`
	Verify     int `json:"verify"`
	Correct    int `json:"correct"`
	Proposed   int `json:"proposed"`
}

func (c *Counters) add(meta *rollout.EngineMeta) {
	addPresent(&c.Completion, &c.Reported.Completion, meta.CompletionTokens, 1)
	addPresent(&c.Prompt, &c.Reported.Prompt, meta.PromptTokens, 1)
	addPresent(&c.Cached, &c.Reported.Cached, meta.CachedTokens, 1)
	addPresent(&c.Verify, &c.Reported.Verify, meta.Spec.Verify, 1)
	addPresent(&c.Correct, &c.Reported.Correct, meta.Spec.Correct, 1)
	addPresent(&c.Proposed, &c.Reported.Proposed, meta.Spec.Proposed, 1)
}

func (c *Counters) merge(o *Counters) {
	addPresent(&c.Completion, &c.Reported.Completion, o.Completion, o.Reported.Completion)
	addPresent(&c.Prompt, &c.Reported.Prompt, o.Prompt, o.Reported.Prompt)
	addPresent(&c.Cached, &c.Reported.Cached, o.Cached, o.Reported.Cached)
	addPresent(&c.Verify, &c.Reported.Verify, o.Verify, o.Reported.Verify)
	addPresent(&c.Correct, &c.Reported.Correct, o.Correct, o.Reported.Correct)
	addPresent(&c.Proposed, &c.Reported.Proposed, o.Proposed, o.Reported.Proposed)
}

// addPresent adds x of so many calls, if there, to a total that begins to exist
// with it.
func addPresent(total **int64, reported *int, x *int64, calls int) {
	if x == nil {
		return
	}
	if *total == nil {
		*total = new(int64)
	}
	**total = rollout.Add(**total, *x)
	*reported += calls
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
	// Unaccounted must be 0. It is not when more tokens are trained on than the
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
		n = rollout.Add(n, tokens)
	}
	return n
}

// less is n without the parts.
func less(n int64, parts ...int64) int64 {
	for _, part := range parts {
		n = rollout.Add(n, -part)
	}
	return n
}

// metrics sets the shares of what was generated in vain.
func (b Books) metrics(m *metrics) {
	const nothing = "nothing was generated"
	m.ratio("waste/discarded_ratio", float64(b.discarded()), float64(b.Generated), nothing)
	m.ratio("waste/filtered_ratio", float64(b.Filtered), float64(b.Generated), nothing)
}

// ledger closes the books: it adds the waste to the tally and reads it out.
func (v *view) ledger(w Window) Ledger {
	v.addWaste(w)
	t := &v.tally
	b := Books{
		Generated: t.tokens.generated, Trained: t.trained, Filtered: t.tokens.filtered, Surplus: t.tokens.surplus, Recycled: t.tokens.recycled,
		Discarded: t.tokens.discarded, Probe: w.ProbeTokens,
	}
	if b.Discarded == nil {
		b.Discarded = map[string]int64{}
	}
	b.Masked = max(t.tokens.accepted-b.Trained, 0)
	b.Unaccounted = less(b.Generated, b.Trained, b.Masked, b.Filtered, b.Surplus, b.Recycled, b.discarded())
	if w.EngineTokens != nil {
		b.EngineUnclaimed = rollout.Ptr(less(*w.EngineTokens, b.Generated, b.Probe))
	}
	episodes := 0
	for i := range v.groups {
		episodes += len(v.groups[i].Episodes)
	}
	retried := map[string]int{}
	for reason, n := range w.Retried {
		retried[reason] = n
	}
	return Ledger{
		Groups: len(v.groups), Episodes: episodes,
		Outcomes: texts(&t.outcomes), Failures: texts(&t.failures), Dispositions: dispositions(&t.verdicts),
		Generations: texts(&t.fates), Untrainable: texts(&t.untrainable), Implausible: texts(&t.implausible), Counters: t.counters, Books: b, Retried: retried,
	}
}

// addWaste counts the wasted calls. The subject that carries waste delivers at
// least once, and a fenced attempt may have been accepted after all: an id that
// was seen already is left out.
func (v *view) addWaste(w Window) {
	if len(w.Waste) == 0 {
		return
	}
	seen := map[string]bool{}
	for i := range v.groups {
		for j := range v.groups[i].Episodes {
			for k := range v.groups[i].Episodes[j].Generations {
				seen[v.groups[i].Episodes[j].Generations[k].ID] = true
			}
		}
	}
	for _, waste := range w.Waste {
		for i := range waste.Generations {
			g := &waste.Generations[i]
			if g.ID != "" && seen[g.ID] {
				continue
			}
			seen[g.ID] = true
			v.tally.call(g)
			v.tally.tokens.post(rollout.Disposition{Verdict: rollout.Discarded, Reason: waste.Reason}, g.Completion())
		}
	}
}

// texts returns the counts with their keys as plain text.
func texts[K ~string](c *counter[K]) map[string]int {
	out := map[string]int{}
	for key, n := range c.all() {
		out[string(key)] = n
	}
	return out
}

func dispositions(c *counter[rollout.Disposition]) map[string]int {
	out := map[string]int{}
	for d, n := range c.all() {
		out[d.String()] = n
	}
	return out
}
