package admission

import (
	"slices"
	"time"
)

// Limits are what one key may use (R12); 0 is no limit.
type Limits struct {
	RequestsPerMinute int // a minute's worth at once, then as they come
	TokensPerMinute   int // prompt and output, cached prompt tokens too
	MaxRunning        int // attempts at the same time
	MaxQueued         int // waiting at the same time; if 0, nothing waits for MaxRunning
}

// Quota is what a key has left of its limits per minute.
type Quota struct{ Requests, Tokens Allowance }

// Allowance is one limit per minute as it stands; Limit 0: there is none.
type Allowance struct {
	Limit, Remaining int
	Reset            time.Duration // until all of it is there again
}

// account is what a key with limits has used and has under way. It outlives
// reloads, and requests that hold it outlive the key.
type account struct {
	Limits
	requests, tokens bucket
	running          []*Assignment
	queued           int
	work             float64 // of what is queued, in slot-seconds
}

// tab is what one request has with its key's account.
type tab struct {
	of             *account
	quota          Quota   // as last told
	prompt, output int     // tokens expected
	charged        bool    // accepted, and not settled yet
	reserved       int     // tokens taken from the bucket
	work           float64 // counted in account.work; 0 unless it waits
	sent           bool    // some replica may have worked for it
	used           int     // tokens that its attempts took, as told or else as estimated
}

// account is that of the request's key; nil: it has no limits.
func (t *Ticket) account() *account {
	if t.tab == nil {
		return nil
	}
	return t.tab.of
}

// openTab opens a request's tab if its key has limits.
func (c *core) openTab(now time.Time, t *Ticket) {
	if a := c.account(t.key); a != nil {
		t.tab = &tab{of: a, quota: c.quota(now, a)}
	}
}

// account finds a key's account, opened at its first request; nil where the
// key has no limits.
func (c *core) account(key string) *account {
	if a := c.accounts[key]; a != nil {
		return a
	}
	l := c.cfg.Limits[key]
	if l == (Limits{}) {
		return nil
	}
	a := &account{}
	a.limit(l)
	c.accounts[key] = a
	return a
}

// relimit gives the accounts their limits as configured now. What was used
// stays used. An account that has no limits any more is kept while something of
// it runs, should they come back.
func (c *core) relimit(now time.Time) {
	at := c.since(now)
	for key, a := range c.accounts {
		l := c.cfg.Limits[key]
		if l == (Limits{}) && a.settled(at) {
			delete(c.accounts, key)
			continue
		}
		a.drain(at)
		a.limit(l)
	}
}

// limit sets an account's limits. A limit that is lowered leaves at most an
// empty bucket.
func (a *account) limit(l Limits) {
	a.Limits = l
	a.requests.resize(l.RequestsPerMinute)
	a.tokens.resize(l.TokensPerMinute)
}

func (a *account) drain(at time.Duration) {
	a.requests.drain(at)
	a.tokens.drain(at)
}

// settled reports whether nothing of the account is in use.
func (a *account) settled(at time.Duration) bool {
	a.drain(at)
	return a.requests.owed == 0 && a.tokens.owed == 0 && len(a.running) == 0 && a.queued == 0
}

// since is now as buckets count it: whole microseconds since the controller began.
func (c *core) since(now time.Time) time.Duration { return now.Sub(c.began).Truncate(time.Microsecond) }

