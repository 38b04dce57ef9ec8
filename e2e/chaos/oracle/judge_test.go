package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	steps    = 2
	groups   = 2
	episodes = 2
)

// world is a run as it was, before it is written down. A case spoils it in one
// place.
type world struct {
	t     *testing.T
	codec *wire.Codec
	// delivered are the results as they were stored, in the files what went into
	// the steps' files.
	delivered [steps][]rollout.Episode
	inFiles   [steps][]rollout.Group
	retry     []rollout.RetryGroup // of the last step, in wave steps
	calls     []call
	// edit changes files after they were digested.
	edit   func(dir string)
	report func(*step.Report)
}

func newWorld(t *testing.T) *world {
	codec, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, codec: codec, report: func(*step.Report) {}, edit: func(string) {}}
	n := int64(0)
	for s := range steps {
		for g := range groups {
			group := rollout.Group{Wave: int64(s), Index: int64(s*groups + g), Want: episodes}
			for e := range episodes {
				ep := w.episode(rollout.EpisodeID{Wave: int64(s), Group: group.Index, Index: e}, n)
				group.Episodes = append(group.Episodes, ep)
				w.delivered[s] = append(w.delivered[s], ep)
				n++
			}
			w.inFiles[s] = append(w.inFiles[s], group)
		}
	}
	return w
}

// episode makes an episode and its engine's testimony.
func (w *world) episode(id rollout.EpisodeID, n int64) rollout.Episode {
	c := call{
		RID: fmt.Sprintf("%032d", n), Seed: rollout.Ptr(100 + n), Prompt: []int32{1, 2, 3}, Output: []int32{int32(n), 9},
		LogProbs: []float32{-0.5, -0.25}, Verify: 1, Correct: 1, Proposed: 3, Finish: "stop",
	}
	c.Versions = append(c.Versions, struct {
		Version string `json:"version"`
		Start   int    `json:"start"`
	}{"7", 0})
	w.calls = append(w.calls, c)
	g := rollout.Generation{PromptIDs: c.Prompt, OutputIDs: c.Output, LogProbs: c.LogProbs}
	g.ID, g.Fate, g.PromptLen, g.OutputLen = c.RID, rollout.FateFinished, len(c.Prompt), len(c.Output)
	g.Meta.Finish.Type = rollout.FinishStop
	g.Meta.CompletionTokens, g.Meta.WeightVersion = rollout.Ptr(int64(len(c.Output))), rollout.Ptr("7")
	g.Meta.Spec = rollout.SpecMeta{Verify: &c.Verify, Correct: &c.Correct, Proposed: &c.Proposed}
	s := &rollout.Sample{SampleInfo: rollout.SampleInfo{GroupIndex: id.Group, Index: n, RolloutID: n, Reward: rollout.Ptr(float64(n % 2))}}
	if err := s.Append(g); err != nil {
		w.t.Fatal(err)
	}
	return rollout.Episode{
		ID: id, RolloutID: n, Attempt: 1, Worker: "w", Outcome: rollout.OutcomeCompleted,
		Samples: []*rollout.Sample{s}, Generations: []rollout.GenerationRecord{g.GenerationRecord},
	}
}

// write writes the world down as a round would leave it.
func (w *world) write(dir string) {
	w.t.Helper()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	var engine bytes.Buffer
	for _, c := range w.calls {
		must(json.NewEncoder(&engine).Encode(c))
	}
	must(os.WriteFile(filepath.Join(dir, "engine-0.jsonl"), engine.Bytes(), 0o644))

	var log bytes.Buffer
	seq := uint64(0)
	state := rollout.RunState{Epoch: 1}
	enter := func(e rollout.LedgerEntry) {
		e.State = state
		data, err := w.codec.EncodeEntry(e)
		must(err)
		seq++
		must(json.NewEncoder(&log).Encode(map[string]any{"seq": seq, "data": base64.StdEncoding.EncodeToString(data)}))
	}
	enter(rollout.LedgerEntry{Kind: rollout.EntryOpen})
	for s := range steps {
		plan := rollout.Plan{Wave: int64(s), Step: int64(s), FirstGroup: int64(s * groups), FirstPosition: int64(s * groups), Groups: groups, Episodes: episodes}
		state = state.Planned(plan)
		enter(rollout.LedgerEntry{Kind: rollout.EntryPlan, Plan: &plan})
		if s == steps-1 && len(w.retry) > 0 {
			again := rollout.Plan{Wave: state.NextWave, Step: int64(s), FirstGroup: state.NextGroup, FirstPosition: state.Cursor, Episodes: episodes, Retry: w.retry}
			state = state.Planned(again)
			enter(rollout.LedgerEntry{Kind: rollout.EntryPlan, Plan: &again})
		}
		m := rollout.Manifest{Step: int64(s), Files: w.files(filepath.Join(dir, "out-0", "r"), int64(s), must)}
		for i := range w.delivered[s] {
			rec, err := w.codec.EncodeEpisode(&w.delivered[s][i])
			must(err)
			m.Items = append(m.Items, rollout.ManifestItem{Episode: w.delivered[s][i].ID, SHA256: sha256.Sum256(rec)})
		}
		state.NextStep++
		enter(rollout.LedgerEntry{Kind: rollout.EntryManifest, Manifest: &m})
	}
	state.Closed = true
	enter(rollout.LedgerEntry{Kind: rollout.EntryClosed})
	must(os.WriteFile(filepath.Join(dir, "ledger.jsonl"), log.Bytes(), 0o644))
	text, err := json.Marshal(shape{Run: "r", Folders: []string{"out-0"}, Steps: steps, Batch: groups, Samples: episodes, MinValid: 1, Calm: true})
	must(err)
	must(os.WriteFile(filepath.Join(dir, "evidence.json"), text, 0o644))
	w.edit(dir)
}

