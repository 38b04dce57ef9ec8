//go:build e2e

package e2e_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The readers here know the files from their documentation only; they share no
// code with what writes them.

type sampleLine struct {
	GroupIndex     int64           `json:"group_index"`
	Index          int64           `json:"index"`
	RolloutID      int64           `json:"rollout_id"`
	Prompt         string          `json:"prompt"`
	Tokens         []int32         `json:"tokens"`
	Response       string          `json:"response"`
	ResponseLength int             `json:"response_length"`
	Label          json.RawMessage `json:"label"`
	Reward         *float64        `json:"reward"`
	LossMask       []int           `json:"loss_mask"`
	LogProbs       []float32       `json:"rollout_log_probs"`
	Status         string          `json:"status"`
}

func readSamples(t *testing.T, dir string) []sampleLine {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "samples.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []sampleLine
	for dec := json.NewDecoder(bytes.NewReader(data)); dec.More(); {
		var s sampleLine
		if err := dec.Decode(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

type tensor struct {
	Offsets [2]int `json:"data_offsets"`
	Data    []byte `json:"-"`
}

func readBatch(t *testing.T, dir string) map[string]tensor {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "batch", "rank-00000-of-00001.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	head := binary.LittleEndian.Uint64(data)
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(data[8:8+head], &raw); err != nil {
		t.Fatal(err)
	}
	delete(raw, "__metadata__")
	out := map[string]tensor{}
	for name, r := range raw {
		var x tensor
		if err := json.Unmarshal(r, &x); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		x.Data = data[8+head:][x.Offsets[0]:x.Offsets[1]]
		out[name] = x
	}
	return out
}

func (x tensor) int64s() []int64 {
	out := make([]int64, len(x.Data)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return out
}

func (x tensor) int32s() []int32 {
	out := make([]int32, len(x.Data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(x.Data[4*i:]))
	}
	return out
}

func (x tensor) float32s() []float32 {
	out := make([]float32, len(x.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:]))
	}
	return out
}

type report struct {
	Step        int64              `json:"step"`
	Metrics     map[string]float64 `json:"metrics"`
	Unavailable map[string]string  `json:"unavailable"`
	Ledger      struct {
		Episodes     int            `json:"episodes"`
		Outcomes     map[string]int `json:"outcomes"`
		Failures     map[string]int `json:"failures"`
		Dispositions map[string]int `json:"dispositions"`
		Retried      map[string]int `json:"retried"`
		Generations  map[string]int `json:"generations"`
		Untrainable  map[string]int `json:"untrainable"`
		Implausible  map[string]int `json:"implausible"`
		Counters     struct {
			totals
			Reported totals `json:"reported"`
		} `json:"counters"`
		Books struct {
			Generated       int64            `json:"generated"`
			Unaccounted     int64            `json:"unaccounted"`
			EngineUnclaimed *int64           `json:"engine_unclaimed"`
			Discarded       map[string]int64 `json:"discarded"`
		} `json:"books"`
	} `json:"ledger"`
}

func readReport(t *testing.T, dir string) report {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// checkStep reads a step's files and checks that they fit each other and that
// every episode has one outcome and one disposition.
func checkStep(t *testing.T, dir string, episodes int) report {
	t.Helper()
	samples, batch, rep := readSamples(t, dir), readBatch(t, dir), readReport(t, dir)
	sum := func(m map[string]int) (n int) {
		for _, v := range m {
			n += v
		}
		return n
	}
	if rep.Ledger.Episodes != episodes || sum(rep.Ledger.Outcomes) != episodes || sum(rep.Ledger.Dispositions) != episodes {
		t.Errorf("%s: %d episodes, outcomes %v, dispositions %v; want %d of each", dir, rep.Ledger.Episodes, rep.Ledger.Outcomes, rep.Ledger.Dispositions, episodes)
	}
	if rep.Ledger.Books.Unaccounted != 0 {
		t.Errorf("%s: %d tokens unaccounted for", dir, rep.Ledger.Books.Unaccounted)
	}
	if n := rep.Ledger.Dispositions["accepted"]; len(samples) != n {
		t.Errorf("%s: %d samples, %d episodes accepted", dir, len(samples), n)
	}
	offsets, lengths := batch["tokens_offsets"].int64s(), batch["response_lengths"].int64s()
	tokens, logProbs := batch["tokens"].int32s(), batch["rollout_log_probs"].float32s()
	starts := batch["response_offsets"].int64s()
	if len(offsets) != len(samples)+1 || len(lengths) != len(samples) {
		t.Fatalf("%s: batch of %d, %d samples", dir, len(lengths), len(samples))
	}
	seen := map[int64]bool{}
	for i, s := range samples {
		if seen[s.Index] {
			t.Errorf("%s: sample %d twice", dir, s.Index)
		}
		seen[s.Index] = true
		if len(s.LossMask) != s.ResponseLength || len(s.LogProbs) != s.ResponseLength || int64(s.ResponseLength) != lengths[i] {
			t.Errorf("%s: sample %d: %d response tokens, %d mask entries, %d log-probs, %d in the batch", dir, s.Index, s.ResponseLength, len(s.LossMask), len(s.LogProbs), lengths[i])
		}
		if !equal(tokens[offsets[i]:offsets[i+1]], s.Tokens) || !equal(logProbs[starts[i]:starts[i+1]], s.LogProbs) {
			t.Errorf("%s: sample %d differs between samples.jsonl and the batch", dir, s.Index)
		}
	}
	return rep
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
