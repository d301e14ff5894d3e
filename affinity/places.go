package affinity

import (
	"cmp"
	"math"
	"slices"
)

// placeOf is the place of a part in a cache's ring, which it gets if it has none.
func (x *Index) placeOf(id Cache, p Part) uint32 {
	at, known := x.table[p.Hash]
	if !known {
		at = x.nodes.take()
		*x.nodes.at(at) = node{hash: p.Hash, tokens: uint32(min(max(p.Tokens, 0), math.MaxInt32))}
		x.table[p.Hash] = at
	}
	n := x.nodes.at(at)
	if i, ok := x.find(n, id); ok {
		return i
	}
	i := x.places.take()
	*x.places.at(i) = place{node: at, prev: i, next: i}
	x.join(n, holder{uint32(id), i})
	c := &x.caches[id]
	c.parts++
	c.tokens += int(n.tokens)
	return i
}

// front puts a place at the front of its ring.
func (x *Index) front(ring, i uint32) {
	x.unlink(i)
	p, r := x.places.at(i), x.places.at(ring)
	p.prev, p.next = ring, r.next
	x.places.at(r.next).prev = i
	r.next = i
}

func (x *Index) unlink(i uint32) {
	p := x.places.at(i)
	x.places.at(p.prev).next = p.next
	x.places.at(p.next).prev = p.prev
}

// drop takes a place out of its cache, and the part out of the index if nobody
// else holds it.
func (x *Index) drop(id Cache, i uint32) {
	at := x.places.at(i).node
	n := x.nodes.at(at)
	x.unlink(i)
	x.places.give(i)
	c := &x.caches[id]
	c.parts--
	c.tokens -= int(n.tokens)
	if x.leave(n, id); n.count == 0 {
		delete(x.table, n.hash)
		x.nodes.give(at)
	}
}

func byCache(h holder, id Cache) int { return cmp.Compare(h.cache, uint32(id)) }

// find gives a cache's place of the part, if the cache holds it.
func (x *Index) find(n *node, id Cache) (uint32, bool) {
	if n.count <= 1 {
		return n.only.place, n.count == 1 && n.only.cache == uint32(id)
	}
	set := x.shared[n.only.place]
	i, ok := slices.BinarySearchFunc(set, id, byCache)
	if !ok {
		return 0, false
	}
	return set[i].place, true
}

// join adds a holder to a part's set.
func (x *Index) join(n *node, h holder) {
	n.count++
	switch n.count {
	case 1:
		n.only = h
		return
	case 2:
		first := n.only
		n.only.place = x.takeSet()
		x.shared[n.only.place] = append(x.shared[n.only.place][:0], first)
	}
	set := &x.shared[n.only.place]
	i, _ := slices.BinarySearchFunc(*set, Cache(h.cache), byCache)
	*set = slices.Insert(*set, i, h)
}

// leave takes a holder out of a part's set.
func (x *Index) leave(n *node, id Cache) {
	n.count--
	if n.count == 0 {
		return
	}
	at := n.only.place
	set := &x.shared[at]
	i, _ := slices.BinarySearchFunc(*set, id, byCache)
	*set = slices.Delete(*set, i, i+1)
	if n.count == 1 {
		n.only = (*set)[0]
		x.giveSet(at)
	}
}

func (x *Index) takeSet() uint32 {
	if n := len(x.spare); n > 0 {
		at := x.spare[n-1]
		x.spare = x.spare[:n-1]
		return at
	}
	x.shared = append(x.shared, nil)
	return uint32(len(x.shared) - 1)
}

// keepSet is how large a set's memory may be to be used again.
const keepSet = 16

func (x *Index) giveSet(at uint32) {
	if cap(x.shared[at]) > keepSet {
		x.shared[at] = nil
	}
	x.spare = append(x.spare, at)
}

// arena holds values of one type by number, in pages that never move: growing it
// copies nothing, however much it holds.
type arena[T any] struct {
	pages [][]T
	used  uint32   // numbers given out so far
	free  []uint32 // of them, those that came back
}

const pageBits = 10

func (a *arena[T]) at(i uint32) *T { return &a.pages[i>>pageBits][i&(1<<pageBits-1)] }

// take gives a number; what is there is old.
func (a *arena[T]) take() uint32 {
	if n := len(a.free); n > 0 {
		i := a.free[n-1]
		a.free = a.free[:n-1]
		return i
	}
	if a.used>>pageBits == uint32(len(a.pages)) {
		a.pages = append(a.pages, make([]T, 1<<pageBits))
	}
	a.used++
	return a.used - 1
}

func (a *arena[T]) give(i uint32) { a.free = append(a.free, i) }
