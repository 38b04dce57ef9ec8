package sim

import "hash/fnv"

// purpose tells apart the random numbers that one position may need.
type purpose uint64

const (
	forToken    purpose = iota + 1 // the plain draw, and the bonus token of a verify
	forDraft                       // the draft's proposal
	forAccept                      // the test of a proposal
	forResidual                    // the replacement of a rejected proposal
)

// uniform is the random number in [0, 1) of one seed, position and purpose. It is
// keyed by the absolute position, so that a request that resumes a cut response
// does not see the numbers of its beginning again. A position that is drafted
// anew after an earlier rejection gets the same number again, which is exact: its
// first proposal was never tested.
func uniform(seed uint64, position int, why purpose) float64 {
	x := mix(mix(seed^mix(uint64(position))) + uint64(why))
	return float64(x>>11) * 0x1p-53
}

// mix is a bijection of 64-bit words whose output bits each depend on all input
// bits (the finaliser of SplitMix64, after its increment).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// requestSeed is the seed of a request: the one it asks for, or one that only the
// engine's seed and the request's id decide.
func requestSeed(asked *int64, engine int64, rid string) uint64 {
	if asked != nil {
		return mix(uint64(*asked))
	}
	h := fnv.New64a()
	h.Write([]byte(rid))
	return mix(h.Sum64() ^ mix(uint64(engine)))
}
