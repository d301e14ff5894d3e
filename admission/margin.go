package admission

import (
	"math"
	"time"
)

// margin calibrates the forecast wait of one class, so that the share of
// promises kept converges to the target whatever the shape of service times
// (R5): a forecast is multiplied by e^log. Each promise that was put to the
// test moves log up by step × (1 − may) when it was broken and down by
// step × may when it was kept, so it stands still on average only where
// exactly may of them are broken. That is adaptive conformal inference (Gibbs
// and Candès, 2021, arXiv:2106.00170) on the ratio of the actual wait to the
// forecast; it assumes nothing of how service times are distributed or drift.
//
// A promise's end is known only when those before it have been served. The
// step is therefore the smaller the more wait: else the margin would run away
// while it waits for the first sign that it has gone too far.
//
// The target is for all promises. Those whose wait is short are hardly ever broken,
// so where they are many, more of those put to the test may be: what is left of it.
type margin struct {
	log  float64
	easy float64 // share of the promises made lately whose wait is short
	lost float64 // share of those ended lately that were broken without having been put to the test
}

const (
	marginLeast, marginMost = -1.1, 3.0 // a third of the forecast to twenty times it
	stepMost, stepLeast     = 0.03, 0.002
	// tested is the part of the time it may wait from which on a forecast puts
	// a promise to the test: those that wait less are kept whatever it says.
	tested = 0.8
	// lenient is how many times as often as all promises those put to the test may
	// be broken, at most: when load rises most of them are at once, and the margin
	// must not have far to go then.
	lenient = 4
	// promiseMemory is over how many promises the shares fade.
	promiseMemory = 128
	// changed is the ratio from which on a request's cost counts as another.
	changed = 1.25
)

// stretch is the wait that a forecast one is to be taken for.
func (m *margin) stretch(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * m.factor())
}

func (m *margin) factor() float64 { return math.Exp(m.log) }

// made takes in a promise, ended its end.
func (m *margin) made(easy bool) {
	m.easy += (float64(count(easy)) - m.easy) / promiseMemory
}

func (m *margin) ended(tested, kept bool) {
	m.lost += (float64(count(!tested && !kept)) - m.lost) / promiseMemory
}

// may is the share of those put to the test that may be broken, so that keep of
// all are kept: never less than of all.
func (m *margin) may(keep float64) float64 {
	all := 1 - keep
	most := min(lenient*all, (1+all)/2)
	return min(max((all-m.lost)/max(1-m.easy, 1e-3), all), most)
}

// learn takes in how a promise ended that was put to the test; waiting is how
// many others wait now.
func (m *margin) learn(kept bool, keep float64, waiting int) {
	step, may := min(max(1/float64(waiting+1), stepLeast), stepMost), m.may(keep)
	if kept {
		m.log -= step * may
	} else {
		m.log += step * (1 - may)
	}
	m.log = min(max(m.log, marginLeast), marginMost)
}

// pledge is what was forecast when a request was accepted.
type pledge struct {
	tested bool    // the forecast put the promise to the test
	work   float64 // slot-seconds
	rate   float64 // slots that were left to its class
}

// pledge notes the forecast that a promise was made on: none is made to one that
// would have been refused. A wait is short only if it is so by deadlines and in its
// fair turn: between keys leniency would cost those their share who ask for little.
func (c *core) pledge(now time.Time, t *Ticket, f forecast) {
	t.promised = true
	room := t.ask.Deadline.Sub(now) - f.own()
	// A wait for the fair turn alone is no test: the promise is kept by going
	// before it. In order of deadlines it would have to be.
	wait := min(f.ordered, f.wait)
	t.pledge = pledge{tested: wait > 0 && f.wait <= room && float64(wait) >= tested*float64(room), work: t.work, rate: f.rate}
	if !t.record.wouldRefuse {
		t.class.margin.made(float64(max(f.ordered, f.wait)) < tested*float64(room))
	}
}

// calibrate lets the end of a promise teach its class's margin. One made at
// speeds or lengths that have changed since teaches nothing: it would not be
// made so today, and what has changed is in the forecast already.
func (c *core) calibrate(now time.Time, t *Ticket, kept bool) {
	t.class.margin.ended(t.pledge.tested, kept)
	if !t.pledge.tested || t.pledge.work <= 0 {
		return
	}
	_, members := c.weigh(now, t)
	slots := 0
	for _, m := range members {
		slots += m.pool.Total
	}
	rate := c.rate(now, t, float64(slots), c.urgentLoad(now, t))
	if alikeWithin(t.work, t.pledge.work) && alikeWithin(rate, t.pledge.rate) {
		t.class.margin.learn(kept, c.cfg.Keep, c.q.ClassLen(t.class.index))
	}
}

// alikeWithin reports whether two figures differ by less than what counts as changed.
func alikeWithin(a, b float64) bool { return a <= changed*b && b <= changed*a }
