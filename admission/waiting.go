package admission

import (
	"cmp"
	"slices"
	"time"
)

// Waiting is the queue as people look at it: who waits, for how long, and who
// is likely to go next. It is bounded, however long the queue.
type Waiting struct {
	Groups []WaitingGroup   `json:"groups"` // by class, most urgent first; of a class the keys with the most waiting
	Others int              `json:"others"` // requests of further groups
	Next   []WaitingRequest `json:"next"`   // in the order of their forecast starts
}

// WaitingGroup is what one key has waiting in one class.
type WaitingGroup struct {
	Class    string  `json:"class"`
	Key      string  `json:"key"`
	Queued   int     `json:"queued"`
	OldestS  float64 `json:"oldest_s"`  // age of the oldest, from the end of its headers
	SoonestS float64 `json:"soonest_s"` // until the earliest deadline; below 0 it is past
}

// WaitingRequest is one request that waits.
type WaitingRequest struct {
	ID        string  `json:"id"`
	Class     string  `json:"class"`
	Key       string  `json:"key"`
	Model     string  `json:"model"`
	AgeS      float64 `json:"age_s"`
	DeadlineS float64 `json:"deadline_s"` // from arrival, as in Decision
	StartS    float64 `json:"start_s"`    // forecast time until a slot is free for it
	Tries     int     `json:"tries"`      // attempts it has behind it
}

const (
	maxWaitingGroups = 20 // of a class
	maxWaitingNext   = 10
	// waitingHeads is how many of a group are looked at for who is next.
	waitingHeads = 3
)

// waitingKey names a group.
type waitingKey struct {
	class *classBook
	key   string
}

// waitingBook is a group while it is counted. Heads are its first in order.
type waitingBook struct {
	WaitingGroup
	class *classBook
	heads []*Ticket
}

// Watch is Snapshot with the queue and the busy slots in detail. It looks at
// every request that waits or runs: some 200 ns each under the lock, so it is
// for a person's eyes, once a second.
func (c *Controller) Watch(now time.Time) *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.snapshot(now)
	s.Waiting = c.mu.waiting(now)
	for i, r := range c.mu.fleet {
		s.Replicas[i].BusyByClass = c.mu.busyByClass(r)
	}
	return s
}

func (c *core) waiting(now time.Time) *Waiting {
	books := map[waitingKey]*waitingBook{}
	var last *waitingBook // neighbours in the queue are often of one group
	count := func(t *Ticket) {
		if last == nil || last.class != t.class || last.Key != t.key {
			k := waitingKey{t.class, t.key}
			if last = books[k]; last == nil {
				last = &waitingBook{WaitingGroup: WaitingGroup{Class: t.class.name, Key: t.key}, class: t.class}
				books[k] = last
			}
		}
		last.add(now, t)
	}
	for it := range c.q.All() {
		count(it.Value.(*Ticket))
	}
	for _, aside := range [...]map[*Ticket]struct{}{c.bound, c.waitlist} {
		for t := range aside {
			count(t)
		}
	}
	all := make([]*waitingBook, 0, len(books))
	for _, b := range books {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b *waitingBook) int {
		return cmp.Or(cmp.Compare(a.class.index, b.class.index), cmp.Compare(b.Queued, a.Queued), cmp.Compare(a.Key, b.Key))
	})
	w := &Waiting{Groups: []WaitingGroup{}, Next: c.nextToGo(now, all)}
	told := map[*classBook]int{}
	for _, b := range all {
		if told[b.class]++; told[b.class] <= maxWaitingGroups {
			w.Groups = append(w.Groups, b.WaitingGroup)
		} else {
			w.Others += b.Queued
		}
	}
	return w
}

func (b *waitingBook) add(now time.Time, t *Ticket) {
	b.Queued++
	b.OldestS = max(b.OldestS, now.Sub(t.at).Seconds())
	if left := t.ask.Deadline.Sub(now).Seconds(); b.Queued == 1 || left < b.SoonestS {
		b.SoonestS = left
	}
	if n := len(b.heads); n == waitingHeads {
		if !before(t, b.heads[n-1]) {
			return
		}
		b.heads = b.heads[:n-1]
	}
	at, _ := slices.BinarySearchFunc(b.heads, t, func(o, t *Ticket) int {
		if before(o, t) {
			return -1
		}
		return 1
	})
	b.heads = slices.Insert(b.heads, at, t)
}

// before is the order inside a key (R3).
func before(a, b *Ticket) bool {
	return cmp.Or(a.ask.Deadline.Compare(b.ask.Deadline), cmp.Compare(a.item.Seq, b.item.Seq)) < 0
}

// nextToGo forecasts when the first of each group start, and lists the soonest.
func (c *core) nextToGo(now time.Time, groups []*waitingBook) []WaitingRequest {
	type head struct {
		t     *Ticket
		start float64
	}
	var heads []head
	for _, b := range groups[:min(len(groups), maxWaitingNext)] {
		for _, t := range b.heads {
			as := &Ticket{class: t.class, key: t.key, lane: t.lane, ask: t.ask} // a forecast leaves its marks on a ticket
			as.item.Seq = t.item.Seq
			f := c.forecast(now, as)
			heads = append(heads, head{t, f.wait.Seconds()})
		}
	}
	slices.SortFunc(heads, func(a, b head) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.t.class.index, b.t.class.index),
			a.t.ask.Deadline.Compare(b.t.ask.Deadline), cmp.Compare(a.t.item.Seq, b.t.item.Seq))
	})
	next := []WaitingRequest{}
	for _, h := range heads[:min(len(heads), maxWaitingNext)] {
		t := h.t
		next = append(next, WaitingRequest{
			ID: t.id, Class: t.class.name, Key: t.key, Model: cmp.Or(t.ask.Public, t.lane.model),
			AgeS: now.Sub(t.at).Seconds(), DeadlineS: t.ask.Deadline.Sub(t.at).Seconds(), StartS: h.start, Tries: t.tries,
		})
	}
	return next
}
