package admission

import (
	"slices"
	"time"

	"switchyard/affinity"
	"switchyard/breaker"
	"switchyard/replica"
)

// memory is what is known of prompt caches, and who waits for one (R6).
type memory struct {
	prompts *affinity.Index // nil: affinity is off
	reuse   float64         // of the tokens that some cache holds, the share found where requests went, lately

	// Of the request looked up last: what each cache holds of its prompt, and
	// the most that any does.
	cached []int
	found  int

	waitlist   map[*Ticket]struct{} // requests that wait for a busy replica's cache
	candidates []candidate          // scratch of choose
	ends       []float64            // scratch of nextEnd
}

func (y *memory) init(on bool) {
	y.reuse = 0.5
	y.waitlist = map[*Ticket]struct{}{}
	y.turn(on)
}

// turn turns affinity on or off. What is remembered survives a reload that
// leaves it on.
func (y *memory) turn(on bool) {
	switch {
	case !on:
		y.prompts = nil
	case y.prompts == nil:
		y.prompts = affinity.New()
	}
}

// look looks a request's prompt up in all caches, for cachedOn. It returns the
// most that any holds.
func (c *core) look(t *Ticket) int {
	c.found = 0
	if c.prompts != nil && len(t.ask.Chain) > 0 {
		c.cached = slices.Grow(c.cached[:0], c.prompts.Len())[:c.prompts.Len()]
		c.found = c.prompts.Lookup(t.ask.Chain, c.cached)
	}
	return c.found
}

// cachedOn is how much of the prompt looked up last a member holds, in any slot;
// usable is how much of it in slots that are idle.
func (c *core) cachedOn(m *member) int {
	if c.found == 0 || m.caches == nil {
		return 0
	}
	return m.caches.Held(c.cached, true)
}

func (c *core) usableOn(m *member) int {
	if c.found == 0 || m.caches == nil {
		return 0
	}
	return m.caches.Held(c.cached, false)
}

// likely is how much of a prompt a request is to find in the end, where some
// cache holds so much of it.
func (c *core) likely(most int) int { return int(c.reuse * float64(most)) }

// learnReuse learns from a request that went where so much of its prompt was.
func (c *core) learnReuse(cached, most int) {
	if most > 0 {
		c.reuse += 0.05 * (float64(cached)/float64(most) - c.reuse)
	}
}

// affinity names what came of it.
func (c *core) affinity(t *Ticket, cached int) Affinity {
	switch {
	case c.prompts == nil || len(t.ask.Chain) == 0:
		return AffinityNone
	case cached == 0:
		return AffinityMiss
	}
	return AffinityHit
}

// uncached is how many prompt tokens are left to process where so many are cached.
func uncached(t *Ticket, cached int) int {
	if cached == 0 {
		return t.ask.PromptTokens
	}
	return max(t.ask.PromptTokens-cached, 1)
}

// atOnce forecasts a request that nothing stands ahead of while a slot is free:
// on the best replica with one, or on a busy one after a wait.
func (c *core) atOnce(now time.Time, t *Ticket, members []*member, f *forecast) {
	least, _ := c.gather(now, t, members)
	var best candidate
	for _, x := range c.candidates {
		if x.cost == least {
			best = x
			break
		}
	}
	if best.m == nil {
		return // what is free is owed
	}
	if b := c.better(now, t, members, best); b.m != nil {
		f.at, f.wait = b.m, b.wait
		c.behind(now, t, f, b.m, b.ahead)
		return
	}
	c.behind(now, t, f, best.m, best.m.pool.Prompting.Ahead(now.Sub(c.began)))
}

// behind takes the estimate for a replica where other prompts are ahead for so long.
func (c *core) behind(now time.Time, t *Ticket, f *forecast, m *member, ahead time.Duration) {
	cached := c.usableOn(m)
	if f.at != nil {
		cached = c.cachedOn(m)
	}
	e := c.estimateBehind(now, m, t, cached, ahead)
	doubt := m.speed.Terms()
	e.doubt(&doubt)
	f.take(e)
	f.behind = min(ahead, e.prompt)
	f.prompt -= f.behind
	f.mean = f.wait + f.behind
	f.opens = max(0, f.total()-t.ask.Deadline.Sub(now))
}

