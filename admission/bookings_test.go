package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/replica"
)

// busyWorld has one slot, answers of a second, and as many requests of one key
// waiting as ten seconds hold. One was refused.
func busyWorld(t *testing.T, key string) *world {
	w := newWorld(t, testConfig(rep("a", 1)))
	w.teach(time.Second)
	for i := range 30 {
		if w.asks(Arrival{ID: fmt.Sprint("busy", i), Key: key}, w.ask()) != nil {
			return w
		}
	}
	require.Fail(t, "the queue takes everything")
	return nil
}

// asks lets somebody ask, under a name, and ends it if it is refused.
func (w *world) asks(a Arrival, ask Ask) *Refusal {
	w.t.Helper()
	a.Class, a.At = "standard", w.now
	tk := w.c.Arrive(w.now, a)
	ref := w.c.Admit(w.now, tk, ask)
	if ref != nil {
		w.c.End(w.now, tk, Refused, ref.Reason)
	}
	return ref
}

// ends lets the request that runs end, and so the next one start.
func (w *world) ends() {
	w.t.Helper()
	for _, rs := range w.c.mu.running {
		if len(rs.list) == 0 {
			return
		}
		a := rs.list[0].a
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now.Add(-900 * time.Millisecond), Usage: Usage{OutputTokens: 10, PromptTokens: 100}})
		w.c.End(w.now, a.ticket, Completed, "")
	}
}

// works lets so many seconds pass in which answers of a second are given.
func (w *world) works(n int) {
	w.t.Helper()
	for range n {
		w.pass(time.Second)
		w.ends()
	}
}

// R14: not all are told the same moment: each refusal takes its place behind
// those that were booked before.
func TestR14RefusalsAreSpread(t *testing.T) {
	w := busyWorld(t, "k")
	last := time.Duration(0)
	later := 0
	for i := range 20 {
		ref := w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "k"}, w.ask())
		require.NotNil(t, ref)
		require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
		require.GreaterOrEqual(t, ref.RetryAfter, last)
		require.Zero(t, ref.RetryAfter%time.Millisecond)
		later += int(count(ref.RetryAfter > last))
		last = ref.RetryAfter
	}
	require.Greater(t, later, 15)
	require.Greater(t, last, 9*time.Second, "half of them are expected, a second of work each")
}

// R14: who comes back in time is accepted, known by request ID, by key and
// body, or by body where it says that it is a retry.
func TestR14WhoComesBackIsKnown(t *testing.T) {
	for _, tt := range []struct {
		name         string
		first, again Arrival
		try          Try
		known        bool
	}{
		{"the same ID", Arrival{ID: "x", Key: anonymous}, Arrival{ID: "x", Key: anonymous}, TryUnsaid, true},
		{"the same ID of another key", Arrival{ID: "x", Key: "k"}, Arrival{ID: "x", Key: anonymous}, TryUnsaid, false},
		{"key and body", Arrival{ID: "x", Key: "k"}, Arrival{ID: "y", Key: "k"}, TryUnsaid, true},
		{"key and body, but a first try", Arrival{ID: "x", Key: "k"}, Arrival{ID: "y", Key: "k"}, TryFirst, false},
		{"a body that anybody may have", Arrival{ID: "x", Key: anonymous}, Arrival{ID: "y", Key: anonymous}, TryUnsaid, false},
		{"that body again", Arrival{ID: "x", Key: anonymous}, Arrival{ID: "y", Key: anonymous}, TryAgain, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := busyWorld(t, tt.first.Key)
			ask := func() Ask {
				a := w.ask()
				a.BodyHash = 7
				return a
			}
			var ref *Refusal
			for i := range 8 { // so that it stands behind others
				w.asks(Arrival{ID: fmt.Sprint("o", i), Key: tt.first.Key}, w.ask())
			}
			ref = w.asks(tt.first, ask())
			require.NotNil(t, ref)
			require.False(t, ref.NoRetry)
			due := w.now.Add(ref.RetryAfter)

			w.works(1)
			a := ask()
			a.Try = tt.try
			early := w.asks(tt.again, a)
			if tt.again.Key != tt.first.Key { // whose fair share may let it in
				require.Contains(t, w.c.mu.bookings.byID, requestID{tt.first.Key, tt.first.ID})
				return
			}
			require.NotNil(t, early)
			if tt.known {
				require.Equal(t, due.Sub(w.now), early.RetryAfter, "it is told the rest")
			} else {
				require.NotEqual(t, due.Sub(w.now), early.RetryAfter)
				return
			}
			for w.now.Add(time.Second).Before(due) {
				w.works(1)
			}
			w.pass(due.Sub(w.now))
			require.Nil(t, w.asks(tt.again, func() Ask { a := ask(); a.Try = tt.try; return a }()))
			require.NotContains(t, w.c.mu.bookings.byID, requestID{tt.first.Key, tt.first.ID})
		})
	}
}

