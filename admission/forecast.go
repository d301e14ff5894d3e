package admission

import (
	"math"
	"slices"
	"time"

	"switchyard/queue"
)

// forecast predicts one request's way on the best replica that serves its
// lane. The parts add up to the first token:
//
//	wait    until a slot is free that no one ahead takes
//	behind  other prompts there, where they are processed in their order
//	load    of the model, where it is not resident
//	prompt  processing
//
// and rest is what then remains of the answer, which counts only where the
// client's own deadline bounds a whole answer (R4).
type forecast struct {
	wait, load, prompt, rest time.Duration
	slack                    time.Duration // what prompt and rest may take longer
	behind                   time.Duration // as told for a slot that is free or awaited; else the usual is in prompt
	ordered                  time.Duration // wait if deadlines alone decided inside the class
	turn                     queue.Turn    // where another request of its lane stands in its way

	standing // what has been booked before it
	makeup   // what the wait was made of

	at    *member // the busy replica that is worth waiting for; nil: none is
	known bool    // something has been learned; a forecast that knows nothing accepts
	none  bool    // no available replica serves the lane
	whole bool    // the deadline bounds the whole answer
}

func (f *forecast) take(e estimate) {
	f.load, f.prompt, f.rest, f.slack, f.known = e.load, e.prompt, e.rest, e.slack, e.known
}

// own is what the request takes on an idle fleet.
func (f *forecast) own() time.Duration {
	if f.whole {
		return f.load + f.prompt + f.rest + f.slack
	}
	return f.load + f.prompt + f.slack
}

// total is what is compared with the deadline.
func (f *forecast) total() time.Duration { return f.wait + f.before + f.behind + f.own() }

// makeup is what a forecast wait was made of.
type makeup struct {
	ahead  int           // requests that go before it
	work   float64       // theirs, in slot-seconds
	urgent float64       // slots that more urgent classes keep busy
	rate   float64       // slots that work off what is accepted
	fair   float64       // of them, those that are its key's; 0: all
	mean   time.Duration // wait without the margin
}

func (f *forecast) firstToken() time.Duration { return f.wait + f.behind + f.load + f.prompt }

// estimate is a request's own cost on one replica.
type estimate struct {
	load, prompt, rest time.Duration // prompt with the prompts before it
	slack              time.Duration // what of it that its deadline bounds may take longer
	known              bool
}

func (e *estimate) own() time.Duration { return e.load + e.prompt + e.rest }

// estimate predicts the cost of a request on a replica that has so many tokens
// of its prompt in its cache, without waiting, at a time when other prompts are
// ahead of it there as usual.
func (c *core) estimate(now time.Time, r *row, m *member, t *Ticket, cached int) estimate {
	e := c.idly(m, t, cached, r.usual)
	e.load = c.loadIn(now.Sub(c.began), r, m, t)
	return e
}

// estimateBehind is estimate with prompts ahead that take so long.
func (c *core) estimateBehind(now time.Time, m *member, t *Ticket, cached int, ahead time.Duration) estimate {
	e := c.idly(m, t, cached, ahead)
	e.load = m.loading(now.Sub(c.began), t.lane.model)
	return e
}

// idly is an estimate where the model is loaded.
func (c *core) idly(m *member, t *Ticket, cached int, ahead time.Duration) estimate {
	var e estimate
	tokens := uncached(t, cached)
	p, knowP := m.speed.FirstToken(tokens)
	s, knowS := m.speed.Service(tokens, t.expect)
	e.known = knowP || knowS
	switch {
	case knowP && knowS:
		e.prompt, e.rest = min(p, s), max(0, s-p)
	case knowP:
		e.prompt = p
	default:
		e.rest = s // a whole answer's time says nothing of its first token
	}
	e.prompt += ahead
	e.slack = m.speed.Late(e.prompt)
	if t.ask.ClientDeadline && !t.ask.Stream {
		e.slack += c.longer(t, m)
	}
	return e
}

// doubt leaves what a promise may be refused for: who knows little rather accepts.
func (e *estimate) doubt(m *member) {
	if d := time.Duration(m.speed.Doubt()); d > 1 {
		e.prompt, e.rest, e.slack = e.prompt/d, e.rest/d, e.slack/d
	}
}

// outdatedAfter is when nothing that was learned holds for sure any more.
const outdatedAfter = time.Minute

// outdated reports whether nobody runs or has run lately on any replica of a lane:
// if everyone were refused for what was learned before, it would never be
// learned otherwise. So it is while no replica has the model in memory: if everyone
// were refused who cannot wait for a load, none would ever be begun. Where no slot
// is free, one may wait to find out; the others could only be late with it.
func (c *core) outdated(now time.Time, t *Ticket) bool {
	absent, idle := true, true
	for _, m := range c.usable(now, t.lane) {
		absent = absent && m.cold(t.lane.model) && !m.rep.Facts.Loading && !m.runs.with(t.lane.model)
		idle = idle && len(m.runs.list) == 0 && now.Sub(m.runs.learned) >= outdatedAfter
	}
	return (absent || idle) && (c.startsNow(now, t) || !c.waitsFor(now, t.lane.model))
}

