package queue

import "time"

// expiryHeap holds the items that expire, the soonest on top: a binary heap
// whose items know their places in it, from 1 (0: not in it). Times stand in
// the heap itself, so that comparing touches no item.
type expiryHeap[L comparable] []expiry[L]

type expiry[L comparable] struct {
	latest time.Duration // since the queue's origin
	seq    uint64        // so that runs repeat where times are equal
	item   *Item[L]
}

func (e expiry[L]) before(o expiry[L]) bool {
	return e.latest < o.latest || e.latest == o.latest && e.seq < o.seq
}

// Expired removes and returns the items whose Latest is past, the longest past
// first. At Latest itself an item can still start.
func (q *Queue[L]) Expired(now time.Time) []*Item[L] {
	var gone []*Item[L]
	for at := now.Sub(q.origin); len(q.expiry) > 0 && q.expiry[0].latest < at; {
		it := q.expiry[0].item
		q.Remove(it)
		gone = append(gone, it)
	}
	return gone
}

// NextExpiry is the first moment at which Expired would return something, just
// past the earliest Latest; false when nothing waits that could expire.
func (q *Queue[L]) NextExpiry() (time.Time, bool) {
	if len(q.expiry) == 0 {
		return time.Time{}, false
	}
	return q.origin.Add(q.expiry[0].latest + 1), true
}

// schedule puts an item where its Latest says.
func (q *Queue[L]) schedule(it *Item[L]) {
	if it.Latest.IsZero() {
		q.expiry.remove(it)
		return
	}
	q.expiry.set(expiry[L]{it.Latest.Sub(q.origin), it.Seq, it})
}

// set adds an item or moves it.
func (h *expiryHeap[L]) set(e expiry[L]) {
	if e.item.expiry == 0 {
		*h = append(*h, e)
		e.item.expiry = len(*h)
	}
	h.settle(e.item.expiry-1, e)
}

// remove takes an item out if it is in.
func (h *expiryHeap[L]) remove(it *Item[L]) {
	if it.expiry == 0 {
		return
	}
	hole, last := it.expiry-1, len(*h)-1
	moved := (*h)[last]
	(*h)[last] = expiry[L]{}
	*h = (*h)[:last]
	it.expiry = 0
	if hole != last {
		h.settle(hole, moved)
	}
}

// settle finds the place of an entry, up or down from hole i.
func (h expiryHeap[L]) settle(i int, e expiry[L]) {
	for i > 0 && e.before(h[(i-1)/2]) {
		h.put(i, h[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if child >= len(h) || !h[child].before(e) {
			break
		}
		h.put(i, h[child])
		i = child
	}
	h.put(i, e)
}

func (h expiryHeap[L]) put(i int, e expiry[L]) {
	h[i] = e
	e.item.expiry = i + 1
}