// R14: who comes in time and is refused all the same is told anew when it would be
// accepted, behind those who have booked by then, and not to come again at once.
func TestR14RefusedInTimeIsToldTheTruth(t *testing.T) {
	w := busyWorld(t, "k")
	first := w.asks(Arrival{ID: "x", Key: "k"}, w.ask())
	last := time.Duration(0)
	for i := range 15 {
		last = w.asks(Arrival{ID: fmt.Sprint("o", i), Key: "k"}, w.ask()).RetryAfter
	}
	require.Greater(t, last, first.RetryAfter+5*time.Second)
	due := w.now.Add(last)
	w.pass(first.RetryAfter)
	w.c.mu.classes[1].margin.log = 0.5 // meanwhile waits have turned out to take longer
	again := w.asks(Arrival{ID: "x", Key: "k"}, w.ask())
	require.NotNil(t, again)
	require.True(t, w.now.Add(again.RetryAfter).After(due), "told %s", again.RetryAfter)
	for range int(again.RetryAfter.Seconds()) {
		w.works(1)
	}
	w.pass(again.RetryAfter % time.Second)
	require.Nil(t, w.asks(Arrival{ID: "x", Key: "k"}, w.ask()))
}

// R14: the place of one that comes back is not before it: refused in its time, it
// is told what anybody would be who has none.
func TestR14NobodyStandsBehindItself(t *testing.T) {
	told := func(own bool) (standing, time.Duration) {
		w := busyWorld(t, "k")
		first := w.asks(Arrival{ID: "x", Key: "k"}, w.ask())
		for i := range 5 {
			w.asks(Arrival{ID: fmt.Sprint("o", i), Key: "k"}, w.ask())
		}
		w.pass(first.RetryAfter)
		c := &w.c.mu.core
		c.classes[1].margin.log = 0.5
		tk := w.c.Arrive(w.now, Arrival{ID: "x", Class: "standard", Key: "k", At: w.now})
		tk.ask, tk.lane = w.ask(), lane{model: "m", engines: "openai,llamacpp,ollama,vllm"}
		others := len(c.bookings.byID) - 1
		require.Greater(t, others, 2)
		if own {
			tk.back = c.returning(w.now, tk)
			require.NotNil(t, tk.back)
		} else {
			c.drop(c.bookings.byID[requestID{"k", "x"}])
		}
		f := c.forecast(w.now, tk)
		require.Equal(t, others, f.booked)
		for _, b := range c.bookings.books {
			require.Equal(t, len(c.bookings.byID), b.n, "and it has its place still")
		}
		return c.standBefore(w.now, tk, &f), w.asks(Arrival{ID: "x", Key: "k"}, w.ask()).RetryAfter
	}
	with, toldWith := told(true)
	without, toldWithout := told(false)
	require.Equal(t, without, with)
	require.InDelta(t, toldWithout.Seconds(), toldWith.Seconds(), 0.1) // what it did is learned from
}

// R14: while few are booked the next seconds are not filled: what is expected
// back is spread over more of them, and newcomers have the rest.
func TestR14FewAreSpreadWidely(t *testing.T) {
	w := busyWorld(t, "k")
	n, from := 0, time.Duration(0)
	for i := range 40 {
		ref := w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "k"}, w.ask())
		switch {
		case i == 4: // all that is kept in reserve has been counted
			from = ref.RetryAfter
		case i > 4 && ref.RetryAfter <= from+8*time.Second:
			n++
		}
	}
	expected := float64(n) * w.c.mu.classes[1].returns.habit(false).share(0) / 8 // a second of work each, one slot
	require.InDelta(t, 0.7, expected, 0.1)
}

