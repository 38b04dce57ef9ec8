package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/chat"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// ErrContradiction reports a generation whose prompt is not what its parent left:
// the tokens a model saw and the tokens we hold differ.
var ErrContradiction = errors.New("the tokens contradict those before")

// node is one generation. Once committed, only the fields behind children change.
//
//	parent's tokens [..........base]
//	this node's                    [gap][out]
type node struct {
	id     int // in order of commit, from 1; the tree's own root is 0
	parent *node
	depth  int // generations on the path

	opts *options
	key  uint64 // of the request, among those to the same parent
	// count is the number of new messages, sums one hash of each.
	count int
	sums  []uint64
	reply plain

	base   int // how many of the parent's tokens stay
	gap    []int32
	out    []int32
	probs  []float32
	length int // tokens up to and with this node
	record rollout.GenerationRecord

	children []*node
	// asked are the new messages and echo the reply as the client spelled them
	// last. They are a memory for comparing bytes, and decide nothing.
	asked, echo []byte
	// delivered counts the clients that were given all of the reply.
	delivered int
	replayed  bool
	replyID   string
}

// options are what decides, beside the messages, how a conversation is rendered.
// A conversation with others is another conversation.
type options struct {
	id            uint64
	tools, kwargs []byte
	render        chat.RenderOptions
	reply         chat.ReplyOptions
}

// extendable tells whether a conversation can go on from the node. A reply that
// was cut has no end of turn, so nothing can follow it.
func (n *node) extendable() bool { return n.record.Meta.Finish.Type != rollout.FinishLength }

// path lists the nodes from the first generation to n.
func (n *node) path() []*node {
	out := make([]*node, n.depth)
	for k := n; k.parent != nil; k = k.parent {
		out[k.depth-1] = k
	}
	return out
}

// appendTokens appends the first limit tokens of the path to n.
func (n *node) appendTokens(dst []int32, limit int) []int32 {
	start := len(dst)
	for _, k := range n.path() {
		dst = append(append(dst[:start+k.base], k.gap...), k.out...)
	}
	return dst[:start+limit]
}

// lastToken is the last token of the path to n.
func (n *node) lastToken() int32 {
	for k := n; ; k = k.parent {
		if len(k.out) > 0 {
			return k.out[len(k.out)-1]
		}
		if len(k.gap) > 0 {
			return k.gap[len(k.gap)-1]
		}
	}
}

// shared is how many tokens of the path to n are the first of ids.
func (n *node) shared(ids []int32) int {
	at := 0
	path := n.path()
	for i, k := range path {
		end := k.length
		if i+1 < len(path) {
			end = path[i+1].base // the next turn may drop the last token
		}
		for _, part := range [][]int32{k.gap, k.out} {
			part = part[:min(len(part), end-at)]
			same := differAt(part, ids[at:])
			at += same
			if same < len(part) {
				return at
			}
		}
	}
	return at
}

func differAt(a, b []int32) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return i
}

// tree holds the generations of a session.
type tree struct {
	root  *node
	nodes []*node // in order of commit
	tip   *node   // committed last
	seed  maphash.Seed
}

func newTree() *tree {
	root := &node{}
	return &tree{root: root, tip: root, seed: maphash.MakeSeed()}
}

// prompt splits a prompt that an engine saw into what it keeps of n's tokens and what
// it adds. maxTrim of n's last tokens may go.
func (n *node) prompt(ids []int32, maxTrim int) (base int, gap []int32, err error) {
	base = n.shared(ids)
	if base < n.length-maxTrim {
		return 0, nil, fmt.Errorf("%w: token %d of %d differs", ErrContradiction, base, n.length)
	}
	return base, ids[base:], nil
}

// add commits a generation. The node's request, base, gap and reply are set.
func (t *tree) add(n *node, g rollout.Generation) {
	n.id = len(t.nodes) + 1
	n.depth = n.parent.depth + 1
	n.out, n.probs, n.record = slices.Clip(g.OutputIDs), slices.Clip(g.LogProbs), g.GenerationRecord
	n.length = n.base + len(n.gap) + len(n.out)
	n.parent.children = append(n.parent.children, n)
	t.nodes = append(t.nodes, n)
	t.tip = n
}

// Match is a conversation looked up in a session: the nodes it may go on from, one
// for each way of rendering.
type Match struct {
	data  []byte // from the "[" of the messages on
	first int    // where the first message begins
	best  []candidate
}

// candidate is a node and where the messages after it begin.
type candidate struct {
	node *node
	next int
	// spelled are the client's spellings of the nodes on the path that were
	// compared message by message.
	spelled []spelling
}

type spelling struct {
	node        *node
	asked, echo []byte
}

// walker compares a conversation with a tree.
type walker struct {
	data    []byte
	seed    maphash.Seed
	matcher Matcher
	read    map[int]readMessage
	best    []candidate
	trail   []spelling
}

type readMessage struct {
	plain plain
	sum   uint64
	end   int
	err   error
}

