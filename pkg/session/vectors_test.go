package session

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// assemblyCase is a linear session as another implementation recorded it, and the
// samples that it made of it.
type assemblyCase struct {
	Name    string
	Records []struct {
		Request  struct{ Input_IDs []int32 }
		Response struct {
			Choices []struct {
				Finish_Reason string
				Meta_Info     struct {
					Output_Token_Logprobs [][]any
					Completion_Tokens     *int64
					Prompt_Tokens         *int64
					Cached_Tokens         *int64
					Weight_Version        *string
					Spec_Verify_Ct        *int64
					Spec_Accept_Token_Num *int64
					Spec_Draft_Token_Num  *int64
				}
			}
		}
	}
	Accumulated_Token_IDs     []int32
	Max_Trim_Tokens           int
	Speculative               bool
	Expected_Error            bool
	Expected_Turns            []assemblySample
	Expected_Merged           *assemblySample
	Max_Seq_Len               int
	Expected_Truncated_Turns  []assemblySample
	Expected_Truncated_Merged *assemblySample
}

type assemblySample struct {
	Tokens            []int32
	Response          string
	Response_Length   int
	Loss_Mask         []int
	Rollout_Log_Probs []float64
	Status            string
	Weight_Versions   []string
	Spec_Info         struct {
		Spec_Accept_Token_Num, Spec_Draft_Token_Num, Spec_Verify_Ct, Completion_Token_Num int64
	}
	Prefix_Cache_Info struct{ Cached_Tokens, Total_Prompt_Tokens int64 }
}

func TestAssemblyVectors(t *testing.T) {
	const file = "session_assembly.json"
	paths := []string{filepath.Join("testdata", file)}
	dir, asked := os.LookupEnv("SHEAF_VECTORS")
	if !asked {
		dir = filepath.Join("..", "..", "..", "shared", "vectors")
		asked = strings.Contains(flag.Lookup("test.run").Value.String(), "Vectors")
	}
	if _, err := os.Stat(dir); asked || err == nil {
		paths = append(paths, filepath.Join(dir, file))
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v\nrun: SHEAF_VECTORS=/folder/of/vectors go test ./pkg/session -run Vectors", err)
		}
		var cases []assemblyCase
		if err := json.Unmarshal(data, &cases); err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			t.Run(filepath.Base(filepath.Dir(path))+"/"+c.Name, func(t *testing.T) { checkAssembly(t, c) })
		}
	}
}