// R14: of any second a little more than has come back of late is booked, and the
// more the more of the minute is: it never takes what others were told to be served in.
func TestR14ReturnsComeEvenly(t *testing.T) {
	r, now := &returns{}, time.Unix(1_700_000_000, 0)
	const slots = 8.0
	require.Equal(t, bookableAtOnce, r.evenly(now, "k", slots, 0))
	r.settle("k", evenFrom-5, true)
	require.Equal(t, bookableAtOnce, r.evenly(now, "k", slots, 0), "it is too early to say")
	r.settle("k", 100, true)
	r.settle("other", 100, true)
	for range 1200 { // four slots' work in two minutes
		now = now.Add(bookStep)
		r.keys["k"].back.add(now, slots/2*bookStep.Seconds(), evenFade)
	}
	require.InDelta(t, bookableEvenly/2, r.evenly(now, "k", slots, 0), 0.01)
	require.Equal(t, bookableLeast, r.evenly(now, "other", slots, 0))
	require.Equal(t, bookableAtOnce, r.evenly(now, "k", slots/2, 0), "they were served by more than are its own now")
	half := r.evenly(now, "k", slots, slots*30)
	require.InDelta(t, 0.775, half, 0.01)
	require.InDelta(t, 1, r.evenly(now, "k", slots, slots*60), 0.01)
	now = now.Add(5 * time.Minute)
	require.Equal(t, bookableLeast, r.evenly(now, "k", slots, 0))
}

// R14: the reserve is in requests, and the more the more their lengths spread.
func TestR14TheReserveGoesWithHowWorkSpreads(t *testing.T) {
	keeps := func(slots, long int) time.Duration {
		w := newWorld(t, testConfig(rep("a", slots)))
		w.teach(time.Second)
		c := &w.c.mu.core
		tk := w.arrive()
		tk.ask, tk.work = w.ask(), 1
		tk.lane = lane{model: "m"}
		for i := range 64 { // of the same mean
			n := 100
			if long > 0 {
				if n = 50; i%8 == 0 {
					n = long
				}
			}
			c.learnOutput(tk, "m", n)
		}
		for i := range 40 {
			tk.id = fmt.Sprint(i)
			require.True(t, c.bookPlace(w.now, tk, 30*time.Second))
		}
		f := forecast{makeup: makeup{rate: float64(slots)}}
		return c.standBefore(w.now, tk, &f).before
	}
	alike, spread := keeps(4, 0), keeps(4, 450)
	require.InEpsilon(t, 0.25*reserveFirst, alike.Seconds(), 0.05)
	require.InEpsilon(t, 2.75, spread.Seconds()/alike.Seconds(), 0.05)
	require.InEpsilon(t, alike.Seconds()/10, keeps(40, 0).Seconds(), 0.05, "ten times the slots do the same work in a tenth of the time")
}

// R14: newcomers of other keys know nothing of a place that is booked, so who is
// told beside them when to come is told a little later, by what may be needed for it.
func TestR14BesideOtherKeysTheReserveIsForItsOwnPlaceToo(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 4)))
	w.teach(time.Second)
	c := &w.c.mu.core
	tk := w.arrive()
	tk.ask, tk.lane, tk.work = w.ask(), lane{model: "m"}, 1
	opens := func(fair float64) float64 {
		f := forecast{makeup: makeup{rate: 4, fair: fair, mean: 12 * time.Second}}
		return c.standBefore(w.now, tk, &f).opens.Seconds()
	}
	alone := opens(0)
	require.InDelta(t, 2, alone, 0.01)
	require.InDelta(t, alone+0.8/4, opens(4), 0.01, "it comes itself, as likely as all do")
	require.InDelta(t, alone+0.8/2, opens(2), 0.01)
}

// R14: equal requests of one key that come together are as many requests, not
// one and its retries.
func TestR14EqualRequestsTogetherAreNotRetries(t *testing.T) {
	w := busyWorld(t, "k")
	for i := range 5 {
		a := w.ask()
		a.BodyHash = 7
		require.NotNil(t, w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "k"}, a))
		w.pass(time.Millisecond)
	}
	require.Len(t, w.c.mu.bookings.byID, 6) // and that of busyWorld
}

