package admission

import (
	"slices"
	"time"
)

// defaultLoad is assumed for a model that is not resident while none was seen to
// load on its replica: enough to prefer a replica that has it in memory.
const defaultLoad = 5 * time.Second

// cold reports whether a model would have to be loaded first, as far as is known:
// a first token that has come since the replica was asked says that it is there.
func (m *member) cold(model string) bool {
	return m.rep.Cold(model) && !m.speed.Seen.After(m.rep.Facts.At)
}

// loading is what the model still takes to be in memory. A load that is under way
// for somebody else is nearly done for the next one; one that takes longer than
// it used to takes a part of its age still.
func (m *member) loading(at time.Duration, model string) time.Duration {
	if !m.cold(model) {
		return 0
	}
	d, known := m.rep.LoadTime(model)
	if !known {
		d = defaultLoad
	}
	if begun, ok := m.runs.loadBegun(model); ok {
		return max(d-(at-begun), (at-begun)/8)
	}
	return d
}

// loadIn is loading for a member whose row is at hand.
func (c *core) loadIn(at time.Duration, r *row, m *member, t *Ticket) time.Duration {
	if r.loads {
		return m.loading(at, t.lane.model)
	}
	return r.load
}

// loadsTooLong reports whether a replica loads the model for somebody else, and a
// request would be late if it waited for that: another's slot may be free before.
func (c *core) loadsTooLong(now time.Time, m *member, t *Ticket) bool {
	if !c.cfg.Enabled || c.cfg.Observe || t.judged || t.ask.Deadline.IsZero() || !m.cold(t.lane.model) || !m.runs.loading(t.lane.model) {
		return false
	}
	return now.Add(m.loading(now.Sub(c.began), t.lane.model)).After(t.ask.Deadline)
}

// loadsNow reports whether some replica loads a request's model now.
func (c *core) loadsNow(now time.Time, t *Ticket) bool {
	return slices.ContainsFunc(c.usable(now, t.lane), func(m *member) bool {
		return m.rep.Facts.Loading || m.runs.loading(t.lane.model)
	})
}

// loadBegun is when the first of those was sent that wait for a model.
func (rs *runs) loadBegun(model string) (begun time.Duration, ok bool) {
	for i := range rs.list {
		if r := &rs.list[i]; r.a.Model == model && r.a.lease.cold && !r.a.lease.came && (!ok || r.begun < begun) {
			begun, ok = r.begun, true
		}
	}
	return begun, ok
}

func (rs *runs) loading(model string) bool {
	_, ok := rs.loadBegun(model)
	return ok
}

// with reports whether an attempt on a model runs.
func (rs *runs) with(model string) bool {
	return slices.ContainsFunc(rs.list, func(r run) bool { return r.a.Model == model })
}

// came notes that an attempt's first token has come: its model is in memory. Who
// asked for it first knows how long that took.
func (c *core) came(now time.Time, a *Assignment) {
	l := &a.lease
	speed := l.rep.Speed(a.Model)
	speed.Seen = now
	if l.loads && !l.came {
		// Until its prompts are known, theirs is in it.
		prompt, known := speed.FirstToken(uncached(a.ticket, l.cached))
		if _, seen := speed.Load(); known || !seen {
			speed.Loaded(now.Sub(l.begun) - prompt)
		}
	}
	l.came = true
	c.touch(l.rep)
	if l.cold {
		c.dispatch(now) // others have waited for that
	}
}
