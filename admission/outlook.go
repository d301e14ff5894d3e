package admission

import "time"

// standing is what has been booked as it concerns a newcomer.
type standing struct {
	before time.Duration // how much longer it has to wait so that nobody who has booked is late
	opens  time.Duration // when the same request would be accepted; 0: now
	booked int           // places
	share  float64       // of clients that come back
}

// standBefore is booked with the margin of the class.
func (c *core) standBefore(now time.Time, t *Ticket, f *forecast) standing {
	stretch := t.class.margin.factor()
	room := (t.ask.Deadline.Sub(now) - f.own()).Seconds() / stretch
	st := c.booked(now, t, f, room)
	st.before = time.Duration(float64(st.before) * stretch)
	return st
}

// booked finds out what stands booked before a newcomer that may wait for room,
// in seconds without the margin.
//
// A client that comes at y finds the wait base + E(y)/rate − y, with base the
// newcomer's, E(y) the work that is expected back by then, and rate the slots that
// work off what is accepted. A newcomer makes all of these waits
// longer, so it is accepted only if the longest of them has room, and something
// in reserve; and it is told the first moment from which on they all have.
// No more is kept in reserve than those who have booked could need. Beside other
// keys, whose newcomers know nothing of its place, who is told when to come is one
// of them. The place of one that comes back is not before it.
func (c *core) booked(now time.Time, t *Ticket, f *forecast, room float64) standing {
	base, rate, beside := f.mean.Seconds(), f.rate, f.fair > 0
	if beside { // others have the rest
		rate = min(rate, f.fair)
	}
	r := &t.class.returns
	share := r.expect(t.key)
	c.near(now, t)
	if t.back != nil {
		t.back.count(-1)
		defer t.back.count(1)
	}
	all := c.bookings.sum()
	request := r.reserve * c.dispersion(t) / rate
	reserve := func(p places) float64 {
		return min(request*p.work/float64(max(1, p.n)), reserveOfRoom*max(room, 0), p.expected/rate)
	}
	keep := reserve(all)
	told := keep
	if beside {
		told = reserve(places{all.n + 1, all.work + t.work, all.expected + share*t.work})
	}
	longest, opens := base, max(0, base-room+told)
	if all.n > 0 {
		longest, opens = c.bookings.waits(c.stepOf(now), outlook{base, room - told, rate, r.evenly(now, t.key, rate, all.expected)})
	}
	return standing{before: seconds(longest - base + keep), opens: seconds(opens), booked: all.n, share: share}
}

// places are booked ones, their work, and what is expected of it.
type places struct {
	n              int
	work, expected float64
}

// near makes bookings.near the books that concern a newcomer.
func (c *core) near(now time.Time, t *Ticket) {
	bs, r := &c.bookings, &t.class.returns
	bs.near, bs.lapses = bs.near[:0], 0
	for _, x := range [...]struct {
		key  string
		come *comers
	}{{t.key, &r.own}, {otherKeys, &r.everyone}} {
		own := bs.of[owner{t.class, x.key}]
		for i := len(own) - 1; i >= 0; i-- { // those that are swept empty leave
			if b := own[i]; (bs.shares(b, t) || c.compete(b.lane, t.lane)) && c.sweep(now, b) && b.n > 0 {
				bs.near = append(bs.near, nearBook{b, x.come})
			}
		}
	}
	r.all()
}

// shares reports whether a book is the one that a request's lane shares with
// others, having none of its own. Where slots are per model, no lane competes with
// all of them.
func (bs *bookings) shares(b *book, t *Ticket) bool {
	return b.lane == (lane{}) && bs.find(owner{b.class, b.key}, t.lane.booked()) == nil
}

// sum adds up the books that concern a newcomer.
func (bs *bookings) sum() (all places) {
	for _, b := range bs.near {
		all.n += b.n
		all.work += b.work.first + b.work.again
		all.expected += b.come.of(b.work, 0)
	}
	return all
}

// outlook is what the waits of those who have booked depend on beside what they
// have booked: the newcomer's wait, what it may be, the slots that work it off, and
// the share of them that may be booked anywhere.
type outlook struct{ base, room, rate, most float64 }

// waits finds the longest wait of all who come from now on, and the first moment
// from which on they all have room.
func (bs *bookings) waits(now int64, o outlook) (longest, opens float64) {
	back := 0.0
	for late := bookLate; late >= 0; late-- { // those who are late: they may come at any moment
		back += expectedAt(bs.near, now-int64(late), late)
	}
	level := o.base + back/o.rate
	planned := o.base + back/(o.rate*min(o.most, fillable[0]))
	longest, opens = max(o.base, level), max(0, o.base-o.room, planned-o.room)
	for ahead := int64(1); ahead <= int64(bookSpan/bookStep); ahead++ {
		more := expectedAt(bs.near, now+ahead, 0) / o.rate
		if more == 0 {
			continue
		}
		y := float64(ahead) * bookStep.Seconds()
		level += more
		planned += more / min(o.most, fillable[ahead])
		longest = max(longest, level-y)
		if planned-y > o.room {
			opens = planned - o.room
		}
	}
	return longest, opens
}

// fillable is the share of capacity that may be booked so many steps ahead.
var fillable = func() (shares [bookSpan/bookStep + 1]float64) {
	for i := range shares {
		ahead := float64(i) * bookStep.Seconds()
		shares[i] = bookableAtOnce + (bookable-bookableAtOnce)*min(1, ahead/bookableFrom)
	}
	return shares
}()

// evenly is the share of any second's rate slots that may be booked for a key that
// expects so much work back.
func (r *returns) evenly(now time.Time, key string, rate, expected float64) float64 {
	most := bookableAtOnce
	if k := r.keys[key]; k != nil && k.first.known()+k.again.known() >= evenFrom {
		mean := k.back.rate(now, k.back.left(now, evenFade), evenFade) / rate
		most = min(max(bookableEvenly*mean, bookableLeast), bookableAtOnce)
	}
	return most + (1-most)*expected/(rate*bookSpan.Seconds())
}

// nearBook is a book that concerns a newcomer, and who of those in it come.
type nearBook struct {
	*book
	come *comers
}

// expectedAt is the work of a step that is expected, so many steps after it.
func expectedAt(near []nearBook, step int64, late int) float64 {
	if len(near) == 1 {
		return near[0].come.of(near[0].at(step).work, late)
	}
	sum := 0.0
	for i := range near {
		sum += near[i].come.of(near[i].at(step).work, late)
	}
	return sum
}