// R14: a booking that nobody takes lapses, and is learned from.
func TestR14BookingsLapse(t *testing.T) {
	w := busyWorld(t, "k")
	r := &w.c.mu.classes[1].returns
	before := r.habit(false).share(0)
	for i := range 10 {
		w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "k"}, w.ask())
	}
	require.Equal(t, 11, w.snap().Classes[1].Booked)
	w.works(30)
	w.c.Tick(w.now)
	require.Zero(t, w.snap().Classes[1].Booked)
	require.Empty(t, w.c.mu.bookings.byID)
	require.Empty(t, w.c.mu.bookings.byBody)
	require.Less(t, r.habit(false).share(0), before/1.5)
}

// R14: nothing is booked where coming back cannot help, or where clients would
// not wait so long.
func TestR14NothingIsBookedInVain(t *testing.T) {
	w := busyWorld(t, "k")
	booked := len(w.c.mu.bookings.byID)
	never := w.ask()
	never.Deadline = w.now.Add(50 * time.Millisecond) // its prompt alone takes 100 ms
	ref := w.asks(Arrival{ID: "never", Key: "k"}, never)
	require.True(t, ref.NoRetry)
	require.Equal(t, time.Minute, ref.RetryAfter, "who knows no other header shall not ask every second in vain")
	require.Len(t, w.c.mu.bookings.byID, booked)
	for i := range 200 {
		if ref = w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "k"}, w.ask()); ref.NoRetry {
			break
		}
		require.LessOrEqual(t, ref.RetryAfter, time.Minute)
		booked++
	}
	require.True(t, ref.NoRetry)
	require.Greater(t, ref.RetryAfter, time.Minute)
	require.Len(t, w.c.mu.bookings.byID, booked)
}

// R2, R14: where a slot is free, nobody is kept from it by those who are
// expected back, and who comes early is not sent away.
func TestR14BookingsKeepNoSlotFree(t *testing.T) {
	w := busyWorld(t, "k")
	for i := range 60 {
		w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "k"}, w.ask())
	}
	w.works(15) // all that was accepted
	require.Positive(t, w.snap().Classes[1].Booked)
	for _, b := range w.c.mu.bookings.byID {
		if w.now.Before(b.due) {
			require.Nil(t, w.asks(Arrival{ID: b.request.id, Key: "k"}, w.ask()))
			return
		}
	}
	require.Fail(t, "nobody is expected later")
}

// The books hold what was put into them, whatever the order of coming, going
// and lapsing.
func TestBooksAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, testConfig(rep("a", 1)))
		c := &w.c.mu.core
		held := map[requestID]*booking{}
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0, 1:
				tk := &Ticket{id: fmt.Sprint(rapid.IntRange(0, 50).Draw(rt, "id")), key: "k", class: c.classes[rapid.IntRange(0, 1).Draw(rt, "class")]}
				tk.work, tk.again = float64(rapid.IntRange(1, 100).Draw(rt, "work"))/8, rapid.Bool().Draw(rt, "again")
				tk.ask.BodyHash = uint64(rapid.IntRange(0, 5).Draw(rt, "body"))
				require.True(t, c.bookPlace(w.now, tk, time.Duration(rapid.Int64Range(int64(time.Second), int64(time.Minute)).Draw(rt, "wait"))))
				held[requestID{"k", tk.id}] = c.bookings.byID[requestID{"k", tk.id}]
			case 2:
				id := requestID{"k", fmt.Sprint(rapid.IntRange(0, 50).Draw(rt, "id"))}
				if b := c.bookings.byID[id]; b != nil {
					c.take(w.now, b, true)
					delete(held, id)
				}
			case 3:
				w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(rt, "pass")))
				c.sweepAll(w.now)
			}
			bodies := map[uint64]int{}
			for id, b := range held {
				if c.bookings.byID[id] != b {
					require.True(t, w.now.After(b.until), "swept before its time")
					delete(held, id)
					continue
				}
				require.False(t, w.now.Sub(b.due) > (bookLate+2)*bookStep, "kept after its time")
				bodies[b.body]++
			}
			require.Len(t, c.bookings.byID, len(held))
			require.Len(t, c.bookings.byBody, len(bodies))
			for body, n := range bodies {
				first := c.bookings.byBody[body]
				seen := 1
				for b := first.follow; b != first; b = b.follow {
					require.Equal(t, body, b.body)
					seen++
				}
				require.Equal(t, n, seen)
			}
			for _, bk := range c.bookings.books {
				var sum, steps expected
				n := 0
				for _, b := range held {
					if b.book == bk {
						sum.add(b, 1)
						n++
					}
				}
				for i := range bk.steps {
					steps.first += bk.steps[i].work.first
					steps.again += bk.steps[i].work.again
				}
				require.Equal(t, n, bk.n)
				require.Equal(t, sum, bk.work)
				require.Equal(t, sum, steps)
			}
		}
	})
}