// match looks up the messages at the start of data and returns the index behind
// their list. Messages spelled as they were the last time are compared as bytes and
// not read; so a turn costs what it adds, but for that comparison.
func (t *tree) match(data []byte, m Matcher) (Match, int, error) {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '[' {
		return Match{}, 0, syntax(i, "messages is not a list")
	}
	first, more, err := element(data, i+1, true)
	if err != nil {
		return Match{}, 0, err
	}
	if !more {
		return Match{}, 0, fmt.Errorf("%w: there are no messages", ErrBadRequest)
	}
	w := &walker{data: data, seed: t.seed, matcher: m}
	w.descend(t.root, first)
	deepest := first
	for _, c := range w.best {
		deepest = max(deepest, c.next)
	}
	end := deepest
	for more := true; more; {
		if end, err = skipValue(data, end); err != nil {
			return Match{}, 0, err
		}
		if end, more, err = element(data, end, false); err != nil {
			return Match{}, 0, err
		}
	}
	return Match{data: data[:end], first: first, best: w.best}, end, nil
}

// descend tries the children of n at the message that begins at i.
func (w *walker) descend(n *node, i int) {
	for _, c := range n.children {
		if !c.extendable() {
			continue
		}
		next, spelled, ok := w.enter(c, i)
		if !ok {
			continue
		}
		had := len(w.trail)
		if spelled.node != nil {
			w.trail = append(w.trail, spelled)
		}
		w.offer(c, next)
		w.descend(c, next)
		w.trail = w.trail[:had]
	}
}

// offer keeps, for each way of rendering, the node that covers most of the messages,
// and of several the newest. That is not always the one with most generations on its
// path: a client may have brought part of a history along.
func (w *walker) offer(n *node, next int) {
	c := candidate{node: n, next: next, spelled: slices.Clone(w.trail)}
	for k := range w.best {
		if b := &w.best[k]; b.node.opts == n.opts {
			if next > b.next || next == b.next && n.id > b.node.id {
				*b = c
			}
			return
		}
	}
	w.best = append(w.best, c)
}

// enter matches a node's messages and its reply at i, and returns where the next
// message begins. Without one the node is not entered: there is nothing to go on.
func (w *walker) enter(n *node, i int) (next int, spelled spelling, ok bool) {
	k := i + len(n.asked)
	if !bytes.HasPrefix(w.data[i:], n.asked) {
		if k, ok = w.asked(n, i); !ok {
			return 0, spelling{}, false
		}
		spelled = spelling{node: n, asked: w.data[i:k]}
	}
	at, more, err := element(w.data, k, false)
	if err != nil || !more {
		return 0, spelling{}, false
	}
	end := at + len(n.echo)
	if n.echo == nil || !bytes.HasPrefix(w.data[at:], n.echo) {
		r := w.message(at)
		if r.err != nil || !w.matcher.same(n.reply, r.plain) {
			return 0, spelling{}, false
		}
		end = r.end
		spelled.node, spelled.echo = n, w.data[at:end]
	}
	next, more, err = element(w.data, end, false)
	return next, spelled, err == nil && more
}

// asked compares a node's messages one by one with those at i.
func (w *walker) asked(n *node, i int) (end int, ok bool) {
	got := make([]readMessage, n.count)
	for k := range got {
		if k > 0 {
			var more bool
			var err error
			if i, more, err = element(w.data, i, false); err != nil || !more {
				return 0, false
			}
		}
		got[k] = w.message(i)
		if got[k].err != nil || k == 0 && n.count == 1 && got[0].sum != n.sums[0] {
			return 0, false
		}
		i = got[k].end
	}
	order(got, n.parent.reply.calls)
	if !slices.EqualFunc(got, n.sums, func(r readMessage, sum uint64) bool { return r.sum == sum }) {
		return 0, false
	}
	stored := walker{data: n.asked, seed: w.seed}
	have := make([]readMessage, n.count)
	for k, at := 0, 0; k < n.count; k++ {
		if k > 0 {
			at, _, _ = element(n.asked, at, false) // it was read before
		}
		have[k] = stored.message(at)
		at = have[k].end
	}
	order(have, n.parent.reply.calls)
	return i, slices.EqualFunc(have, got, func(a, b readMessage) bool { return w.matcher.same(a.plain, b.plain) })
}

func order(messages []readMessage, calls []rollout.ToolCall) {
	inCallOrder(messages, calls,
		func(r readMessage) bool { return r.plain.role == "tool" }, func(r readMessage) string { return r.plain.callID })
}

// message reads the message that begins at i, once.
func (w *walker) message(i int) readMessage {
	if r, ok := w.read[i]; ok {
		return r
	}
	var r readMessage
	if r.end, r.err = skipValue(w.data, i); r.err == nil {
		r.plain, r.err = readPlain(w.data[i:r.end])
		r.sum = sumOf(w.seed, r.plain)
	}
	if w.read == nil {
		w.read = map[int]readMessage{}
	}
	w.read[i] = r
	return r
}

// sumOf is equal for messages that any matcher holds to be the same.
func sumOf(seed maphash.Seed, p plain) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	h.WriteString(p.role)
	if p.role != "assistant" {
		h.WriteByte(0)
		h.WriteString(p.content)
	}
	return h.Sum64()
}

// tail lists the messages from index i of the match to the end of its list, and
// returns the text they span.
func (m Match) tail(i int) (messages []json.RawMessage, span []byte, err error) {
	start := i
	for more := true; more; {
		end, err := skipValue(m.data, i)
		if err != nil {
			return nil, nil, err
		}
		messages = append(messages, m.data[i:end])
		span = m.data[start:end]
		if i, more, err = element(m.data, end, false); err != nil {
			return nil, nil, err
		}
	}
	return messages, span, nil
}
