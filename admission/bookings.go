package admission

import (
	"slices"
	"time"
)

// Bookings (R14). A refused request is told when the same request would be
// accepted, and that place is booked for it: later forecasts count it among
// what goes before them. So each is told another moment, those who come back
// are spread over the capacity that will be there, and newcomers do not take
// what others were told to come for.
//
// Not everybody comes back, so a booking counts by the learned share of those
// who do (returns). One that is not taken by a second after its time, rounded up
// to a whole second as Retry-After is, lapses.
const (
	bookStep  = 100 * time.Millisecond // a book's resolution
	bookSpan  = time.Minute            // the longest wait that is booked: common SDKs heed no longer one
	bookGrace = time.Second            // a booking outlives its time, in whole seconds, by that
	bookLate  = 20                     // steps after its own after which no booking can be taken any more
	bookRing  = 1024                   // steps; at least bookSpan + bookLate of them

	maxBookings = 1 << 16 // places kept, some 20 MiB; those refused beyond it are told not to come back
	maxBooks    = 512     // of a class, a lane and a key with places
	maxAlike    = 8       // bookings of equal bodies that are looked at
	maxLanes    = 8       // books of a class and key; further lanes share one that concerns them all
	maxLapses   = 64      // bookings that lapse at one event; the others do at the next ones

	// bookable is the share of capacity that bookings may fill. The rest goes to
	// newcomers: since they are accepted or not by what is the case at the
	// moment, they make up for what comes otherwise than expected. Where few are
	// booked there is no need to fill the next seconds: what comes back is spread
	// over more of them.
	bookable, bookableAtOnce = 0.9, 0.6
	bookableFrom             = 20.0 // seconds from now; less before, in proportion

	// bookableEvenly is what may be booked of any second, as a multiple of what a
	// mean one has lately brought back, but bookableLeast at least. So returns come
	// evenly, not as fast as they can be served for some seconds and then hardly at
	// all. The more of the minute is booked, the more of each second is: what is
	// little more than the mean must grow with it. Of fewer than evenFrom clients of
	// a key the mean says little: whether they come at all is known the sooner.
	bookableEvenly, bookableLeast, evenFrom = 1.1, 0.3, 64

	// turnaround is the least time from a refusal to its client's return. What
	// comes sooner with the same body is another request, unless it says that it
	// is a retry.
	turnaround = 100 * time.Millisecond
)

// booking is one refused request's place.
type booking struct {
	request requestID
	body    uint64
	seq     uint64 // of its first try: its place among equal deadlines
	again   bool   // it had come back before
	work    float64
	due     time.Time // when it was told to come
	until   time.Time // the last moment at which it may
	told    time.Time // when it last was

	book             *book
	step             int64
	earlier, later   *booking // of the same step
	previous, follow *booking // of the same body, in a ring in the order in which they were made
}

// requestID identifies what a client calls one request.
type requestID struct{ key, id string }

func (b *booking) open(now time.Time) bool { return !now.Before(b.due) && !now.After(b.until) }

// book is the places of one class and lane, by time.
type book struct {
	class *classBook
	lane  lane // without what only attempts and tiers need
	key   string
	place int // in bookings.books
	n     int
	work  expected // of all steps
	from  int64    // no earlier step has bookings
	steps [bookRing]bookedStep
}

type bookedStep struct {
	work  expected
	first *booking
}

// expected is booked work in slot-seconds: of those who were told once, and of
// those who had come back before.
type expected struct{ first, again float64 }

func (e *expected) add(b *booking, times float64) {
	if b.again {
		e.again += times * b.work
	} else {
		e.first += times * b.work
	}
}

func (b *book) at(step int64) *bookedStep { return &b.steps[step&(bookRing-1)] }

// count adds a booking's work to its book, or takes it out.
func (b *booking) count(times int) {
	b.book.n += times
	b.book.work.add(b, float64(times))
	b.book.at(b.step).work.add(b, float64(times))
}

// bookings are all places, and whose they are.
type bookings struct {
	books  []*book // that have places in them
	of     map[owner][]*book
	empty  []*book // to be begun again
	byID   map[requestID]*booking
	byBody map[uint64]*booking // the first one of each body
	near   []nearBook          // scratch of booked
	lapses int                 // at this event
}

