package admission

import (
	"math"
	"slices"
	"time"

	"switchyard/queue"
	"switchyard/replica"
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

	at     *member       // the busy replica that is worth waiting for; nil: none is
	begins time.Duration // until a load that it needs can begin; 0: it has, or at once

	known bool // something has been learned; a forecast that knows nothing accepts
	none  bool // no available replica serves the lane
	whole bool // the deadline bounds the whole answer
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
	e := estimate{load: c.loadIn(now.Sub(c.began), r, m, t)}
	e.prompt, e.rest, e.slack, e.known = idly(&r.terms, t, cached, r.usual)
	return e
}

// estimateBehind is estimate with prompts ahead that take so long.
func (c *core) estimateBehind(now time.Time, m *member, t *Ticket, cached int, ahead time.Duration) estimate {
	terms := m.speed.Terms()
	e := estimate{load: m.loading(now.Sub(c.began), t.lane.model)}
	e.prompt, e.rest, e.slack, e.known = idly(&terms, t, cached, ahead)
	return e
}

// idly is an estimate where the model is loaded, in parts: a struct of that size
// would go through memory for each of hundreds of replicas.
func idly(s *replica.Terms, t *Ticket, cached int, ahead time.Duration) (prompt, rest, slack time.Duration, known bool) {
	prompt, rest, known = s.Predict(uncached(t, cached), t.expect)
	prompt += ahead
	slack = s.Late(prompt)
	if t.longer > 0 {
		slack += seconds(t.longer * s.Decode)
	}
	return prompt, rest, slack, known
}

// doubt leaves what a promise may be refused for: who knows little rather accepts.
func (e *estimate) doubt(s *replica.Terms) {
	e.prompt, e.rest, e.slack = s.Doubted(e.prompt), s.Doubted(e.rest), s.Doubted(e.slack)
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
// longest, in tokens.
func (c *core) longer(t *Ticket) float64 {
	l := c.lengthsOf(t.key, t.lane.model)
	if l == nil {
		return 0
	}
	return max(0, l.quantile(c.cfg.Keep, t.ask.MaxTokens)-float64(t.expect))
}

// weigh sets what depends on the request alone: its own time and its work.
func (c *core) weigh(now time.Time, t *Ticket) (best estimate, members []*member) {
	t.expect, t.longer = c.expectedOutput(t, t.lane.model), 0
	whole := t.ask.ClientDeadline && !t.ask.Stream
	if whole {
		t.longer = c.longer(t)
	}
	members = c.usable(now, t.lane)
	rows := c.rows(now, t.lane)
	least, work, at := time.Duration(math.MaxInt64), 0.0, now.Sub(c.began)
	t.own, t.work = 0, 0
	likely := c.likely(c.look(t))
	for i, m := range members {
		r, cached := &rows[i], 0
		if c.found > 0 {
			cached = c.cachedIn(r, m)
		}
		load := c.loadIn(at, r, m, t)
		prompt, rest, slack, known := idly(&r.terms, t, cached, r.usual)
		prompt, rest, slack = r.terms.Doubted(prompt), r.terms.Doubted(rest), r.terms.Doubted(slack)
		if own := load + prompt + rest; own < least {
			least, best = own, estimate{load, prompt, rest, slack, known}
		}
		own := load + prompt + slack
		if whole {
			own += rest
		}
		if i == 0 || own < t.own {
			t.own = own
		}
		if cached != likely {
			prompt, rest, _, _ = idly(&r.terms, t, likely, r.usual)
			prompt, rest = r.terms.Doubted(prompt), r.terms.Doubted(rest)
		}
		work += float64(prompt+rest) * float64(r.need(t))
	}
	if n := len(members); n > 0 {
		t.work = work / (float64(n) * float64(time.Second))
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
	if own == 0 && ahead == 0 && c.startsAtOnce(now, t, members) {
		return false
	}
	b := c.slotTimes(now, members, t)
	if f.load > 0 && !c.loadsNow(now, t) {
		f.begins = seconds(b.first)
	}
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
		if (f.at != nil || wait == 0) && m.rep.FreeIn(now, m.pool) > 0 {
			cached, wait, ahead = c.usableIn(r, m), 0, max(0, r.until-now.Sub(c.began))
		}
		prompt, _, _, _ := idly(&r.terms, t, cached, ahead)
		first := wait + c.loadIn(now.Sub(c.began), r, m, t) + prompt
		out = append(out, CandidateNote{Replica: m.rep.Config.Name, ForecastS: first.Seconds(), CachedTokens: cached})
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
	slots, rows := c.slotEnds[:0], c.rows(now, t.lane)
	c.waits = c.waits[:0]
	step := 1 + (len(members)-1)/maxLooked
	looked, first := 0, math.Inf(1)
	at := now.Sub(c.began)
	for i := int(t.item.Seq % uint64(step)); i < len(members); i += step {
		m := members[i]
		looked++
		n := 0
		if r := &rows[i]; r.room || !r.steady {
			n = m.rep.FreeIn(now, m.pool)
		}
		ready := slotTime{}
		if n > 0 {
			first = 0
		}
		if n > 0 && c.loadsTooLong(now, m, t) {
			ready.free = m.loading(at, t.lane.model).Seconds()
		}
		for range n {
			slots = append(slots, ready)
		}
		if n == 0 && !rows[i].steady {
			if hold := m.rep.HoldUntil.Sub(now); hold > 0 {
				first = min(first, hold.Seconds())
				for range m.pool.Free() {
					slots = append(slots, slotTime{free: hold.Seconds()})
				}
			}
		}
		pace := rows[i].terms.Decode
		for j := range m.runs.list {
			r := &m.runs.list[j]
			free := r.remaining(at, pace)
			first = min(first, free.free)
			for range r.width {
				slots = append(slots, free)
			}
		}
	}
	c.slotEnds = slots
	if math.IsInf(first, 1) {
		first = 0
	}
	return backlog{slots: slots, first: first, part: float64(looked) / float64(len(members))}
}

// remaining predicts how long a running attempt holds its slot still: what is
// left before its first token, and what answers that are as long already had
// still to come, at so many seconds a token. Where lengths or speeds are unknown,
// one that has outlived its estimate is expected to need a part of its age again.
func (r *run) remaining(at time.Duration, pace float64) slotTime {
	if r.lengths == nil || pace <= 0 || r.first == 0 {
		return slotTime{free: float64(max(r.until-at, (at-r.begun)/8)) / float64(time.Second)}
	}
	before, had := 0.0, 1.0 // the first token begins it
	if r.first > at {
		before = (r.first - at).Seconds()
	} else {
		had += float64(at-r.first) / (float64(time.Second) * pace)
	}
	more, spread := r.lengths.rest(had, r.most)
	return slotTime{before + more*pace, spread * pace}
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
	first, last, total := slots[0].free, slots[0].free, 0.0
	for _, s := range slots {
		total += s.free
		if s.free < first {
			first = s.free
		} else if s.free > last {
			last = s.free
		}
	}
	if work <= 0 {
		return seconds(first)
	}
	level := last + work/max(float64(len(slots))-taken, 0.05*float64(len(slots)))
	for range 64 {
		n, sum := len(slots), float64(len(slots))*level-total
		if level < last { // else it is above them all
			n, sum = 0, 0.0
			for _, s := range slots {
				if s.free < level {
					n++
					sum += level - s.free
				}
			}
		}
		if n == 0 { // so little work that it is none
			break
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
