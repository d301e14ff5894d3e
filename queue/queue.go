// Package queue keeps the requests that wait, in the order of R3, and says who
// goes next, how much stands before a newcomer, and whose time has run out. It
// knows nothing of replicas, never decides who is accepted, and never waits.
//
// # Order
//
// Classes go strictly by urgency. So that none starves, one with a MinShare
// goes first while it has work that can run now, has had less than that share
// of the slot time of the last minute and holds less than it (Meter); of
// several such classes the more urgent goes first.
//
// Inside a class keys share slot time by weight, in the way of start-time fair
// queueing (Goyal, Vin and Cheng, 1996; on several servers at once as in Jin,
// Chase and Kaur's SFQ(D), 2004): see flow. Inside a key the earliest deadline
// goes first, then the lowest sequence number. But where a promise would break
// if the fair one went, the earliest deadline of the whole class goes: while
// that order can keep all promises, every order is free to be taken that leaves
// it able to.
//
// # Lanes
//
// Requests that the same slots could serve share a lane (the caller's key: the
// model, say). Next, Ahead and Turn are told which lanes matter and so never
// look at requests that could not run. Each lane of a class is a balanced tree
// by deadline that knows the number and the work of the items below each node,
// and so is what each key has in it, its stream; a lane's streams are a heap by
// turn. With n items waiting, C classes and M lanes in use, every operation
// costs O(log n), Next, Ahead and Turn O(C × M × log n) at worst, however many
// keys there are, and none allocates once there is room.
//
// A Queue is not safe for concurrent use; its owner's lock guards it.
package queue

import (
	"iter"
	"math/rand/v2"
	"time"
)

// Class is a priority class.
type Class struct {
	Name     string
	MinShare float64 // share of slot time below which it goes first; 0: never
}

// Item is a request that waits. The queue orders it by what the fields said at
// Push or at the last Update; changing them in between is harmless.
type Item[L comparable] struct {
	Class    int       // index into the classes
	Lane     L         // what could serve it
	Key      string    // who asks
	Weight   float64   // of the key's share of its class; 0: 1
	Deadline time.Time // earliest first
	Seq      uint64    // breaks ties; a request that comes back keeps it, and so its place
	Latest   time.Time // last moment at which it can usefully start; zero: it never expires
	Bytes    int64     // memory it holds
	Width    int       // slots it needs, for the caller
	Work     float64   // estimated slot-seconds
	Slots    float64   // how many the lane's work may count on; 0: not known. While it is known of none, promises are not watched
	Value    any       // the caller's own

	stream   *stream[L] // nil: not queued
	nodes    [trees]node[L]
	priority uint64 // in the trees
	expiry   int    // place in the expiry heap
	rank     rank
	own      int64         // work, bytes and latest start as counted
	bytes    int64         //
	latest   time.Duration // since the queue's origin
}

// Queued reports whether the item is in a queue.
func (it *Item[L]) Queued() bool { return it.stream != nil }

// Queue holds waiting items.
type Queue[L comparable] struct {
	origin  time.Time // times are kept as durations since then
	classes []*class[L]
	meter   *Meter
	expiry  heap[expiry[L]]
	random  *rand.PCG // the trees' priorities; fixed seed, so that runs repeat
	items   int
	bytes   int64
	spare   struct { // emptied ones, to be used again
		lanes   []*lane[L]
		streams []*stream[L]
		flows   []*flow[L]
	}
}

// class is one priority class and what waits in it.
type class[L comparable] struct {
	Class
	index   int
	lanes   []*lane[L] // those with items, in no particular order
	byKey   map[L]*lane[L]
	flows   map[string]*flow[L]
	idle    heap[*flow[L]] // the flows that nothing waits or runs of
	virtual float64        // time of the flows
	items   int
	bytes   int64
}

// New returns an empty queue for classes, most urgent first.
func New[L comparable](classes []Class, now time.Time) *Queue[L] {
	return &Queue[L]{
		origin:  now,
		classes: newClasses[L](classes),
		meter:   newMeter(now, len(classes)),
		random:  rand.NewPCG(1, 2),
	}
}

// Meter counts the slot time of the queue's classes.
func (q *Queue[L]) Meter() *Meter { return q.meter }

