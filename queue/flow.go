package queue

import (
	"slices"
	"time"
)

// flow is what a key has had of one class, in start-time fair queueing: its
// start tag is the virtual time at which its next request begins, and each
// request moves it on by what it takes, in slot-seconds over the key's weight.
// The flow with the least tag goes next, and the tags that go by are the virtual
// time. A flow that begins to wait is brought up to it, so that nobody saves up
// credit while idle; one that is ahead of it, because it has had more than was
// estimated, or out of turn for its promises' sake, waits for the others.
//
// Virtual time is a lane's own while something waits in it: a lane that is
// served faster must not leave those of a slower one behind.
type flow[L comparable] struct {
	key     string
	weight  float64
	start   float64
	streams []*stream[L] // where it waits
	running int
	idle    int // place in class.idle
}

// precedes orders the flows that are idle.
func (f *flow[L]) precedes(o *flow[L]) bool { return f.start < o.start }
func (f *flow[L]) place() *int              { return &f.idle }

// stream is what a key has waiting in one lane, by deadline.
type stream[L comparable] struct {
	tree[L]
	flow *flow[L]
	lane *lane[L]
	pos  int // in flow.streams
	turn int // place in lane.streams
}

func (st *stream[L]) precedes(o *stream[L]) bool {
	if st.flow.start != o.flow.start {
		return st.flow.start < o.flow.start
	}
	return st.least.rank.before(o.least.rank)
}

func (st *stream[L]) place() *int { return &st.turn }

// first is the item of the class that goes first among eligible lanes: the fair
// one, unless that would break a promise. now is since the queue's origin.
func (q *Queue[L]) first(c *class[L], now time.Duration, eligible func(L) bool) *Item[L] {
	var fair *stream[L]
	for _, ln := range c.lanes {
		if top := ln.streams[0]; (fair == nil || top.precedes(fair)) && eligible(ln.key) {
			fair = top
		}
	}
	if fair == nil {
		return nil
	}
	fair.lane.virtual = max(fair.lane.virtual, fair.flow.start)
	c.virtual = max(c.virtual, fair.lane.virtual)
	for len(c.idle) > 0 && c.idle[0].start <= c.virtual {
		q.forget(c, c.idle[0])
	}
	first := fair.least
	for _, ln := range c.lanes {
		if ln.least.rank.before(first.rank) && eligible(ln.key) &&
			ln.endangers(now.Seconds(), fair.least.rank, seconds(fair.least.own)) {
			first = ln.least
		}
	}
	return first
}

// Begin charges a request that is served, and has been removed, to its key: what
// it is estimated to take. Done must follow.
func (q *Queue[L]) Begin(it *Item[L]) {
	c := q.classes[it.Class]
	f := q.flow(c, it.Key, it.weight())
	f.running++
	c.idle.remove(&f.idle)
	c.charge(f, it.Work)
}

// Charge corrects what a key has been charged by so many slot-seconds: up for
// what was taken beyond the estimate, down for what was not.
func (q *Queue[L]) Charge(class int, key string, work float64) {
	if f := q.classes[class].flows[key]; f != nil {
		q.classes[class].charge(f, work)
	}
}

// Done ends what Begin began: no further Charge is to come.
func (q *Queue[L]) Done(class int, key string) {
	c := q.classes[class]
	f := c.flows[key]
	if f == nil || f.running == 0 {
		panic("queue: more ended than was begun by key " + key)
	}
	f.running--
	q.rest(c, f)
}

func (c *class[L]) charge(f *flow[L], work float64) {
	f.start += work / f.weight
	for _, st := range f.streams {
		st.lane.streams.set(st)
	}
}

// Turn is what goes before an item in its fair turn, in slot-seconds.
type Turn struct {
	Urgent  float64 // of more urgent classes
	Own     float64 // of its own key: what has earlier deadlines, and what it has had beyond its share, as if that still waited
	Theirs  float64 // of the other keys that wait, meanwhile
	Others  float64 // weight of those
	Waiting bool    // its key has work waiting in the class
}