// waitsFor reports whether somebody waits for a model.
func (c *core) waitsFor(now time.Time, model string) bool {
	n, _ := c.q.Ahead(len(c.classes)-1, now.Add(math.MaxInt64), math.MaxUint64, func(l lane) bool { return l.model == model })
	return n > 0
}

// longer is how much longer than expected an answer may be, but for the
// longest, in time.
func (c *core) longer(t *Ticket, m *member) time.Duration {
	l := c.lengthsOf(t.key, t.lane.model)
	if l == nil {
		return 0
	}
	return seconds(max(0, l.quantile(c.cfg.Keep, t.ask.MaxTokens)-float64(t.expect)) * m.speed.Decode())
}

// weigh sets what depends on the request alone: its own time and its work.
func (c *core) weigh(now time.Time, t *Ticket) (best estimate, members []*member) {
	t.expect = c.expectedOutput(t, t.lane.model)
	whole := t.ask.ClientDeadline && !t.ask.Stream
	members = c.usable(now, t.lane)
	rows := c.rows(now, t.lane)
	t.own, t.work = 0, 0
	likely := c.likely(c.look(t))
	for i, m := range members {
		r := &rows[i]
		cached := c.cachedIn(r, m)
		e := c.estimate(now, r, m, t, cached)
		e.doubt(m)
		if i == 0 || e.own() < best.own() {
			best = e
		}
		own := e.load + e.prompt + e.slack
		if whole {
			own += e.rest
		}
		if i == 0 || own < t.own {
			t.own = own
		}
		if cached != likely {
			e = c.estimate(now, r, m, t, likely)
			e.doubt(m)
		}
		t.work += float64(e.prompt+e.rest) * float64(need(m.pool, t))
	}
	if n := len(members); n > 0 {
		t.work /= float64(n) * float64(time.Second)
	}
	return best, members
}

// forecast predicts a request's way in its lane.
func (c *core) forecast(now time.Time, t *Ticket) forecast {
	best, members := c.weigh(now, t)
	f := forecast{whole: t.ask.ClientDeadline && !t.ask.Stream, none: len(members) == 0}
	f.take(best)
	if f.none {
		return f
	}
	if f.load > 0 && !slices.ContainsFunc(members, func(m *member) bool { return !c.loadsTooLong(now, m, t) }) {
		f.known = true // if nothing else is: dispatch will send it nowhere before
	}
	c.describe(t)
	if c.queueing(now, t, members, &f) {
		if c.found > 0 {
			c.inTurn(now, t, members, &f)
		}
		f.standing = c.standBefore(now, t, &f)
		if t.back != nil && t.back.open(now) { // in its time, it stands where it would have stood
			f.before = 0
		}
	} else if t.ask.Width <= 1 && (c.found > 0 || c.prompting(now, members)) {
		c.atOnce(now, t, members, &f)
	}
	return f
}

// queueing predicts how long a request waits; it is false where it need not.
// Requests that would go before it and what runs are counted as work in
// slot-seconds, and shared among the slots that it can use.
func (c *core) queueing(now time.Time, t *Ticket, members []*member, f *forecast) bool {
	own, held := c.ownWait(now, t), 0.0 // slots of those that wait for their own keys, and are due no more
	ahead, work := c.q.Ahead(t.class.index, t.ask.Deadline, t.item.Seq, func(o lane) bool {
		if o.capped != nil && o.capped != t.account() {
			held += float64(o.capped.MaxRunning)
		}
		return c.compete(o, t.lane)
	})
	if own == 0 && ahead == 0 && slices.ContainsFunc(members, func(m *member) bool {
		return m.rep.FreeIn(now, m.pool) >= need(m.pool, t) && !c.loadsTooLong(now, m, t)
	}) {
		return false
	}
	b := c.slotTimes(now, members, t)
	b.during(f.load)
	urgent := c.urgentLoad(now, t)
	b.work, b.ahead, b.taken = work, float64(ahead), b.part*urgent
	n, margin := float64(len(b.slots)), &t.class.margin
	t.item.Slots = max(n-b.taken, 0.05*n) / b.part / margin.factor()
	f.turn = c.q.Turn(&t.item, func(o lane) bool {
		return (o.capped == nil || o.capped == t.account()) && c.compete(o, t.lane)
	})
	b.own = work - f.turn.Urgent
	f.ordered = c.wait(now, t, b)
	if held > 0 {
		f.ordered = min(f.ordered, c.besideCapped(now, t, b))
	}
	f.wait = f.ordered
	if f.turn.Others > 0 || !t.class.claims.alone(t.key) {
		b.taken += b.part * held
		f.wait = c.shared(now, t, f, b)
	}
	f.makeup = makeup{fair: f.fair, ahead: ahead, work: work, urgent: urgent, rate: c.rate(now, t, n/b.part, urgent), mean: max(f.wait, own)}
	f.ordered, f.wait = margin.stretch(max(f.ordered, own)), margin.stretch(f.mean)
	return true
}

