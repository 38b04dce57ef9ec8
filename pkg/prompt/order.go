package prompt

import "math/bits"

// rounds of the Feistel network. Four mix well; the rest is for data sets of a
// handful of rows, where a half has one or two bits.
const rounds = 8

// order is a permutation of 0 to n-1 that needs no memory of size n.
type order struct {
	n    uint64
	half int
	keys [rounds]uint64
}

// newOrder returns the permutation of an epoch.
func newOrder(n uint64, seed, epoch int64) order {
	o := order{n: n, half: max(1, (bits.Len64(n-1)+1)/2)}
	state := splitMix(uint64(seed)) ^ uint64(epoch)
	for i := range o.keys {
		state += golden
		o.keys[i] = splitMix(state)
	}
	return o
}

// at returns the row at index i of the epoch.
func (o order) at(i uint64) uint64 {
	mask := uint64(1)<<o.half - 1
	for {
		left, right := i>>o.half, i&mask
		for _, key := range o.keys {
			left, right = right, left^(splitMix(key^right)>>(64-o.half))
		}
		// Numbers from n on belong to no row. Following the network from one leads
		// back below n, and never to a row that another index leads to.
		if i = left<<o.half | right; i < o.n {
			return i
		}
	}
}

const golden = 0x9e3779b97f4a7c15

// splitMix is the output function of the SplitMix64 generator.
func splitMix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
