package bpe

import (
	"math/bits"
	"strings"
	"sync/atomic"
)

// mergeTable maps a pair of neighbouring tokens to the token they merge into and
// the rank of that merge: an open-addressed table keyed by both ids.
type mergeTable struct {
	slots []mergeSlot
	shift uint
}

type mergeSlot struct {
	pair uint64
	rank uint32
	id   int32 // -1: free
}

const noRank = ^uint32(0)

func newMergeTable(n int) mergeTable {
	size := 1 << bits.Len(uint(n+n/2))
	t := mergeTable{slots: make([]mergeSlot, size), shift: uint(64 - bits.Len(uint(size-1)))}
	for i := range t.slots {
		t.slots[i].id = -1
	}
	return t
}

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

func (t *mergeTable) slot(pair uint64) *mergeSlot {
	i := pair * 0x9E3779B97F4A7C15 >> t.shift
	for {
		s := &t.slots[i]
		if s.pair == pair || s.id < 0 {
			return s
		}
		i++
		if i == uint64(len(t.slots)) {
			i = 0
		}
	}
}

// put sets a pair's merge; of two merges of one pair the later one counts.
func (t *mergeTable) put(a, b int32, rank uint32, id int32) {
	*t.slot(pairKey(a, b)) = mergeSlot{pair: pairKey(a, b), rank: rank, id: id}
}

func (t *mergeTable) get(a, b int32) (rank uint32, id int32) {
	if s := t.slot(pairKey(a, b)); s.id >= 0 {
		return s.rank, s.id
	}
	return noRank, -1
}

// wordCache remembers the tokens of words that are not one token. It is direct
// mapped: a word goes to one place and whoever comes later takes it, so it cannot
// grow and needs no lock.
type wordCache struct {
	entries []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

const (
	cachedWords   = 1 << 15
	maxCachedWord = 64
)

// appendWord merges the bytes of one word.
func (t *Tokenizer) appendWord(dst []int32, word string) []int32 {
	h := hash(word)
	if id, ok := t.vocab.lookupHash(word, h); ok && t.isWhole(id, word) {
		return append(dst, id)
	}
	if len(word) > maxCachedWord {
		return t.merge(dst, word)
	}
	entry := &t.cache.entries[h>>32%cachedWords]
	if hit := entry.Load(); hit != nil && hit.word == word {
		return append(dst, hit.ids...)
	}
	from := len(dst)
	dst = t.merge(dst, word)
	entry.Store(&cachedWord{strings.Clone(word), append([]int32(nil), dst[from:]...)})
	return dst
}

// isWhole tells whether the merges of a token's bytes end in the token itself.
// A vocabulary may hold tokens that they do not reach.
func (t *Tokenizer) isWhole(id int32, word string) bool {
	if t.ignoreMerges {
		return true
	}
	state := &t.vocab.whole[id]
	switch state.Load() {
	case wholeYes:
		return true
	case wholeNo:
		return false
	}
	ids := t.merge(nil, word)
	if len(ids) == 1 && ids[0] == id {
		state.Store(wholeYes)
		return true
	}
	state.Store(wholeNo)
	return false
}

// shortWord is the length up to which looking at every pair beats a heap.
const shortWord = 48

// merge applies the merges to one word, lowest rank first, leftmost on a tie.
func (t *Tokenizer) merge(dst []int32, word string) []int32 {
	if len(word) > shortWord {
		return t.mergeLong(dst, word)
	}
	var ids [shortWord]int32
	var ranks [shortWord]uint32 // of the pair that starts here
	n := 0
	for i := range len(word) {
		if id := t.vocab.byteID[word[i]]; id >= 0 {
			ids[n] = id
			n++
		}
	}
	for i := range n - 1 {
		ranks[i], _ = t.merges.get(ids[i], ids[i+1])
	}
	for n > 1 {
		best, rank := 0, noRank
		for i, r := range ranks[:n-1] {
			if r < rank {
				best, rank = i, r
			}
		}
		if rank == noRank {
			break
		}
		_, ids[best] = t.merges.get(ids[best], ids[best+1])
		copy(ids[best+1:n-1], ids[best+2:n])
		copy(ranks[best+1:n-1], ranks[best+2:n])
		n--
		if best > 0 {
			ranks[best-1], _ = t.merges.get(ids[best-1], ids[best])
		}
		if best < n-1 {
			ranks[best], _ = t.merges.get(ids[best], ids[best+1])
		}
	}
	return append(dst, ids[:n]...)
}

// mergeLong does the same with a heap of candidate merges, so that a word of a
// megabyte costs n log n.
func (t *Tokenizer) mergeLong(dst []int32, word string) []int32 {
	parts := make([]part, 0, len(word))
	for i := range len(word) {
		if id := t.vocab.byteID[word[i]]; id >= 0 {
			n := int32(len(parts))
			parts = append(parts, part{id: id, prev: n - 1, next: n + 1})
		}
	}
	if len(parts) == 0 {
		return dst
	}
	parts[len(parts)-1].next = -1
	queue := make(minHeap, 0, len(parts))
	for i := range parts {
		if c, ok := t.candidate(parts, int32(i)); ok {
			queue = append(queue, c)
		}
	}
	queue.init()
	for len(queue) > 0 {
		c := queue.pop()
		at := int32(uint32(c))
		left := &parts[at]
		if now, ok := t.candidate(parts, at); !ok || now != c {
			continue // one of the two has been merged since
		}
		right := &parts[left.next]
		_, left.id = t.merges.get(left.id, right.id)
		right.id = -1
		left.next = right.next
		if left.next >= 0 {
			parts[left.next].prev = at
			if next, ok := t.candidate(parts, at); ok {
				queue.push(next)
			}
		}
		if left.prev >= 0 {
			if next, ok := t.candidate(parts, left.prev); ok {
				queue.push(next)
			}
		}
	}
	for i := int32(0); i >= 0; i = parts[i].next {
		dst = append(dst, parts[i].id)
	}
	return dst
}

// part is a token of a long word under work, in a linked list; a part that has
// been merged away has no id.
type part struct{ id, prev, next int32 }

// candidate is the merge that is possible at a place: its rank above its place,
// so that the smallest number is the next merge.
func (t *Tokenizer) candidate(parts []part, at int32) (uint64, bool) {
	left := parts[at]
	if left.id < 0 || left.next < 0 {
		return 0, false
	}
	rank, _ := t.merges.get(left.id, parts[left.next].id)
	return uint64(rank)<<32 | uint64(at), rank != noRank
}

// minHeap is a heap of numbers; container/heap would box every one.
type minHeap []uint64

func (h minHeap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h minHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[i] <= h[child] {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

func (h *minHeap) push(v uint64) {
	*h = append(*h, v)
	for i := len(*h) - 1; i > 0; {
		parent := (i - 1) / 2
		if (*h)[parent] <= (*h)[i] {
			return
		}
		(*h)[parent], (*h)[i] = (*h)[i], (*h)[parent]
		i = parent
	}
}

func (h *minHeap) pop() uint64 {
	old := *h
	top := old[0]
	old[0] = old[len(old)-1]
	*h = old[:len(old)-1]
	h.down(0)
	return top
}