// owner is whose books are found together.
type owner struct {
	class *classBook
	key   string
}

func (c *core) stepOf(at time.Time) int64 { return int64(at.Sub(c.began) / bookStep) }

// returning finds the booking of a request that comes back, nil if it has none:
// by its X-Request-ID, else by key and body. An anonymous one must say that it
// is a retry, since others may ask the same.
func (c *core) returning(now time.Time, t *Ticket) *booking {
	if b := c.bookings.byID[requestID{t.key, t.id}]; b != nil && !now.After(b.until) {
		return b
	}
	if t.ask.BodyHash == 0 || t.ask.Try == TryFirst || t.ask.Try == TryUnsaid && (t.key == "" || t.key == anonymous) {
		return nil
	}
	var early *booking
	first := c.bookings.byBody[t.ask.BodyHash]
	b := first
	for range maxAlike {
		switch {
		case b == nil:
			return nil
		case b.open(now):
			return b
		case early == nil && now.Before(b.due) && (t.ask.Try == TryAgain || now.Sub(b.told) >= turnaround):
			early = b
		}
		if b = b.follow; b == first {
			return early
		}
	}
	return early
}

// anonymous is the name of all who have no key.
const anonymous = "anonymous"

// bookPlace books a place for a refused request, in wait from now. It is false
// when there is no room for one more booking.
func (c *core) bookPlace(now time.Time, t *Ticket, wait time.Duration) bool {
	id := requestID{t.key, t.id}
	if old := c.bookings.byID[id]; old != nil {
		c.lapse(old)
	}
	if len(c.bookings.byID) >= maxBookings { // before a book is begun, which would stay empty
		return false
	}
	bk := c.bookOf(now, t)
	if bk == nil {
		return false
	}
	b := use(&c.supplies.booking)
	*b = booking{
		request: id, body: t.ask.BodyHash, seq: t.item.Seq, again: t.again, work: min(t.work, float64(max(1, t.ask.Width))*bookSpan.Seconds()),
		due: now.Add(wait), until: now.Add(wholeSeconds(wait) + bookGrace), told: now, book: bk,
	}
	b.step = c.stepOf(b.due)
	if t.class.returns.rounds(t.key, b.again) > 0.5 { // else those told within one second come together
		b.step = c.stepOf(b.until.Add(-bookGrace))
	}
	b.count(1)
	s := bk.at(b.step)
	if b.later = s.first; b.later != nil {
		b.later.earlier = b
	}
	s.first = b
	c.bookings.index(b)
	return true
}

// Names of books that are no key's: of those who come when most books are taken,
// and of those whose last bookings lapse still, too late for their ring to take
// new ones.
const otherKeys, closing = "\x00", "\x01"

// bookOf is the book of a request's class, lane and key, begun if there is none
// and nil if there are too many.
func (c *core) bookOf(now time.Time, t *Ticket) *book {
	l, who := t.lane.booked(), owner{t.class, t.key}
	b := c.bookings.find(who, l)
	if b == nil && len(c.bookings.books) >= maxBooks*7/8 {
		who.key = otherKeys
		b = c.bookings.find(who, l)
	}
	if b == nil && len(c.bookings.of[who]) >= maxLanes-1 {
		l = lane{}
		b = c.bookings.find(who, l)
	}
	if b != nil && c.sweep(now, b) && b.n > 0 {
		return b
	}
	if len(c.bookings.books) == maxBooks {
		return nil
	}
	return c.bookings.open(who, l, c.stepOf(now))
}

// booked is the lane that places are booked in: what only attempts and tiers need
// is left out.
func (l lane) booked() lane { return lane{model: l.model, engines: l.engines, pin: l.pin} }

func (bs *bookings) find(who owner, l lane) *book {
	for _, b := range bs.of[who] {
		if b.lane == l {
			return b
		}
	}
	return nil
}