func checkAssembly(t *testing.T, c assemblyCase) {
	tr, err := c.tree()
	if err == nil && (tr.tip.shared(c.Accumulated_Token_IDs) != tr.tip.length || len(c.Accumulated_Token_IDs) != tr.tip.length) {
		err = ErrContradiction
	}
	if c.Expected_Error {
		if !errors.Is(err, ErrContradiction) {
			t.Fatalf("error %v, want %v", err, ErrContradiction)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []struct {
		max    int
		turns  []assemblySample
		merged *assemblySample
	}{{0, c.Expected_Turns, c.Expected_Merged}, {c.Max_Seq_Len, c.Expected_Truncated_Turns, c.Expected_Truncated_Merged}} {
		leaves, err := tr.assemble(tr.leaves(), limit.max)
		if err != nil {
			t.Fatal(err)
		}
		if limit.merged == nil {
			if len(leaves) != 0 {
				t.Errorf("limit %d: %d samples, want none", limit.max, len(leaves))
			}
			continue
		}
		if len(leaves) != 1 || leaves[0].Turns != len(limit.turns) {
			t.Fatalf("limit %d: %+v, want one sample of %d turns", limit.max, leaves, len(limit.turns))
		}
		limit.merged.check(t, limit.max, leaves[0].Sample, c.Speculative)
	}
}

// tree commits the records one by one, as a session would.
func (c assemblyCase) tree() (*tree, error) {
	tr := newTree()
	for i, r := range c.Records {
		choice := r.Response.Choices[0]
		m := choice.Meta_Info
		var g rollout.Generation
		g.ID, g.Turn, g.Fate = fmt.Sprint(i), i, rollout.FateFinished
		g.Meta = rollout.EngineMeta{
			Finish:       rollout.Finish{Type: rollout.FinishType(choice.Finish_Reason)},
			PromptTokens: m.Prompt_Tokens, CachedTokens: m.Cached_Tokens, CompletionTokens: m.Completion_Tokens, WeightVersion: m.Weight_Version,
			Spec: rollout.SpecMeta{Verify: m.Spec_Verify_Ct, Correct: m.Spec_Accept_Token_Num, Proposed: m.Spec_Draft_Token_Num},
		}
		for _, p := range m.Output_Token_Logprobs {
			g.LogProbs = append(g.LogProbs, float32(p[0].(float64)))
			g.OutputIDs = append(g.OutputIDs, int32(p[1].(float64)))
		}
		n := &node{parent: tr.tip}
		var err error
		if n.base, n.gap, err = tr.tip.prompt(r.Request.Input_IDs, c.Max_Trim_Tokens); err != nil {
			return nil, err
		}
		tr.add(n, g)
	}
	return tr, nil
}

func (want assemblySample) check(t *testing.T, limit int, s *rollout.Sample, speculative bool) {
	t.Helper()
	if !slices.Equal(s.Tokens(), want.Tokens) || s.ResponseLen() != want.Response_Length {
		t.Errorf("limit %d: tokens %v (%d), want %v (%d)", limit, s.Tokens(), s.ResponseLen(), want.Tokens, want.Response_Length)
	}
	var response strings.Builder
	for _, id := range s.ResponseTokens() {
		fmt.Fprintf(&response, "[%d]", id)
	}
	if response.String() != want.Response {
		t.Errorf("limit %d: response %s, want %s", limit, response.String(), want.Response)
	}
	if !slices.EqualFunc(s.LossMask(), want.Loss_Mask, func(a byte, b int) bool { return int(a) == b }) {
		t.Errorf("limit %d: mask %v, want %v", limit, s.LossMask(), want.Loss_Mask)
	}
	if !slices.EqualFunc(s.LogProbs(), want.Rollout_Log_Probs, func(a float32, b float64) bool { return math.Abs(float64(a)-b) < 1e-6 }) {
		t.Errorf("limit %d: log-probs %v, want %v", limit, s.LogProbs(), want.Rollout_Log_Probs)
	}
	if string(s.Status()) != want.Status {
		t.Errorf("limit %d: status %s, want %s", limit, s.Status(), want.Status)
	}
	var versions []string
	for _, v := range s.Versions() {
		versions = append(versions, v.Version)
	}
	if !slices.Equal(versions, want.Weight_Versions) {
		t.Errorf("limit %d: versions %v, want %v", limit, versions, want.Weight_Versions)
	}
	value := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	if p := s.Prefix(); value(p.Cached) != want.Prefix_Cache_Info.Cached_Tokens || value(p.Prompt) != want.Prefix_Cache_Info.Total_Prompt_Tokens {
		t.Errorf("limit %d: prefix cache %d of %d, want %+v", limit, value(p.Cached), value(p.Prompt), want.Prefix_Cache_Info)
	}
	// Without speculation the reference collects no counters; an engine that
	// reports them is believed here.
	if sp := s.Spec(); speculative && (value(sp.Verify) != want.Spec_Info.Spec_Verify_Ct || value(sp.Correct) != want.Spec_Info.Spec_Accept_Token_Num ||
		value(sp.Proposed) != want.Spec_Info.Spec_Draft_Token_Num || value(sp.Completion) != want.Spec_Info.Completion_Token_Num) {
		t.Errorf("limit %d: spec %d %d %d of %d, want %+v", limit, value(sp.Verify), value(sp.Correct), value(sp.Proposed), value(sp.Completion), want.Spec_Info)
	}
}
