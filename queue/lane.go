package queue

import "math"

// lane is the items of one class that the same slots could serve, by deadline.
type lane[L comparable] struct {
	tree[L]
	key     L
	class   *class[L]
	pos     int              // in class.lanes
	streams heap[*stream[L]] // by turn
	virtual float64          // the class's virtual time as far as this lane has come
	weight  float64          // of the keys that wait
}

// enter puts an item into its lane and stream and counts it.
func (q *Queue[L]) enter(it *Item[L]) {
	c := q.classes[it.Class]
	it.rank, it.own, it.bytes, it.latest = q.rank(it), amount(it.Work), it.Bytes, q.latest(it)
	ln := q.lane(c, it.Lane)
	ln.count(it.Slots)
	it.stream = q.stream(ln, it)
	ln.insert(it)
	it.stream.insert(it)
	ln.streams.set(it.stream)
	c.items++
	c.bytes += it.bytes
	q.items++
	q.bytes += it.bytes
}

// leave undoes enter.
func (q *Queue[L]) leave(it *Item[L]) {
	st := it.stream
	ln, c := st.lane, st.lane.class
	it.stream = nil
	ln.remove(it)
	st.remove(it)
	if st.root == nil {
		q.retireStream(st)
	} else {
		ln.streams.set(st)
	}
	if ln.root == nil {
		q.retireLane(ln)
	}
	c.items--
	c.bytes -= it.bytes
	q.items--
	q.bytes -= it.bytes
}

// lane is the lane of a class, begun if there is none.
func (q *Queue[L]) lane(c *class[L], key L) *lane[L] {
	if ln, ok := c.byKey[key]; ok {
		return ln
	}
	ln := reuse(&q.spare.lanes)
	ln.key, ln.class, ln.pos, ln.virtual, ln.which = key, c, len(c.lanes), c.virtual, ofLane
	c.lanes = append(c.lanes, ln)
	c.byKey[key] = ln
	return ln
}

// retireLane takes an empty lane away, so that lanes once used cost nothing.
func (q *Queue[L]) retireLane(ln *lane[L]) {
	c := ln.class
	c.lanes[ln.pos] = c.lanes[len(c.lanes)-1]
	c.lanes[ln.pos].pos = ln.pos
	c.lanes[len(c.lanes)-1] = nil
	c.lanes = c.lanes[:len(c.lanes)-1]
	delete(c.byKey, ln.key)
	*ln = lane[L]{streams: ln.streams[:0]}
	q.spare.lanes = append(q.spare.lanes, ln)
}

// reuse takes an emptied one, or makes one.
func reuse[T any](spare *[]*T) *T {
	last := len(*spare) - 1
	if last < 0 {
		return new(T)
	}
	x := (*spare)[last]
	(*spare)[last] = nil
	*spare = (*spare)[:last]
	return x
}

// other is the ratio from which on a number of slots counts as another one:
// all sums rest on it.
const other = 1.125

// count takes in how many slots the lane's work may count on, if that is known.
func (ln *lane[L]) count(slots float64) {
	if slots > 0 && (slots > ln.slots*other || slots < ln.slots/other) {
		ln.slots = slots
		ln.sumAll(ln.root)
	}
}

// endangers reports whether a promise would break if work of rank r went before
// everything whose deadline is earlier. Work is in slot-seconds, now in seconds
// since the queue's origin.
func (ln *lane[L]) endangers(now float64, r rank, work float64) bool {
	if ln.slots == 0 {
		return false
	}
	n, all := ln.total()
	_, _, tight := ln.before(r)
	if math.IsInf(tight, 1) {
		return false
	}
	// What runs holds its slots for about another half of what one takes.
	mean := seconds(all) / float64(n)
	return tight-ln.slots*(now+mean/2) < work
}
