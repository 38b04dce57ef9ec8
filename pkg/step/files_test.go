package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/sheaf-rl/sheaf/internal/safetensors"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// sample makes one of two turns with a masked gap, as a session does.
func twoTurns(t testing.TB) rollout.Episode {
	first := call("a", 2, 2, rollout.EngineMeta{
		WeightVersion: rollout.Ptr("4"), CompletionTokens: rollout.Ptr(int64(2)),
		PromptTokens: rollout.Ptr(int64(2)), CachedTokens: rollout.Ptr(int64(1)),
	})
	second := rollout.Generation{
		GenerationRecord: rollout.GenerationRecord{ID: "b", OutputLen: 1, Fate: rollout.FateFinished, Meta: rollout.EngineMeta{
			Finish: rollout.Finish{Type: rollout.FinishLength}, WeightVersion: rollout.Ptr("default"),
		}},
		PromptIDs: []int32{100, 101, 102, 103, 7}, OutputIDs: []int32{8}, LogProbs: []float32{-1e-7},
	}
	e := episode(t, 5, 1, rollout.Ptr(0.5), first, second)
	s := e.Samples[0]
	s.Prompt, s.Response = "a\"b\\\n\u2028é\x01", "bad \xff byte"
	s.Label, s.Metadata = json.RawMessage(`"x"`), json.RawMessage("{\n \"k\": [1, 2]}")
	return e
}

func TestWriteSamples(t *testing.T) {
	e := twoTurns(t)
	var buf bytes.Buffer
	if err := WriteSamples(&buf, e.Samples); err != nil {
		t.Fatal(err)
	}
	want := `{"group_index":5,"index":501,"rollout_id":501,"prompt":"a\"b\\\n\u2028é\u0001","tokens":[100,101,102,103,7,8],` +
		`"response":"bad ` + "\ufffd" + ` byte","response_length":4,"label":"x","reward":0.5,"loss_mask":[1,1,0,1],"weight_versions":["4","default"],` +
		`"rollout_log_probs":[-0.125,-0.25,0,-1e-07],"status":"truncated","metadata":{"k":[1,2]},` +
		`"spec_info":{"spec_accept_token_num":null,"spec_draft_token_num":null,"spec_verify_ct":null,"completion_token_num":2},` +
		`"prefix_cache_info":{"cached_tokens":1,"total_prompt_tokens":2},"non_generation_time":0,"remove_sample":false,"train_metadata":null}` + "\n"
	if buf.String() != want {
		t.Errorf("got\n%swant\n%s", buf.String(), want)
	}
}

