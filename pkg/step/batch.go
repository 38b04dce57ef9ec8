package step

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/sheaf-rl/sheaf/internal/safetensors"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// UnnumberedVersion stands, among a batch's weight versions, for one that is not
// a decimal number, such as the "default" of an engine that was never given any.
// The files' metadata name it under "unnumbered_weight_version".
const UnnumberedVersion = math.MaxUint64

// Batch is a step's result dealt out to the trainer's data-parallel ranks. It
// refers to the samples and copies none of their arrays.
type Batch struct {
	cfg      Config
	result   *Result
	schedule Schedule
	zeros    []byte // as long as the longest excluded response
	lengths  []int64
	raw      []float32
}

// NewBatch deals a result out as schedule says.
func NewBatch(cfg Config, r *Result, schedule Schedule) *Batch {
	b := &Batch{cfg: cfg, result: r, schedule: schedule, lengths: r.Lengths(), raw: make([]float32, len(r.Samples))}
	longest := 0
	for i, s := range r.Samples {
		b.raw[i] = float32(math.NaN())
		if reward, scored := score(s); scored {
			b.raw[i] = float32(reward)
		}
		if r.Excluded[i] {
			longest = max(longest, s.ResponseLen())
		}
	}
	b.zeros = make([]byte, longest)
	return b
}

// Ranks is the number of data-parallel ranks.
func (b *Batch) Ranks() int { return len(b.schedule.Partitions) }

// WriteRank writes one rank's shard as a safetensors file. The tensors, n being
// the samples of the rank, N those of the batch, t tokens and m response tokens:
//
//	partition i64[n]               positions of the samples in the batch
//	sample_indices, group_indices, rollout_ids i64[n]
//	response_lengths i64[n]        tokens after the prompt
//	rollout_mask_sums i64[n]       tokens in the loss over the rollout id
//	tokens_offsets i64[n+1]        sample i has tokens[o[i]:o[i+1]]
//	response_offsets i64[n+1]      likewise for loss_mask and rollout_log_probs
//	weight_versions_offsets i64[n+1]
//	weight_version_spans i64[k,2]  start and end, in tokens of the response
//	weight_versions u64[k]         or UnnumberedVersion
//	total_lengths i64[N]           prompt and response, whole batch
//	rewards f32[n]                 normalised
//	raw_reward f32[n]              NaN for a sample that nothing scored
//	raw_reward_all f32[N]          the same, whole batch
//	rollout_log_probs f32[m]       natural log, at the sampling temperature
//	tokens i32[t]
//	loss_mask u8[m]                all 0 for an excluded sample
//	truncated u8[n]
//
// The metadata describe the step and, for all ranks, the train steps of the
// schedule. w is written to in many small pieces, straight from the samples'
// memory, so a file wants a buffer.
func (b *Batch) WriteRank(w io.Writer, rank int) error {
	if rank < 0 || rank >= b.Ranks() {
		return fmt.Errorf("write batch of step %d: rank %d of %d: %w", b.cfg.Step, rank, b.Ranks(), rollout.ErrRange)
	}
	metadata, err := b.metadata(rank)
	if err != nil {
		return fmt.Errorf("write batch of step %d: %w", b.cfg.Step, err)
	}
	if err := safetensors.Write(w, metadata, b.tensors(b.schedule.Partitions[rank])...); err != nil {
		return fmt.Errorf("write batch of step %d, rank %d: %w", b.cfg.Step, rank, err)
	}
	return nil
}

