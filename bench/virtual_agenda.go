package bench

import "time"

// agenda is what a trial under a made-up clock has planned: a binary heap of
// alarms that know their places in it, so that a plan can be moved or dropped.
// Alarms of one moment go off in the order in which they were set, so that runs
// repeat.
type agenda struct {
	heap []*alarm
	seq  uint64
}

// alarm is a moment at which someone wants to be called. It is part of who is
// called, so that planning allocates nothing.
type alarm struct {
	at    time.Time
	seq   uint64
	place int // in the heap, from 1; 0: not planned
	who   waker
}

type waker interface{ wake() }

// set plans an alarm anew.
func (a *agenda) set(al *alarm, at time.Time) {
	if al.place > 0 && al.at.Equal(at) {
		return
	}
	a.seq++
	al.at, al.seq = at, a.seq
	if al.place == 0 {
		a.heap = append(a.heap, al)
		al.place = len(a.heap)
	}
	a.settle(al)
}

// drop takes an alarm off the plan.
func (a *agenda) drop(al *alarm) {
	if al.place == 0 {
		return
	}
	last := len(a.heap) - 1
	moved := a.heap[last]
	a.heap[last] = nil
	a.heap = a.heap[:last]
	if moved != al {
		moved.place = al.place
		a.settle(moved)
	}
	al.place = 0
}

// next takes the alarm that goes off first; nil: nothing is planned.
func (a *agenda) next() *alarm {
	if len(a.heap) == 0 {
		return nil
	}
	al := a.heap[0]
	a.drop(al)
	return al
}

func (a *agenda) settle(al *alarm) {
	i := al.place - 1
	for i > 0 && al.before(a.heap[(i-1)/2]) {
		a.put(i, a.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < len(a.heap) && a.heap[child+1].before(a.heap[child]) {
			child++
		}
		if child >= len(a.heap) || !a.heap[child].before(al) {
			break
		}
		a.put(i, a.heap[child])
		i = child
	}
	a.put(i, al)
}

func (a *agenda) put(i int, al *alarm) {
	a.heap[i] = al
	al.place = i + 1
}

func (al *alarm) before(o *alarm) bool {
	if c := al.at.Compare(o.at); c != 0 {
		return c < 0
	}
	return al.seq < o.seq
}
