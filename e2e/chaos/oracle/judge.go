package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Classes of violation.
const (
	lost         = "lost"         // delivered, or planned, and not in the files
	duplicated   = "duplicated"   // in them more than once
	misversioned = "misversioned" // under weights that did not make it
	foreign      = "foreign"      // not what an engine generated
	unbalanced   = "books"        // tokens that do not add up
	unclaimed    = "unclaimed"    // engine_unclaimed that sums to below 0, or is not 0 without a fault
	ledger       = "ledger"       // a log that no correct controller writes
	files        = "files"        // files that contradict each other or the log
	replayed     = "replay"       // other bytes when made again
)

// verdict is what the oracle finds.
type verdict struct {
	Steps    int64 `json:"steps"`
	Planned  int   `json:"episodes_planned"`
	Results  int   `json:"results_committed"`
	Accepted int   `json:"samples_trained"`
	Failed   int   `json:"episodes_failed"`
	Retried  int   `json:"episodes_of_a_later_attempt"`
	Epochs   int   `json:"epochs"`
	// Unseen counts log entries that were gone before the observer read them.
	Unseen uint64 `json:"log_entries_unseen"`
	// Logged, Claimed and Probes are completion tokens: of the engines' logs, of
	// the steps' books, and of the controllers' canaries by the same books.
	Logged  int64 `json:"tokens_logged"`
	Claimed int64 `json:"tokens_claimed"`
	Probes  int64 `json:"tokens_probes"`
	// Again counts generated tokens of episodes beyond the generation that was
	// kept: what the faults cost.
	Again int64 `json:"tokens_generated_again"`

	Violations []violation `json:"violations"`
}

type violation struct {
	Class string `json:"class"`
	Text  string `json:"text"`
}

// judgement gathers what is seen over all steps.
type judgement struct {
	verdict
	ev        *evidence
	manifests map[int64]*manifest
	planned   map[episodeID]bool
	slots     map[slot]bool  // planned
	inStep    map[slot]int64 // seen in the files
	rids      map[string]int64
	samples   map[int64]int64
	seeds     map[int64]string // of trained generations
	kept      int64            // tokens of the generations in the files
	credit    *int64           // sum of engine_unclaimed, nil = not known
}

func (j *judgement) violate(class, format string, args ...any) {
	j.Violations = append(j.Violations, violation{class, fmt.Sprintf(format, args...)})
}

func judge(ev *evidence) *verdict {
	j := &judgement{
		ev: ev, manifests: map[int64]*manifest{}, planned: map[episodeID]bool{}, slots: map[slot]bool{}, inStep: map[slot]int64{},
		rids: map[string]int64{}, samples: map[int64]int64{}, seeds: map[int64]string{}, credit: new(int64),
	}
	j.Violations = []violation{}
	j.Logged = ev.total
	for rid, calls := range ev.calls {
		if len(calls) > 1 {
			j.violate(duplicated, "engines served request id %s %d times", rid, len(calls))
		}
	}
	j.ledger()
	for n := range j.Steps {
		j.step(n)
	}
	for s := range j.slots {
		if _, ok := j.inStep[s]; !ok {
			j.violate(lost, "episode %d of group %d was planned and is in no step", s.index, s.group)
		}
	}
	j.books()
	return &j.verdict
}