// Turn tells what of the competing lanes goes before an item, queued or not, if
// each key has its share.
func (q *Queue[L]) Turn(it *Item[L], competes func(L) bool) (t Turn) {
	c := q.classes[it.Class]
	var urgent, all, own, ahead int64
	for i, above := range q.classes[:it.Class+1] {
		for _, ln := range above.lanes {
			if !competes(ln.key) {
				continue
			}
			_, work := ln.total()
			if i < it.Class {
				urgent += work
				continue
			}
			all += work
			t.Others += ln.weight
		}
	}
	lead, weight, virtual := 0.0, it.weight(), c.virtual
	if ln := c.byKey[it.Lane]; ln != nil {
		virtual = ln.virtual
	}
	if f := c.flows[it.Key]; f != nil {
		lead = max(0, f.start-virtual) * weight
		for _, st := range f.streams {
			if t.Waiting = true; !competes(st.lane.key) {
				continue
			}
			_, work := st.total()
			_, before, _ := st.before(q.rank(it))
			own += work
			ahead += before
			t.Others -= f.weight
		}
	}
	t.Urgent, t.Others = seconds(urgent), max(0, t.Others)
	t.Own = seconds(ahead)
	if t.Others > 0 { // else nobody is owed it now
		t.Own += lead
	}
	t.Theirs = min(seconds(all-own), t.Own/weight*t.Others)
	return t
}

// Endangers reports whether a promise of the item's lane would break if it went
// before everything whose deadline is earlier.
func (q *Queue[L]) Endangers(now time.Time, it *Item[L]) bool {
	ln := q.classes[it.Class].byKey[it.Lane]
	return ln != nil && ln.endangers(now.Sub(q.origin).Seconds(), q.rank(it), it.Work)
}

func (it *Item[L]) weight() float64 {
	if it.Weight > 0 {
		return it.Weight
	}
	return 1
}

// flow is the flow of a key, begun at the virtual time if nothing is remembered
// of it.
func (q *Queue[L]) flow(c *class[L], key string, weight float64) *flow[L] {
	f := c.flows[key]
	if f == nil {
		f = reuse(&q.spare.flows)
		f.key, f.weight, f.start = key, weight, c.virtual
		c.flows[key] = f
	}
	if f.weight != weight {
		f.reweigh(weight)
	}
	return f
}

// stream is what the item's key has waiting in a lane, begun if there is
// nothing.
func (q *Queue[L]) stream(ln *lane[L], it *Item[L]) *stream[L] {
	c := ln.class
	known := c.flows[it.Key] != nil
	f := q.flow(c, it.Key, it.weight())
	for _, st := range f.streams {
		if st.lane == ln {
			return st
		}
	}
	c.idle.remove(&f.idle)
	switch {
	case !known:
		f.start = ln.virtual
	case len(f.streams) == 0:
		f.start = max(f.start, ln.virtual)
	}
	st := reuse(&q.spare.streams)
	st.flow, st.lane, st.pos, st.which = f, ln, len(f.streams), ofStream
	f.streams = append(f.streams, st)
	ln.weight += f.weight
	return st
}

// reweigh gives a flow another weight.
func (f *flow[L]) reweigh(w float64) {
	for _, st := range f.streams {
		st.lane.weight += w - f.weight
	}
	f.weight = w
}

// retireStream takes an empty stream away.
func (q *Queue[L]) retireStream(st *stream[L]) {
	f, ln := st.flow, st.lane
	ln.streams.remove(&st.turn)
	ln.weight -= f.weight
	last := len(f.streams) - 1
	f.streams[st.pos] = f.streams[last]
	f.streams[st.pos].pos = st.pos
	f.streams[last] = nil
	f.streams = f.streams[:last]
	*st = stream[L]{}
	q.spare.streams = append(q.spare.streams, st)
	q.rest(ln.class, f)
}

// rest keeps a flow of which nothing waits or runs until virtual time has
// caught up with it: then it is as good as forgotten, and is.
func (q *Queue[L]) rest(c *class[L], f *flow[L]) {
	switch {
	case len(f.streams) > 0 || f.running > 0:
	case f.start <= c.virtual:
		q.forget(c, f)
	default:
		c.idle.set(f)
	}
}

func (q *Queue[L]) forget(c *class[L], f *flow[L]) {
	c.idle.remove(&f.idle)
	delete(c.flows, f.key)
	*f = flow[L]{streams: slices.Delete(f.streams, 0, len(f.streams))}
	q.spare.flows = append(q.spare.flows, f)
}