func TestWriteSamplesRefuses(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*rollout.Sample)
		want  error
	}{
		{"a time that is no number", func(s *rollout.Sample) { s.NonGenerationTime = math.NaN() }, ErrNotFinite},
		{"an infinite log-prob", func(s *rollout.Sample) { s.LogProbs()[1] = float32(math.Inf(-1)) }, ErrNotFinite},
		{"metadata that is no JSON", func(s *rollout.Sample) { s.Metadata = json.RawMessage(`{`) }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := twoTurns(t)
			tt.spoil(e.Samples[0])
			err := WriteSamples(&bytes.Buffer{}, e.Samples)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func values[T safetensors.Element](t *testing.T, f *safetensors.File, name string, want ...T) {
	t.Helper()
	got, err := safetensors.Values[T](f, name)
	if err != nil {
		t.Error(err)
	} else if !reflect.DeepEqual(got, append([]T{}, want...)) {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func TestWriteRank(t *testing.T) {
	group := answers(t, 5, 1)
	group.Episodes = append(group.Episodes, twoTurns(t))
	group.Want = 2
	cfg := Config{Run: "r", Step: 9, Epoch: 2, WeightVersion: rollout.Ptr(uint64(4)), Estimator: GRPO, Normalize: true, MaskTruncated: true, Temperature: 0.7}
	r, err := Reduce(cfg, Dispose(cfg, []rollout.Group{group}), Window{})
	if err != nil {
		t.Fatal(err)
	}
	batch := NewBatch(cfg, r, Whole(r))
	var buf bytes.Buffer
	if err := batch.WriteRank(&buf, 0); err != nil {
		t.Fatal(err)
	}
	if err := batch.WriteRank(&buf, 1); !errors.Is(err, rollout.ErrRange) {
		t.Errorf("rank 1 of 1: %v", err)
	}
	f, err := safetensors.Parse(buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	values(t, f, "partition", int64(0), 1)
	values(t, f, "sample_indices", int64(500), 501)
	values(t, f, "group_indices", int64(5), 5)
	values(t, f, "rollout_ids", int64(500), 501)
	values(t, f, "response_lengths", int64(4), 4)
	values(t, f, "rollout_mask_sums", int64(4), 0)
	values(t, f, "tokens_offsets", int64(0), 7, 13)
	values(t, f, "response_offsets", int64(0), 4, 8)
	values(t, f, "weight_versions_offsets", int64(0), 0, 2)
	values(t, f, "weight_version_spans", int64(0), 2, 3, 4)
	values(t, f, "weight_versions", uint64(4), UnnumberedVersion)
	values(t, f, "total_lengths", int64(7), 6)
	values(t, f, "rewards", float32(0.25), -0.25)
	values(t, f, "raw_reward", float32(1), 0.5)
	values(t, f, "raw_reward_all", float32(1), 0.5)
	values(t, f, "rollout_log_probs", float32(-0.125), -0.25, -0.375, -0.5, -0.125, -0.25, 0, -1e-7)
	values(t, f, "tokens", int32(100), 101, 102, 103, 104, 105, 106, 100, 101, 102, 103, 7, 8)
	values(t, f, "loss_mask", byte(1), 1, 1, 1, 0, 0, 0, 0)
	values(t, f, "truncated", byte(0), 1)
	want := map[string]string{
		"schema": "1", "run": "r", "step": "9", "epoch": "2", "version": "4", "temperature": "0.7", "rank": "0", "ranks": "1",
		"unnumbered_weight_version": "18446744073709551615",
		"num_microbatches":          "[2]", "micro_batch_indices": "[[0],[1]]", "num_rollouts": "[2]",
	}
	if !reflect.DeepEqual(f.Metadata, want) {
		t.Errorf("metadata %v, want %v", f.Metadata, want)
	}
}

func TestRanksShareTheBatch(t *testing.T) {
	cfg := Config{Estimator: GRPO, Normalize: true}
	r, err := Reduce(cfg, Dispose(cfg, []rollout.Group{answers(t, 0, 1, 0, 1), answers(t, 1, 1, 0)}), Window{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Schedule(Layout{DPSize: 2, GlobalBatchSize: 4, Packing: FixedSize})
	if err != nil {
		t.Fatal(err)
	}
	batch := NewBatch(cfg, r, s)
	var files [2]*safetensors.File
	for rank := range files {
		var buf bytes.Buffer
		if err := batch.WriteRank(&buf, rank); err != nil {
			t.Fatal(err)
		}
		if files[rank], err = safetensors.Parse(buf.Bytes()); err != nil {
			t.Fatal(err)
		}
		values(t, files[rank], "total_lengths", int64(7), 8, 9, 7, 8)
		values(t, files[rank], "raw_reward_all", float32(1), 0, 1, 1, 0)
	}
	values(t, files[0], "partition", int64(0), 2)
	values(t, files[0], "tokens_offsets", int64(0), 7, 16)
	values(t, files[1], "partition", int64(1), 3)
	values(t, files[1], "rewards", float32(-2.0/3), 0.5)
	if got, want := files[1].Metadata["micro_batch_indices"], "[[0],[1]]"; got != want {
		t.Errorf("micro_batch_indices %s, want %s", got, want)
	}
	trained := r.Report.Ledger.Books.Trained
	r.Drop(s.Dropped)
	if b := r.Report.Ledger.Books; len(s.Dropped) != 1 || b.Trained != trained-5 || b.Masked != 5 {
		t.Errorf("dropped %v, books %+v", s.Dropped, b)
	}
}
