package admission

import (
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// Event is a change of a replica's state that a person would want to hear of.
type Event struct {
	At      time.Time
	Replica string
	What    EventKind
	Detail  string // why, in words; may be empty
}

// EventKind says what changed.
type EventKind string

// The kinds of event.
const (
	EventUp       EventKind = "up"
	EventDown     EventKind = "down"
	EventOpened   EventKind = "breaker open"
	EventTrial    EventKind = "breaker half-open"
	EventClosed   EventKind = "breaker closed"
	EventFlagged  EventKind = "misconfigured"
	EventSlow     EventKind = "slow"
	EventFast     EventKind = "at speed again"
	EventDraining EventKind = "draining"
	EventResumed  EventKind = "resumed"
)

// maxEvents bounds what is kept for TakeEvents; the newest win.
const maxEvents = 256

// noted is what was last told of a replica.
type noted struct {
	up, draining bool
	slow         bool
	state        breaker.State
	flagged      string
}

// note compares a replica with what was last told of it.
func (c *core) note(now time.Time, r *replica.Replica) {
	v := r.Breaker.View(now)
	was := c.noted[r]
	is := noted{up: r.Up, draining: r.Draining, slow: r.Slow != "", state: v.State, flagged: r.Flagged}
	if is == was {
		return
	}
	c.noted[r] = is
	c.changes++
	tell := func(k EventKind, detail string) {
		if len(c.events) == maxEvents {
			c.events = append(c.events[:0], c.events[1:]...)
		}
		c.events = append(c.events, Event{At: now, Replica: r.Config.Name, What: k, Detail: detail})
	}
	if is.up != was.up {
		if is.up {
			tell(EventUp, "")
		} else {
			tell(EventDown, r.Err)
		}
	}
	if is.state != was.state {
		tell([...]EventKind{EventClosed, EventTrial, EventOpened}[is.state], v.Reason)
	}
	if is.flagged != was.flagged && is.flagged != "" {
		tell(EventFlagged, is.flagged)
	}
	if is.slow != was.slow {
		if is.slow {
			tell(EventSlow, r.Slow)
		} else {
			tell(EventFast, "")
		}
	}
	if is.draining != was.draining {
		if is.draining {
			tell(EventDraining, "")
		} else {
			tell(EventResumed, "")
		}
	}
}

// TakeEvents returns what has changed since it was last called, oldest first.
// Wake receives when there is something.
func (c *Controller) TakeEvents() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	ev := c.mu.events
	c.mu.events = nil
	return ev
}