// tensors lists a shard's tensors, wide elements first, so that each is aligned
// in a file that is mapped into memory.
func (b *Batch) tensors(partition []int) []safetensors.Tensor {
	n, r := len(partition), b.result
	column := func(of func(i int) int64) []int64 {
		xs := make([]int64, n)
		for k, i := range partition {
			xs[k] = of(i)
		}
		return xs
	}
	float := func(of func(i int) float32) []float32 {
		xs := make([]float32, n)
		for k, i := range partition {
			xs[k] = of(i)
		}
		return xs
	}
	offsets := func(lengths []int64) []int64 {
		xs := make([]int64, n+1)
		for k, length := range lengths {
			xs[k+1] = xs[k] + length
		}
		return xs
	}

	tokens, masks, logProbs := make([][]int32, n), make([][]byte, n), make([][]float32, n)
	truncated := make([]byte, n)
	var versions []uint64
	var spans []int64
	versionCounts := make([]int64, n)
	for k, i := range partition {
		s := r.Samples[i]
		tokens[k], masks[k], logProbs[k] = s.Tokens(), s.LossMask(), s.LogProbs()
		if r.Excluded[i] {
			masks[k] = b.zeros[:s.ResponseLen()]
		}
		if s.Status() == rollout.StatusTruncated {
			truncated[k] = 1
		}
		for _, span := range s.Versions() {
			versions = append(versions, versionNumber(span.Version))
			spans = append(spans, span.Start, span.End)
		}
		versionCounts[k] = int64(len(s.Versions()))
	}
	responses := column(func(i int) int64 { return int64(r.Samples[i].ResponseLen()) })
	return []safetensors.Tensor{
		safetensors.Of("partition", nil, column(func(i int) int64 { return int64(i) })),
		safetensors.Of("sample_indices", nil, column(func(i int) int64 { return r.Samples[i].Index })),
		safetensors.Of("group_indices", nil, column(func(i int) int64 { return r.Samples[i].GroupIndex })),
		safetensors.Of("rollout_ids", nil, column(func(i int) int64 { return r.Samples[i].RolloutID })),
		safetensors.Of("response_lengths", nil, responses),
		safetensors.Of("rollout_mask_sums", nil, column(func(i int) int64 { return r.MaskSums[i] })),
		safetensors.Of("tokens_offsets", nil, offsets(column(func(i int) int64 { return b.lengths[i] }))),
		safetensors.Of("response_offsets", nil, offsets(responses)),
		safetensors.Of("weight_versions_offsets", nil, offsets(versionCounts)),
		safetensors.Of("weight_version_spans", []int{len(versions), 2}, spans),
		safetensors.Of("weight_versions", nil, versions),
		safetensors.Of("total_lengths", nil, b.lengths),
		safetensors.Of("rewards", nil, float(func(i int) float32 { return float32(r.Rewards[i]) })),
		safetensors.Of("raw_reward", nil, float(func(i int) float32 { return b.raw[i] })),
		safetensors.Of("raw_reward_all", nil, b.raw),
		safetensors.Of("rollout_log_probs", nil, logProbs...),
		safetensors.Of("tokens", nil, tokens...),
		safetensors.Of("loss_mask", nil, masks...),
		safetensors.Of("truncated", nil, truncated),
	}
}

// metadata describes the step, the shard and the schedule. Lists are JSON.
func (b *Batch) metadata(rank int) (map[string]string, error) {
	version := ""
	if b.cfg.WeightVersion != nil {
		version = strconv.FormatUint(*b.cfg.WeightVersion, 10)
	}
	meta := map[string]string{
		"schema":                    strconv.Itoa(Schema),
		"run":                       b.cfg.Run,
		"step":                      strconv.FormatInt(b.cfg.Step, 10),
		"epoch":                     strconv.FormatUint(b.cfg.Epoch, 10),
		"version":                   version,
		"temperature":               strconv.FormatFloat(b.cfg.Temperature, 'g', -1, 64),
		"rank":                      strconv.Itoa(rank),
		"ranks":                     strconv.Itoa(b.Ranks()),
		"unnumbered_weight_version": strconv.FormatUint(UnnumberedVersion, 10),
	}
	lists := map[string]any{
		"num_microbatches":    b.schedule.NumMicroBatches,
		"micro_batch_indices": b.schedule.MicroBatches[rank],
		"num_rollouts":        b.schedule.NumRollouts,
	}
	for key, list := range lists {
		text, err := json.Marshal(list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		meta[key] = string(text)
	}
	return meta, nil
}

// versionNumber reads a weight version as SGLang writes it.
func versionNumber(text string) uint64 {
	if n, ok := parseVersion(text); ok {
		return n
	}
	return UnnumberedVersion
}
