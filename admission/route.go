package admission

import (
	"slices"
	"time"

	"switchyard/replica"
)

// member is one replica as a lane sees it, with what decisions about it need.
type member struct {
	rep    *replica.Replica
	pool   *replica.Slots
	speed  *replica.Speed
	runs   *runs
	caches *replica.Caches // of prompts for the lane's model; nil: no account is kept
	meant  bool            // not tried yet, and of a tier that the lane needs
}

// runs is what runs on one pool of slots.
type runs struct {
	list   []run
	listed int // requests that wait for one of them to end

	learned time.Time // when one last told how long it took; zero: never
}

// run is an attempt with what forecasts need of it, side by side, since they
// look at hundreds. Times are since the controller began.
type run struct {
	a            *Assignment
	begun, until time.Duration // until is estimated
	first        time.Duration // estimated first token; 0: nothing is known
	prompt       time.Duration // of it that its own prompt is processed
	tokens       int           // of that
	lengths      *lengths      // of the answers of its key; nil: nothing is known
	most         int           // output tokens
	width        int
}

func (rs *runs) add(r run) {
	r.a.lease.place = len(rs.list)
	rs.list = append(rs.list, r)
}

func (rs *runs) remove(a *Assignment) {
	last := len(rs.list) - 1
	moved := rs.list[last]
	rs.list[a.lease.place], moved.a.lease.place = moved, a.lease.place
	rs.list[last] = run{}
	rs.list = rs.list[:last]
}

// route is the replicas that can serve a lane, whatever their present state.
// Routes are kept until what replicas serve changes: looking models up for
// each decision would cost more than the decision.
type route struct {
	members []member
	picky   bool // some members are not meant

	usable []*member // as usable last found them
	round  int       // of core.changes, when it did
	until  time.Time // when one that is out may be back by itself; zero: never

	rows []row   // of usable; empty: none yet
	at   []int32 // by replica's Index, one more than its row; 0: none
	seen uint64  // of touched.n, when rows were right

	full, room uint64 // the dispatch in which it had no room, the taking since which it had some
}

// route finds a lane's route.
func (c *core) route(l lane) *route {
	l.capped = nil                             // whoever waits for it, the replicas are the same
	if c.lastRoute != nil && c.lastLane == l { // a decision asks several times
		return c.lastRoute
	}
	rt := c.findRoute(l)
	c.lastLane, c.lastRoute = l, rt
	return rt
}

func (c *core) findRoute(l lane) *route {
	if rt := c.routes[l]; rt != nil {
		return rt
	}
	rt := &route{round: c.changes - 1}
	for _, r := range c.fleet {
		if !c.serves(r, l) {
			continue
		}
		m := member{rep: r, pool: r.Pool(l.model), speed: r.Speed(l.model)}
		m.runs = c.runsOn(m.pool)
		m.caches = r.Caches(l.model)
		m.meant = r.Config.Tier <= l.tier && (l.avoid == "" || !containsName(l.avoid, r.Config.Name))
		rt.picky = rt.picky || !m.meant
		rt.members = append(rt.members, m)
	}
	if len(c.routes) >= maxRoutes {
		clear(c.routes)
	}
	c.routes[l] = rt
	return rt
}

// maxRoutes bounds what clients can make the gateway remember by naming many
// models to a replica that takes any name.
const maxRoutes = 1024

// forgetRoutes is called when what replicas serve may have changed.
func (c *core) forgetRoutes() {
	clear(c.routes)
	clear(c.overlap)
	c.lastRoute = nil
}

func (c *core) runsOn(p *replica.Slots) *runs {
	rs := c.running[p]
	if rs == nil {
		rs = &runs{}
		c.running[p] = rs
	}
	return rs
}

// larger reports whether a prompt is being processed that is much larger than one of so many tokens.
func (rs *runs) larger(tokens int) bool {
	return slices.ContainsFunc(rs.list, func(r run) bool {
		return !r.a.lease.came && uncached(r.a.ticket, r.a.lease.cached) > 8*tokens
	})
}

// usable lists the members of a lane's route that new work may be sent to: the
// available ones that are meant, or if there is none, all available ones. It
// looks at the fleet only when some replica's availability may have changed. The
// list is valid until then.
func (c *core) usable(now time.Time, l lane) []*member {
	rt := c.route(l)
	if rt.round != c.changes || !rt.until.IsZero() && !now.Before(rt.until) {
		rt.look(now)
		rt.round = c.changes
	}
	return rt.usable
}

func (rt *route) look(now time.Time) {
	rt.usable, rt.rows, rt.at, rt.until = rt.usable[:0], rt.rows[:0], rt.at[:0], time.Time{}
	only := false
	for i := range rt.members {
		m := &rt.members[i]
		if !m.rep.Available(now) {
			if at, ok := m.rep.Breaker.NextChange(now); ok && (rt.until.IsZero() || at.Before(rt.until)) {
				rt.until = at
			}
			continue
		}
		if rt.picky && m.meant && !only {
			only = true
			rt.usable = rt.usable[:0]
		}
		if !only || m.meant {
			rt.usable = append(rt.usable, m)
		}
	}
}

// compete reports whether requests of lane o could take slots that requests of
// lane l could take.
func (c *core) compete(o, l lane) bool {
	o.capped, l.capped = nil, nil
	if o == l {
		return true
	}
	key := [2]lane{o, l}
	if yes, ok := c.overlap[key]; ok {
		return yes
	}
	pools := map[*replica.Slots]bool{}
	for _, m := range c.route(o).members {
		pools[m.pool] = true
	}
	yes := false
	for _, m := range c.route(l).members {
		yes = yes || pools[m.pool]
	}
	if len(c.overlap) >= maxRoutes {
		clear(c.overlap)
	}
	c.overlap[key] = yes
	return yes
}