// R14: what one event does with bookings is bounded by the minute that is booked,
// however many places, lanes and keys there are: it looks at so many steps of so
// many books, and lets so many bookings lapse.
func TestBooksAreBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, testConfig(rep("a", 1)))
		c := &w.c.mu.core
		lanes, keys := rapid.IntRange(1, 40).Draw(rt, "lanes"), rapid.IntRange(1, 600).Draw(rt, "keys")
		ask := func(n int) *Ticket {
			tk := &Ticket{id: fmt.Sprint(n), key: fmt.Sprint("k", n%keys), class: c.classes[1], work: 1}
			tk.lane = lane{model: fmt.Sprint("m", n%lanes), engines: "openai"}
			return tk
		}
		n := 0
		for range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			for range rapid.IntRange(1, 150).Draw(rt, "refused") {
				n++
				wait := time.Duration(rapid.Int64Range(int64(time.Second), int64(time.Minute)).Draw(rt, "wait"))
				if !c.bookPlace(w.now, ask(n), wait) {
					require.Len(t, c.bookings.books, maxBooks)
				}
			}
			w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int64{0, 1, 30, 100, 103, 3600}).Draw(rt, "pass")) * time.Second)
			before := len(c.bookings.byID)
			tk := ask(n)
			f := forecast{makeup: makeup{rate: 1}}
			st := c.standBefore(w.now, tk, &f)
			require.LessOrEqual(t, len(c.bookings.near), 2*maxLanes)
			require.LessOrEqual(t, before-len(c.bookings.byID), maxLapses)
			require.LessOrEqual(t, st.booked, len(c.bookings.byID))
			before = len(c.bookings.byID)
			c.tick(w.now)
			require.LessOrEqual(t, before-len(c.bookings.byID), maxLapses)
		}
		require.LessOrEqual(t, len(c.bookings.books), maxBooks)
		w.now = w.now.Add(time.Hour)
		for i := 0; len(c.bookings.byID) > 0; i++ {
			require.LessOrEqual(t, i, n/maxLapses+1, "all lapse in the end")
			c.tick(w.now)
		}
		require.Empty(t, c.bookings.books)
		require.Empty(t, c.bookings.of)
		for _, b := range c.bookings.empty {
			require.Zero(t, b.n)
			require.Equal(t, expected{}, b.work)
			require.Equal(t, [bookRing]bookedStep{}, b.steps)
		}
	})
}

// R14: the places of a key with many models are in eight books at most, those of
// the many keys that come when most books are taken in one, and all count.
func TestBooksAreShared(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	c := &w.c.mu.core
	var models []string
	for i := range 20 {
		models = append(models, fmt.Sprint("m", i))
	}
	w.report("a", facts(models...))
	ask := func(key, model string) *Ticket {
		w.n++
		return &Ticket{id: fmt.Sprint(w.n), key: key, class: c.classes[1], lane: lane{model: model}, work: 1}
	}
	f := forecast{makeup: makeup{rate: 1}}
	for _, m := range models {
		require.True(t, c.bookPlace(w.now, ask("k", m), 5*time.Second))
	}
	require.Equal(t, 20, c.standBefore(w.now, ask("k", "m1"), &f).booked)
	require.Len(t, c.bookings.near, maxLanes)
	for i := range 1000 {
		require.True(t, c.bookPlace(w.now, ask(fmt.Sprint("k", i), "m1"), 5*time.Second))
	}
	require.Less(t, len(c.bookings.books), maxBooks)
	others := 1000 - (maxBooks*7/8 - maxLanes)
	require.Equal(t, 20+others, c.standBefore(w.now, ask("k", "m1"), &f).booked)
	require.Equal(t, others, c.standBefore(w.now, ask("new", "m1"), &f).booked)

	k := c.bookings.byID[requestID{"k", "1"}]
	w.now = k.due
	c.take(w.now, k, true)
	require.Equal(t, 1.0, c.classes[1].returns.keys["k"].back.left(w.now, evenFade))
}

