package admission

import (
	"slices"
	"time"
)

// choose picks the replica for the next request among those with room:
//  1. the lowest tier that has room;
//  2. replicas that lately rejected their own key or model go last;
//  3. the smallest forecast of the first token, and what it costs those after it;
//  4. of those that a forecast cannot tell apart, the least loaded, then in turn.
//
// Where a busy replica holds so much of the prompt that the first token would
// come sooner there, that one is worth waiting for instead.
func (c *core) choose(now time.Time, t *Ticket) (*member, berth) {
	members := c.usable(now, t.lane)
	c.look(t)
	least, own := c.gather(now, t, members)
	best, load, equals, most := candidate{}, 0.0, 0, least+alike(own)
	for i := range c.candidates {
		x := &c.candidates[i]
		if x.cost > most {
			continue
		}
		switch l := x.row.share(); {
		case t.ask.Hint && c.usableOn(x.m) > 0:
			return x.m, berth{}
		case best.m == nil || l < load:
			best, load, equals = *x, l, 1
		case l == load:
			equals++
		}
	}
	// Who goes where its prompt is takes nobody's turn, nor does a retry: with two
	// replicas the one that failed would be next again.
	if (equals > 1 || c.found == 0) && t.lane.avoid == "" {
		c.turn++
	}
	if best.m == nil {
		return nil, berth{}
	}
	return best.m, c.better(now, t, members, best)
}

// gather lists the replicas with room that no other outranks, in turn, as
// c.candidates. It returns the smallest cost on any, and the time to the first
// token there.
func (c *core) gather(now time.Time, t *Ticket, members []*member) (least, own time.Duration) {
	rows := c.rows(now, t.lane)
	c.candidates = slices.Grow(c.candidates[:0], len(rows))[:len(rows)]
	var lead rank
	n, at := 0, now.Sub(c.began)
	unknown, pressed := false, 0
	steady := len(c.bound) == 0
	for i, next := 0, c.turn%max(len(rows), 1); i < len(rows); i++ {
		r, m := &rows[next], members[next]
		if next++; next == len(rows) {
			next = 0
		}
		ahead := max(0, r.until-at)
		if ahead > 0 {
			pressed++
		}
		if steady && r.steady {
			if !r.room {
				continue
			}
		} else if !c.roomOn(now, m) {
			continue
		}
		if r.loads && c.loadsTooLong(now, m, t) {
			continue
		}
		if k := r.rank; n == 0 || k != lead {
			switch order := k.compare(lead); {
			case n > 0 && order > 0:
				continue
			case n == 0 || order < 0:
				n, lead, unknown = 0, k, false
			}
		}
		x := &c.candidates[n]
		n++
		x.m, x.row, x.tokens = m, r, t.ask.PromptTokens
		if c.found > 0 {
			x.tokens = uncached(t, c.usableIn(r, m))
		}
		x.work = r.terms.At(x.tokens)
		x.own = c.loadIn(at, r, m, t) + ahead + x.work
		unknown = unknown || !r.terms.Known
	}
	c.candidates = c.candidates[:n]
	if unknown {
		c.assume()
	}
	others := burden * float64(pressed) / float64(len(rows))
	for i := range c.candidates {
		x := &c.candidates[i]
		x.cost = x.own + time.Duration(others*float64(x.work))
		if i == 0 || x.cost < least {
			least, own = x.cost, x.own
		}
	}
	return least, own
}

// candidate is a replica and a request's own time to the first token there.
type candidate struct {
	m      *member
	row    *row
	own    time.Duration
	work   time.Duration // of it that its prompt is processed
	cost   time.Duration // own, and what it costs others
	tokens int           // of it to be processed
}

// unknownPromptPerToken stands in for a prompt speed while none was measured, so
// that conversations stay together from the first one on.
const unknownPromptPerToken = 500 * time.Microsecond

// assume takes candidates whose speed nobody has measured to be as fast as the
// fastest: else they would never be tried.
func (c *core) assume() {
	pace := float64(unknownPromptPerToken)
	for first := range c.candidates {
		x := &c.candidates[first]
		if p := float64(x.own) / float64(max(x.tokens, 1)); x.row.terms.Known && (p < pace || first == 0) {
			pace = p
		}
	}
	for i := range c.candidates {
		if x := &c.candidates[i]; !x.row.terms.Known {
			x.work = time.Duration(pace * float64(x.tokens))
			x.own += x.work
		}
	}
}

// rank is what no forecast makes up for.
type rank struct {
	tier    int32
	flagged bool
}

func (k rank) compare(o rank) int {
	switch {
	case k.tier != o.tier:
		return int(k.tier - o.tier)
	case k.flagged == o.flagged:
		return 0
	case k.flagged:
		return 1
	}
	return -1
}

// alike is the difference below which two forecasts of the first token say the
// same: what nobody notices, and what they are not good for.
func alike(d time.Duration) time.Duration { return 10*time.Millisecond + d/16 }
