package admission

import (
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// row is what the choice among replicas needs of one. A fleet's rows lie side by
// side, a processor's cache line each: what they are made from lies in half a
// dozen places, and to fetch those of a thousand replicas takes longer than to
// choose.
type row struct {
	terms replica.Terms
	load  time.Duration // of the lane's model, if none is under way
	until time.Duration // when its prompts are done, as in replica.Prompting
	usual time.Duration // likewise
	rank  rank
	cache int32 // that all its slots share; noCache or ownCaches
	held  int32 // slots taken
	total int32
	runs  int32 // attempts
	loads bool  // a load is under way: its member is asked what is left of it
	room  bool  // there is a slot to be had; only if steady
	// steady: time alone changes nothing about room. Else its replica is asked.
	steady bool
}

// What a row's cache is if it is not the number of one.
const (
	noCache   = -1 // no account is kept
	ownCaches = -2 // slots have their own
)

// share is the part of a replica's slots that is taken.
func (r *row) share() float64 { return float64(r.held) / float64(max(1, r.total)) }

// need is need of a pool.
func (r *row) need(t *Ticket) int { return max(1, min(t.ask.Width, int(r.total))) }

// touched tells which replicas have changed lately, so that rows are made anew
// only of those. Whoever changes what a row is made from calls touch after it.
type touched struct {
	n   uint64 // touches so far
	log [64]int32
}

func (c *core) touch(r *replica.Replica) {
	c.touched.log[c.touched.n%uint64(len(c.touched.log))] = int32(r.Index)
	c.touched.n++
}

// rows are those of a lane's usable members, in their order, as they are now.
func (c *core) rows(now time.Time, l lane) []row {
	c.usable(now, l)
	rt, n := c.route(l), uint64(len(c.touched.log))
	switch behind := c.touched.n - rt.seen; {
	case len(rt.rows) != len(rt.usable) || behind > n:
		rt.fill(now, l.model, len(c.fleet))
	default:
		for ; rt.seen < c.touched.n; rt.seen++ {
			i := int(c.touched.log[rt.seen%n])
			if i < len(rt.at) && rt.at[i] > 0 {
				at := rt.at[i] - 1
				rt.rows[at] = rt.usable[at].row(now, l.model)
			}
		}
	}
	rt.seen = c.touched.n
	return rt.rows
}

// fill makes all rows.
func (rt *route) fill(now time.Time, model string, fleet int) {
	rt.rows = rt.rows[:0]
	rt.at = append(rt.at[:0], make([]int32, fleet)...)
	for i, m := range rt.usable {
		rt.rows = append(rt.rows, m.row(now, model))
		rt.at[m.rep.Index] = int32(i + 1)
	}
}

func (m *member) row(now time.Time, model string) row {
	r, p := m.rep, m.pool
	x := row{
		terms: m.speed.Terms(), load: m.loading(0, model), loads: m.cold(model) && m.runs.loading(model), until: p.Prompting.Until, usual: p.Prompting.Usual,
		rank: rank{tier: int32(r.Config.Tier), flagged: r.Flagged != ""}, cache: noCache,
		held: int32(p.Held() + p.Foreign), total: int32(p.Total), runs: int32(len(m.runs.list)),
		room:   r.FreeIn(now, p) > 0,
		steady: !r.HoldUntil.After(now) && r.Breaker.State(now) == breaker.Closed,
	}
	if m.caches != nil {
		x.cache = ownCaches
		if one, ok := m.caches.One(); ok {
			x.cache = int32(one)
		}
	}
	return x
}

// usableIn and cachedIn are usableOn and cachedOn for a member whose row is at hand.
func (c *core) usableIn(r *row, m *member) int {
	if r.cache >= 0 && c.found > 0 {
		return c.cached[r.cache]
	}
	return c.usableOn(m)
}

func (c *core) cachedIn(r *row, m *member) int {
	if r.cache >= 0 && c.found > 0 {
		return c.cached[r.cache]
	}
	return c.cachedOn(m)
}

// startsAtOnce reports whether some member has room for a request now.
func (c *core) startsAtOnce(now time.Time, t *Ticket, members []*member) bool {
	rows := c.rows(now, t.lane)
	for i := range rows {
		r, m := &rows[i], members[i]
		if (r.room || !r.steady) && m.rep.FreeIn(now, m.pool) >= r.need(t) && !c.loadsTooLong(now, m, t) {
			return true
		}
	}
	return false
}