// inTurn forecasts a request whose turn comes after a wait: it then takes
// whatever slot is free, with no more of its prompt cached than every replica
// has, or waits on for a slot where it is.
func (c *core) inTurn(now time.Time, t *Ticket, members []*member, f *forecast) {
	least, rows := c.found, c.rows(now, t.lane)
	for i, m := range members {
		least = min(least, c.cachedIn(&rows[i], m))
	}
	var any estimate
	for i, m := range members {
		if e := c.estimate(now, &rows[i], m, t, least); i == 0 || e.own() < any.own() {
			any = e
		}
	}
	f.take(any)
	wait, first := f.wait, any.load+any.prompt
	for i, m := range members {
		cached := c.cachedIn(&rows[i], m)
		if cached <= least {
			continue
		}
		// One of n slots ends about every n-th of what a request holds one.
		e := c.estimate(now, &rows[i], m, t, cached)
		gap := e.own() * time.Duration(1+m.runs.listed) / time.Duration(max(1, len(m.runs.list)))
		if d := gap + e.load + e.prompt; d < first {
			first = d
			f.take(e)
			f.wait = wait + gap
		}
	}
}

// berth is a busy replica that is worth waiting for.
type berth struct {
	m     *member
	wait  time.Duration
	ahead time.Duration // of other prompts, after the wait
	first time.Duration // to the first token, the wait included
	until time.Time     // no longer
}

// better finds the busy replica, if there is one, that holds so much of a prompt
// that its first token would come sooner there than on the best free one, wait
// included (R2's exception, R6). The wait is bounded by what it is to save, and
// by the deadline that the free replica would still meet after it.
//
// What it is to save is the processing of what is cached. While more than half
// of the slots are busy, that would hold up others, too, for their prompts and
// tokens go through the same batches: it then counts for more, up to twice where
// all are. Without that a busy fleet computes ever more anew and is ever busier.
func (c *core) better(now time.Time, t *Ticket, members []*member, free candidate) (best berth) {
	if c.found == 0 || t.ask.Width > 1 || c.usableOn(free.m) >= c.found {
		return best
	}
	rows := c.rows(now, t.lane)
	worth := 1 + max(0, 2*busy(rows)-1)
	for i, m := range members {
		if x := &rows[i]; c.cachedIn(x, m) == 0 || !c.worthy(now, m, free.m) {
			continue
		}
		wait, ok := c.nextEnd(now, m)
		ahead := m.pool.Prompting.Ahead(now.Add(wait).Sub(c.began))
		e := c.estimateBehind(now, m, t, c.cachedOn(m), ahead)
		own := e.load + e.prompt
		saves := time.Duration(worth * float64(free.own-own))
		if !e.known || saves <= alike(own) {
			continue
		}
		first := wait + own
		if !ok || wait+alike(wait) >= saves || best.m != nil && first >= best.first {
			continue
		}
		until := c.patience(now, t, free, saves)
		if !now.Add(wait).Before(until) {
			continue
		}
		best = berth{m, wait, ahead, first, until}
	}
	return best
}

// busy is the share of the members' slots that are taken.
func busy(rows []row) float64 {
	held, total := 0, 0
	for i := range rows {
		held += int(rows[i].held)
		total += int(rows[i].total)
	}
	return min(1, float64(held)/float64(max(total, 1)))
}

// worthy reports whether a replica that has no room is only busy, and would be
// preferred to the free one if it were not.
func (c *core) worthy(now time.Time, m, free *member) bool {
	r := m.rep
	return m.rep.FreeIn(now, m.pool) == 0 && !r.Facts.Loading && r.Flagged == "" && r.Config.Tier <= free.rep.Config.Tier &&
		r.Breaker.State(now) == breaker.Closed && (len(c.bound) == 0 || !c.owes(m.pool))
}

// patience is until when a request may wait for a replica that saves it so much
// over the free one.
func (c *core) patience(now time.Time, t *Ticket, free candidate, saves time.Duration) time.Time {
	until := now.Add(saves)
	if !t.listed.first.IsZero() && t.listed.first.Before(until) {
		until = t.listed.first // it has waited before, and for no longer than was said then
	}
	if c.cfg.Enabled && !c.cfg.Observe && !t.ask.Deadline.IsZero() && !t.judged {
		e := c.estimateBehind(now, free.m, t, c.usableOn(free.m), free.m.pool.Prompting.Ahead(now.Sub(c.began)))
		if last := t.ask.Deadline.Add(-free.own - e.slack); last.Before(until) {
			until = last
		}
	}
	return until
}

// nextEnd predicts when a slot of a busy replica is free for one more than those
// who wait for one there already: between the moment that what is expected of
// each attempt gives, as if that were certain, and the one that it gives if their
// ends had no memory. Of several uncertain ends the first comes sooner than any
// is expected.
func (c *core) nextEnd(now time.Time, m *member) (time.Duration, bool) {
	if m.runs.listed >= len(m.runs.list) {
		return 0, false
	}
	c.ends = c.ends[:0]
	at, pace := now.Sub(c.began), m.speed.Decode()
	rate := 0.0
	for i := range m.runs.list {
		left := max(m.runs.list[i].remaining(at, pace).free, 1e-3)
		c.ends = append(c.ends, left)
		rate += 1 / left
	}
	slices.Sort(c.ends)
	k := m.runs.listed
	wait := (c.ends[k] + min(c.ends[k], float64(k+1)/rate)) / 2
	return max(seconds(wait), m.rep.HoldUntil.Sub(now)), true
}

