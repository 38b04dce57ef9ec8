package controller

import (
	"fmt"
	"math"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Room is how many bytes a prompt may add to a job, where a record on the bus may
// have so many. It fails when a step of this config cannot travel at all: each of
// its jobs is a record, and its manifest is one.
func (c *Config) Room(maxRecord int) (int, error) {
	const big = math.MaxInt32
	all := make([]int, c.Episodes)
	for i := range all {
		all[i] = i
	}
	plan := rollout.Plan{Wave: big, Step: big, Episodes: c.Episodes}
	job, err := c.Codec.EncodeJob(c.job(plan, rollout.RetryGroup{Group: big, Episodes: all}, rollout.Prompt{}))
	if err != nil {
		return 0, err
	}
	if len(job) >= maxRecord {
		return 0, fmt.Errorf("a job of %d episodes has %d bytes without its prompt, and a message on this NATS server at most %d: lower rollout.n_samples_per_prompt or raise the server's max_payload", c.Episodes, len(job), maxRecord)
	}
	const some = 1000
	items := make([]rollout.ManifestItem, some)
	for i := range items {
		items[i] = rollout.ManifestItem{Episode: rollout.EpisodeID{Wave: big, Group: big, Index: math.MaxInt16}, Sequence: big}
	}
	entry, err := c.Codec.EncodeEntry(rollout.LedgerEntry{Manifest: &rollout.Manifest{Items: items}})
	if err != nil {
		return 0, err
	}
	if perItem, n := len(entry)/some, c.Groups*c.Episodes; n > maxRecord/perItem {
		return 0, fmt.Errorf("a step of %d episodes has a manifest of some %d bytes, and a message on this NATS server at most %d: lower rollout.batch_size to %d or raise the server's max_payload",
			n, n*perItem, maxRecord, maxRecord/perItem/c.Episodes)
	}
	return maxRecord - len(job), nil
}
