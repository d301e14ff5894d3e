package queue

// tree is a treap: a search tree by rank, and a heap by random priorities that
// keep it balanced whatever order items come in. Its nodes are the items. Each
// node knows the number and the work of its subtree, and its parent, so that
// an item leaves without being searched for.
type tree[L comparable] struct {
	root  *Item[L]
	least *Item[L] // the item that goes first
}

// node is an item's part in the tree of its lane.
type node[L comparable] struct {
	lane                *lane[L] // nil: not queued
	parent, left, right *Item[L]
	priority            uint64
	rank                rank
	own                 int64 // work of the item
	count               int   // items of the subtree, this one included
	work                int64 // their work
}

// insert adds an item whose rank, own and priority are set.
func (ln *lane[L]) insert(it *Item[L]) {
	n := &it.node
	n.lane = ln
	n.left, n.right, n.parent = nil, nil, nil
	n.count, n.work = 1, n.own

	link, isLeast := &ln.root, true
	for *link != nil {
		at := *link
		at.node.count++
		at.node.work += n.own
		n.parent = at
		if n.rank.before(at.node.rank) {
			link = &at.node.left
		} else {
			link, isLeast = &at.node.right, false
		}
	}
	*link = it
	if isLeast {
		ln.least = it
	}
	for n.parent != nil && n.parent.node.priority < n.priority {
		ln.lift(it)
	}
}

// remove takes an item out.
func (ln *lane[L]) remove(it *Item[L]) {
	if ln.least == it {
		ln.least = next(it)
	}
	n := &it.node
	for n.left != nil && n.right != nil {
		if n.left.node.priority > n.right.node.priority {
			ln.lift(n.left)
		} else {
			ln.lift(n.right)
		}
	}
	child := n.left
	if child == nil {
		child = n.right
	}
	if child != nil {
		child.node.parent = n.parent
	}
	ln.replace(n.parent, it, child)
	for p := n.parent; p != nil; p = p.node.parent {
		p.node.count--
		p.node.work -= n.own
	}
	n.lane, n.parent, n.left, n.right = nil, nil, nil, nil
}

// lift rotates an item above its parent.
func (ln *lane[L]) lift(it *Item[L]) {
	n := &it.node
	parent := n.parent
	p := &parent.node

	ln.replace(p.parent, parent, it)
	n.parent, p.parent = p.parent, it
	var moved *Item[L] // the subtree that changes sides
	if p.left == it {
		moved, p.left, n.right = n.right, n.right, parent
	} else {
		moved, p.right, n.left = n.left, n.left, parent
	}
	if moved != nil {
		moved.node.parent = parent
	}

	n.count, n.work = p.count, p.work
	p.count, p.work = 1, p.own
	for _, child := range [...]*Item[L]{p.left, p.right} {
		if child != nil {
			p.count += child.node.count
			p.work += child.node.work
		}
	}
}

// replace hangs another item where old hung below parent; nil is the root's.
func (ln *lane[L]) replace(parent, old, with *Item[L]) {
	switch {
	case parent == nil:
		ln.root = with
	case parent.node.left == old:
		parent.node.left = with
	default:
		parent.node.right = with
	}
}

// total is the number and the work of all items.
func (t *tree[L]) total() (count int, work int64) {
	if t.root == nil {
		return 0, 0
	}
	return t.root.node.count, t.root.node.work
}

// before is the number and the work of the items before r.
func (t *tree[L]) before(r rank) (count int, work int64) {
	for at := t.root; at != nil; {
		n := &at.node
		if !n.rank.before(r) {
			at = n.left
			continue
		}
		count++
		work += n.own
		if n.left != nil {
			count += n.left.node.count
			work += n.left.node.work
		}
		at = n.right
	}
	return count, work
}

// next is the item after this one in its lane.
func next[L comparable](it *Item[L]) *Item[L] {
	if at := it.node.right; at != nil {
		for at.node.left != nil {
			at = at.node.left
		}
		return at
	}
	for it.node.parent != nil && it.node.parent.node.right == it {
		it = it.node.parent
	}
	return it.node.parent
}
