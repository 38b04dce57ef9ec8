//go:build race

package sim

// underRace says that the race detector slows everything down.
const underRace = true