// Push adds an item. It panics if the item is in a queue already.
func (q *Queue[L]) Push(it *Item[L]) {
	if it.Queued() {
		panic("queue: item pushed that is queued already")
	}
	it.priority = q.random.Uint64()
	q.enter(it)
	q.schedule(it)
}

// Remove takes an item out; false when it was not in.
func (q *Queue[L]) Remove(it *Item[L]) bool {
	if !it.Queued() {
		return false
	}
	q.leave(it)
	q.expiry.remove(&it.expiry)
	return true
}

// Update puts an item where its changed fields say; false when it is not
// queued. It costs least when only Latest has changed.
func (q *Queue[L]) Update(it *Item[L]) bool {
	if !it.Queued() {
		return false
	}
	at := it.stream
	if at.lane.key != it.Lane || at.lane.class.index != it.Class || at.flow.key != it.Key || it.bytes != it.Bytes ||
		it.rank != q.rank(it) || it.own != amount(it.Work) {
		q.leave(it)
		q.enter(it)
	} else if latest := q.latest(it); latest != it.latest {
		it.latest = latest
		at.lane.sumUp(it)
	}
	q.schedule(it)
	return true
}

// Next is the item that goes next among the lanes that can run now; nil when
// none can. It stays in the queue.
func (q *Queue[L]) Next(now time.Time, eligible func(L) bool) *Item[L] {
	q.meter.advance(now)
	at := now.Sub(q.origin)
	for _, c := range q.classes {
		if c.items > 0 && q.meter.below(c.index, c.MinShare) {
			if it := q.first(c, at, eligible); it != nil {
				return it
			}
		}
	}
	for _, c := range q.classes {
		if it := q.first(c, at, eligible); it != nil {
			return it
		}
	}
	return nil
}

// Ahead is how many items of the competing lanes, with how much work, would go
// before an item of that class, deadline and sequence number if deadlines alone
// decided inside a class: those of more urgent classes and those before it in
// its own. What less urgent classes may claim by their MinShare is not in it.
func (q *Queue[L]) Ahead(class int, deadline time.Time, seq uint64, competes func(L) bool) (n int, work float64) {
	before := rank{deadline.Sub(q.origin), seq}
	var sum int64
	for i, c := range q.classes[:class+1] {
		for _, ln := range c.lanes {
			if !competes(ln.key) {
				continue
			}
			count, amount := ln.total()
			if i == class {
				count, amount, _ = ln.before(before)
			}
			n += count
			sum += amount
		}
	}
	return n, seconds(sum)
}

// Len is the number of items.
func (q *Queue[L]) Len() int { return q.items }

// Bytes is the memory all items hold.
func (q *Queue[L]) Bytes() int64 { return q.bytes }

// ClassLen is the number of items of a class.
func (q *Queue[L]) ClassLen(class int) int { return q.classes[class].items }

// ClassBytes is the memory the items of a class hold.
func (q *Queue[L]) ClassBytes(class int) int64 { return q.classes[class].bytes }

// ClassWork is the work of a class's items, in slot-seconds.
func (q *Queue[L]) ClassWork(class int) float64 {
	var sum int64
	for _, ln := range q.classes[class].lanes {
		_, amount := ln.total()
		sum += amount
	}
	return seconds(sum)
}

// All walks the items: class by class, lane by lane, each lane in its order.
// The queue must not change meanwhile.
func (q *Queue[L]) All() iter.Seq[*Item[L]] {
	return func(yield func(*Item[L]) bool) {
		for _, c := range q.classes {
			for _, ln := range c.lanes {
				for it := ln.least; it != nil; it = ln.next(it) {
					if !yield(it) {
						return
					}
				}
			}
		}
	}
}

func (q *Queue[L]) rank(it *Item[L]) rank {
	return rank{it.Deadline.Sub(q.origin), it.Seq}
}

// rank is an item's place inside its class.
type rank struct {
	deadline time.Duration // since the queue's origin
	seq      uint64
}

func (r rank) before(o rank) bool {
	return r.deadline < o.deadline || r.deadline == o.deadline && r.seq < o.seq
}

// amount is work in whole microseconds of slot time: sums of integers stay
// exact however often items come and go. What is no sensible estimate (not a
// number, negative, over a hundred days) is bounded.
func amount(work float64) int64 {
	const most = 1e7
	if !(work > 0) {
		return 0
	}
	return int64(min(work, most)*1e6 + 0.5)
}

func seconds(amount int64) float64 { return float64(amount) / 1e6 }
