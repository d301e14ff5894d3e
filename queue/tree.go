package queue

import "math"

// tree is a treap: a search tree by rank, and a heap by random priorities that
// keep it balanced whatever order items come in. Its nodes are the items, each
// in two trees at once: its lane's and its stream's. A node knows the number
// and the work of its subtree, and its parent, so that an item leaves without
// being searched for.
//
// A node also knows how tight its subtree is: the least, over the items of it,
// of an item's room less the work of those before it there. Room is the slot
// time that passes until the item must start at the latest, counted from the
// queue's origin. With slots × now subtracted, it is the slot time by which
// everything in order of deadlines could be late before a promise broke.
type tree[L comparable] struct {
	root  *Item[L]
	least *Item[L] // the item that goes first
	which int      // of an item's nodes
	slots float64  // that room is counted in; 0: there is room without end
}

// The trees that an item is in.
const (
	ofLane = iota
	ofStream
	trees
)

// node is an item's part in one tree.
type node[L comparable] struct {
	parent, left, right *Item[L]
	count               int     // items of the subtree, this one included
	work                int64   // their work
	tight               float64 // slot-seconds
}

// room is the slot time until the item's latest start.
func (t *tree[L]) room(it *Item[L]) float64 {
	if t.slots == 0 || it.latest == never {
		return math.Inf(1)
	}
	return it.latest.Seconds() * t.slots
}

// sum brings a node's sums up to date with its children's.
func (t *tree[L]) sum(it *Item[L]) {
	n := &it.nodes[t.which]
	n.count, n.work, n.tight = 1, it.own, math.Inf(1)
	if n.left != nil {
		l := &n.left.nodes[t.which]
		n.count += l.count
		n.tight = min(l.tight, t.room(it)-seconds(l.work))
		n.work += l.work
	} else if t.slots > 0 {
		n.tight = t.room(it)
	}
	if n.right != nil {
		r := &n.right.nodes[t.which]
		n.count += r.count
		n.tight = min(n.tight, r.tight-seconds(n.work))
		n.work += r.work
	}
}

// sumUp does so for an item and all above it.
func (t *tree[L]) sumUp(it *Item[L]) {
	for ; it != nil; it = it.nodes[t.which].parent {
		t.sum(it)
	}
}

// sumAll does so for a whole subtree.
func (t *tree[L]) sumAll(it *Item[L]) {
	if it != nil {
		t.sumAll(it.nodes[t.which].left)
		t.sumAll(it.nodes[t.which].right)
		t.sum(it)
	}
}

// insert adds an item whose rank, own, latest and priority are set.
func (t *tree[L]) insert(it *Item[L]) {
	n := &it.nodes[t.which]
	n.left, n.right, n.parent = nil, nil, nil

	link, isLeast := &t.root, true
	for *link != nil {
		at := *link
		n.parent = at
		if it.rank.before(at.rank) {
			link = &at.nodes[t.which].left
		} else {
			link, isLeast = &at.nodes[t.which].right, false
		}
	}
	*link = it
	if isLeast {
		t.least = it
	}
	for n.parent != nil && n.parent.priority < it.priority {
		t.lift(it)
	}
	t.sumUp(it)
}

// remove takes an item out.
func (t *tree[L]) remove(it *Item[L]) {
	if t.least == it {
		t.least = t.next(it)
	}
	n := &it.nodes[t.which]
	for n.left != nil && n.right != nil {
		if n.left.priority > n.right.priority {
			t.lift(n.left)
		} else {
			t.lift(n.right)
		}
	}
	child := n.left
	if child == nil {
		child = n.right
	}
	if child != nil {
		child.nodes[t.which].parent = n.parent
	}
	t.replace(n.parent, it, child)
	t.sumUp(n.parent)
	n.parent, n.left, n.right = nil, nil, nil
}

// lift rotates an item above its parent, whose sums it brings up to date; its
// own and those above are the caller's.
func (t *tree[L]) lift(it *Item[L]) {
	n := &it.nodes[t.which]
	parent := n.parent
	p := &parent.nodes[t.which]

	t.replace(p.parent, parent, it)
	n.parent, p.parent = p.parent, it
	var moved *Item[L] // the subtree that changes sides
	if p.left == it {
		moved, p.left, n.right = n.right, n.right, parent
	} else {
		moved, p.right, n.left = n.left, n.left, parent
	}
	if moved != nil {
		moved.nodes[t.which].parent = parent
	}
	t.sum(parent)
}

// replace hangs another item where old hung below parent; nil is the root's.
func (t *tree[L]) replace(parent, old, with *Item[L]) {
	if parent == nil {
		t.root = with
		return
	}
	p := &parent.nodes[t.which]
	if p.left == old {
		p.left = with
	} else {
		p.right = with
	}
}

// total is the number and the work of all items.
func (t *tree[L]) total() (count int, work int64) {
	if t.root == nil {
		return 0, 0
	}
	n := &t.root.nodes[t.which]
	return n.count, n.work
}

// before is the number and the work of the items before r, and how tight they
// are.
func (t *tree[L]) before(r rank) (count int, work int64, tight float64) {
	tight = math.Inf(1)
	for at := t.root; at != nil; {
		n := &at.nodes[t.which]
		if !at.rank.before(r) {
			at = n.left
			continue
		}
		if n.left != nil {
			l := &n.left.nodes[t.which]
			tight = min(tight, l.tight-seconds(work))
			count += l.count
			work += l.work
		}
		tight = min(tight, t.room(at)-seconds(work))
		count++
		work += at.own
		at = n.right
	}
	return count, work, tight
}

// next is the item after this one.
func (t *tree[L]) next(it *Item[L]) *Item[L] {
	if at := it.nodes[t.which].right; at != nil {
		for at.nodes[t.which].left != nil {
			at = at.nodes[t.which].left
		}
		return at
	}
	for {
		parent := it.nodes[t.which].parent
		if parent == nil || parent.nodes[t.which].right != it {
			return parent
		}
		it = parent
	}
}
