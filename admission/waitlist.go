package admission

import (
	"time"

	"switchyard/replica"
)

// waitlisted is a request's wait for a busy replica. Meanwhile it is not in the
// queue: others may take the slots that are free. It comes back to its place
// there when the replica, or another one as good, has a slot, or its time is up.
type waitlisted struct {
	at     *member   // nil: it is not waiting so
	until  time.Time // no longer
	first  time.Time // the end of its first such wait
	expect time.Time // when the first token was expected
	cached int       // how much of its prompt is there
}

func (c *core) enlist(t *Ticket, b berth, now time.Time) {
	if t.listed.first.IsZero() {
		t.listed.first = b.until
	}
	t.listed.at, t.listed.until, t.listed.expect, t.listed.cached = b.m, b.until, now.Add(b.first), c.cachedOn(b.m)
	b.m.runs.listed++
	c.waitlist[t] = struct{}{}
	c.due(b.until)
}

func (c *core) delist(t *Ticket) {
	t.listed.at.runs.listed--
	t.listed.at = nil
	delete(c.waitlist, t)
}

// recall puts a request that was waitlisted back into the queue.
func (c *core) recall(t *Ticket) {
	c.delist(t)
	t.item.Class = t.class.index
	c.q.Push(&t.item)
}

func (c *core) recallAll() {
	for t := range c.waitlist {
		c.recall(t)
	}
}

// recallDue recalls those who have waited long enough, or whose replica has come
// to have room by the mere passing of time.
func (c *core) recallDue(now time.Time) {
	for t := range c.waitlist {
		if at := t.listed.at; !t.listed.until.After(now) || at.rep.FreeIn(now, at.pool) > 0 {
			c.recall(t)
		}
	}
}

// recallFor recalls those whom a change of a replica concerns: who waits for it,
// and who could now have the first token there sooner than where he waits.
func (c *core) recallFor(now time.Time, r *replica.Replica) {
	for t := range c.waitlist {
		if t.listed.at.rep == r || c.soonerOn(now, t, r) {
			c.recall(t)
		}
	}
}

func (c *core) soonerOn(now time.Time, t *Ticket, r *replica.Replica) bool {
	if r.FreeFor(now, t.lane.model) == 0 || !c.serves(r, t.lane) {
		return false
	}
	e, cached := c.estimateNow(now, r, t)
	if 2*cached < t.listed.cached {
		return false // a slot that somebody else may have a prompt in
	}
	return now.Add(e.load + e.prompt).Before(t.listed.expect)
}