// rate is how many of n slots are left to a class by more urgent ones.
func (c *core) rate(now time.Time, t *Ticket, n, urgent float64) float64 {
	rate := max(n-urgent, 0.05*n, 1e-3)
	if share := c.cfg.Classes[t.class.index].MinShare; share > 0 && c.q.Meter().Share(now, t.class.index) < share {
		rate = max(rate, share*n)
	}
	return rate
}

// notes lists the replicas that a forecast considered, for the record.
func (c *core) notes(now time.Time, t *Ticket, f forecast) []CandidateNote {
	members, rows := c.usable(now, t.lane), c.rows(now, t.lane)
	out := t.record.candidates // has room
	for i, m := range members[:min(len(members), maxCandidates)] {
		r := &rows[i]
		cached, wait, ahead := c.cachedIn(r, m), f.wait, r.usual
		if m.rep.FreeIn(now, m.pool) > 0 && (f.at != nil || wait == 0) {
			cached, wait, ahead = c.usableIn(r, m), 0, max(0, r.until-now.Sub(c.began))
		}
		e := c.idly(m, t, cached, ahead)
		e.load = c.loadIn(now.Sub(c.began), r, m, t)
		out = append(out, CandidateNote{Replica: m.rep.Config.Name, ForecastS: (wait + e.load + e.prompt).Seconds(), CachedTokens: cached})
	}
	return out
}

// maxLooked is how many members of a lane a forecast looks at. Of a larger fleet
// every k-th tells when slots are free, another set each time: what is ahead is
// shared out among hundreds of slots then, and a part of them says it as well.
const maxLooked = 64

// slotTimes gives, for each slot of the members, when it is free; of many
// members, for a part of them.
func (c *core) slotTimes(now time.Time, members []*member, t *Ticket) (b backlog) {
	slots := c.slotEnds[:0]
	step := 1 + (len(members)-1)/maxLooked
	looked := 0
	at := now.Sub(c.began)
	for i := int(t.item.Seq % uint64(step)); i < len(members); i += step {
		m := members[i]
		looked++
		n := m.rep.FreeIn(now, m.pool)
		ready := slotTime{}
		if n > 0 && c.loadsTooLong(now, m, t) {
			ready.free = m.loading(at, t.lane.model).Seconds()
		}
		for range n {
			slots = append(slots, ready)
		}
		if hold := m.rep.HoldUntil.Sub(now); n == 0 && hold > 0 {
			for range m.pool.Free() {
				slots = append(slots, slotTime{free: hold.Seconds()})
			}
		}
		pace := m.speed.Decode()
		for i := range m.runs.list {
			r := &m.runs.list[i]
			free := r.remaining(at, pace)
			for range r.width {
				slots = append(slots, free)
			}
		}
	}
	c.slotEnds = slots
	return backlog{slots: slots, part: float64(looked) / float64(len(members))}
}

// remaining predicts how long a running attempt holds its slot still: what is
// left before its first token, and what answers that are as long already had
// still to come, at so many seconds a token. Where lengths or speeds are unknown,
// one that has outlived its estimate is expected to need a part of its age again.
func (r *run) remaining(at time.Duration, pace float64) slotTime {
	if r.lengths == nil || pace <= 0 || r.first == 0 {
		return slotTime{free: max(r.until-at, (at-r.begun)/8).Seconds()}
	}
	before := max(0, r.first-at)
	had := 1 + max(0, (at-r.first).Seconds()/pace) // the first token begins it
	more, spread := r.lengths.rest(had, r.most)
	return slotTime{before.Seconds() + more*pace, spread * pace}
}

// urgentLoad is the number of the slots that a request can use, which the work of
// more urgent classes, as
// accepted lately, keeps busy: newcomers of theirs will go first (R4).
func (c *core) urgentLoad(now time.Time, t *Ticket) (n float64) {
	for i := range t.class.index {
		for _, f := range c.classes[i].flows {
			if c.compete(f.lane, t.lane) {
				n += f.rate(now)
			}
		}
	}
	return n
}

// fill finds when work slot-seconds have been started on slots that are free
// after the given seconds: the T with Σ max(0, T−slot) − taken·(T−first) =
// work, as water fills a stepped basin. taken is capacity, in slots, that
// others use up meanwhile; a twentieth is always left, since an estimate of it
// can be too high.
//
// The sum is convex in T, so Newton's method settles in a handful of passes
// over the slots, where sorting them would take longer.
func fill(slots []slotTime, work, taken float64) time.Duration {
	if len(slots) == 0 {
		return seconds(work)
	}
	first, last := slots[0].free, slots[0].free
	for _, s := range slots {
		first, last = min(first, s.free), max(last, s.free)
	}
	if work <= 0 {
		return seconds(first)
	}
	level := last + work/max(float64(len(slots))-taken, 0.05*float64(len(slots)))
	for range 64 {
		n, sum := 0, 0.0
		for _, s := range slots {
			if s.free < level {
				n++
				sum += level - s.free
			}
		}
		width := max(float64(n)-taken, 0.05*float64(n))
		over := sum - min(taken, 0.95*float64(n))*(level-first) - work
		step := over / width
		if math.Abs(step) < 1e-6 {
			break
		}
		level -= step
	}
	return seconds(max(level, first))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
