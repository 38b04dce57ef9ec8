package rollout

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"
)

// Sampling holds the sampling parameters of a run. Every one is sent to the
// engine, so that no engine's own default decides.
type Sampling struct {
	Temperature       float64
	TopP              float64
	TopK              int // -1 = all
	MinP              float64
	FrequencyPenalty  float64
	PresencePenalty   float64
	RepetitionPenalty float64
	MaxNewTokens      int
	Stop              []string
	StopTokenIDs      []int32
}

// Job is what is leased to a worker: a group with the episodes still wanted.
type Job struct {
	Run string
	// Wave and Group say which; Step is the train step that asked for it.
	Wave  int64
	Group int64
	Step  int64
	// Episodes are the indices wanted, ascending.
	Episodes []int
	// FirstRolloutID belongs to episode 0; episode i has FirstRolloutID + i.
	FirstRolloutID int64
	Prompt         Prompt
	Sampling       Sampling
	// MaxContext bounds prompt plus response, in tokens.
	MaxContext int
	// EpisodeDeadline bounds one episode from its start.
	EpisodeDeadline time.Duration
}

// ID is run/wave/group.
func (j *Job) ID() string { return fmt.Sprintf("%s/%d/%d", j.Run, j.Wave, j.Group) }

// SamplingSeed derives the seed of one generation from where it stands in the
// run. The attempt is no part of it: a repeated episode draws the same tokens
// from a deterministic engine. The result is positive and below 2^62.
func SamplingSeed(runSeed, group int64, episode, turn int) int64 {
	h := fnv.New64a()
	var buf [32]byte
	binary.LittleEndian.PutUint64(buf[0:], uint64(runSeed))
	binary.LittleEndian.PutUint64(buf[8:], uint64(group))
	binary.LittleEndian.PutUint64(buf[16:], uint64(episode))
	binary.LittleEndian.PutUint64(buf[24:], uint64(turn))
	h.Write(buf[:])
	// FNV's low bits are weak on their own; the finisher of MurmurHash3 mixes
	// every input bit into every output bit.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return int64(x >> 2)
}
