package queue

import (
	"slices"
	"time"
)

func newClasses[L comparable](classes []Class) []*class[L] {
	made := make([]*class[L], len(classes))
	for i, c := range classes {
		made[i] = &class[L]{Class: c, index: i, byKey: make(map[L]*lane[L]), flows: make(map[string]*flow[L])}
	}
	return made
}

// SetClasses replaces the classes. What waits, the slot time used, and what
// keys have had, of the old class i now belongs to the new class moved[i], so
// moved names a place for every old class, those that are gone too, and several
// may go to one. The caller moves the class numbers it holds itself, those of
// running work above all, in the same way.
func (q *Queue[L]) SetClasses(now time.Time, classes []Class, moved []int) {
	waiting := slices.Collect(q.All())
	for _, it := range waiting {
		it.Class = moved[it.stream.lane.class.index]
	}
	old := q.classes
	q.classes = newClasses[L](classes)
	for i, c := range old {
		for _, f := range c.flows {
			q.classes[moved[i]].inherit(f, c.virtual)
		}
	}
	for _, it := range waiting {
		it.stream = nil
		q.items--
		q.bytes -= it.bytes
		q.enter(it)
	}
	for _, c := range q.classes {
		for _, f := range c.flows {
			q.rest(c, f)
		}
	}
	q.meter.setClasses(now, len(classes), moved)
}

// inherit takes over how far a flow is ahead of its old class's virtual time.
func (c *class[L]) inherit(old *flow[L], virtual float64) {
	f := c.flows[old.key]
	if f == nil {
		f = &flow[L]{key: old.key, weight: old.weight}
		c.flows[old.key] = f
	}
	f.start += max(0, old.start-virtual)
	f.running += old.running
}
