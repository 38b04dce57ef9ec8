package session

import (
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Mismatches renders the conversation that ends in a node as a whole, and tells how
// its tokens differ from that. It costs as much as the conversation is long. A
// conversation whose last reply was cut has no whole to compare with: ok is false.
func (s *Session) Mismatches(id int) (list []chat.Mismatch, ok bool, err error) {
	s.mu.Lock()
	if id < 1 || id > len(s.tree.nodes) {
		s.mu.Unlock()
		return nil, false, nil
	}
	n := s.tree.nodes[id-1]
	path := n.path()
	asked := make([][]byte, len(path))
	for i, k := range path {
		asked[i] = k.asked // replaced as a whole when it is spelled anew
	}
	s.mu.Unlock()
	if !n.extendable() {
		return nil, false, nil
	}
	var messages []rollout.Message
	for i, k := range path {
		var calls []rollout.ToolCall
		if i > 0 {
			calls = path[i-1].reply.calls
		}
		added, err := s.messages(asked[i], calls)
		if err != nil {
			return nil, false, err
		}
		messages = append(append(messages, added...), k.reply.message())
	}
	list, err = s.cfg.Family.Compare(messages, n.appendTokens(nil, n.length), n.opts.render)
	return list, err == nil, err
}

// messages reads a node's messages, in the order in which they were rendered.
func (s *Session) messages(asked []byte, calls []rollout.ToolCall) ([]rollout.Message, error) {
	var list []incoming
	for i, more := 0, true; more && i < len(asked); {
		end, err := skipValue(asked, i)
		if err != nil {
			return nil, err
		}
		m, err := read(asked[i:end], s.tree.seed)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
		i = skipSpace(asked, end)
		if i < len(asked) { // a comma
			i = skipSpace(asked, i+1)
		}
	}
	inCallOrder(list, calls, func(m incoming) bool { return m.Role == "tool" }, func(m incoming) string { return m.plain.callID })
	out := make([]rollout.Message, len(list))
	for i, m := range list {
		out[i] = m.Message
	}
	return out, nil
}

// NodeInfo describes a committed generation.
type NodeInfo struct {
	ID        int    `json:"id"`
	Parent    int    `json:"parent"` // 0 for a conversation's first
	Turn      int    `json:"turn"`
	Tokens    int    `json:"num_tokens"`
	Start     int    `json:"completion_start"`
	Finish    string `json:"finish_reason"`
	Reply     string `json:"response_id"`
	Delivered bool   `json:"delivered"`
	Leaf      bool   `json:"leaf"`
}

// Nodes lists the committed generations in order of commit.
func (s *Session) Nodes() []NodeInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]NodeInfo, len(s.tree.nodes))
	for i, n := range s.tree.nodes {
		out[i] = NodeInfo{
			ID: n.id, Parent: n.parent.id, Turn: n.record.Turn, Tokens: n.length, Start: n.base + len(n.gap),
			Finish: string(n.record.Meta.Finish.Type), Reply: n.replyID, Delivered: n.delivered > 0, Leaf: len(n.children) == 0,
		}
	}
	return out
}
