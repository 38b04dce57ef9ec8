package step

import (
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// unique returns the records with each id once, in order: records itself when no
// id repeats. An episode lists each call once; this keeps the counts right should
// one not. Records without an id are all kept.
func unique(records []rollout.GenerationRecord) []rollout.GenerationRecord {
	if len(records) < 2 {
		return records
	}
	seen := make(map[string]bool, len(records))
	repeats := func(g rollout.GenerationRecord) bool {
		again := g.ID != "" && seen[g.ID]
		seen[g.ID] = true
		return again
	}
	if !slices.ContainsFunc(records, repeats) {
		return records
	}
	clear(seen)
	return slices.DeleteFunc(slices.Clone(records), repeats)
}

// record finds a generation of an episode by id, looking from position from on
// and then around: a sample lists its generations in the order of the calls.
// The second result is the position after it.
func record(records []rollout.GenerationRecord, id string, from int) (*rollout.GenerationRecord, int) {
	for k := range records {
		j := (from + k) % len(records)
		if records[j].ID == id {
			return &records[j], j + 1
		}
	}
	return nil, from
}
