package admission

import (
	"slices"
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// enqueue puts a promised request, or a retry at its old place, into the
// queue. It has been weighed.
func (c *core) enqueue(now time.Time, t *Ticket) {
	t.since = now
	c.describe(t)
	t.item.Latest = c.latest(t)
	c.setPhase(t, waiting)
	c.q.Push(&t.item)
}

// describe tells the queue's item what a request asks for.
func (c *core) describe(t *Ticket) {
	it := &t.item
	it.Class, it.Lane, it.Deadline, it.Value = t.class.index, t.lane, t.ask.Deadline, t
	if t.account().full() {
		it.Lane.capped = t.account()
	}
	it.Bytes, it.Width, it.Work = t.ask.Bytes, t.ask.Width, t.work
	it.Key, it.Weight = t.key, c.weightOf(t.key)
}

// latest is the last moment at which a request can start and still meet its
// deadline on the replica that is fastest for it; zero where deadlines do not
// turn anyone away.
func (c *core) latest(t *Ticket) time.Time {
	if !c.cfg.Enabled || c.cfg.Observe || t.ask.Deadline.IsZero() || t.judged {
		return time.Time{}
	}
	own := t.own
	if t.dares {
		own = 0 // it is late already, as far as is known
	}
	if t.lane.tier < c.topTier() {
		own += lastSlack // time to call the higher tier in
	}
	return t.ask.Deadline.Add(-own)
}

// lastSlack is how long before its last possible start a request stops waiting
// for a lower tier.
const lastSlack = 20 * time.Millisecond

func (c *core) topTier() int {
	if n := len(c.tiers); n > 0 {
		return c.tiers[n-1]
	}
	return 0
}

// dispatch sends whatever can be sent: while some waiting request has a
// replica with a free slot, the next in order gets the best one (R2, R3). A
// wide request that is next but finds too few free slots is bound to its
// replica: nothing else is sent there until the debt is paid (R1).
func (c *core) dispatch(now time.Time) {
	if c.q.Len() == 0 {
		return
	}
	c.rooms.begin()
	for {
		it := c.q.Next(now, func(l lane) bool { return !c.laneFull(now, l) })
		if it == nil {
			return
		}
		t := it.Value.(*Ticket)
		if c.holdBack(t) {
			continue
		}
		m, b := c.choose(now, t)
		switch {
		case m == nil:
			c.rooms.stuck = append(c.rooms.stuck, it.Lane)
		case b.m != nil:
			c.q.Remove(it)
			c.enlist(t, b, now)
		case m.rep.FreeIn(now, m.pool) >= need(m.pool, t):
			c.q.Remove(it)
			c.assign(now, t, m)
			c.rooms.stale()
		default:
			c.q.Remove(it)
			t.bound = m
			c.bound[t] = struct{}{}
			c.rooms.stale()
		}
	}
}

// rooms tells apart what dispatch has found out of lanes. It is kept on their
// routes: a lane takes long to look up.
type rooms struct {
	dispatch, taken uint64 // numbers: of this dispatch, and of the times that room was taken
	stuck           []lane // whose next found no replica although there was room
}

func (s *rooms) begin() {
	s.dispatch++
	s.taken++
	s.stuck = s.stuck[:0]
}

// stale forgets which lanes had room, after some of it has been taken.
func (s *rooms) stale() { s.taken++ }

// laneFull reports whether no replica has a free slot for the lane. Answers
// are kept for the length of a dispatch, in which slots only become fewer.
func (c *core) laneFull(now time.Time, l lane) bool {
	if l.capped.full() || slices.Contains(c.rooms.stuck, l) {
		return true
	}
	rt := c.route(l)
	switch {
	case rt.full == c.rooms.dispatch:
		return true
	case rt.room == c.rooms.taken:
		return false
	case c.anyRoom(now, l):
		rt.room = c.rooms.taken
		return false
	}
	rt.full = c.rooms.dispatch
	return true
}

func (c *core) anyRoom(now time.Time, l lane) bool {
	members, rows := c.usable(now, l), c.rows(now, l)
	for i := range rows {
		if (rows[i].room || !rows[i].steady) && c.roomOn(now, members[i]) {
			return true
		}
	}
	return false
}

// roomOn reports whether a usable replica could take one more now.
func (c *core) roomOn(now time.Time, m *member) bool {
	return m.rep.FreeIn(now, m.pool) > 0 && (len(c.bound) == 0 || !c.owes(m.pool))
}

// owes reports whether a wide request is bound to the pool.
func (c *core) owes(p *replica.Slots) bool {
	for t := range c.bound {
		if t.bound.pool == p {
			return true
		}
	}
	return false
}

// need is the number of slots a request debits on a pool: its width, but never
// more than there are. What exceeds them it owes: while it runs, nothing else
// is sent there, since it holds them all.
func need(p *replica.Slots, t *Ticket) int { return max(1, min(t.ask.Width, p.Total)) }

// assign takes the slot and grants it.
func (c *core) assign(now time.Time, t *Ticket, m *member) {
	r, p, w := m.rep, m.pool, need(m.pool, t)
	p.Take(now, w)
	t.queued += now.Sub(t.since)
	t.tries++
	most := c.look(t)
	cached := c.usableOn(m)
	at := now.Sub(c.began)
	ahead := m.pool.Prompting.Ahead(at)
	m.pool.Prompting.Met(ahead)
	e := c.estimateBehind(now, m, t, cached, ahead)
	a := use(&c.supplies.assignment)
	*a = Assignment{
		Replica: r.Config.Name, URL: r.Config.URL, Engine: r.Engine(), Model: t.lane.model,
		Attempt: t.tries, Queued: t.queued, ticket: t, Affinity: c.affinity(t, cached), CachedTokens: cached,
		lease: lease{
			rep: r, pool: p, runs: m.runs, width: w, begun: now, state: leaseBusy,
			trial: r.Breaker.View(now).State == breaker.HalfOpen, cold: e.load > 0, loads: e.load > 0 && !m.runs.loading(t.lane.model), cached: cached, p: r.Facts.Progress,
			between: m.runs.between(at), behind: m.runs.larger(uncached(t, cached)),
		},
	}
	held := run{a: a, begun: at, until: at + e.own(), lengths: c.lengthsOf(t.key, t.lane.model), most: t.ask.MaxTokens, width: w}
	if e.known {
		a.lease.first, held.first = now.Add(e.load+e.prompt), at+e.load+e.prompt
		held.prompt, held.tokens = e.prompt-ahead, uncached(t, cached)
	}
	a.lease.permit = r.Breaker.Begin(now)
	if a.lease.trial {
		r.Trials += w
	}
	a.FirstTokenTimeout = c.firstTokenTimeout(t, e, a.lease.cold)
	a.MoveAfter = c.moveAfter(now, t, e)
	c.occupy(a, m)
	c.learnReuse(cached, most)
	t.current = a
	if t.record.attempts == nil {
		t.record.attempts, c.supplies.attempts = c.supplies.attempts, nil
	}
	t.account().begins(a)
	m.runs.add(held)
	held.prompts()
	c.touch(r)
	c.setPhase(t, running)
	c.q.Meter().Start(now, t.class.index, w)
	t.item.Class, t.item.Work = t.class.index, t.work
	c.q.Begin(&t.item)
	a.lease.charged = t.work
	c.grant(t, Grant{Assignment: a})
}

// firstTokenTimeout follows the forecast, so that a long prompt on a slow card
// is not taken for a hang; an answer that is not streamed sends nothing until
// it is whole (R7).
func (c *core) firstTokenTimeout(t *Ticket, e estimate, cold bool) time.Duration {
	rt := c.cfg.Retry
	if cold || !e.known {
		return rt.LoadTimeout
	}
	expected := e.prompt
	if !t.ask.Stream {
		expected += e.rest
	}
	return max(rt.FirstTokenFloor, time.Duration(rt.FirstTokenFactor*float64(expected)))
}

// moveAfter is when a silent attempt may be given up for another replica: at
// half of its remaining deadline, but not before twice what it should take.
func (c *core) moveAfter(now time.Time, t *Ticket, e estimate) time.Duration {
	if !e.known && e.load > 0 || t.ask.Deadline.IsZero() || len(c.fleet) < 2 || t.lane.pin != "" {
		return 0
	}
	expected := e.load + e.prompt
	if !t.ask.Stream {
		if !t.ask.ClientDeadline {
			return 0
		}
		expected += e.rest
	}
	half := t.ask.Deadline.Sub(now) / 2
	if half <= 0 {
		return 0
	}
	return max(half, 2*expected)
}

// rebind sends the wide requests bound to r whose debt is paid, and puts those
// back into the queue that r can no longer serve.
func (c *core) rebind(now time.Time, r *replica.Replica) {
	for t := range c.bound {
		m := t.bound
		if m.rep != r {
			continue
		}
		switch {
		case !r.Available(now) || !c.serves(r, t.lane):
			c.unbind(t)
			c.again(t)
		case r.FreeIn(now, m.pool) >= need(m.pool, t):
			c.unbind(t)
			if t.account().full() { // others of its key have begun meanwhile
				c.again(t)
				continue
			}
			c.assign(now, t, m)
		}
	}
}

// again puts a request that was bound back into the queue.
func (c *core) again(t *Ticket) {
	t.item.Class = t.class.index // a reload may have moved the class meanwhile
	c.q.Push(&t.item)
}

func (c *core) unbind(t *Ticket) {
	delete(c.bound, t)
	t.bound = nil
}

// tick does what is due by now and says when to come again.
func (c *core) tick(now time.Time) time.Time {
	for _, it := range c.q.Expired(now) {
		t := it.Value.(*Ticket)
		if top := c.topTier(); t.lane.tier < top {
			t.lane.tier, it.Lane.tier = top, top
			c.weigh(now, t)
			it.Latest = c.latest(t)
			c.q.Push(it)
			continue
		}
		c.expire(now, t)
	}
	for t := range c.bound {
		if !t.item.Latest.IsZero() && t.item.Latest.Before(now) {
			c.unbind(t)
			c.expire(now, t)
		}
	}
	c.sweepAll(now)
	c.recallDue(now)
	for t := range c.bound { // a hold-off may have ended
		c.rebind(now, t.bound.rep)
	}
	c.wanted = time.Time{}
	c.dispatch(now)
	for t := range c.waitlist {
		c.due(t.listed.until)
	}
	if at, ok := c.q.NextExpiry(); ok {
		c.due(at)
	}
	for t := range c.bound {
		c.dueAfter(t.item.Latest)
	}
	for _, r := range c.fleet {
		c.note(now, r)
		if at, ok := r.Breaker.NextChange(now); ok {
			c.due(at)
		}
		if r.HoldUntil.After(now) {
			c.due(r.HoldUntil)
		}
	}
	if c.stopping && c.stopAt.After(now) {
		c.due(c.stopAt)
	}
	c.planned = c.wanted
	return c.planned
}

// expire turns away a request that has left the queue because its deadline can
// no longer be met (R5).
func (c *core) expire(now time.Time, t *Ticket) {
	t.queued += now.Sub(t.since)
	due := t.ask.Deadline
	t.ask.Deadline = now.Add(due.Sub(t.at)) // as if it were asked now
	f := c.forecast(now, t)
	ref := &Refusal{
		Reason: ReasonDeadlineExpired, PassOn: t.kept,
		Message: "the deadline can no longer be met: other work took longer than forecast",
	}
	if t.dares {
		ref.Message = "the deadline has passed: there was no slot in which to find out how long it would take"
	}
	if f.none {
		ref = c.noReplica(now, t.ask)
		ref.PassOn = t.kept
	} else {
		c.tellWhen(now, t, f, ref)
	}
	t.ask.Deadline = due
	c.grantRefusal(t, ref)
}

// turnAway takes a waiting request out of the queue and refuses it.
func (c *core) turnAway(now time.Time, t *Ticket, ref *Refusal) {
	c.unqueue(now, t)
	ref.PassOn = ref.PassOn || t.kept
	c.grantRefusal(t, ref)
}

func (c *core) grantRefusal(t *Ticket, ref *Refusal) {
	c.setPhase(t, between)
	t.record.retryAfterS = ref.RetryAfter.Seconds()
	c.grant(t, Grant{Refusal: ref})
}

// grant hands a waiting ticket what it waits for; its channel has room.
func (c *core) grant(t *Ticket, g Grant) {
	t.c <- g
	if wake := t.wake; wake != nil {
		t.wake = nil
		wake()
	}
	if c.noteGrants {
		c.granted = append(c.granted, t)
	}
}
