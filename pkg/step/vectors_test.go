package step

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// eachVector runs check on the cases of a file of expected figures: the copy in
// testdata, and the file in the folder SHEAF_VECTORS, which is shared/vectors
// beside the repository when that is there and the variable is not set.
func eachVector[T any](t *testing.T, file string, check func(t *testing.T, c T)) {
	paths := []string{filepath.Join("testdata", file)}
	if dir, set := os.LookupEnv("SHEAF_VECTORS"); set {
		paths = append(paths, filepath.Join(dir, file))
	} else if beside := filepath.Join("..", "..", "..", "shared", "vectors", file); exists(beside) {
		paths = append(paths, beside)
	}
	for _, path := range paths {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v\nrun: SHEAF_VECTORS=/folder/of/vectors go test ./pkg/step -run Vectors", err)
			}
			var cases []json.RawMessage
			if err := json.Unmarshal(data, &cases); err != nil {
				t.Fatal(err)
			}
			for i, raw := range cases {
				var head struct{ Name string }
				var c T
				if err := errors.Join(json.Unmarshal(raw, &head), json.Unmarshal(raw, &c)); err != nil {
					t.Fatalf("case %d: %v", i, err)
				}
				t.Run(head.Name, func(t *testing.T) { check(t, c) })
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

type metricsVector struct {
	Estimator   Estimator `json:"advantage_estimator"`
	N           int       `json:"n_samples_per_prompt"`
	GPUs        int       `json:"rollout_num_gpus"`
	RolloutTime float64   `json:"rollout_time"`
	Samples     []vectorSample
	Expected    map[string]float64
}

type vectorSample struct {
	GroupIndex        int64 `json:"group_index"`
	Index             int64
	Tokens            []int32
	Response          string
	ResponseLength    int `json:"response_length"`
	Reward            *float64
	LossMask          []byteInt `json:"loss_mask"`
	Status            rollout.Status
	WeightVersions    []string `json:"weight_versions"`
	NonGenerationTime float64  `json:"non_generation_time"`
	Prefix            struct {
		Cached int64 `json:"cached_tokens"`
		Prompt int64 `json:"total_prompt_tokens"`
	} `json:"prefix_cache_info"`
	Metadata json.RawMessage
}

// byteInt reads a JSON number; a []byte would want base64.
type byteInt byte

func (b *byteInt) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 8)
	*b = byteInt(n)
	return err
}

// episode wraps the sample as one episode of one generation.
func (v vectorSample) episode(t *testing.T, index int) rollout.Episode {
	finish := map[rollout.Status]rollout.FinishType{
		rollout.StatusCompleted: rollout.FinishStop, rollout.StatusTruncated: rollout.FinishLength, rollout.StatusAborted: rollout.FinishAbort,
	}[v.Status]
	prompt := len(v.Tokens) - v.ResponseLength
	g := rollout.Generation{
		GenerationRecord: rollout.GenerationRecord{ID: "g", PromptLen: prompt, OutputLen: v.ResponseLength, Fate: rollout.FateFinished},
		PromptIDs:        v.Tokens[:prompt], OutputIDs: v.Tokens[prompt:], LogProbs: logProbs(v.ResponseLength),
	}
	g.Meta.Finish.Type = finish
	g.Meta.CachedTokens, g.Meta.PromptTokens = &v.Prefix.Cached, &v.Prefix.Prompt
	for i, version := range v.WeightVersions {
		g.Meta.WeightVersions = append(g.Meta.WeightVersions, rollout.VersionSpan{Version: version, Start: int64(i), End: int64(i) + 1})
	}
	s := &rollout.Sample{SampleInfo: rollout.SampleInfo{
		GroupIndex: v.GroupIndex, Index: v.Index, RolloutID: v.Index, Response: v.Response,
		Reward: v.Reward, Metadata: v.Metadata, NonGenerationTime: v.NonGenerationTime,
	}}
	// The vectors name versions without their tokens, at times more than tokens.
	taken := g
	taken.Meta.WeightVersions = g.Meta.WeightVersions[:min(len(g.Meta.WeightVersions), v.ResponseLength)]
	if err := s.Append(taken); err != nil {
		t.Fatal(err)
	}
	for i, m := range v.LossMask {
		if m == 0 {
			if err := s.Mask(i, i+1); err != nil {
				t.Fatal(err)
			}
		}
	}
	return rollout.Episode{
		ID: rollout.EpisodeID{Group: v.GroupIndex, Index: index}, RolloutID: v.Index, Outcome: rollout.OutcomeOf(v.Status),
		Samples: []*rollout.Sample{s}, Generations: []rollout.GenerationRecord{g.GenerationRecord},
	}
}

func TestVectorsStepMetrics(t *testing.T) {
	eachVector(t, "step_metrics.json", func(t *testing.T, c metricsVector) {
		groups := map[int64]*rollout.Group{}
		var order []int64
		for _, s := range c.Samples {
			g := groups[s.GroupIndex]
			if g == nil {
				g = &rollout.Group{Index: s.GroupIndex, Want: c.N}
				groups[s.GroupIndex] = g
				order = append(order, s.GroupIndex)
			}
			g.Episodes = append(g.Episodes, s.episode(t, len(g.Episodes)))
			// The vectors count aborted samples like any other.
			g.Dispositions = append(g.Dispositions, rollout.Disposition{Verdict: rollout.Accepted})
		}
		var step []rollout.Group
		for _, index := range order {
			step = append(step, *groups[index])
		}
		cfg := Config{Run: "vectors", Estimator: c.Estimator, SamplesPerPrompt: c.N, GPUs: c.GPUs}
		start := time.Unix(0, 0)
		w := Window{Started: start, Finished: start.Add(time.Duration(math.Round(c.RolloutTime * 1e9)))}
		r, err := Reduce(cfg, step, w)
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range c.Expected {
			got, ok := r.Report.Metrics[key]
			if !ok {
				t.Errorf("%s is missing, want %v (%s)", key, want, r.Report.Unavailable[key])
			} else if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
				t.Errorf("%s = %v, want %v", key, got, want)
			}
		}
		// In these families a key too many is as wrong as one too few.
		for key := range r.Report.Metrics {
			_, expected := c.Expected[key]
			if !expected && (strings.HasPrefix(key, "rollout/zero_std/") || strings.HasPrefix(key, "passrate/")) {
				t.Errorf("%s = %v is not expected", key, r.Report.Metrics[key])
			}
		}
	})
}