// estimateNow is the estimate for a replica that a request would be sent to at
// once, and how much of its prompt is there.
func (c *core) estimateNow(now time.Time, r *replica.Replica, t *Ticket) (e estimate, cached int) {
	m := member{rep: r, pool: r.Pool(t.lane.model), speed: r.Speed(t.lane.model)}
	m.runs = c.runsOn(m.pool)
	if caches := r.Caches(t.lane.model); caches != nil {
		cached = caches.HeldNow(t.ask.Chain)
	}
	return c.estimateBehind(now, &m, t, cached, m.pool.Prompting.Ahead(now.Sub(c.began))), cached
}

// occupy notes that a request goes to a replica whose slot it has.
func (c *core) occupy(a *Assignment, m *member) {
	if m.caches == nil || len(a.ticket.ask.Chain) == 0 {
		return
	}
	if a.lease.cold {
		m.caches.Forget()
	}
	a.lease.caches, a.lease.slot = m.caches, m.caches.Take(a.ticket.ask.Chain)
	// Foreign work would be in a slot that we do not know.
	if m.caches.Pinned() && a.lease.slot >= 0 && a.ticket.ask.Width <= 1 && m.pool.Foreign == 0 {
		a.Pinned, a.Slot = true, a.lease.slot
	}
}

// vacate notes that the replica has done with it.
func (l *lease) vacate() {
	if l.caches != nil {
		l.caches.Give(l.slot)
	}
}

// filled notes that a replica has processed a request's prompt: it is in its
// cache now. That is noted when the first token has come and not when the
// request is sent: until then other requests find nothing there, and an attempt
// that fails would have to be taken back. Of many that come at once with the same
// beginning, the first few so spread by themselves.
func (c *core) filled(now time.Time, a *Assignment) {
	if l := &a.lease; !l.filled && l.caches != nil {
		l.filled = true
		l.caches.Fill(now, l.slot, a.ticket.ask.Chain)
	}
}

// processed follows up on an attempt's end: what it says of the cache corrects
// the index.
func (c *core) processed(now time.Time, a *Assignment, r AttemptResult) {
	l := &a.lease
	if l.caches == nil || r.Kind != ResultOK && r.FirstTokenAt.IsZero() {
		return
	}
	if r.Usage.Load > loadNoise && !l.cold {
		l.caches.Forget() // it was loaded anew, and nobody had told us
		l.filled = false
	}
	c.filled(now, a)
	cached, sure := c.cachedTokens(a, r.Usage)
	if !sure || r.Kind != ResultOK || a.ticket.ask.Width > 1 {
		return
	}
	if all := r.Usage.PromptTokens; all > 0 { // in the index's tokens, which are estimates
		cached = int(float64(cached) * float64(a.ticket.ask.PromptTokens) / float64(all))
	}
	l.caches.Correct(l.cached, cached)
}

// loadNoise is below what a real load takes.
const loadNoise = 200 * time.Millisecond

// expectsCache reports whether enough of the prompt was expected in the cache to
// matter for how long it takes.
func (a *Assignment) expectsCache() bool { return 8*a.lease.cached > a.ticket.ask.PromptTokens }

// cachedTokens is how many prompt tokens came from the cache: as the answer
// says; where it does not say and some were expected, as the time for the prompt
// tells. sure is false where that is neither a hit's nor a miss's.
func (c *core) cachedTokens(a *Assignment, u Usage) (tokens int, sure bool) {
	switch {
	case u.CacheSaid || u.CachedTokens > 0:
		return u.CachedTokens, true
	case !a.expectsCache():
		return 0, true
	case u.Prompt <= 0:
		return 0, false
	}
	prompt := a.ticket.ask.PromptTokens
	s := a.lease.rep.Speed(a.Model)
	whole, known := s.FirstToken(prompt + a.lease.between)
	rest, _ := s.FirstToken(max(prompt-a.lease.cached, 1) + a.lease.between)
	hit, miss := rest+rest/2, whole-whole/4
	switch {
	case !known || hit >= miss:
		return 0, false
	case u.Prompt >= miss:
		return 0, true
	case u.Prompt <= hit:
		if u.PromptTokens > 0 {
			return int(float64(a.lease.cached) * float64(u.PromptTokens) / float64(prompt)), true
		}
		return a.lease.cached, true
	}
	return 0, false
}
