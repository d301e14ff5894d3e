package admission

import (
	"slices"
	"time"

	"switchyard/replica"
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

	known bool // something has been learned; a forecast that knows nothing accepts
	none  bool // no available replica serves the lane
	whole bool // the deadline bounds the whole answer
	notes []CandidateNote
}

// own is what the request takes on an idle fleet.
func (f *forecast) own() time.Duration {
	if f.whole {
		return f.load + f.prompt + f.rest
	}
	return f.load + f.prompt
}

// total is what is compared with the deadline.
func (f *forecast) total() time.Duration { return f.wait + f.own() }

func (f *forecast) firstToken() time.Duration { return f.wait + f.load + f.prompt }

// defaultLoad is assumed for a model that is not resident and was never seen
// to load: enough to prefer a replica that has it in memory.
const defaultLoad = 5 * time.Second

// estimate is a request's own cost on one replica.
type estimate struct {
	load, prompt, rest time.Duration
	known              bool
}

func (e *estimate) own() time.Duration { return e.load + e.prompt + e.rest }

// estimate predicts the cost of a request on r, without waiting.
func (c *core) estimate(r *replica.Replica, t *Ticket, model string) estimate {
	sp := r.Speed(model)
	var e estimate
	p, knowP := sp.FirstToken(t.ask.PromptTokens)
	s, knowS := sp.Service(t.ask.PromptTokens, t.expect)
	e.known = knowP || knowS
	switch {
	case knowP && knowS:
		e.prompt, e.rest = min(p, s), max(0, s-p)
	case knowP:
		e.prompt = p
	case t.ask.Stream:
		e.prompt = 0 // a whole answer's time says nothing of its first token
		e.rest = s
	default:
		e.rest = s
	}
	if r.Cold(model) {
		d, known := sp.Load()
		if !known {
			d = defaultLoad
		}
		e.load = d
	}
	return e
}

// forecast predicts a request's way in lane l. Requests that would go before
// it and what runs are counted as work in slot-seconds, and shared among the
// slots that it can use.
func (c *core) forecast(now time.Time, t *Ticket, l lane) forecast {
	f := forecast{whole: t.ask.ClientDeadline && !t.ask.Stream, none: true}
	t.expect = c.expectedOutput(t, l.model)
	var best estimate
	var free bool
	slots := c.slotEnds[:0]
	for _, r := range c.fleet {
		if !r.Available(now) || !c.servesNow(now, r, l) {
			continue
		}
		e := c.estimate(r, t, l.model)
		if len(f.notes) < maxCandidates {
			f.notes = append(f.notes, CandidateNote{Replica: r.Config.Name, ForecastS: (e.load + e.prompt).Seconds()})
		}
		if f.none || e.own() < best.own() {
			best = e
		}
		f.none = false
		n := r.FreeFor(now, l.model)
		free = free || n >= min(max(1, t.ask.Width), r.Pool(l.model).Total)
		for range n {
			slots = append(slots, 0)
		}
		if hold := r.HoldUntil.Sub(now); n == 0 && hold > 0 {
			for range r.Pool(l.model).Free() {
				slots = append(slots, hold)
			}
		}
	}
	f.load, f.prompt, f.rest, f.known = best.load, best.prompt, best.rest, best.known
	if f.none {
		return f
	}
	ahead, work := c.q.Ahead(t.class.index, t.ask.Deadline, t.item.Seq, func(o lane) bool { return c.compete(now, o, l) })
	if free && ahead == 0 {
		return f
	}
	slots = c.appendRunning(now, slots, l)
	f.wait = fill(slots, work, c.urgentLoad(now, t))
	if share := c.cfg.Classes[t.class.index].MinShare; share > 0 {
		f.wait = min(f.wait, c.waitAtShare(t, slots, work, share))
	}
	for i := range f.notes {
		f.notes[i].ForecastS += f.wait.Seconds()
	}
	c.slotEnds = slots
	return f
}