// R14: where each model has slots of its own, too, lanes that share a book are told
// one after another, and those with a book of their own have nothing to do with it.
func TestR14SharedBooksConcernThoseWhoShareThem(t *testing.T) {
	rc := rep("a", 1)
	rc.Engine = replica.EngineOllama
	w := newWorld(t, testConfig(rc))
	var models []string
	for i := range 12 {
		models = append(models, fmt.Sprint("m", i))
	}
	f := facts(models...)
	f.Engine = rc.Engine
	w.report("a", f)
	c := &w.c.mu.core
	ask := func(m string) *Ticket {
		w.n++
		return &Ticket{id: fmt.Sprint(w.n), key: "k", class: c.classes[1], lane: lane{model: m, engines: "ollama"}, work: 1}
	}
	for _, m := range models {
		for range 3 {
			require.True(t, c.bookPlace(w.now, ask(m), 5*time.Second))
		}
	}
	before := func(m string) int { return c.standBefore(w.now, ask(m), &forecast{makeup: makeup{rate: 1}}).booked }
	require.Equal(t, 3, before("m0"))
	require.Equal(t, 3*(12-(maxLanes-1)), before("m9"))
}

// Where no more places can be booked no books are begun either: none that is empty
// is left when there is room again.
func TestBooksAreNotBegunWithoutPlaces(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	c := &w.c.mu.core
	ask := func(key string, n int) *Ticket {
		return &Ticket{id: fmt.Sprint(n), key: key, class: c.classes[1], lane: lane{model: "m"}, work: 1}
	}
	for n := range maxBookings {
		require.True(t, c.bookPlace(w.now, ask("k", n), 5*time.Second))
	}
	for n := range 2 * maxBooks {
		require.False(t, c.bookPlace(w.now, ask("late", n), 5*time.Second))
	}
	require.Equal(t, 1, len(c.bookings.books))
	c.drop(c.bookings.byID[requestID{"k", "0"}])
	require.True(t, c.bookPlace(w.now, ask("late", 0), 5*time.Second))
}

// R14: places that nobody has looked after for long neither lapse with those that
// are booked a whole ring later, nor count before newcomers.
func TestBooksThatAreFarBehindClose(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	c := &w.c.mu.core
	ask := func(n int) *Ticket {
		return &Ticket{id: fmt.Sprint(n), key: "k", class: c.classes[1], lane: lane{model: "m"}, work: 1}
	}
	for n := range 500 {
		require.True(t, c.bookPlace(w.now, ask(n), 30*time.Second))
	}
	w.now = w.now.Add(bookRing * bookStep)
	f := forecast{makeup: makeup{rate: 1}}
	require.Zero(t, c.standBefore(w.now, ask(500), &f).booked)
	require.Len(t, c.bookings.byID, 500-maxLapses)
	require.True(t, c.bookPlace(w.now, ask(500), 30*time.Second))
	require.Equal(t, 1, c.standBefore(w.now, ask(501), &f).booked)
	for range 10 {
		c.tick(w.now)
	}
	require.Len(t, c.bookings.byID, 1)
	require.NotNil(t, c.bookings.byID[requestID{"k", "500"}])
}

// R14: a request takes no more of the booked minute than its own slots.
func TestR14ALongAnswerTakesOneSlotOfTheMinute(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 4)))
	c := &w.c.mu.core
	for n, width := range []int{1, 1, 3} {
		tk := &Ticket{id: fmt.Sprint(n), key: "k", class: c.classes[1], lane: lane{model: "m"}, work: 3600}
		tk.ask.Width = width
		require.True(t, c.bookPlace(w.now, tk, 5*time.Second))
	}
	require.Equal(t, expected{first: 300}, c.bookings.books[0].work)
}