func (w *world) files(run string, n int64, must func(error)) []rollout.FileDigest {
	cfg := step.Config{
		Run: "r", Step: n, BatchSize: groups, SamplesPerPrompt: episodes, MinValid: 1, Filter: step.FilterNone,
		Estimator: step.GRPO, Normalize: true, StdNormalize: true, Temperature: 1,
	}
	disposed := step.Dispose(cfg, w.inFiles[n])
	result, err := step.Reduce(cfg, disposed, step.Window{})
	must(err)
	dir := filepath.Join(run, fmt.Sprintf("step-%06d", n))
	must(os.MkdirAll(filepath.Join(dir, "batch"), 0o755))
	var samples, cbor, rank bytes.Buffer
	must(errors.Join(step.WriteSamples(&samples, result.Samples), w.codec.WriteGroups(&cbor, disposed), step.NewBatch(cfg, result, step.Whole(result)).WriteRank(&rank, 0)))
	var out []rollout.FileDigest
	for name, body := range map[string]*bytes.Buffer{"samples.jsonl": &samples, "groups.cbor": &cbor, "batch/rank-00000-of-00001.safetensors": &rank} {
		out = append(out, rollout.FileDigest{Name: name, SHA256: sha256.Sum256(body.Bytes())})
		must(os.WriteFile(filepath.Join(dir, name), body.Bytes(), 0o644))
	}
	w.report(result.Report)
	report, err := json.Marshal(result.Report)
	must(err)
	must(os.WriteFile(filepath.Join(dir, "report.json"), report, 0o644))
	line, err := json.Marshal(map[string]any{"kind": "step", "step": n, "metrics": result.Report.Metrics})
	must(err)
	f, err := os.OpenFile(filepath.Join(run, "metrics.jsonl"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	must(err)
	_, err = f.Write(append(line, '\n'))
	must(errors.Join(err, f.Close()))
	return out
}

// retryOne makes an episode of the last step fail and run again. counted is what
// the report says of it.
func (w *world) retryOne(counted int) {
	e := &w.inFiles[steps-1][0].Episodes[0]
	first := *e
	first.Outcome, first.Failure, first.Samples, first.Generations = rollout.OutcomeFailed, rollout.NewFailure(rollout.BoundaryEngine, "reset", true, nil), nil, nil
	e.ID.Wave, e.Attempt = steps, 1
	w.delivered[steps-1][0] = first
	w.delivered[steps-1] = append(w.delivered[steps-1], *e)
	w.retry = []rollout.RetryGroup{{Group: e.ID.Group, Position: e.ID.Group, Episodes: []int{0}}}
	w.report = func(r *step.Report) {
		if r.Step == steps-1 {
			r.Ledger.Retried = map[string]int{"engine/reset": counted}
		}
	}
}

// TestOracleSees: a run that is as it should be is clean, and each way of spoiling
// it is seen and called by its name.
func TestOracleSees(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(w *world)
		class string
	}{
		{"nothing wrong", func(*world) {}, ""},
		{"an episode that failed and ran again", func(w *world) { w.retryOne(1) }, ""},
		{"a failed try that the report forgot", func(w *world) { w.retryOne(0) }, files},
		{"the failed try in place of the later one", func(w *world) {
			w.retryOne(1)
			w.inFiles[steps-1][0].Episodes[0] = w.delivered[steps-1][0]
		}, lost},
		{"an engine never served it", func(w *world) { w.calls = w.calls[1:] }, foreign},
		{"the engine made another token", func(w *world) { w.calls[2].Output = []int32{50, 9} }, foreign},
		{"the engine gave another log-prob", func(w *world) { w.calls[2].LogProbs = []float32{-0.5, -1} }, foreign},
		{"the engine saw another prompt", func(w *world) { w.calls[2].Prompt = []int32{1, 2, 4} }, foreign},
		{"the engine counts other drafts", func(w *world) { w.calls[2].Correct = 2 }, foreign},
		{"other weights made it", func(w *world) { w.calls[2].Versions[0].Version = "8" }, misversioned},
		{"the weights changed in the middle", func(w *world) {
			v := w.calls[2].Versions
			w.calls[2].Versions = append(slices.Clone(v), v[0])
			w.calls[2].Versions[1].Version, w.calls[2].Versions[1].Start = "8", 1
		}, misversioned},
		{"a generation served twice", func(w *world) { w.calls = append(w.calls, w.calls[0]) }, duplicated},
		{"one draw trained on twice", func(w *world) { w.calls[5].Seed = w.calls[1].Seed }, duplicated},
		{"a step trained on again", func(w *world) { w.inFiles[1], w.delivered[1] = w.inFiles[0], w.delivered[0] }, duplicated},
		{"a planned episode is nowhere", func(w *world) {
			w.inFiles[0][1].Episodes = w.inFiles[0][1].Episodes[:1]
			w.delivered[0] = w.delivered[0][:3]
		}, lost},
		{"a delivered result is not in the files", func(w *world) { w.inFiles[0][1].Episodes = w.inFiles[0][1].Episodes[:1] }, lost},
		{"another result than the delivered one", func(w *world) { w.inFiles[0][1].Episodes[1].Worker = "v" }, lost},
		{"a file changed after the commit", func(w *world) {
			w.edit = func(dir string) { change(t, filepath.Join(dir, "out-0", "r", "step-000001", "samples.jsonl")) }
		}, lost},
		{"a step without files", func(w *world) {
			w.edit = func(dir string) {
				if err := os.RemoveAll(filepath.Join(dir, "out-0", "r", "step-000000")); err != nil {
					t.Fatal(err)
				}
			}
		}, lost},
		{"tokens that are not accounted for", func(w *world) { w.report = func(r *step.Report) { r.Ledger.Books.Unaccounted = 1 } }, unbalanced},
		{"tokens that nobody generated", func(w *world) {
			w.report = func(r *step.Report) {
				r.Ledger.Books.Generated += 5
				r.Ledger.Books.Discarded["fenced"] = 5
			}
		}, unbalanced},
		{"engines that lost tokens", func(w *world) {
			w.report = func(r *step.Report) { r.Ledger.Books.EngineUnclaimed = rollout.Ptr(int64(-3)) }
		}, unclaimed},
		{"an outcome too many", func(w *world) { w.report = func(r *step.Report) { r.Ledger.Outcomes["failed"]++ } }, files},
		{"a step that is in metrics.jsonl twice", func(w *world) {
			w.edit = func(dir string) { repeatLine(t, filepath.Join(dir, "out-0", "r", "metrics.jsonl"), 1) }
		}, files},
		{"a log that jumps back", func(w *world) {
			w.edit = func(dir string) { repeatLine(t, filepath.Join(dir, "ledger.jsonl"), 4) }
		}, duplicated},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			w, dir := newWorld(t), t.TempDir()
			tc.spoil(w)
			w.write(dir)
			ev, err := readEvidence(dir)
			if err != nil {
				t.Fatal(err)
			}
			v := judge(ev)
			if tc.class == "" && len(v.Violations) > 0 {
				t.Errorf("violations %v", v.Violations)
			}
			if tc.class != "" && !slices.ContainsFunc(v.Violations, func(x violation) bool { return x.Class == tc.class }) {
				t.Errorf("violations %v, want one of %q", v.Violations, tc.class)
			}
			if tc.class == "" && (v.Accepted != steps*groups*episodes || v.Results != v.Accepted+len(w.retry) || v.Planned != v.Accepted) {
				t.Errorf("%+v", v)
			}
		})
	}
}

// change changes one byte of a file.
func change(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[bytes.IndexByte(data, '9')] = '8'
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// repeatLine appends line n of a log once more, under the next sequence.
func repeatLine(t *testing.T, path string, n int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	var l map[string]any
	if err := json.Unmarshal(lines[n], &l); err != nil {
		t.Fatal(err)
	}
	l["seq"] = len(lines) + 1
	again, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(append(data, again...), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
