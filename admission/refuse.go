package admission

import (
	"fmt"
	"time"
)

// unmeetable is the refusal of a request whose forecast is past its deadline.
func (c *core) unmeetable(now time.Time, t *Ticket, f forecast) *Refusal {
	r := use(&c.supplies.refusal)
	*r = Refusal{Reason: ReasonDeadlineUnmeetable, late: lateness{f.whole, f.load > 0 && c.loadsNow(now, t), f.total(), f.own(), f.load, t.ask.Deadline.Sub(now)}}
	c.tellWhen(now, t, f, r)
	return r
}

// lateness is how late a refused request would be.
type lateness struct {
	whole                  bool // the deadline bounds the whole answer
	loads                  bool // the model's load is under way
	total, own, load, room time.Duration
}

func (l *lateness) words() string {
	what := "the first token"
	if l.whole {
		what = "the answer"
	}
	late := fmt.Sprintf("%s would come in about %s, later than the deadline of %s", what, round(l.total), round(l.room))
	switch {
	case l.load > 0 && l.own-l.load <= l.room && !l.loads:
		return fmt.Sprintf("%s: its model has to be loaded first, which takes about %s", late, round(l.load))
	case l.load > 0 && l.own-l.load <= l.room:
		return fmt.Sprintf("%s: its model is being loaded, which takes %s still", late, round(l.load))
	case l.own > l.room:
		return fmt.Sprintf("%s takes about %s even on an idle replica, longer than the deadline of %s", what, round(l.own), round(l.room))
	}
	return late
}

// phrase makes the Message of a refusal. That is slow, so it is left until the
// mutex is free.
func (r *Refusal) phrase() {
	switch {
	case r.late != (lateness{}):
		r.Message, r.late = r.late.words(), lateness{}
	case r.say != nil:
		r.Message, r.say = r.say(), nil
	}
}

// sayf is what phrase is to say, of things as they are now.
func sayf(format string, args ...any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

// tellWhen tells a refused request when it would be accepted, and books that
// place. Where coming back cannot help, common clients will not wait so long, or
// there are too many bookings, it is told not to come back. SDKs heed that before
// Retry-After. Clients that know only the latter shall not be back every second
// where coming back cannot help: they are told the longest wait that is heeded, by
// the end of which what is known may have changed (outdated).
func (c *core) tellWhen(now time.Time, t *Ticket, f forecast, r *Refusal) {
	room := t.ask.Deadline.Sub(now)
	if f.own()-f.load > room {
		r.RetryAfter, r.NoRetry = bookSpan, true
	} else {
		opens := max(f.opens, min(f.load, f.own()-room))
		if f.begins > 0 && f.own() > room { // the load gets no shorter before it begins
			opens = max(opens, f.begins+min(f.load, opens))
		}
		r.RetryAfter = retryAfter(opens)
		r.NoRetry = r.RetryAfter > bookSpan || !c.bookPlace(now, t, r.RetryAfter)
	}
	t.record.arithmetic = c.reckon(now, t, &f, r)
}

// retryAfter is an honest wait: never less than a second, since Retry-After has
// whole ones, and in whole milliseconds, as it is told.
func retryAfter(d time.Duration) time.Duration {
	return max(d+time.Millisecond-1, time.Second).Truncate(time.Millisecond)
}

func wholeSeconds(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// recognise finds the booking of a request that comes back. In its time it
// stands where it would have stood.
func (c *core) recognise(now time.Time, t *Ticket) {
	t.back = c.returning(now, t)
	if t.back != nil && t.back.open(now) {
		t.item.Seq, t.again = t.back.seq, true
	}
}

// returned settles a booking whose client is back: taken if it is in time, and
// kept if it is early. An early one is told the rest, so that nobody gains by
// asking again and again; but where half of the time that it may wait is free
// there is no queue to keep to.
func (c *core) returned(now time.Time, t *Ticket, f forecast, late bool) *Refusal {
	b := t.back
	t.back = nil
	switch {
	case b == nil:
		return nil
	case b.open(now):
		c.take(now, b, !late)
		return nil
	case !c.cfg.Enabled || c.cfg.Observe || !late && 2*(f.wait+f.before) <= t.ask.Deadline.Sub(now)-f.own():
		c.drop(b)
		return nil
	}
	rest := retryAfter(b.due.Sub(now))
	b.told = now
	if until := now.Add(wholeSeconds(rest) + bookGrace); until.After(b.until) {
		b.until = until
	}
	r := &Refusal{
		Reason: ReasonDeadlineUnmeetable, RetryAfter: rest,
		say: sayf("it comes back %s before the time it was told; its place then is kept", round(b.due.Sub(now))),
	}
	a := c.reckon(now, t, &f, r)
	a.Place, a.early = placeKept, b.due.Sub(now)
	t.record.arithmetic = a
	return r
}
