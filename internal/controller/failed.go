package controller

import (
	"fmt"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// allFailed is an ErrAllFailed with the most frequent failure when no episode of
// the step ended in another way. A step that is empty for what was filtered, cut
// short or incomplete is none.
func (r *results) allFailed() error {
	count := map[string]int{}
	episodes := 0
	var most *rollout.Failure
	for _, g := range r.groups {
		for i := range g.Episodes {
			f := g.Episodes[i].Failure
			if f == nil {
				return nil
			}
			episodes++
			count[f.Key()]++
			if most == nil || count[f.Key()] > count[most.Key()] && f.Key() != most.Key() {
				most = f
			}
		}
	}
	if most == nil {
		return nil
	}
	return fmt.Errorf("%w: %d of %d with %w", ErrAllFailed, count[most.Key()], episodes, most)
}

// lastTries are the last results of a step's episodes. Without them the step is
// not complete; the failed tries before them stay in the books.
func lastTries(waves []*wave) []bus.Receipt {
	type key struct {
		group int64
		index int
	}
	seen := map[key]bool{}
	var last []bus.Receipt
	for i := len(waves) - 1; i >= 0; i-- {
		for _, r := range waves[i].receipts {
			if k := (key{r.Episode.Group, r.Episode.Index}); !seen[k] {
				seen[k] = true
				last = append(last, r)
			}
		}
	}
	return last
}
