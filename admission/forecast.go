package admission

import (
	"math"
	"slices"
	"time"
)

// forecast predicts one request's way on the best replica that serves its
// lane. The parts add up to the first token:
//
//	wait    until a slot is free that no one ahead takes
//	load    of the model, where it is not resident
//	prompt  processing
//
// and rest is what then remains of the answer, which counts only where the
// client's own deadline bounds a whole answer (R4).
type forecast struct {
	wait, load, prompt, rest time.Duration
	slack                    time.Duration // what prompt and rest may take longer

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
func (f *forecast) total() time.Duration { return f.wait + f.before + f.own() }

// makeup is what a forecast wait was made of.
type makeup struct {
	ahead  int           // requests that go before it
	work   float64       // theirs, in slot-seconds
	urgent float64       // slots that more urgent classes keep busy
	mean   time.Duration // wait without the margin
}

func (f *forecast) firstToken() time.Duration { return f.wait + f.load + f.prompt }

// defaultLoad is assumed for a model that is not resident and was never seen
// to load: enough to prefer a replica that has it in memory.
const defaultLoad = 5 * time.Second

// estimate is a request's own cost on one replica.
type estimate struct {
	load, prompt, rest time.Duration
	slack              time.Duration // what of it that its deadline bounds may take longer
	known              bool
}

func (e *estimate) own() time.Duration { return e.load + e.prompt + e.rest }

// estimate predicts the cost of a request on a replica that has so many tokens
// of its prompt in its cache, without waiting.
func (c *core) estimate(m *member, t *Ticket, cached int) estimate {
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
	e.load = loading(m, t)
	e.slack = m.speed.Late(e.prompt)
	if t.ask.ClientDeadline && !t.ask.Stream {
		e.slack += c.longer(t, m)
	}
	return e
}

// doubted is what a promise may be refused for: who knows little rather accepts.
func (e estimate) doubted(m *member) estimate {
	if d := time.Duration(m.speed.Doubt()); d > 1 {
		e.prompt, e.rest, e.slack = e.prompt/d, e.rest/d, e.slack/d
	}
	return e
}

// outdatedAfter is when nothing that was learned holds for sure any more.
const outdatedAfter = time.Minute

// outdated reports whether nobody runs or has run lately on any replica of a lane:
// if everyone were refused for what was learned before, it would never be
// learned otherwise.
func (c *core) outdated(now time.Time, l lane) bool {
	for _, m := range c.usable(now, l) {
		if len(m.runs.list) > 0 || now.Sub(m.runs.learned) < outdatedAfter {
			return false
		}
	}
	return true
}

// loading is what the model still takes to be in memory.
func loading(m *member, t *Ticket) time.Duration {
	if !m.rep.Cold(t.lane.model) {
		return 0
	}
	d, known := m.speed.Load()
	if !known {
		d = defaultLoad
	}
	return d
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
	t.own, t.work = 0, 0
	likely := c.likely(c.look(t))
	for i, m := range members {
		cached := c.cachedOn(m)
		e := c.estimate(m, t, cached).doubted(m)
		if i == 0 || e.own() < best.own() {
			best = e
		}
		f := forecast{load: e.load, prompt: e.prompt, rest: e.rest, slack: e.slack, whole: whole}
		if own := f.own(); i == 0 || own < t.own {
			t.own = own
		}
		if cached != likely {
			e = c.estimate(m, t, likely).doubted(m)
		}
		t.work += float64(e.prompt+e.rest) * float64(need(m.pool, t))
	}
	if n := len(members); n > 0 {
		t.work /= float64(n) * float64(time.Second)
	}
	return best, members
}

// forecast predicts a request's way in its lane. Requests that would go before
// it and what runs are counted as work in slot-seconds, and shared among the
// slots that it can use.
func (c *core) forecast(now time.Time, t *Ticket) forecast {
	best, members := c.weigh(now, t)
	f := forecast{whole: t.ask.ClientDeadline && !t.ask.Stream, none: len(members) == 0}
	f.take(best)
	if f.none {
		return f
	}
	held, own := false, c.ownWait(now, t)
	ahead, work := c.q.Ahead(t.class.index, t.ask.Deadline, t.item.Seq, func(o lane) bool {
		held = held || o.capped != nil
		return c.compete(o, t.lane)
	})
	if own == 0 && ahead == 0 && slices.ContainsFunc(members, func(m *member) bool { return m.rep.FreeIn(now, m.pool) >= need(m.pool, t) }) {
		if c.found > 0 && t.ask.Width <= 1 {
			c.atOnce(now, t, members, &f)
		}
		return f
	}
	slots, part := c.slotTimes(now, members, t.item.Seq)
	urgent, n := c.urgentLoad(now, t), float64(max(1, len(slots)))/part
	mean, rate := fill(slots, part*work, part*urgent), max(n-urgent, 0.05*n)
	if held {
		mean = min(mean, c.besideCapped(now, t, slots, part))
	}
	if share := c.cfg.Classes[t.class.index].MinShare; share > 0 && c.q.Meter().Share(now, t.class.index) < share {
		mean, rate = min(mean, c.waitAtShare(t, slots, work, share*n)), max(rate, share*n)
	}
	mean = max(mean, own)
	f.wait = t.class.margin.stretch(mean)
	f.makeup = makeup{ahead: ahead, work: work, urgent: urgent, mean: mean}
	if c.found > 0 {
		c.inTurn(t, members, &f)
	}
	if t.back == nil || !t.back.open(now) {
		f.standing = c.standBefore(now, t, &f, rate)
	}
	return f
}

// notes lists the replicas that a forecast considered, for the record.
func (c *core) notes(now time.Time, t *Ticket, f forecast) []CandidateNote {
	members := c.usable(now, t.lane)
	out := make([]CandidateNote, 0, min(len(members), maxCandidates))
	for _, m := range members[:cap(out)] {
		cached, wait := c.cachedOn(m), f.wait
		if f.at != nil && m.rep.FreeIn(now, m.pool) > 0 {
			cached, wait = c.usableOn(m), 0
		}
		e := c.estimate(m, t, cached)
		out = append(out, CandidateNote{Replica: m.rep.Config.Name, ForecastS: (wait + e.load + e.prompt).Seconds(), CachedTokens: cached})
	}
	return out
}

// maxLooked is how many members of a lane a forecast looks at. Of a larger fleet
// every k-th tells when slots are free, another set each time: what is ahead is
// shared out among hundreds of slots then, and a part of them says it as well.
const maxLooked = 64

// slotTimes gives, for each slot of the members, the seconds until it is free;
// of many members, for the given part of them.
func (c *core) slotTimes(now time.Time, members []*member, seq uint64) (slots []float64, part float64) {
	slots = c.slotEnds[:0]
	step := 1 + (len(members)-1)/maxLooked
	looked := 0
	at := now.Sub(c.began)
	for i := int(seq % uint64(step)); i < len(members); i += step {
		m := members[i]
		looked++
		n := m.rep.FreeIn(now, m.pool)
		for range n {
			slots = append(slots, 0)
		}
		if hold := m.rep.HoldUntil.Sub(now); n == 0 && hold > 0 {
			for range m.pool.Free() {
				slots = append(slots, hold.Seconds())
			}
		}
		pace := m.speed.Decode()
		for i := range m.runs.list {
			r := &m.runs.list[i]
			left := r.remaining(at, pace)
			for range r.width {
				slots = append(slots, left)
			}
		}
	}
	c.slotEnds = slots
	return slots, float64(looked) / float64(len(members))
}

// remaining predicts how many seconds a running attempt holds its slot still:
// what is left before its first token, and what answers that are as long already
// had still to come, at so many seconds a token. Where lengths or speeds are
// unknown, one that has outlived its estimate is expected to need a part of its
// age again.
func (r *run) remaining(at time.Duration, pace float64) float64 {
	if r.lengths == nil || pace <= 0 || r.first == 0 {
		return max(r.until-at, (at-r.begun)/8).Seconds()
	}
	before := max(0, r.first-at)
	had := max(0, (at-r.first).Seconds()/pace)
	return before.Seconds() + r.lengths.rest(had, r.most)*pace
}

// urgentLoad is the number of slots that the work of more urgent classes, as
// accepted lately, keeps busy: newcomers of theirs will go first (R4).
func (c *core) urgentLoad(now time.Time, t *Ticket) (n float64) {
	span := min(flowSpan, max(time.Second, now.Sub(c.began))).Seconds()
	for i := range t.class.index {
		n += c.classes[i].flow.sum(now) / span
	}
	return n
}

// waitAtShare is the wait of a class that is served at its min_share alone:
// while it has had less, it never has to wait longer (R3). share is in slots.
func (c *core) waitAtShare(t *Ticket, slots []float64, work, share float64) time.Duration {
	for i := range t.class.index {
		work -= c.q.ClassWork(i)
	}
	level := 0.0
	if len(slots) > 0 {
		level = slices.Min(slots)
	}
	return seconds(level + max(0, work)/share)
}

// fill finds when work slot-seconds have been started on slots that are free
// after the given seconds: the T with Σ max(0, T−slot) − taken·(T−first) =
// work, as water fills a stepped basin. taken is capacity, in slots, that
// others use up meanwhile; a twentieth is always left, since an estimate of it
// can be too high.
//
// The sum is convex in T, so Newton's method settles in a handful of passes
// over the slots, where sorting them would take longer.
func fill(slots []float64, work, taken float64) time.Duration {
	if len(slots) == 0 {
		return seconds(work)
	}
	first, last := slices.Min(slots), slices.Max(slots)
	if work <= 0 {
		return seconds(first)
	}
	level := last + work/max(float64(len(slots))-taken, 0.05*float64(len(slots)))
	for range 64 {
		n, sum := 0, 0.0
		for _, s := range slots {
			if s < level {
				n++
				sum += level - s
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

// outputKey is whose answers were learned from; without a key it is everybody's.
type outputKey struct{ key, model string }

// maxOutputKeys bounds how many pairs of key and model are remembered apart;
// further ones share their model's.
const maxOutputKeys = 4096

// unknownOutput is assumed while nothing has been learned and the request
// states no maximum, in tokens.
const unknownOutput = 256

// enoughLengths is how many of a key's own answers are asked for before they
// are preferred to everybody's.
const enoughLengths = 8

// lengthsOf is what is known of the lengths of a key's answers; nil: nothing.
func (c *core) lengthsOf(key, model string) *lengths {
	own, all := c.output[outputKey{key, model}], c.output[outputKey{model: model}]
	if own != nil && (own.n >= enoughLengths || all == nil) {
		return own
	}
	return all
}

// expectedOutput predicts an answer's length, capped by the request's own maximum.
func (c *core) expectedOutput(t *Ticket, model string) int {
	n := unknownOutput
	if l := c.lengthsOf(t.key, model); l != nil {
		n = int(l.mean(t.ask.MaxTokens) + 0.5)
	}
	if t.ask.MaxTokens > 0 {
		n = min(n, t.ask.MaxTokens)
	}
	return max(n, 1)
}

func (c *core) learnOutput(t *Ticket, model string, tokens int) {
	for _, key := range [...]outputKey{{t.key, model}, {model: model}} {
		l := c.output[key]
		if l == nil {
			if len(c.output) >= maxOutputKeys {
				continue
			}
			l = &lengths{}
			c.output[key] = l
		}
		l.add(tokens)
	}
}
