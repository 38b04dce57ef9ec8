package step

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
)

// Partition deals items to k parts of about the same weight by the largest
// differencing method (Karmarkar and Karp 1982): it starts from many dealings of
// few items each and joins the two that are most uneven, the heaviest part of one
// with the lightest of the other, until one is left. With equalSize all parts get
// the same number of items. Each part lists its items in ascending order.
//
// Which of two equal dealings comes first is settled as in verl and miles, so that
// the same weights give the same parts there and here.
func Partition(weights []int64, k int, equalSize bool) ([][]int, error) {
	if k < 1 || len(weights) < k || equalSize && len(weights)%k != 0 {
		return nil, fmt.Errorf("deal %d items to %d parts: %w", len(weights), k, ErrLayout)
	}
	order := sequence(len(weights))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weights[a], weights[b]) })
	size := 1
	if equalSize {
		size = k
	}
	var dealings dealingHeap
	for items := range slices.Chunk(order, size) {
		d := make(dealing, k)
		for i, item := range items {
			d[i] = part{weight: weights[item], items: []int{item}}
		}
		d.sort()
		dealings = append(dealings, d)
	}
	heap.Init(&dealings)
	for len(dealings) > 1 {
		other := heap.Pop(&dealings).(dealing)
		// The most uneven one stays in the heap and takes in the next.
		other, dealings[0] = dealings[0], other
		dealings[0].join(other)
		heap.Fix(&dealings, 0)
	}
	parts := make([][]int, k)
	for i, p := range dealings[0] {
		if len(p.items) == 0 {
			return nil, fmt.Errorf("deal %d items to %d parts: one is left empty: %w", len(weights), k, ErrLayout)
		}
		slices.Sort(p.items)
		parts[i] = p.items
	}
	return parts, nil
}

// part is some items and their weight.
type part struct {
	weight int64
	items  []int
}

func (p part) compare(q part) int {
	return cmp.Or(cmp.Compare(p.weight, q.weight), cmp.Compare(len(p.items), len(q.items)), slices.Compare(p.items, q.items))
}

// dealing is k parts, the heaviest first.
type dealing []part

func (d dealing) sort() { slices.SortStableFunc(d, func(a, b part) int { return b.compare(a) }) }

// join adds another dealing's parts, the lightest to the heaviest.
func (d dealing) join(o dealing) {
	for i := range d {
		from := o[len(o)-1-i]
		d[i] = part{weight: d[i].weight + from.weight, items: append(d[i].items, from.items...)}
	}
	d.sort()
}

// spread is how uneven a dealing is.
func (d dealing) spread() int64 { return d[0].weight - d[len(d)-1].weight }

// dealingHeap gives the most uneven dealing first, and of equally uneven ones
// that with the greatest heaviest part.
type dealingHeap []dealing

func (h dealingHeap) Len() int { return len(h) }
func (h dealingHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(b.spread(), a.spread()), b[0].compare(a[0])) < 0
}
func (h dealingHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dealingHeap) Push(x any)   { *h = append(*h, x.(dealing)) }
func (h *dealingHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