// overLimits refuses what its key's limits forbid now. Of several that do, the
// one with the longest wait is named: coming back sooner would not help.
func (c *core) overLimits(now time.Time, t *Ticket, model string) *Refusal {
	b := t.tab
	if b == nil {
		return nil
	}
	a := b.of
	a.drain(c.since(now))
	c.reserve(t, model)
	if a.TokensPerMinute > 0 && b.prompt > a.TokensPerMinute {
		return &Refusal{
			Reason: ReasonRateTokens, RetryAfter: max(a.tokens.untilFull(), time.Second), NoRetry: true,
			say: sayf("the prompt has about %d tokens, and the key may use %d tokens per minute: no wait can help", b.prompt, a.TokensPerMinute),
		}
	}
	requests, tokens := a.requests.wait(1), a.tokens.wait(b.prompt+b.output)
	switch {
	case requests > 0 && requests >= tokens:
		return &Refusal{
			Reason: ReasonRateRequests, RetryAfter: requests,
			say: sayf("the key has used its %d requests per minute; the next is free in %s", a.RequestsPerMinute, roundUp(requests)),
		}
	case tokens > 0:
		return &Refusal{
			Reason: ReasonRateTokens, RetryAfter: tokens,
			say: sayf("the key may use %d tokens per minute and has %d left; about %d for this request are free in %s",
				a.TokensPerMinute, a.tokens.left(), b.prompt+b.output, roundUp(tokens)),
		}
	case a.full() && a.MaxQueued == 0:
		return a.tooMany(c.untilRoom(now, a, 0), sayf("the key has %d requests running, which is as many as it may", len(a.running)))
	}
	return nil
}

// queueOverLimit refuses what would wait beyond its key's max_queued.
func (c *core) queueOverLimit(now time.Time, t *Ticket, f forecast) *Refusal {
	a := t.account()
	if a == nil || a.MaxQueued == 0 || a.queued < a.MaxQueued || !a.full() && c.startsNow(now, t) {
		return nil
	}
	return a.tooMany(f.wait/time.Duration(a.queued+1), sayf("the key has %d requests waiting, which is as many as it may", a.queued))
}

// tooMany is the refusal of a request that could be taken when another of its
// key's ends or starts, in about wait.
func (a *account) tooMany(wait time.Duration, say func() string) *Refusal {
	return &Refusal{Reason: ReasonTooManyRunning, RetryAfter: retryAfter(wait), say: say}
}

// startsNow reports whether a request finds a free slot.
func (c *core) startsNow(now time.Time, t *Ticket) bool {
	return slices.ContainsFunc(c.usable(now, t.lane), func(m *member) bool {
		return c.roomOn(now, m) && m.rep.FreeIn(now, m.pool) >= need(m.pool, t)
	})
}

// reserve estimates the tokens of a request: its prompt, and the output that
// answers to its key have had, but no more output than a full bucket has left
// for it: that is a guess, and nobody shall be refused for ever by a guess.
func (c *core) reserve(t *Ticket, model string) {
	b := t.tab
	b.prompt, b.output = min(t.ask.PromptTokens, mostTokens), 0
	if !t.ask.NoOutput {
		b.output = min(c.expectedOutput(t, model)*max(1, t.ask.Width), mostTokens)
	}
	if most := b.of.TokensPerMinute; most > 0 {
		b.output = min(b.output, max(0, most-b.prompt))
	}
}

// charge books an accepted request.
func (b *tab) charge() {
	if b == nil {
		return
	}
	b.charged = true
	b.of.requests.take(1)
	if b.of.TokensPerMinute > 0 {
		b.reserved = b.prompt + b.output
		b.of.tokens.take(b.reserved)
	}
}

// spend notes what an attempt has used. One that failed before its client had
// anything of it, or that the replica rejected, costs no tokens.
func (b *tab) spend(r AttemptResult) {
	if b == nil {
		return
	}
	b.sent = b.sent || !r.NothingSent
	u, output := r.Usage, r.Usage.OutputTokens
	switch r.Kind {
	case ResultOK, ResultBroken, ResultSlowClient:
		if u.PromptTokens == 0 && output == 0 {
			output = b.output // it does not say
		}
	case ResultClientGone:
		if r.NothingSent {
			return
		}
	default:
		return
	}
	if u.PromptTokens == 0 {
		u.PromptTokens = b.prompt
	}
	b.used = min(u.PromptTokens+output, mostTokens)
}