// open begins a book.
func (bs *bookings) open(who owner, l lane, from int64) *book {
	b := &book{}
	if last := len(bs.empty) - 1; last >= 0 {
		b, bs.empty = bs.empty[last], bs.empty[:last]
	}
	b.class, b.key, b.lane, b.from, b.place = who.class, who.key, l, from, len(bs.books)
	bs.books = append(bs.books, b)
	if bs.of == nil {
		bs.of = map[owner][]*book{}
	}
	bs.of[who] = append(bs.of[who], b)
	return b
}

// disown makes a book nobody's: it takes no more places.
func (bs *bookings) disown(b *book) {
	who := owner{b.class, b.key}
	own := bs.of[who]
	if i := slices.Index(own, b); i >= 0 {
		last := len(own) - 1
		own[i], own[last] = own[last], nil
		if bs.of[who] = own[:last]; last == 0 {
			delete(bs.of, who)
		}
	}
	b.key = closing
}

// empties puts a book aside that has no places left.
func (bs *bookings) empties(b *book) {
	bs.disown(b)
	last := len(bs.books) - 1
	moved := bs.books[last]
	bs.books[b.place], moved.place = moved, b.place
	bs.books, bs.books[last] = bs.books[:last], nil
	b.work = expected{} // what rounding left of it
	bs.empty = append(bs.empty, b)
}

func (bs *bookings) index(b *booking) {
	if bs.byID == nil {
		bs.byID, bs.byBody = map[requestID]*booking{}, map[uint64]*booking{}
	}
	bs.byID[b.request] = b
	b.follow, b.previous = b, b
	if first := bs.byBody[b.body]; first != nil {
		b.follow, b.previous = first, first.previous
		first.previous.follow, first.previous = b, b
		return
	}
	bs.byBody[b.body] = b
}

// drop takes a booking out of the books.
func (c *core) drop(b *booking) {
	bs := &c.bookings
	delete(bs.byID, b.request)
	b.previous.follow, b.follow.previous = b.follow, b.previous
	switch {
	case b.follow == b:
		delete(bs.byBody, b.body)
	case bs.byBody[b.body] == b:
		bs.byBody[b.body] = b.follow
	}
	s := b.book.at(b.step)
	if b.earlier != nil {
		b.earlier.later = b.later
	} else {
		s.first = b.later
	}
	if b.later != nil {
		b.later.earlier = b.earlier
	}
	b.count(-1)
	if s.first == nil {
		s.work = expected{} // what rounding left of it
	}
	if b.book.n == 0 {
		bs.empties(b.book)
	}
}

// lapse ends a booking that nobody took.
func (c *core) lapse(b *booking) {
	for _, h := range b.book.class.returns.habits(b.request.key, b.again) {
		h.stayed()
	}
	c.drop(b)
}

// take ends a booking whose client is back in time.
func (c *core) take(now time.Time, b *booking, accepted bool) {
	r := &b.book.class.returns
	rounded := b.until.Add(-bookGrace)
	for _, h := range r.habits(b.request.key, b.again) {
		h.came(int(c.stepOf(now) - b.step))
		if rounded.Sub(b.due) >= 2*bookStep {
			h.rounding(!now.Before(rounded))
		}
	}
	r.keys[b.request.key].back.add(now, b.work, evenFade)
	r.learn(accepted, b.book.n)
	c.drop(b)
}

// sweep ends the bookings of a book that can no longer be taken, as far as
// maxLapses allows. It is false if the book is too far behind to take new ones:
// then it closes.
func (c *core) sweep(now time.Time, b *book) bool {
	past := c.stepOf(now) - bookLate
	for ; b.n > 0 && b.from < past; b.from++ {
		for s := b.at(b.from); s.first != nil; c.bookings.lapses++ {
			if c.bookings.lapses >= maxLapses {
				if past-b.from > bookRing-2*bookLate-int64(bookSpan/bookStep) {
					c.bookings.disown(b)
				}
				return b.key != closing
			}
			c.lapse(s.first)
		}
	}
	b.from = max(b.from, past)
	return b.key != closing
}

// sweepAll sweeps all books, as far as maxLapses allows.
func (c *core) sweepAll(now time.Time) {
	c.bookings.lapses = 0
	for i := len(c.bookings.books) - 1; i >= 0; i-- { // those that are swept empty leave
		c.sweep(now, c.bookings.books[i])
	}
}