// ledger reads the log from its first to its last entry.
func (j *judgement) ledger() {
	if len(j.ev.entries) == 0 {
		j.violate(ledger, "the log is empty")
		return
	}
	before := logged{}
	for i, e := range j.ev.entries {
		gap := e.seq - before.seq - 1
		j.Unseen += gap
		if gap == 0 {
			j.follows(&before.entry, &e.entry, i == 0)
		}
		if e.State.Epoch < before.State.Epoch || e.State.NextStep < before.State.NextStep || e.State.NextGroup < before.State.NextGroup {
			j.violate(ledger, "entry %d goes back: %+v after %+v", e.seq, e.State, before.State)
		}
		if p := e.Plan; p != nil {
			for _, id := range p.ids() {
				j.planned[id], j.slots[id.slot()] = true, true
			}
		}
		if m := e.Manifest; m != nil {
			if j.manifests[m.Step] != nil {
				j.violate(duplicated, "step %d is committed twice", m.Step)
			}
			j.manifests[m.Step] = m
		}
		before = e
	}
	last := before.State
	j.Steps, j.Epochs, j.Planned = last.NextStep, int(last.Epoch), len(j.slots)
	if !last.Closed || last.NextStep != j.ev.shape.Steps {
		j.violate(ledger, "the run ended at step %d of %d, closed: %v", last.NextStep, j.ev.shape.Steps, last.Closed)
	}
}

// follows checks one entry against the one right before it.
func (j *judgement) follows(before, e *entry, first bool) {
	switch e.Kind {
	case "open":
		if e.State.Epoch != before.State.Epoch+1 {
			j.violate(ledger, "epoch %d opened after %d", e.State.Epoch, before.State.Epoch)
		}
		return
	case "plan":
		if e.Plan == nil || e.Plan.Wave != before.State.NextWave || e.Plan.FirstGroup != before.State.NextGroup || e.Plan.FirstPosition != before.State.Cursor {
			j.violate(ledger, "plan %+v after %+v", e.Plan, before.State)
		}
	case "manifest":
		if e.Manifest == nil || e.Manifest.Step != before.State.NextStep {
			j.violate(ledger, "manifest of another step than %d", before.State.NextStep)
		}
	}
	if first || e.State.Epoch != before.State.Epoch {
		j.violate(ledger, "%s under epoch %d after an entry of epoch %d", e.Kind, e.State.Epoch, before.State.Epoch)
	}
}

// step judges the files of one committed step.
func (j *judgement) step(n int64) {
	m := j.manifests[n]
	dir := j.folder(n, m)
	if dir == "" {
		return
	}
	groups, err := readGroups(filepath.Join(dir, "groups.cbor"))
	if err != nil {
		j.violate(files, "step %d: %v", n, err)
		return
	}
	items, superseded := j.items(n, m)
	var trained []*sample
	for i := range groups {
		g := &groups[i]
		if len(g.Dispositions) != len(g.Episodes) {
			j.violate(lost, "step %d, group %d: %d episodes and %d dispositions", n, g.Index, len(g.Episodes), len(g.Dispositions))
			continue
		}
		for k := range g.Episodes {
			e := &g.Episodes[k]
			j.episode(n, g, e, g.Dispositions[k].Verdict)
			if m != nil {
				it, named := items[e.ID.slot()]
				switch {
				case !named:
					j.violate(files, "step %d: episode %+v is in the files and not in the manifest", n, e.ID)
				case it.Episode != e.ID || it.SHA256 != sha256.Sum256(e.raw):
					j.violate(lost, "step %d: episode %+v in the files is not the result that the manifest names (%+v)", n, e.ID, it.Episode)
				}
				delete(items, e.ID.slot())
			}
			if g.Dispositions[k].Verdict == "accepted" {
				for s := range e.Samples {
					trained = append(trained, &e.Samples[s])
				}
			}
		}
	}
	for _, it := range items {
		j.violate(lost, "step %d: the manifest names a result of episode %+v that is not in the files", n, it.Episode)
	}
	j.Accepted += len(trained)
	j.trainerFiles(n, dir, trained)
	j.report(n, dir, groups, trained, superseded)
	if err := replay(j.ev.shape, n, dir); err != nil {
		j.violate(replayed, "step %d: %v", n, err)
	}
}