// compete reports whether requests of lane o could take slots that requests of
// lane l could take.
func (c *core) compete(now time.Time, o, l lane) bool {
	if o == l {
		return true
	}
	for _, r := range c.fleet {
		if c.servesNow(now, r, o) && c.servesNow(now, r, l) && r.Pool(o.model) == r.Pool(l.model) {
			return true
		}
	}
	return false
}

// appendRunning adds, for each slot of l's replicas that an attempt holds, how
// long it will be held still.
func (c *core) appendRunning(now time.Time, slots []time.Duration, l lane) []time.Duration {
	for a := range c.active {
		if !c.servesNow(now, a.lease.rep, l) || a.lease.pool != a.lease.rep.Pool(l.model) {
			continue
		}
		left := c.remaining(now, a)
		for range a.lease.width {
			slots = append(slots, left)
		}
	}
	return slots
}

// remaining predicts how long a running attempt holds its slot still. One that
// has outlived its estimate is expected to need a part of its age again.
func (c *core) remaining(now time.Time, a *Assignment) time.Duration {
	age := now.Sub(a.lease.begun)
	if left := a.lease.until.Sub(now); left > age/8 {
		return left
	}
	return age / 8
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
// it never has to wait longer (R3).
func (c *core) waitAtShare(t *Ticket, slots []time.Duration, work, share float64) time.Duration {
	for i := range t.class.index {
		work -= c.q.ClassWork(i)
	}
	level := time.Duration(0)
	if len(slots) > 0 {
		level = slots[0]
	}
	return level + time.Duration(max(0, work)/(share*float64(max(1, len(slots))))*float64(time.Second))
}

// fill finds when work slot-seconds have been started on slots that are free
// after the given times: the T with Σ max(0, T−slot) = work, as water fills a
// stepped basin. taken is capacity, in slots, that others use up meanwhile; a
// twentieth is always left, since an estimate of it can be too high.
func fill(slots []time.Duration, work, taken float64) time.Duration {
	if len(slots) == 0 {
		return time.Duration(work * float64(time.Second))
	}
	slices.Sort(slots)
	level, rest := slots[0].Seconds(), work
	for i := range slots {
		width := max(float64(i+1)-taken, 0.05*float64(i+1))
		if i+1 == len(slots) {
			level += rest / width
			break
		}
		step := slots[i+1].Seconds() - level
		if room := step * width; room < rest {
			rest -= room
			level += step
			continue
		}
		level += rest / width
		break
	}
	return time.Duration(level * float64(time.Second))
}

// forecastQueued predicts for a request that already waits.
func (c *core) forecastQueued(now time.Time, t *Ticket) forecast {
	return c.forecast(now, t, t.lane)
}

// outputMean is the learned length of answers.
type outputMean struct {
	v float64
	n int
}

// maxOutputKeys bounds how many pairs of key and model are remembered apart;
// further ones share their model's mean.
const maxOutputKeys = 4096

// unknownOutput is assumed while nothing has been learned and the request
// states no maximum, in tokens.
const unknownOutput = 256

// expectedOutput predicts an answer's length, capped by the request's own maximum.
func (c *core) expectedOutput(t *Ticket, model string) int {
	n := unknownOutput
	if m := c.output[t.key+"\x00"+model]; m != nil {
		n = int(m.v + 0.5)
	} else if m := c.output[model]; m != nil {
		n = int(m.v + 0.5)
	}
	if t.ask.MaxTokens > 0 {
		n = min(n, t.ask.MaxTokens)
	}
	return max(n, 1)
}

func (c *core) learnOutput(t *Ticket, model string, tokens int) {
	for _, key := range [...]string{t.key + "\x00" + model, model} {
		m := c.output[key]
		if m == nil {
			if len(c.output) >= maxOutputKeys {
				continue
			}
			m = &outputMean{}
			c.output[key] = m
		}
		m.n++
		m.v += max(0.125, 1/float64(m.n)) * (float64(tokens) - m.v)
	}
}
