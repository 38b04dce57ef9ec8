package step

// Schedule deals the samples of a batch to data-parallel ranks and, on each, to
// micro-batches.
type Schedule struct {
	// Partitions lists, for each rank, positions in the batch.
	Partitions [][]int
	// MicroBatches lists, for each rank, its micro-batches over all train steps,
	// each as positions in the rank's partition.
	MicroBatches [][][]int
	// NumMicroBatches and NumRollouts count, for each train step, the
	// micro-batches of a rank and the rollout ids of all ranks.
	NumMicroBatches []int
	NumRollouts     []int
}

// Whole is the schedule for one rank that takes all samples in one train step,
// one sample to a micro-batch.
func Whole(r *Result) Schedule {
	n := len(r.Samples)
	all, micro := make([]int, n), make([][]int, n)
	rollouts := 0
	for i := range all {
		all[i], micro[i] = i, []int{i}
		if i == 0 || r.Samples[i].RolloutID != r.Samples[i-1].RolloutID || r.Samples[i].GroupIndex != r.Samples[i-1].GroupIndex {
			rollouts++
		}
	}
	return Schedule{
		Partitions: [][]int{all}, MicroBatches: [][][]int{micro},
		NumMicroBatches: []int{n}, NumRollouts: []int{rollouts},
	}
}