// items are the results that a manifest names, by episode. Of an episode that was
// tried in several waves the last counts; the others are superseded.
func (j *judgement) items(n int64, m *manifest) (last map[slot]item, superseded int) {
	last = map[slot]item{}
	if m == nil {
		return last, -1
	}
	seen := map[episodeID]bool{}
	for _, it := range m.Items {
		if seen[it.Episode] {
			j.violate(duplicated, "step %d: the manifest names episode %+v twice", n, it.Episode)
		}
		seen[it.Episode] = true
		if before, again := last[it.Episode.slot()]; again {
			superseded++
			if before.Episode.Wave > it.Episode.Wave {
				continue
			}
		}
		last[it.Episode.slot()] = it
	}
	j.Results += len(m.Items)
	return last, superseded
}

// folder finds the files of a step: those whose digests the manifest has. A
// controller that was replaced may have left others in a folder of its own.
func (j *judgement) folder(n int64, m *manifest) string {
	var found, wrong []string
	for _, f := range j.ev.folders {
		dir := filepath.Join(f, fmt.Sprintf("step-%06d", n))
		if _, err := os.Stat(filepath.Join(dir, "report.json")); err != nil {
			continue
		}
		ok := true
		if m != nil {
			for _, d := range m.Files {
				data, err := os.ReadFile(filepath.Join(dir, d.Name))
				if err != nil || sha256.Sum256(data) != d.SHA256 {
					ok = false
					wrong = append(wrong, filepath.Join(dir, d.Name))
				}
			}
		}
		if ok {
			found = append(found, dir)
		}
	}
	if len(found) == 0 {
		j.violate(lost, "step %d: no folder has its files as they were committed (others: %v)", n, wrong)
		return ""
	}
	return found[len(found)-1]
}

// episode judges one disposed episode.
func (j *judgement) episode(n int64, g *group, e *episode, v string) {
	if at, twice := j.inStep[e.ID.slot()]; twice {
		j.violate(duplicated, "episode %+v is in step %d and in step %d", e.ID, at, n)
	}
	j.inStep[e.ID.slot()] = n
	if j.Unseen == 0 && !j.planned[e.ID] {
		j.violate(ledger, "step %d: episode %+v was never planned", n, e.ID)
	}
	if e.ID.Wave < g.Wave || e.ID.Group != g.Index {
		j.violate(files, "step %d: episode %+v lies in group %d of wave %d", n, e.ID, g.Index, g.Wave)
	}
	if !slices.Contains([]string{"completed", "truncated", "aborted", "failed"}, e.Outcome) || (e.Outcome == "failed") != (e.Failure != nil) {
		j.violate(lost, "step %d: episode %+v has outcome %q, failure %v", n, e.ID, e.Outcome, e.Failure)
	}
	if !slices.Contains([]string{"accepted", "filtered", "surplus", "recycled", "discarded"}, v) {
		j.violate(lost, "step %d: episode %+v has disposition %q", n, e.ID, v)
	}
	if e.Outcome == "failed" {
		j.Failed++
	}
	if e.Attempt > 1 {
		j.Retried++
	}
	for i := range e.Generations {
		j.generation(n, e, &e.Generations[i])
	}
	for i := range e.Samples {
		j.sample(n, e, &e.Samples[i], v == "accepted")
	}
}

// generation judges the record of one engine call.
func (j *judgement) generation(n int64, e *episode, g *generation) {
	if at, twice := j.rids[g.ID]; twice && g.ID != "" {
		j.violate(duplicated, "generation %s is in step %d and in step %d", g.ID, at, n)
	}
	j.rids[g.ID] = n
	j.kept += g.completion()
	if g.Fate == "failed" {
		return // it claims no tokens, or those that an abort brought
	}
	c := j.ev.calls[g.ID]
	if len(c) == 0 {
		j.violate(foreign, "step %d: no engine has served generation %s of episode %+v", n, g.ID, e.ID)
		return
	}
	if int(g.completion()) != len(c[0].Output) || g.OutputLen != len(c[0].Output) || g.PromptLen != len(c[0].Prompt) {
		j.violate(foreign, "step %d: generation %s counts %d and %d output and %d prompt tokens, its engine %d and %d",
			n, g.ID, g.completion(), g.OutputLen, g.PromptLen, len(c[0].Output), len(c[0].Prompt))
	}
	spec := g.Meta.Spec
	for _, pair := range [][2]*int64{{spec.Verify, &c[0].Verify}, {spec.Correct, &c[0].Correct}, {spec.Proposed, &c[0].Proposed}, {g.Meta.CachedTokens, &c[0].Cached}} {
		if pair[0] != nil && *pair[0] != *pair[1] {
			j.violate(foreign, "step %d: generation %s counts %d where its engine counts %d", n, g.ID, *pair[0], *pair[1])
		}
	}
	if v := g.Meta.WeightVersion; v != nil && len(c[0].Versions) > 0 && *v != c[0].Versions[len(c[0].Versions)-1].Version {
		j.violate(misversioned, "step %d: generation %s has version %s, its engine says %+v", n, g.ID, *v, c[0].Versions)
	}
}

