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
		Retried      map[string]int `json:"retried"`
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

// report compares a step's report with its groups and the number of its superseded
// results (-1: not known), and adds to the run's books.
func (j *judgement) report(n int64, dir string, groups []group, trained []*sample, superseded int) {
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
	retried := 0
	for _, k := range l.Retried {
		retried += k
	}
	if superseded >= 0 && retried != superseded {
		j.violate(files, "step %d: the report counts %d tries that ran again, the manifest names %d", n, retried, superseded)
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
	j.unclaimed(n, b.EngineUnclaimed)
	j.metrics(n, dir, text)
	j.Claimed += b.Generated
	j.Probes += b.Probe
}

// metrics checks that a committed step has one line in its run's metrics.jsonl,
// with the numbers of its report.
func (j *judgement) metrics(n int64, dir string, report []byte) {
	type line struct {
		Kind    string             `json:"kind"`
		Step    int64              `json:"step"`
		Metrics map[string]float64 `json:"metrics"`
	}
	var r line
	if err := json.Unmarshal(report, &r); err != nil {
		j.violate(files, "step %d: report.json: %v", n, err)
		return
	}
	found := 0
	err := eachLine(filepath.Join(filepath.Dir(dir), "metrics.jsonl"), func(text []byte) error {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return err
		}
		if l.Kind == "step" && l.Step == n {
			if found++; !maps.Equal(l.Metrics, r.Metrics) {
				j.violate(files, "step %d: metrics.jsonl and report.json have other numbers", n)
			}
		}
		return nil
	})
	if err != nil || found != 1 {
		j.violate(files, "step %d: %d lines in metrics.jsonl, %v", n, found, err)
	}
}

// unclaimed checks what the engines generated beyond the books. A step may claim
// what another attempt generated in a step before it, but all steps together
// cannot claim more than there was. Behind a step that does not know, nothing is
// known.
func (j *judgement) unclaimed(n int64, u *int64) {
	switch {
	case u == nil:
		j.credit = nil
	case j.ev.shape.Calm && *u != 0:
		j.violate(unclaimed, "step %d: engine_unclaimed is %d without a fault", n, *u)
	case j.credit != nil:
		if *j.credit += *u; *j.credit < 0 {
			j.violate(unclaimed, "step %d: engine_unclaimed is %d: the steps so far claim %d tokens that no engine counts", n, *u, -*j.credit)
			j.credit = nil // say it once
		}
	}
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