// A refusal's arithmetic is told in words, with its numbers.
func TestExplanation(t *testing.T) {
	w := busyWorld(t, "k")
	tell := func(a Arrival, ask Ask) Decision {
		a.Class, a.At = "standard", w.now
		tk := w.c.Arrive(w.now, a)
		ref := w.c.Admit(w.now, tk, ask)
		require.NotNil(t, ref)
		d := w.c.End(w.now, tk, Refused, ref.Reason)
		d.Explain()
		require.NotEmpty(t, d.Explanation)
		require.Equal(t, ref.RetryAfter.Seconds(), d.Arithmetic.RetryAfterS)
		return d
	}
	d := tell(Arrival{ID: "x", Key: "k"}, w.ask())
	a := d.Arithmetic
	require.Equal(t, 1, a.Slots)
	require.Equal(t, 1, a.Running)
	require.Equal(t, 9, a.Ahead)
	require.InDelta(t, 10, a.WaitS, 1)
	require.InDelta(t, a.TotalS, a.WaitS*a.Margin+a.BookedS+a.LoadS+a.PromptS+a.SlackS, 1e-6)
	require.Greater(t, a.TotalS, a.LeftS)
	require.Equal(t, "booked", a.Place)
	all := strings.Join(d.Explanation, " ")
	for _, part := range []string{
		"1 replica with 1 slot could serve it; 1 request ran on them.", "9 requests that waited went before it, 9.0 slot-seconds of work.",
		"times 1.00, the margin that keeps 95% of the promises", "1 client was told when to come back before it", "Its deadline was 10s away.", "A place is booked for it: in ",
	} {
		require.Contains(t, all, part)
	}
	w.works(1)
	d = tell(Arrival{ID: "x", Key: "k"}, w.ask())
	require.Equal(t, "kept", d.Arithmetic.Place)
	require.Contains(t, d.Explanation[len(d.Explanation)-1], "It came back ")
	short := w.ask()
	short.Deadline = w.now.Add(50 * time.Millisecond)
	d = tell(Arrival{ID: "y", Key: "k"}, short)
	require.Equal(t, "none", d.Arithmetic.Place)
	require.Contains(t, d.Explanation[len(d.Explanation)-1], "even on an idle replica it takes 100ms")
}

// admission.mode observe: nothing is refused by forecast; what would have been
// is compared with what then happened.
func TestObserveCompares(t *testing.T) {
	cfg := testConfig(rep("a", 1))
	cfg.Observe = true
	w := newWorld(t, cfg)
	w.teach(time.Second)
	var tickets []*Ticket
	for range 14 {
		tickets = append(tickets, w.accept(w.ask()))
	}
	late := tickets[13]
	require.True(t, late.record.wouldRefuse)
	require.Empty(t, w.c.mu.bookings.byID)
	w.c.Leave(w.now, late)
	w.c.End(w.now, late, Cancelled, "")
	// They were thought to take a second each; the first half of them is faster.
	fast := 0
	for i := range 13 {
		a := w.granted(tickets[i])
		wouldRefuse := tickets[i].record.wouldRefuse
		d := 900 * time.Millisecond
		if i < 6 {
			d, fast = 500*time.Millisecond, fast+1
		}
		w.pass(100 * time.Millisecond)
		w.c.FirstToken(w.now, a)
		in := !w.now.After(tickets[i].ask.Deadline)
		w.pass(d)
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now.Add(-d), Usage: Usage{OutputTokens: 10}})
		rec := w.c.End(w.now, tickets[i], Completed, "")
		require.Equal(t, wouldRefuse, rec.InTime != nil)
		if wouldRefuse {
			require.Equal(t, in, *rec.InTime)
			rec.Explain()
			require.Contains(t, strings.Join(rec.Explanation, " "), "It was not refused, since admission only observes.")
		}
	}
	o := w.snap().Classes[1].WouldRefuse
	require.Equal(t, int64(1), o.Unknown)
	require.Positive(t, o.InTime)
	require.Positive(t, o.InTime+o.Late)
	s := w.snap()
	require.Equal(t, int64(13), s.Promises.Kept+s.Promises.Broken+o.InTime+o.Late, "what was promised nothing is in no promise's count")
}