// sample judges one sample by the logs of the engines that made it.
func (j *judgement) sample(n int64, e *episode, s *sample, accepted bool) {
	info := s.State.Info
	if at, twice := j.samples[info.Index]; twice {
		j.violate(duplicated, "sample %d is in step %d and in step %d", info.Index, at, n)
	}
	j.samples[info.Index] = n
	if len(s.State.Generations) == 0 {
		j.violate(foreign, "step %d: sample %d names no generation", n, info.Index)
		return
	}
	var tokens []int32
	var logProbs []float32
	var versions []versionSpan
	for _, rid := range s.State.Generations {
		if !slices.ContainsFunc(e.Generations, func(g generation) bool { return g.ID == rid }) {
			j.violate(foreign, "step %d: sample %d is made of generation %s, which is not its episode's", n, info.Index, rid)
		}
		calls := j.ev.calls[rid]
		if len(calls) == 0 {
			return // said of the generation already
		}
		c := &calls[0]
		if accepted && c.Seed != nil {
			if other, twice := j.seeds[*c.Seed]; twice {
				j.violate(duplicated, "step %d: generations %s and %s, both trained on, are one draw", n, other, rid)
			}
			j.seeds[*c.Seed] = rid
		}
		prompt := s.State.PromptLen
		if tokens != nil && (len(c.Prompt) < len(tokens) || !slices.Equal(tokens, c.Prompt[:len(tokens)])) {
			j.violate(foreign, "step %d: sample %d: generation %s does not continue it", n, info.Index, rid)
			return
		}
		if tokens == nil {
			prompt = len(c.Prompt)
		}
		logProbs = append(logProbs, make([]float32, max(0, len(c.Prompt)-max(prompt, len(tokens))))...)
		tokens = append(append([]int32(nil), c.Prompt...), c.Output...)
		start := int64(len(logProbs))
		logProbs = append(logProbs, c.LogProbs...)
		for i, v := range c.Versions {
			end := int64(len(c.Output))
			if i+1 < len(c.Versions) {
				end = int64(c.Versions[i+1].Start)
			}
			versions = appendSpan(versions, versionSpan{v.Version, start + int64(v.Start), start + end})
		}
	}
	if !slices.Equal(tokens, s.tokens()) {
		j.violate(foreign, "step %d: the tokens of sample %d are not those of generations %v", n, info.Index, s.State.Generations)
	}
	if !slices.Equal(logProbs, s.logProbs()) {
		j.violate(foreign, "step %d: the log-probs of sample %d are not those of generations %v", n, info.Index, s.State.Generations)
	}
	if !slices.Equal(versions, s.State.Versions) {
		j.violate(misversioned, "step %d: sample %d has versions %v, its engines say %v", n, info.Index, s.State.Versions, versions)
	}
}

// appendSpan appends a span, joined to the last where both are of one version.
func appendSpan(spans []versionSpan, s versionSpan) []versionSpan {
	if k := len(spans) - 1; k >= 0 && spans[k].Version == s.Version && spans[k].End == s.Start {
		spans[k].End = s.End
		return spans
	}
	return append(spans, s)
}
