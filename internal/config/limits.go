package config

import (
	"math"
	"time"
)

// Upper bounds of what a config may ask for. Each is far beyond any real run:
// what is past one is a slip of the pen, and has to end as a sentence here and
// not, much later, as a process out of memory. They also keep the products of
// two sizes (steps × groups × episodes) within 64 bits.
const (
	maxSteps = 1_000_000_000
	// maxEpisodes bounds groups, episodes of a group and their product, a step.
	maxEpisodes = 10_000_000
	maxTokens   = 100_000_000
	// maxCount is of slots, connections, turns, ranks, versions.
	maxCount   = 1_000_000
	maxEngines = 1024
	maxRetries = 1000

	minDeadline = 100 * time.Millisecond
	maxDeadline = 365 * 24 * time.Hour
)

// product is a × b, and the greatest int where that does not fit. Sizes that are
// not positive give 0: they are a problem of their own.
func product(a, b int) int {
	switch {
	case a <= 0 || b <= 0:
		return 0
	case a > math.MaxInt/b:
		return math.MaxInt
	default:
		return a * b
	}
}
