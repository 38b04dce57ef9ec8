package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
)

// reportFile is the part of report.json that is judged.
type reportFile struct {
	Step   int64 `json:"step"`
	Ledger struct {
		Groups       int            `json:"groups"`
		Episodes     int            `json:"episodes"`
		Outcomes     map[string]int `json:"outcomes"`
		Dispositions map[string]int `json:"dispositions"`
		Books        struct {
			Generated       int64            `json:"generated"`
			Trained         int64            `json:"trained"`
			Masked          int64            `json:"masked"`
			Filtered        int64            `json:"filtered"`
			Surplus         int64            `json:"surplus"`
			Recycled        int64            `json:"recycled"`
			Discarded       map[string]int64 `json:"discarded"`
			Unaccounted     int64            `json:"unaccounted"`
			Probe           int64            `json:"probe"`
			EngineUnclaimed *int64           `json:"engine_unclaimed"`
		} `json:"books"`
	} `json:"ledger"`
}

// report compares a step's report with its groups, and adds to the run's books.
func (j *judgement) report(n int64, dir string, groups []group, trained []*sample) {
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		j.violate(files, "step %d: %v", n, err)
		return
	}
	var r reportFile
	if err := json.Unmarshal(text, &r); err != nil {
		j.violate(files, "step %d: report.json: %v", n, err)
		return
	}
	outcomes, dispositions := map[string]int{}, map[string]int{}
	episodes := 0
	var kept int64
	for i := range groups {
		episodes += len(groups[i].Episodes)
		for k := range groups[i].Episodes {
			e, d := &groups[i].Episodes[k], groups[i].Dispositions[k]
			outcomes[e.Outcome]++
			name := d.Verdict
			if d.Reason != "" {
				name += "(" + d.Reason + ")"
			}
			dispositions[name]++
			for g := range e.Generations {
				kept += e.Generations[g].completion()
			}
		}
	}
	l := r.Ledger
	if r.Step != n || l.Groups != len(groups) || l.Episodes != episodes || !maps.Equal(l.Outcomes, outcomes) || !maps.Equal(l.Dispositions, dispositions) {
		j.violate(files, "step %d: the report has %d groups, %d episodes, %v, %v; the groups are %d, %d, %v, %v",
			n, l.Groups, l.Episodes, l.Outcomes, l.Dispositions, len(groups), episodes, outcomes, dispositions)
	}
	var loss int64
	for _, s := range trained {
		if s.State.Info.Reward != nil && !s.State.Info.Remove {
			loss += int64(bytes.Count(s.State.LossMask, []byte{1}))
		}
	}
	b := l.Books
	spent := b.Trained + b.Masked + b.Filtered + b.Surplus + b.Recycled + b.Unaccounted
	for _, tokens := range b.Discarded {
		spent += tokens
	}
	if b.Unaccounted != 0 || spent != b.Generated || b.Trained != loss || b.Generated < kept {
		j.violate(unbalanced, "step %d: %+v; the samples train %d tokens, the generations are %d", n, b, loss, kept)
	}
	if u := b.EngineUnclaimed; u != nil && (*u < 0 || j.ev.shape.Calm && *u != 0) {
		j.violate(unbalanced, "step %d: engine_unclaimed is %d", n, *u)
	}
	j.Claimed += b.Generated
	j.Probes += b.Probe
}

// books closes the run's books against what the engines logged. What an engine
// generated for a killed worker is in no report; nothing may be in a report that
// no engine generated.
func (j *judgement) books() {
	if j.Claimed+j.Probes > j.Logged {
		j.violate(unbalanced, "the reports claim %d tokens and %d of probes, the engines logged %d", j.Claimed, j.Probes, j.Logged)
	}
	if j.ev.shape.Calm && j.Claimed != j.kept {
		j.violate(unbalanced, "without a fault the reports claim %d tokens, the files hold %d", j.Claimed, j.kept)
	}
	for rid, calls := range j.ev.calls {
		if _, kept := j.rids[rid]; !kept && calls[0].Seed != nil { // a canary has no seed
			j.Again += int64(len(calls[0].Output))
		}
	}
}
