package step

import (
	"errors"
	"fmt"
	"slices"
)

// ErrLayout reports samples that cannot be dealt out as a layout wants.
var ErrLayout = errors.New("the batch does not fit the trainer's layout")

// Packing names how the samples of a train step become micro-batches.
type Packing string

// Packings. The first two fill micro-batches up to a number of tokens, each
// sample going to the first one with room; a sample that is larger than that is
// alone in its own.
const (
	// FirstFitDecreasing takes the longest sample first, as miles does. It needs
	// fewer micro-batches.
	FirstFitDecreasing Packing = "first_fit_decreasing"
	// FirstFit takes them in the order of the batch, as slime does.
	FirstFit Packing = "first_fit"
	// FixedSize makes micro-batches of a fixed number of samples.
	FixedSize Packing = "none"
)

// Layout is how a trainer is parallel and how it wants its batches. Sizes of 0
// count as 1, no packing as the first.
type Layout struct {
	// DPSize ranks each get samples of their own. CPSize ranks share the tokens of
	// a micro-batch. With VPPSize above 1 the micro-batches of a rank come in
	// multiples of MicroBatchGroup.
	DPSize, CPSize, VPPSize, MicroBatchGroup int
	// GlobalBatchSize is the number of rollout ids in a train step; 0 takes all in
	// one.
	GlobalBatchSize int
	Packing         Packing
	// MaxTokensPerGPU bounds the micro-batches of both first-fit packings,
	// MicroBatchSize is the number of samples in a fixed one.
	MaxTokensPerGPU int64
	MicroBatchSize  int
	// Balance gives the ranks micro-batches of about the same number of tokens;
	// otherwise they are dealt out in turn.
	Balance bool
	// AllowPartial makes a last, smaller train step of the rollout ids that do not
	// fill one, where there are enough for every rank; otherwise they are dropped.
	AllowPartial bool
}

// Schedule deals the samples of a batch to data-parallel ranks and, on each, to
// micro-batches. In every train step all ranks have the same number of
// micro-batches, and all samples of a rollout id are in the same train step.
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
	// Dropped lists the positions of samples that are in no train step.
	Dropped []int
}

// Whole is the schedule for one rank that takes all samples in one train step,
// one sample to a micro-batch.
func Whole(r *Result) Schedule {
	n := len(r.Samples)
	s := Schedule{Partitions: [][]int{sequence(n)}, MicroBatches: make([][][]int, 1), NumMicroBatches: []int{n}}
	s.MicroBatches[0] = make([][]int, n)
	rollouts := 0
	for i := range n {
		s.MicroBatches[0][i] = []int{i}
		if i == 0 || r.Samples[i].RolloutID != r.Samples[i-1].RolloutID {
			rollouts++
		}
	}
	s.NumRollouts = []int{rollouts}
	return s
}

// Schedule deals the result's samples out.
func (r *Result) Schedule(l Layout) (Schedule, error) {
	ids := make([]int64, len(r.Samples))
	for i, s := range r.Samples {
		ids[i] = s.RolloutID
	}
	return NewSchedule(l, ids, r.Lengths())
}

// Drop takes samples that no train step has out of the report's trained tokens.
func (r *Result) Drop(positions []int) {
	books := &r.Report.Ledger.Books
	for _, i := range positions {
		if !r.Excluded[i] {
			n := int64(r.Samples[i].EffectiveLen())
			books.Trained -= n
			books.Masked += n
		}
	}
}

// NewSchedule deals samples out, given the rollout id and the length of each in
// tokens, prompt included. It packs first and distributes then, as miles does:
// the samples of a train step become micro-batches wherever they fit best, their
// number is raised to what the ranks can share evenly, and the ranks get whole
// micro-batches. It fails with [ErrLayout] when a train step has too few samples
// for that, or fixed micro-batches do not come out even.
func NewSchedule(l Layout, rolloutIDs, lengths []int64) (Schedule, error) {
	l = l.withDefaults()
	steps, dropped, err := l.steps(rolloutIDs)
	if err != nil {
		return Schedule{}, err
	}
	s := Schedule{Partitions: make([][]int, l.DPSize), MicroBatches: make([][][]int, l.DPSize), Dropped: dropped}
	for i, step := range steps {
		micro, err := l.pack(step.samples, lengths)
		if err != nil {
			return Schedule{}, fmt.Errorf("train step %d: %w", i, err)
		}
		ranks, err := l.distribute(micro, lengths)
		if err != nil {
			return Schedule{}, fmt.Errorf("train step %d: %w", i, err)
		}
		for rank, chosen := range ranks {
			for _, k := range chosen {
				start := len(s.Partitions[rank])
				s.Partitions[rank] = append(s.Partitions[rank], micro[k]...)
				local := sequence(len(micro[k]))
				for j := range local {
					local[j] += start
				}
				s.MicroBatches[rank] = append(s.MicroBatches[rank], local)
			}
		}
		s.NumMicroBatches = append(s.NumMicroBatches, len(micro)/l.DPSize)
		s.NumRollouts = append(s.NumRollouts, step.rollouts)
	}
	return s, nil
}

func (l Layout) withDefaults() Layout {
	for _, size := range []*int{&l.DPSize, &l.CPSize, &l.VPPSize, &l.MicroBatchGroup, &l.MicroBatchSize} {
		*size = max(*size, 1)
	}
	if l.Packing == "" {
		l.Packing = FirstFitDecreasing
	}
	return l
}

