package admission

import (
	"fmt"
	"time"
)

// next decides what the data plane does after an attempt.
func (c *core) next(now time.Time, a *Assignment, r AttemptResult, v verdict, poison bool) Next {
	t := a.ticket
	t.kept = t.kept || v.kept || v.passOn
	if !v.retry || r.Committed {
		if v.passOn && !r.Committed {
			return Next{Action: ActPassOn}
		}
		return Next{Action: ActEnd}
	}
	if !poison && c.mayRetry(now, a, r, v) {
		c.requeue(now, a, r)
		return Next{Action: ActWait, Retry: v.label}
	}
	if v.passOn {
		return Next{Action: ActPassOn}
	}
	return Next{Action: ActFail, Refusal: c.failure(now, a, r, v)}
}

// mayRetry applies the bounds of R7: attempts, deadline, budget, and another
// replica, or the same one where that can help.
func (c *core) mayRetry(now time.Time, a *Assignment, r AttemptResult, v verdict) bool {
	t := a.ticket
	if t.tries >= c.cfg.Retry.MaxAttempts || c.cfg.Enabled && !t.judged && !now.Before(t.ask.Deadline) {
		return false
	}
	if (t.ask.Once || t.lane.pin != "") && !r.NothingSent {
		return false // a stored response belongs to one replica and may have been made
	}
	if !c.elsewhere(now, a, r) && !v.same {
		return false
	}
	if r.NothingSent || r.Status == 429 || r.Status == 503 {
		return true
	}
	return c.budget.retry(now, c.cfg.Retry.Budget, c.fleetSlots())
}

// elsewhere reports whether an available replica that was not tried serves the
// request; after a context that is too long, one with a larger context.
func (c *core) elsewhere(now time.Time, a *Assignment, r AttemptResult) bool {
	t := a.ticket
	l := t.lane
	l.avoid = ""
	if r.ContextTooLong {
		l.context = max(l.context, a.lease.rep.ContextOf(l.model), 1)
	}
	for _, o := range c.fleet {
		if o != a.lease.rep && !containsName(t.lane.avoid, o.Config.Name) && o.Available(now) && c.serves(o, l) {
			return true
		}
	}
	return r.ContextTooLong && c.largerModel(now, a) != ""
}

// largerModel is another candidate of an alias that some available replica
// serves with a larger context; "" if there is none.
func (c *core) largerModel(now time.Time, a *Assignment) string {
	t := a.ticket
	had := a.lease.rep.ContextOf(t.lane.model)
	for _, m := range t.ask.Models {
		l := lane{model: m, engines: t.lane.engines, context: max(had, 1)}
		for _, o := range c.fleet {
			if m != t.lane.model && o.Available(now) && c.serves(o, l) {
				return m
			}
		}
	}
	return ""
}

// requeue puts a request back where it stood, other replicas first.
func (c *core) requeue(now time.Time, a *Assignment, r AttemptResult) {
	t := a.ticket
	if r.ContextTooLong {
		had := max(a.lease.rep.ContextOf(t.lane.model), 1)
		if m := c.largerModel(now, a); m != "" && !c.sameModelLarger(now, a, had) {
			t.lane.model = m
		}
		t.lane.context = max(t.lane.context, had)
	} else {
		t.avoiding(a.Replica)
	}
	c.weigh(now, t)
	c.enqueue(now, t)
}

func (c *core) sameModelLarger(now time.Time, a *Assignment, had int) bool {
	l := a.ticket.lane
	l.context = max(l.context, had)
	for _, o := range c.fleet {
		if o != a.lease.rep && o.Available(now) && c.serves(o, l) {
			return true
		}
	}
	return false
}

// failureWords say what happened without the addresses that logs have.
var failureWords = map[ResultKind]string{
	ResultConnect: "it could not be reached or broke off before its answer",
	ResultNoToken: "no first token came in time",
	ResultEmpty:   "its answer was empty or broken",
	ResultMoved:   "it was too slow",
}

// failure is the gateway's own answer when attempts are used up.
func (c *core) failure(now time.Time, a *Assignment, r AttemptResult, v verdict) *Refusal {
	t := a.ticket
	f := &Refusal{Reason: ReasonUpstreamFailed}
	if v.late {
		f.Reason = ReasonUpstreamTimeout
	}
	what, ok := failureWords[r.Kind]
	if !ok {
		what = v.label
	}
	f.Message = fmt.Sprintf("%d attempts failed, the last on %s: %s", t.tries, a.Replica, what)
	if t.tries == 1 {
		f.Message = fmt.Sprintf("the attempt on %s failed: %s", a.Replica, what)
	}
	f.RetryAfter = c.noReplica(now, t.ask).RetryAfter
	return f
}