// settle puts what was used in the place of what was reserved. Of a request
// that no replica has seen, nothing stays booked.
func (c *core) settle(now time.Time, b *tab) {
	if b == nil || !b.charged {
		return
	}
	b.charged = false
	b.of.drain(c.since(now))
	if !b.sent {
		b.of.requests.give(1)
	}
	if b.used > b.reserved {
		b.of.tokens.take(b.used - b.reserved)
	} else {
		b.of.tokens.give(b.reserved - b.used)
	}
}

// quota is what the key has left.
func (c *core) quota(now time.Time, a *account) Quota {
	a.drain(c.since(now))
	return Quota{Requests: a.requests.allowance(), Tokens: a.tokens.allowance()}
}

// full reports whether the key runs as many requests as it may.
func (a *account) full() bool { return a != nil && a.MaxRunning > 0 && len(a.running) >= a.MaxRunning }

// countQueued follows a request into the queue and out of it.
func (b *tab) countQueued(waits bool, work float64) {
	a := b.of
	if waits {
		b.work = work
		a.queued++
		a.work += work
		return
	}
	a.queued--
	a.work -= b.work
	b.work = 0
	if a.queued == 0 {
		a.work = 0 // what rounding has left
	}
}

// begins and ends count what a key runs.
func (a *account) begins(as *Assignment) {
	if a != nil {
		a.running = append(a.running, as)
	}
}

func (a *account) ends(as *Assignment) {
	if a == nil {
		return
	}
	if i := slices.Index(a.running, as); i >= 0 {
		a.running = slices.Delete(a.running, i, i+1)
	}
}

// holdBack keeps the next request in the queue while its key runs as many as
// it may: it moves to a lane of its key's own, which is full until one of
// those ends. The other keys' requests pass it by (R2).
func (c *core) holdBack(t *Ticket) bool {
	if !t.account().full() {
		return false
	}
	t.item.Lane.capped = t.account()
	c.q.Update(&t.item)
	return true
}

// untilRoom predicts when a key runs fewer than it may, with so much work, in
// slot-seconds, before it; 0: it does now.
func (c *core) untilRoom(now time.Time, a *account, work float64) time.Duration {
	at, ends := now.Sub(c.began), c.slotEnds[:0]
	for _, as := range a.running {
		r := &as.lease.runs.list[as.lease.place]
		ends = append(ends, r.remaining(at, as.lease.rep.Speed(as.Model).Decode()))
	}
	for range min(a.MaxRunning, mostTogether) - len(ends) {
		ends = append(ends, slotTime{})
	}
	c.slotEnds = ends
	return fill(ends, work, 0)
}

// mostTogether bounds how many places of one key are looked at.
const mostTogether = 4096

// ownWait predicts how long a request waits for its own key's max_running.
func (c *core) ownWait(now time.Time, t *Ticket) time.Duration {
	a := t.account()
	if a == nil || a.MaxRunning == 0 || len(a.running)+a.queued < a.MaxRunning {
		return 0
	}
	return c.untilRoom(now, a, a.work-t.tab.work)
}

// besideCapped is the wait of a request if those that wait for their own keys'
// max_running use up all that these may, and no more: fewer slots for it, but
// their work is not ahead of it.
func (c *core) besideCapped(now time.Time, t *Ticket, b backlog) time.Duration {
	taken := c.urgentLoad(now, t)
	_, work := c.q.Ahead(t.class.index, t.ask.Deadline, t.item.Seq, func(o lane) bool {
		if o.capped == nil || o.capped == t.account() {
			return c.compete(o, t.lane)
		}
		taken += float64(o.capped.MaxRunning)
		return false
	})
	return fill(b.slots, b.part*work, b.part*taken)
}

// roundUp leaves what a person reads and never promises too much.
func roundUp(d time.Duration) time.Duration {
	unit := time.Millisecond
	if d >= time.Second {
		unit = 100 * time.Millisecond
	}
	return (d + unit - 1).Truncate(unit)
}
