package step

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type scheduleVector struct {
	DP              int     `json:"dp_size"`
	CP              int     `json:"cp_size"`
	VPP             int     `json:"vpp_size"`
	Group           int     `json:"microbatch_group_size_per_vp_stage"`
	GlobalBatchSize int     `json:"global_batch_size"`
	RolloutIDs      []int64 `json:"rollout_ids"`
	Lengths         []int64 `json:"total_lengths"`
	Dynamic         bool    `json:"use_dynamic_batch_size"`
	MaxTokens       int64   `json:"max_tokens_per_gpu"`
	Balance         bool    `json:"balance_data"`
	MicroBatchSize  int     `json:"micro_batch_size"`
	AllowPartial    bool    `json:"allow_partial_train_step"`

	Error           bool      `json:"expected_error"`
	Partitions      [][]int   `json:"expected_partitions"`
	MicroBatches    [][][]int `json:"expected_micro_batch_indices"`
	NumMicroBatches []int     `json:"expected_num_microbatches"`
	NumRollouts     []int     `json:"expected_num_rollouts"`
}

func (c scheduleVector) layout() Layout {
	l := Layout{
		DPSize: c.DP, CPSize: c.CP, VPPSize: c.VPP, MicroBatchGroup: c.Group, GlobalBatchSize: c.GlobalBatchSize,
		Packing: FixedSize, MaxTokensPerGPU: c.MaxTokens, MicroBatchSize: c.MicroBatchSize, Balance: c.Balance, AllowPartial: c.AllowPartial,
	}
	if c.Dynamic {
		l.Packing = FirstFitDecreasing
	}
	return l
}

func TestVectorsSchedule(t *testing.T) {
	eachVector(t, "dp_schedule.json", func(t *testing.T, c scheduleVector) {
		got, err := NewSchedule(c.layout(), c.RolloutIDs, c.Lengths)
		if c.Error {
			if !errors.Is(err, ErrLayout) {
				t.Errorf("error %v, want ErrLayout", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		got.Dropped = nil
		want := Schedule{Partitions: c.Partitions, MicroBatches: c.MicroBatches, NumMicroBatches: c.NumMicroBatches, NumRollouts: c.NumRollouts}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%+v, want\n%+v", got, want)
		}
	})
}

type partitionVector struct {
	Weights   []int64
	K         int
	EqualSize bool `json:"equal_size"`
	Expected  [][]int
}

func TestVectorsPartition(t *testing.T) {
	eachVector(t, "karmarkar_karp.json", func(t *testing.T, c partitionVector) {
		got, err := Partition(c.Weights, c.K, c.EqualSize)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, c.Expected) {
			t.Errorf("got %v, want %v", got, c.Expected)
		}
	})
}

func TestScheduleInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "samples")
		ids, lengths := make([]int64, n), make([]int64, n)
		for i := range n {
			ids[i] = int64(rapid.IntRange(0, 30).Draw(t, "id"))
			lengths[i] = int64(rapid.IntRange(0, 150).Draw(t, "length"))
		}
		l := Layout{
			DPSize: rapid.IntRange(1, 4).Draw(t, "dp"), CPSize: rapid.IntRange(1, 2).Draw(t, "cp"),
			VPPSize: rapid.IntRange(1, 2).Draw(t, "vpp"), MicroBatchGroup: rapid.IntRange(1, 3).Draw(t, "group"),
			GlobalBatchSize: rapid.IntRange(0, 10).Draw(t, "global"), MicroBatchSize: rapid.IntRange(1, 3).Draw(t, "micro"),
			Packing:         rapid.SampledFrom([]Packing{FirstFitDecreasing, FirstFit, FixedSize}).Draw(t, "packing"),
			MaxTokensPerGPU: 100, Balance: rapid.Bool().Draw(t, "balance"), AllowPartial: rapid.Bool().Draw(t, "partial"),
		}
		s, err := NewSchedule(l, ids, lengths)
		if err != nil {
			if !errors.Is(err, ErrLayout) {
				t.Error(err)
			}
			return
		}
		if len(s.Partitions) != l.DPSize {
			t.Fatalf("%d partitions for %d ranks", len(s.Partitions), l.DPSize)
		}
		all := slices.Concat(append(slices.Clone(s.Partitions), s.Dropped)...)
		slices.Sort(all)
		if !slices.Equal(all, sequence(n)) {
			t.Errorf("the ranks and the dropped ones hold %v of %d samples", all, n)
		}
		total := 0
		for _, k := range s.NumMicroBatches {
			total += k
		}
		stepOf := map[int64]int{} // of a rollout id
		for rank, micro := range s.MicroBatches {
			if !slices.Equal(slices.Concat(micro...), sequence(len(s.Partitions[rank]))) {
				t.Errorf("rank %d: micro-batches %v of %d samples", rank, micro, len(s.Partitions[rank]))
			}
			if len(micro) != total {
				t.Fatalf("rank %d has %d micro-batches, want %d", rank, len(micro), total)
			}
			for step, k := 0, 0; step < len(s.NumMicroBatches); step++ {
				for range s.NumMicroBatches[step] {
					tokens := int64(0)
					for _, j := range micro[k] {
						i := s.Partitions[rank][j]
						tokens += lengths[i]
						if other, seen := stepOf[ids[i]]; seen && other != step {
							t.Errorf("rollout %d is in train steps %d and %d", ids[i], other, step)
						}
						stepOf[ids[i]] = step
					}
					if l.Packing != FixedSize && len(micro[k]) > 1 && tokens > 100*int64(l.CPSize) {
						t.Errorf("a micro-batch of %d samples has %d tokens", len(micro[k]), tokens)
					}
					k++
				}
			}
		}
	})
}

// TestFirstFit compares the tree with trying bin after bin.
func TestFirstFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.Int64Range(0, 12), 0, 40).Draw(t, "lengths")
		const capacity = 10
		var want [][]int
		var used []int64
		for i, n := range lengths {
			k := slices.IndexFunc(used, func(u int64) bool { return u+n <= capacity })
			if k < 0 {
				k = len(used)
				used, want = append(used, 0), append(want, nil)
			}
			used[k] += n
			want[k] = append(want[k], i)
		}
		if got := firstFit(sequence(len(lengths)), lengths, capacity); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestPartitionRefuses(t *testing.T) {
	tests := []struct {
		name    string
		weights []int64
		k       int
		equal   bool
	}{
		{"no parts", []int64{1}, 0, false},
		{"fewer items than parts", []int64{1}, 2, false},
		{"no even number", []int64{1, 2, 3}, 2, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Partition(tt.weights, tt.k, tt.equal); !errors.Is(err, ErrLayout) {
				t.Errorf("error %v, want ErrLayout", err)
			}
		})
	}
}
