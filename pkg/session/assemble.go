package session

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Leaf is a sample and where it stands in the session's tree.
type Leaf struct {
	Sample *rollout.Sample
	// Node is the last generation's number, Turns how many there are on the path.
	Node, Turns int
	// Reply is the content of the last turn's reply, as clients saw it.
	Reply string
	// Trained counts the turns whose tokens are trained here: the others belong to
	// a sample before it.
	Trained int
}

// leaves picks the leaves that become samples, the longest first. A request that
// was repeated has several replies: those that nothing followed are retries, of
// which the last stands, and it only if none of the others was gone on with.
func (t *tree) leaves() []*node {
	var out []*node
	for _, n := range t.nodes {
		if len(n.children) == 0 && !slices.ContainsFunc(n.parent.children, n.isRetryOf) {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *node) int {
		return cmp.Or(cmp.Compare(b.depth, a.depth), cmp.Compare(b.id, a.id))
	})
	return out
}

// isRetryOf tells whether the leaf n gives way to another reply to its request.
func (n *node) isRetryOf(o *node) bool {
	return o != n && o.key == n.key && o.opts == n.opts && (len(o.children) > 0 || o.id > n.id)
}

// assemble makes a sample of each leaf that has tokens within maxLen in all; 0 is
// no limit. A generation is trained in the first sample it is in.
func (t *tree) assemble(leaves []*node, maxLen int) ([]Leaf, error) {
	trained := make(map[*node]bool, len(t.nodes))
	var out []Leaf
	for _, leaf := range leaves {
		l, err := leaf.assemble(maxLen, trained)
		if err != nil {
			return nil, fmt.Errorf("assemble the sample of generation %s: %w", leaf.record.ID, err)
		}
		if l.Sample != nil {
			out = append(out, l)
		}
	}
	return out, nil
}

// assemble merges the path to n. It returns no sample if the limit leaves none of
// its replies.
func (n *node) assemble(maxLen int, trained map[*node]bool) (Leaf, error) {
	path := n.path()
	s := &rollout.Sample{}
	leaf := Leaf{Node: n.id}
	tokens := make([]int32, 0, n.length+1) // the next node may keep one token less
	for i, k := range path {
		// What the next turn dropped of this one, as its own opener (max_trim).
		trim := 0
		if i+1 < len(path) {
			trim = k.length - path[i+1].base
		}
		over := 0
		if maxLen > 0 {
			over = max(0, k.length-trim-maxLen)
		}
		if over > 0 && len(k.out)-trim-over <= 0 {
			break
		}
		tokens = append(tokens[:k.base], k.gap...)
		g := rollout.Generation{GenerationRecord: k.record, PromptIDs: tokens, OutputIDs: k.out, LogProbs: k.probs}
		if err := s.Append(g); err != nil {
			return Leaf{}, err
		}
		start := s.ResponseLen() - len(k.out)
		if err := s.Trim(trim); err != nil {
			return Leaf{}, err
		}
		if over > 0 {
			if err := s.Cut(maxLen); err != nil && !errors.Is(err, rollout.ErrRange) {
				return Leaf{}, err
			}
		}
		if trained[k] {
			if err := s.Mask(start, s.ResponseLen()); err != nil {
				return Leaf{}, err
			}
		} else {
			trained[k] = true
			leaf.Trained++
		}
		leaf.Turns++
		leaf.Reply = k.reply.content
		if over > 0 {
			break
		}
		tokens = append(tokens, k.out...)
	}
	if leaf.Turns > 0 {
		leaf.Sample = s
	}
	return leaf, nil
}
