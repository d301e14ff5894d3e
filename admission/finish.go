package admission

import (
	"fmt"
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// verdict is what a result means: one row of rule R7's table.
type verdict struct {
	label  string         // result label of switchyard_attempts_total
	health breaker.Result // what the breaker is told
	retry  bool           // may be tried again before the commit point
	same   bool           // may be tried on the same replica when there is no other
	passOn bool           // when no retry is possible, the replica's own answer is passed on
	kept   bool           // its answer is kept to be passed on later
	late   bool           // a failure of time: 504 rather than 502
}

// judgeResult reads the table. Statuses that are no failure of the replica's
// are neutral, so that a client's mistake opens no breaker.
func judgeResult(r AttemptResult) verdict {
	switch r.Kind {
	case ResultOK:
		return verdict{label: "ok", health: breaker.Success}
	case ResultConnect:
		return verdict{label: "connect", health: breaker.Failure, retry: true, same: true}
	case ResultNoToken:
		return verdict{label: "no_first_token", health: breaker.Failure, retry: true, same: true, late: true}
	case ResultEmpty:
		return verdict{label: "empty", health: breaker.Failure, retry: true, same: true}
	case ResultBroken:
		return verdict{label: "broken", health: breaker.Failure}
	case ResultClientGone:
		return verdict{label: "client_gone"}
	case ResultSlowClient:
		return verdict{label: "slow_client"}
	case ResultMoved:
		return verdict{label: "moved", retry: true, late: true}
	}
	v := verdict{label: fmt.Sprintf("status_%d", r.Status), passOn: true}
	switch {
	case r.Status == 500 || r.Status == 502 || r.Status == 504:
		v.health, v.retry, v.same = breaker.Failure, true, true
	case r.Status == 503 || r.Status == 429:
		v.retry, v.same, v.kept = true, true, true
	case r.Status == 408 || r.Status == 409 || r.Status == 425:
		v.retry, v.same = true, true
	case r.Status == 400 && r.ContextTooLong:
		v.label, v.retry, v.kept = "context_too_long", true, true
	case r.Status == 401 || r.Status == 403 || r.Status == 404 || r.Status == 501:
		v.retry, v.kept = true, true
	}
	return v
}

// finish ends an attempt: the slot first, then the blame, then what comes next.
func (c *core) finish(now time.Time, a *Assignment, r AttemptResult) Next {
	if a.lease.state != leaseBusy {
		panic("admission: attempt of " + a.ticket.id + " on " + a.Replica + " finished twice")
	}
	t, rep := a.ticket, a.lease.rep
	v := judgeResult(r)
	c.processed(now, a, r)
	c.giveBack(now, a, r.Running)
	t.tab.spend(r)
	rep.Attempts++
	rep.OutputTokens += int64(r.Usage.OutputTokens)
	rep.PromptTokens += int64(r.Usage.PromptTokens)
	rep.CachedTokens += int64(r.Usage.CachedTokens)
	t.record.attempts = append(t.record.attempts, attemptNote(now, a, r, v.label))
	c.setPhase(t, between)
	t.current = nil
	c.passedFirstToken(now, a)
	poison := c.blame(now, a, r, v)
	switch r.Kind {
	case ResultOK:
		c.succeeded(now, a, r)
	case ResultStatus:
		c.answered(now, a, r)
	}
	c.touch(rep)
	next := c.next(now, a, r, v, poison)
	next.Result = v.label
	c.changed(now, rep)
	if t.phase == waiting {
		c.dueAfter(t.item.Latest)
	}
	return next
}

// giveBack returns the slot, or turns it into a zombie while the replica may
// still be working on it.
func (c *core) giveBack(now time.Time, a *Assignment, stillRuns bool) {
	l := &a.lease
	l.runs.remove(a)
	l.prompted()
	a.ticket.account().ends(a)
	c.q.Meter().Stop(now, a.ticket.class.index, l.width)
	a.ticket.used += now.Sub(l.begun).Seconds() * float64(l.width)
	c.charge(now, a)
	if l.trial {
		l.rep.Trials -= l.width
	}
	if stillRuns {
		l.pool.Bury(now, l.width)
		l.state = leaseZombie
		return
	}
	l.pool.Give(now, l.width)
	l.vacate()
	l.state = leaseGone
	c.q.Done(a.ticket.class.index, a.ticket.key)
}

// charge corrects what the key has been charged for an attempt to what it has
// held by now.
func (c *core) charge(now time.Time, a *Assignment) {
	held := now.Sub(a.lease.begun).Seconds() * float64(a.lease.width)
	c.q.Charge(a.ticket.class.index, a.ticket.key, held-a.lease.charged)
	a.lease.charged = held
}

// released returns a zombie's slot.
func (c *core) released(now time.Time, a *Assignment, responsive bool) {
	l := &a.lease
	if l.state != leaseZombie {
		panic("admission: slot of " + a.ticket.id + " on " + a.Replica + " released twice")
	}
	l.pool.Exhume(now, l.width)
	l.vacate()
	l.state = leaseGone
	c.charge(now, a) // a zombie's time is its key's, too
	c.q.Done(a.ticket.class.index, a.ticket.key)
	if l.blame {
		res := breaker.Neutral
		if !responsive {
			res = breaker.Failure
			l.rep.Failed++
		}
		l.rep.Breaker.Done(now, l.permit, res)
	}
	c.changed(now, l.rep)
}

// blame tells the breaker, and finds out whether the request is poison: one
// that the engines answer with the same 5xx wherever it is sent. The verdict
// on a first answered 5xx waits for the second attempt.
func (c *core) blame(now time.Time, a *Assignment, r AttemptResult, v verdict) (poison bool) {
	t, rep, permit := a.ticket, a.lease.rep, a.lease.permit
	if r.Kind == ResultMoved {
		a.lease.blame = true // Released tells whether it hung
		return false
	}
	answered5xx := r.Kind == ResultStatus && v.health == breaker.Failure
	if !answered5xx {
		c.resolveSuspect(now, t)
		c.tell(now, rep, permit, v.health)
		return false
	}
	first := t.suspect
	if first == nil || first.status != r.Status {
		c.resolveSuspect(now, t)
		t.suspect = &suspect{status: r.Status, rep: rep, permit: permit}
		return false
	}
	t.suspect = nil
	if first.rep == rep { // the only one there is: counted once for the same key and body
		c.tell(now, rep, permit, breaker.Neutral)
		c.tellOnce(now, t, first)
		return true
	}
	again := c.seen.before(t.ask.BodyHash)
	for _, s := range []*suspect{first, {rep: rep, permit: permit}} {
		res := breaker.Neutral
		if !again && s.rep.Poisoned() {
			res = breaker.Failure
		}
		c.tellAnswered(now, t, s, res)
	}
	return true
}

// resolveSuspect settles a first answered 5xx that no second one confirmed:
// it was the replica's failure.
func (c *core) resolveSuspect(now time.Time, t *Ticket) {
	s := t.suspect
	if s == nil {
		return
	}
	t.suspect = nil
	if len(t.record.attempts) > 1 {
		c.tellAnswered(now, t, s, breaker.Failure)
		return
	}
	c.tellOnce(now, t, s)
}

// tellOnce blames for an answered 5xx, but only once for the same key and body.
func (c *core) tellOnce(now time.Time, t *Ticket, s *suspect) {
	res := breaker.Failure
	if c.seen.before(t.ask.BodyHash) {
		res = breaker.Neutral
	}
	c.tellAnswered(now, t, s, res)
}

// tellAnswered tells the breaker of an answered 5xx. It never opens the last
// replica that serves a model: an error that is answered is better than none.
func (c *core) tellAnswered(now time.Time, t *Ticket, s *suspect, res breaker.Result) {
	if res == breaker.Failure && c.isLast(now, s.rep, t.lane) {
		s.rep.Failed++
		res = breaker.Neutral
	}
	c.tell(now, s.rep, s.permit, res)
}

func (c *core) tell(now time.Time, rep *replica.Replica, p breaker.Permit, res breaker.Result) {
	if res == breaker.Failure {
		rep.Failed++
	}
	rep.Breaker.Done(now, p, res)
	c.touch(rep)
	c.note(now, rep)
	if at, ok := rep.Breaker.NextChange(now); ok {
		c.due(at)
	}
}

// isLast reports whether no other available replica serves the model.
func (c *core) isLast(now time.Time, rep *replica.Replica, l lane) bool {
	l.avoid, l.pin, l.context = "", "", 0
	for _, r := range c.fleet {
		if r != rep && r.Available(now) && c.serves(r, l) {
			return false
		}
	}
	return true
}

// succeeded learns from a whole answer and judges the promise where no first
// token was reported: an answer that is not streamed.
func (c *core) succeeded(now time.Time, a *Assignment, r AttemptResult) {
	t, l := a.ticket, &a.lease
	l.rep.Succeeded()
	l.rep.Speed(a.Model).Seen = now
	if !t.judged && t.promised {
		first := now
		if !r.FirstTokenAt.IsZero() {
			first = r.FirstTokenAt
		} else if !t.ask.ClientDeadline {
			first = now.Add(-c.decodeTime(a, r))
		}
		c.judge(first, t)
	}
	c.learn(now, a, r)
}

// passedFirstToken judges the promise of an answer that is not streamed and
// failed late: its first token was due before, unseen. What is left of it, a
// retry included, has no deadline any more, unless the client stated one for
// the whole answer.
func (c *core) passedFirstToken(now time.Time, a *Assignment) {
	t, first := a.ticket, a.lease.first
	if !t.ask.Stream && !t.ask.ClientDeadline && !first.IsZero() && !now.Before(first) {
		c.judge(first, t)
	}
}

// decodeTime is the part of a whole answer's time after its first token: as
// the engine says, else as learned.
func (c *core) decodeTime(a *Assignment, r AttemptResult) time.Duration {
	if r.Usage.Decode > 0 {
		return r.Usage.Decode
	}
	sp := a.lease.rep.Speed(a.Model)
	return time.Duration(sp.Decode() * float64(r.Usage.OutputTokens) * float64(time.Second))
}

// heldUp is how many times longer than expected a prompt behind a much larger one
// takes to teach nothing. Shorter waits are a server's usual ones, and belong into
// what is expected of it.
const heldUp = 64

func (c *core) learn(now time.Time, a *Assignment, r AttemptResult) {
	t, l, u := a.ticket, &a.lease, r.Usage
	cached, sure := c.cachedTokens(a, u)
	s := replica.Sample{
		PromptTokens: u.PromptTokens - cached, OutputTokens: u.OutputTokens,
		Load: u.Load, Joined: l.cold && !l.loads, Prompt: u.Prompt, Decode: u.Decode, Hold: now.Sub(l.begun),
	}
	if s.PromptTokens <= 0 {
		s.PromptTokens = t.ask.PromptTokens - cached
	}
	if !r.FirstTokenAt.IsZero() {
		s.First = r.FirstTokenAt.Sub(l.begun)
		if s.Prompt == 0 {
			s.Prompt = s.First - s.Load
		}
		if s.Decode == 0 {
			s.Decode = now.Sub(r.FirstTokenAt)
		}
	}
	if s.Prompt > 0 {
		s.PromptTokens += l.between // they went through the same batches
	}
	switch {
	case sure:
	case u.Prompt > 0:
		s.PromptTokens = 0 // how many took that time is not known
	default:
		// An engine that never says: this is what a prompt takes of which so
		// much is expected in its cache, found or not.
		s.PromptTokens = uncached(t, l.cached) + l.between
	}
	if l.behind && s.Prompt > 0 {
		if d, known := l.rep.Speed(a.Model).FirstToken(s.PromptTokens); !known || s.Prompt > heldUp*d {
			s.PromptTokens = 0
		}
	}
	if silent := !sure && u.Prompt == 0; s.First > 0 && !l.cold && !l.first.IsZero() && (silent || !a.expectsCache()) {
		l.rep.Speed(a.Model).Timed(l.first.Sub(l.begun), s.First)
	}
	if l.cold && u.Load == 0 {
		return // a load of unknown length is in every figure
	}
	l.rep.Speed(a.Model).Learn(s)
	l.runs.learned = now
	if u.OutputTokens > 0 {
		c.learnOutput(t, a.Model, u.OutputTokens)
	}
}

// answered follows up on a status that says something about the replica.
func (c *core) answered(now time.Time, a *Assignment, r AttemptResult) {
	rep := a.lease.rep
	switch r.Status {
	case 429, 503:
		rep.HoldOff(now, r.RetryAfter)
		c.due(rep.HoldUntil)
	case 401, 403:
		rep.Flagged = fmt.Sprintf("answers %d: its api_key_env names no key that it takes", r.Status)
	case 404: // from other engines it may as well mean the path
		if rep.Engine() == replica.EngineOllama || rep.Engine() == replica.EngineVLLM {
			rep.Flagged = fmt.Sprintf("answers 404 for model %q", a.Model)
		}
	}
}

// fleetSlots is the number of slots of all replicas that are up.
func (c *core) fleetSlots() (n int) {
	for _, r := range c.fleet {
		if r.Up {
			r.Pools(func(_ string, s *replica.Slots) { n += s.Total })
		}
	}
	return n
}

// overdue extends a first-token timeout while the engine is seen to make
// progress, by another floor each time and by load_timeout in all.
func (c *core) overdue(a *Assignment) time.Duration {
	l, f := &a.lease, &a.lease.rep.Facts
	if f.Progress < 0 || f.Progress == l.p {
		return 0
	}
	l.p = f.Progress
	more := c.cfg.Retry.FirstTokenFloor
	if l.more+more > c.cfg.Retry.LoadTimeout {
		return 0
	}
	l.more += more
	return more
}

// mayMove reports whether a silent attempt had better go to another replica: one
// that has room for it, and from which its first token would come in time still.
// What is late anyway is later for being begun anew.
func (c *core) mayMove(now time.Time, a *Assignment) bool {
	t := a.ticket
	if t.ask.Once || t.tries >= c.cfg.Retry.MaxAttempts || c.stopping {
		return false
	}
	l := t.lane
	l.avoid = ""
	for _, r := range c.fleet {
		if r == a.lease.rep || containsName(t.lane.avoid, r.Config.Name) || r.Config.Tier > a.lease.rep.Config.Tier ||
			!c.serves(r, l) || r.FreeFor(now, l.model) < need(r.Pool(l.model), t) || c.owes(r.Pool(l.model)) {
			continue
		}
		if e, _ := c.estimateNow(now, r, t); !now.Add(e.load + e.prompt).After(t.ask.Deadline) {
			return true
		}
	}
	return false
}
