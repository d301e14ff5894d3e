package queue

import (
	"slices"
	"time"
)

func newClasses[L comparable](classes []Class) []*class[L] {
	made := make([]*class[L], len(classes))
	for i, c := range classes {
		made[i] = &class[L]{Class: c, index: i, byKey: make(map[L]*lane[L])}
	}
	return made
}

// SetClasses replaces the classes. What waits, and the slot time used, of the
// old class i now belongs to the new class moved[i], so moved names a place
// for every old class, those that are gone too, and several may go to one. The
// caller moves the class numbers it holds itself, those of running work above
// all, in the same way.
func (q *Queue[L]) SetClasses(now time.Time, classes []Class, moved []int) {
	waiting := slices.Collect(q.All())
	for _, it := range waiting {
		it.Class = moved[it.node.lane.class.index]
		q.leave(it)
	}
	q.classes = newClasses[L](classes)
	for _, it := range waiting {
		q.enter(it)
	}
	q.meter.setClasses(now, len(classes), moved)
}