// align is what the number of micro-batches of a train step is a multiple of.
func (l Layout) align() int {
	if l.VPPSize > 1 {
		return l.DPSize * l.MicroBatchGroup
	}
	return l.DPSize
}

// trainStep is one optimiser step: positions in the batch, and their rollout ids.
type trainStep struct {
	samples  []int
	rollouts int
}

// steps cuts the batch into train steps by rollout ids, in the order in which
// those first occur.
func (l Layout) steps(rolloutIDs []int64) (steps []trainStep, dropped []int, err error) {
	var rollouts [][]int
	place := map[int64]int{}
	for i, id := range rolloutIDs {
		k, seen := place[id]
		if !seen {
			k = len(rollouts)
			place[id] = k
			rollouts = append(rollouts, nil)
		}
		rollouts[k] = append(rollouts[k], i)
	}
	size := l.GlobalBatchSize
	if size == 0 {
		size = len(rollouts)
	}
	if len(rollouts) == 0 || len(rollouts) < size {
		return nil, nil, fmt.Errorf("%d rollout ids for a global batch size of %d: %w", len(rollouts), size, ErrLayout)
	}
	for chunk := range slices.Chunk(rollouts, size) {
		samples := slices.Concat(chunk...)
		if len(chunk) < size && (!l.AllowPartial || l.Packing == FixedSize || len(samples) < l.DPSize) {
			dropped = samples
			break
		}
		if len(samples) < l.DPSize {
			return nil, nil, fmt.Errorf("train step %d has %d samples for %d ranks: %w", len(steps), len(samples), l.DPSize, ErrLayout)
		}
		steps = append(steps, trainStep{samples, len(chunk)})
	}
	return steps, dropped, nil
}

// pack makes micro-batches of a train step's samples.
func (l Layout) pack(samples []int, lengths []int64) ([][]int, error) {
	align := l.align()
	if l.Packing == FixedSize {
		micro := slices.Collect(slices.Chunk(samples, l.MicroBatchSize))
		if len(micro)%align != 0 {
			return nil, fmt.Errorf("%d samples make %d micro-batches of %d, which is no multiple of %d: %w",
				len(samples), len(micro), l.MicroBatchSize, align, ErrLayout)
		}
		return micro, nil
	}
	if l.Packing == FirstFitDecreasing {
		samples = slices.Clone(samples)
		slices.SortStableFunc(samples, func(a, b int) int { return int(lengths[b] - lengths[a]) })
	}
	micro := firstFit(samples, lengths, l.MaxTokensPerGPU*int64(l.CPSize))
	target := (len(micro) + align - 1) / align * align
	for len(micro) < target {
		heaviest := -1
		var most int64
		for k, m := range micro {
			if n := weight(m, lengths); len(m) > 1 && (heaviest < 0 || n >= most) {
				heaviest, most = k, n
			}
		}
		if heaviest < 0 {
			return nil, fmt.Errorf("%d samples cannot fill %d micro-batches: %w", len(samples), target, ErrLayout)
		}
		a, b := halve(micro[heaviest], lengths)
		micro[heaviest] = a
		micro = append(micro, b)
	}
	return micro, nil
}

// distribute gives each rank its micro-batches of a train step.
func (l Layout) distribute(micro [][]int, lengths []int64) ([][]int, error) {
	if l.Balance {
		weights := make([]int64, len(micro))
		for k, m := range micro {
			weights[k] = weight(m, lengths)
		}
		return Partition(weights, l.DPSize, true)
	}
	ranks := make([][]int, l.DPSize)
	for k := range micro {
		ranks[k%l.DPSize] = append(ranks[k%l.DPSize], k)
	}
	return ranks, nil
}

// weight is the number of tokens of a micro-batch.
func weight(samples []int, lengths []int64) int64 {
	var n int64
	for _, i := range samples {
		n += lengths[i]
	}
	return n
}

// halve splits a micro-batch into two of about the same number of tokens: the
// longest first, each to the lighter side. Neither is heavier than the whole, so
// both still fit.
func halve(samples []int, lengths []int64) (a, b []int) {
	samples = slices.Clone(samples)
	slices.SortStableFunc(samples, func(i, j int) int { return int(lengths[j] - lengths[i]) })
	var inA, inB int64
	for _, i := range samples {
		if inA <= inB {
			a, inA = append(a, i), inA+lengths[i]
		} else {
			b, inB = append(b, i), inB+lengths[i]
		}
	}
	return a, b
}

// firstFit packs samples, in the order given, each into the first bin with room.
//
// room is a binary tree over as many bins as there are samples, all empty at
// first: a node holds the most room of any bin below it, so that the first bin
// with enough is found from the root in the logarithm of their number.
func firstFit(samples []int, lengths []int64, capacity int64) [][]int {
	leaves := 1
	for leaves < len(samples) {
		leaves *= 2
	}
	room := make([]int64, 2*leaves)
	for i := range room {
		room[i] = capacity
	}
	var bins [][]int
	for _, i := range samples {
		node := leaves + len(bins) // a new bin, for a sample larger than any
		if lengths[i] <= capacity {
			for node = 1; node < leaves; {
				node *= 2
				if room[node] < lengths[i] {
					node++
				}
			}
		}
		if k := node - leaves; k == len(bins) {
			bins = append(bins, []int{i})
		} else {
			bins[k] = append(bins[k], i)
		}
		room[node] -= lengths[i]
		for node > 1 {
			node /= 2
			room[node] = max(room[2*node], room[2*node+1])
		}
	}
	return bins
}
