package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// trainerFiles compares samples.jsonl and the batch with the accepted samples.
func (j *judgement) trainerFiles(n int64, dir string, trained []*sample) {
	lines, err := readSamples(filepath.Join(dir, "samples.jsonl"))
	if err != nil {
		j.violate(files, "step %d: %v", n, err)
		return
	}
	batch, err := readTensors(filepath.Join(dir, "batch", "rank-00000-of-00001.safetensors"))
	if err != nil {
		j.violate(files, "step %d: %v", n, err)
		return
	}
	byIndex := map[int64]*sample{}
	for _, s := range trained {
		byIndex[s.State.Info.Index] = s
	}
	indices := batch["sample_indices"].int64s()
	tokens, starts := batch["tokens"].int32s(), batch["tokens_offsets"].int64s()
	logProbs, responses := batch["rollout_log_probs"].float32s(), batch["response_offsets"].int64s()
	if len(lines) != len(trained) || len(indices) != len(trained) || len(starts) != len(trained)+1 || len(responses) != len(trained)+1 {
		j.violate(lost, "step %d: %d samples accepted, %d in samples.jsonl, %d in the batch", n, len(trained), len(lines), len(indices))
		return
	}
	for i, l := range lines {
		s := byIndex[l.Index]
		switch {
		case s == nil:
			j.violate(foreign, "step %d: sample %d in samples.jsonl is none of the accepted ones", n, l.Index)
			continue
		case indices[i] != l.Index:
			j.violate(files, "step %d: sample %d of the batch is %d, of samples.jsonl %d", n, i, indices[i], l.Index)
			continue
		}
		delete(byIndex, l.Index)
		info := s.State.Info
		if l.Group != info.GroupIndex || l.Rollout != info.RolloutID || l.Status != s.State.Status || !sameReward(l.Reward, info.Reward) ||
			!slices.Equal(l.Tokens, s.tokens()) || !slices.Equal(l.LogProbs, s.logProbs()) || !slices.Equal(l.Mask, masks(s.State.LossMask)) {
			j.violate(files, "step %d: sample %d of samples.jsonl is not the one of groups.cbor", n, l.Index)
		}
		if !slices.Equal(tokens[starts[i]:starts[i+1]], l.Tokens) || !slices.Equal(logProbs[responses[i]:responses[i+1]], l.LogProbs) {
			j.violate(files, "step %d: sample %d of the batch is not the one of samples.jsonl", n, l.Index)
		}
	}
}

func sameReward(a, b *float64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func masks(bytes []byte) []int {
	out := make([]int, len(bytes))
	for i, b := range bytes {
		out[i] = int(b)
	}
	return out
}

// sampleLine is a line of samples.jsonl.
type sampleLine struct {
	Group    int64     `json:"group_index"`
	Index    int64     `json:"index"`
	Rollout  int64     `json:"rollout_id"`
	Tokens   []int32   `json:"tokens"`
	Reward   *float64  `json:"reward"`
	Mask     []int     `json:"loss_mask"`
	LogProbs []float32 `json:"rollout_log_probs"`
	Status   string    `json:"status"`
}

func readSamples(path string) ([]sampleLine, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []sampleLine
	for dec := json.NewDecoder(bytes.NewReader(data)); dec.More(); {
		var l sampleLine
		if err := dec.Decode(&l); err != nil {
			return nil, fmt.Errorf("samples.jsonl: %w", err)
		}
		out = append(out, l)
	}
	return out, nil
}

// tensor is the bytes of one tensor of a safetensors file, little endian.
type tensor []byte

func readTensors(path string) (map[string]tensor, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) < 8 || uint64(len(data)-8) < binary.LittleEndian.Uint64(data) {
		return nil, fmt.Errorf("%s: cut", filepath.Base(path))
	}
	body := data[8+binary.LittleEndian.Uint64(data):]
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(data[8:len(data)-len(body)], &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	delete(raw, "__metadata__")
	out := map[string]tensor{}
	for name, text := range raw {
		var head struct {
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(text, &head); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", filepath.Base(path), name, err)
		}
		if head.Offsets[0] < 0 || head.Offsets[0] > head.Offsets[1] || head.Offsets[1] > len(body) {
			return nil, fmt.Errorf("%s: %s: outside the file", filepath.Base(path), name)
		}
		out[name] = body[head.Offsets[0]:head.Offsets[1]]
	}
	return out, nil
}

func (t tensor) int64s() []int64 {
	out := make([]int64, len(t)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(t[8*i:]))
	}
	return out
}

func (t tensor) int32s() []int32 {
	out := make([]int32, len(t)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(t[4*i:]))
	}
	return out
}

func (t tensor) float32s() []float32 {
	out := make([]float32, len(t)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t[4*i:]))
	}
	return out
}
