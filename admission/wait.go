package admission

import (
	"math"
	"time"
)

// backlog is what a request waits for: work, and the slots that do it.
type backlog struct {
	slots []slotTime
	first float64 // when the first of them is free, in seconds, whatever has to be loaded
	part  float64 // of all slots that these are
	ahead float64 // requests that go before it
	work  float64 // slot-seconds of those
	own   float64 // of that in its own class
	taken float64 // of these slots, those that others keep busy meanwhile

	varied float64 // squared coefficient of variation of the time that a slot is held, at most 1
}

// slotTime is when a slot is expected to be free, in seconds from now, and one
// standard deviation of that.
type slotTime struct{ free, spread float64 }

// during leaves out of the slots' times what passes while a model is loaded that
// the request needs: it does not wait for that twice.
func (b *backlog) during(load time.Duration) {
	if load == 0 {
		return
	}
	for i := range b.slots {
		s := &b.slots[i]
		s.free = max(0, s.free-load.Seconds())
		s.spread = min(s.spread, s.free)
	}
}

// wait forecasts how long a request's backlog takes, before it is calibrated.
func (c *core) wait(now time.Time, t *Ticket, b backlog) time.Duration {
	asked := [...]float64{b.ahead, b.work, b.own, b.taken}
	for _, w := range c.waits {
		if w.asked == asked {
			return w.wait
		}
	}
	wait := c.newWait(now, t, b)
	c.waits = append(c.waits, waited{asked, wait})
	return wait
}

// waited is a wait that has been forecast for the slots looked at last: a request
// that nobody goes before waits as long in its fair turn as in order of deadlines.
type waited struct {
	asked [4]float64
	wait  time.Duration
}

func (c *core) newWait(now time.Time, t *Ticket, b backlog) time.Duration {
	wait := fill(b.slots, b.part*b.work, b.taken)
	if l := c.lengthsOf(t.key, t.lane.model); l != nil {
		b.varied = min(1, l.varied())
		wait = b.turn(wait)
	} else if few := float64(len(b.slots)) / 2; b.part*b.ahead < few-1 {
		wait = b.turn(wait)
	}
	if share := c.cfg.Classes[t.class.index].MinShare; share > 0 && c.q.Meter().Share(now, t.class.index) < share {
		wait = min(wait, b.waitAtShare(share))
	}
	return wait
}

// waitAtShare is the wait in a class that is served at its min_share alone: while
// it has had less, it never has to wait longer (R3).
func (b *backlog) waitAtShare(share float64) time.Duration {
	level := 0.0
	for i, s := range b.slots {
		if i == 0 || s.free < level {
			level = s.free
		}
	}
	return seconds(level + max(0, b.own)*b.part/(share*float64(max(1, len(b.slots)))))
}

// sureness is by how many standard deviations more slots than needed must be
// expected to have become free before a turn is taken to have come. Margins
// calibrate the rest, but where a few answers are all that one waits for they
// take long to learn it.
const sureness = 1

// turn is when as many slots have become free as stand ahead, and one more: the
// slots at work now, and those that have been worked on since. What runs is half
// done by then, so that is sooner than the work ahead divided by the slots is,
// which is never before most; and the first of many slots to be free is one that
// was expected later.
func (b *backlog) turn(most time.Duration) time.Duration {
	if len(b.slots) == 0 {
		return most
	}
	var looked [maxLooked]ending
	s := b.starts(looked[:0])
	low, high := 0.0, most.Seconds()
	short, over := s.over(low), s.over(high)
	if over < 0 {
		return most
	}
	// False position (Illinois) settles in a handful of steps, and is near enough
	// where ends are certain and it does not.
	for range 16 {
		if short >= 0 || high-low <= 0.002*high {
			break
		}
		mid := (low*over - high*short) / (over - short)
		if at := s.over(mid); at < 0 {
			low, short, over = mid, at, over/2
		} else {
			high, over, short = mid, at, short/2
		}
	}
	if short >= 0 {
		return 0
	}
	return seconds(high)
}

// starts counts how often slots of a backlog become free.
type starts struct {
	slots  []ending
	varied float64 // backlog's
	part   float64 // of all slots, that these are
	rate   float64 // of those who are ahead, that one slot serves in a second
	after  float64 // seconds less that its slot is free the sooner for having begun together
	want   float64 // times
}

// ending is when what runs in a slot ends: no sooner than then, later by spread on
// average.
type ending struct{ soonest, spread, inverse float64 }

// starts lays a backlog's slots out in room that has at least maxLooked.
func (b *backlog) starts(room []ending) starts {
	n := float64(len(b.slots))
	s := starts{varied: b.varied, slots: room}
	for i, step := 0, 1+len(b.slots)/maxLooked; i < len(b.slots); i += step { // of hundreds a part tells it as well
		x := b.slots[i]
		s.slots = append(s.slots, ending{x.free - x.spread, x.spread, 1 / x.spread})
	}
	ahead := 0.0
	if b.ahead > 0 && b.work > 0 {
		ahead = b.ahead
		each := b.work / b.ahead
		s.after, s.rate = each*(1-b.varied)/2, 1/each
	}
	s.part = b.part * float64(len(s.slots)) / n
	s.want = s.part * ((ahead+1)/max(1-b.taken/n, 0.05) - 0.5)
	return s
}

// over is how many more times than wanted slots are expected to have become free
// by then, less what that is uncertain by. What runs ends no sooner than one
// standard deviation before it is expected, then at any moment; what follows it
// is spread as answers are.
func (s *starts) over(then float64) float64 {
	mean, variance := 0.0, 0.0
	for i := range s.slots {
		x := &s.slots[i]
		past := then - x.soonest
		if past < 0 {
			continue
		}
		free, since := 1.0, past-x.spread-s.after
		if x.spread > 1e-3 {
			left := past - s.after
			u, v := grown(past*x.inverse), grown(max(0, left)*x.inverse)
			both := 1 / (u * v) // one division for two
			free = 1 - v*both
			since = left - x.spread*(1-u*both)
		}
		again := max(0, since) * s.rate
		mean += free + again
		variance += free*(1-free) + s.varied*again
	}
	return mean - sureness*math.Sqrt(s.part*variance) - s.want
}

// grown is e^u for u ≥ 0 as far as 1 − 1/grown is 1 − e^−u to within a hundredth.
func grown(u float64) float64 { return 1 + u*(1+u*(0.5+u*(1.0/6+u*(1.0/24)))) }
