package sim

// prefixCache is the accounting of a radix cache: which token prefixes an engine
// would still hold, and so how much of a prompt it need not compute. It holds no
// state of the model; the policy's window makes that unnecessary.
//
// It is bounded in tokens and evicts the least recently used end of a branch. A
// path is touched from its end to its root, so a parent is always more recent than
// its children and the oldest node is always a leaf.
type prefixCache struct {
	limit  int
	tokens int
	roots  map[string]*prefixNode // by namespace
	// ring of all nodes but the roots; ring.next is the most recent
	ring prefixNode
}

type prefixNode struct {
	namespace  string // of a root
	parent     *prefixNode
	edge       []int32
	children   map[int32]*prefixNode
	prev, next *prefixNode
}

func newPrefixCache(limit int) *prefixCache {
	c := &prefixCache{limit: limit}
	c.reset()
	return c
}

// reset forgets everything.
func (c *prefixCache) reset() {
	c.tokens = 0
	c.roots = map[string]*prefixNode{}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
}

// match returns how many leading tokens of ids are cached, and marks them as used.
func (c *prefixCache) match(namespace string, ids []int32) int {
	node := c.roots[namespace]
	if node == nil {
		return 0
	}
	matched := 0
	for matched < len(ids) {
		child := node.children[ids[matched]]
		if child == nil {
			break
		}
		n := commonPrefix(child.edge, ids[matched:])
		matched += n
		node = child
		if n < len(child.edge) {
			break
		}
	}
	c.touch(node)
	return matched
}

// insert adds ids and evicts what no longer fits.
func (c *prefixCache) insert(namespace string, ids []int32) {
	node := c.roots[namespace]
	if node == nil {
		node = &prefixNode{namespace: namespace, children: map[int32]*prefixNode{}}
		c.roots[namespace] = node
	}
	for len(ids) > 0 {
		child := node.children[ids[0]]
		if child == nil {
			child = &prefixNode{parent: node, edge: append([]int32(nil), ids...), children: map[int32]*prefixNode{}}
			node.children[ids[0]] = child
			c.tokens += len(ids)
			node = child
			break
		}
		n := commonPrefix(child.edge, ids)
		if n < len(child.edge) {
			child = c.split(child, n)
		}
		node, ids = child, ids[n:]
	}
	c.touch(node)
	c.evict()
}

// split cuts a node's edge after n tokens and returns the new upper half.
func (c *prefixCache) split(node *prefixNode, n int) *prefixNode {
	upper := &prefixNode{parent: node.parent, edge: node.edge[:n:n], children: map[int32]*prefixNode{node.edge[n]: node}}
	node.parent.children[node.edge[0]] = upper
	node.parent, node.edge = upper, node.edge[n:]
	// Right before its child in the ring: as recent, and never older.
	upper.prev, upper.next = node.prev, node
	node.prev.next, node.prev = upper, upper
	return upper
}

// touch makes the path from node up to its root the most recent, root first.
func (c *prefixCache) touch(node *prefixNode) {
	for ; node.parent != nil; node = node.parent {
		node.unlink()
		node.prev, node.next = &c.ring, c.ring.next
		c.ring.next.prev, c.ring.next = node, node
	}
}

func (c *prefixCache) evict() {
	for c.tokens > c.limit && c.ring.prev != &c.ring {
		oldest := c.ring.prev
		excess := c.tokens - c.limit
		if excess < len(oldest.edge) {
			oldest.edge = oldest.edge[:len(oldest.edge)-excess]
			c.tokens -= excess
			return
		}
		c.tokens -= len(oldest.edge)
		oldest.unlink()
		delete(oldest.parent.children, oldest.edge[0])
		if root := oldest.parent; root.parent == nil && len(root.children) == 0 {
			delete(c.roots, root.namespace)
		}
	}
}

func (n *prefixNode) unlink() {
	if n.prev != nil {
		n.prev.next, n.next.prev = n.next, n.prev
	}
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
