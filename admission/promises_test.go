package admission

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// market is an open-loop load on one replica whose answers have some
// distribution of lengths, in virtual time.
type market struct {
	slots int
	load  float64 // offered, as a multiple of capacity
	shape string  // of answers' lengths: fixed, lognormal, pareto
	n     int     // requests
	seed  uint64
	shift float64 // pace is multiplied by it after half of the requests; 0: never
	surge float64 // likewise the load
}

// tally is what came of it.
type tally struct {
	accepted, kept, late int
	ideal                int // requests that one who knows all lengths would have served in time
	busy                 float64
	verdicts             []bool // of promises, in the order in which they ended
	shifted              int    // verdicts before half of the requests had come
}

const (
	marketTokens   = 200 // mean length of an answer
	marketPrompt   = 20 * time.Millisecond
	marketDeadline = 10 * time.Second
)

// length draws an answer's length around marketTokens.
func (m *market) length(r *rand.Rand) int {
	x := 1.0
	switch m.shape {
	case "lognormal":
		x = math.Exp(0.8*r.NormFloat64() - 0.32)
	case "pareto":
		x = min(50, math.Pow(1-r.Float64(), -1/1.5)/3)
	}
	return max(1, int(x*marketTokens))
}

// agenda is what is to happen, by time and then by order of entry.
type agenda struct {
	items []appointment
	n     int
}

type appointment struct {
	at time.Time
	n  int
	do func()
}

func (a *agenda) Len() int      { return len(a.items) }
func (a *agenda) Swap(i, j int) { a.items[i], a.items[j] = a.items[j], a.items[i] }
func (a *agenda) Less(i, j int) bool {
	x, y := a.items[i], a.items[j]
	return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.n, y.n)) < 0
}
func (a *agenda) Push(x any) { a.items = append(a.items, x.(appointment)) }
func (a *agenda) Pop() any {
	last := len(a.items) - 1
	x := a.items[last]
	a.items = a.items[:last]
	return x
}

func (a *agenda) plan(at time.Time, do func()) {
	a.n++
	heap.Push(a, appointment{at, a.n, do})
}

// run plays a market through the controller.
func (m market) run(t *testing.T) (out tally) {
	cfg := testConfig(rep("r", m.slots))
	cfg.Queue.MaxRequests = 1 << 20
	w := newWorld(t, cfg)
	r := rand.New(rand.NewPCG(m.seed, 1))
	pace := 5 * time.Millisecond // a token
	capacity := float64(m.slots) / (marketPrompt + marketTokens*pace).Seconds()
	start, at := w.now, w.now
	coming := &agenda{}
	ideal := make([]time.Time, m.slots) // when each slot of the one who knows is free
	var waiting []*shopper
	held := 0.0

	begin := func(s *shopper, a *Assignment) {
		first := w.now.Add(marketPrompt)
		end := first.Add(time.Duration(s.length) * pace)
		held += end.Sub(w.now).Seconds()
		coming.plan(first, func() {
			w.c.FirstToken(w.now, a)
			inTime := !w.now.After(s.deadline)
			out.verdicts = append(out.verdicts, inTime)
			out.kept += int(count(inTime))
			out.late += int(count(!inTime))
		})
		coming.plan(end, func() {
			w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: first, Usage: Usage{PromptTokens: 100, OutputTokens: s.length}})
			w.c.End(w.now, s.ticket, Completed, "")
		})
	}
	look := func(s *shopper) (served bool) {
		select {
		case g := <-s.ticket.C():
			if g.Refusal != nil {
				out.verdicts = append(out.verdicts, false)
				w.c.End(w.now, s.ticket, Refused, g.Refusal.Reason)
				return true
			}
			begin(s, g.Assignment)
			return true
		default:
			return false
		}
	}
	for i := range m.n {
		if m.surge > 0 && i == m.n/2 {
			m.load *= m.surge
		}
		at = at.Add(time.Duration(r.ExpFloat64() / (capacity * m.load) * float64(time.Second)))
		length := m.length(r)
		coming.plan(at, func() {
			if i == m.n/2 {
				out.shifted = len(out.verdicts)
				if m.shift > 0 {
					pace = time.Duration(float64(pace) * m.shift)
				}
			}
			slices.SortFunc(ideal, time.Time.Compare)
			if s := slices.MaxFunc([]time.Time{ideal[0], w.now}, time.Time.Compare); s.Add(marketPrompt).Sub(w.now) <= marketDeadline {
				ideal[0] = s.Add(marketPrompt + time.Duration(length)*pace)
				out.ideal++
			}
			s := &shopper{ticket: w.arrive(), length: length, deadline: w.now.Add(marketDeadline)}
			a := w.ask()
			a.MaxTokens, a.Deadline = 0, s.deadline
			if ref := w.c.Admit(w.now, s.ticket, a); ref != nil {
				w.c.End(w.now, s.ticket, Refused, ref.Reason)
				return
			}
			out.accepted++
			waiting = append(waiting, s)
		})
	}
	next := time.Time{}
	for coming.Len() > 0 {
		a := heap.Pop(coming).(appointment)
		for !next.IsZero() && next.Before(a.at) {
			w.now = next
			next = w.c.Tick(w.now)
			waiting = slices.DeleteFunc(waiting, look)
		}
		w.now = a.at
		a.do()
		next = w.c.Tick(w.now)
		waiting = slices.DeleteFunc(waiting, look)
	}
	require.Empty(t, waiting)
	require.Zero(t, out.late, "one that cannot be in time is turned away, not started")
	require.Equal(t, int64(m.n), w.snap().Totals.Completed+w.snap().Totals.Refused)
	out.busy = held / (float64(m.slots) * at.Sub(start).Seconds())
	return out
}

// shopper is one request of a market.
type shopper struct {
	ticket   *Ticket
	length   int
	deadline time.Time
}

// R5: whatever the shape of service times and however scarce capacity is, the
// share of promises kept comes to the target, no slot idles out of caution,
// and hardly less is served in time than by one who knows every length.
func TestR5PromisesAreKeptAsOftenAsAsked(t *testing.T) {
	for _, shape := range []string{"fixed", "lognormal", "pareto"} {
		for _, slots := range []int{4, 16} {
			for _, load := range []float64{0.9, 1.5, 3} {
				t.Run(fmt.Sprintf("%s/%d slots/%.1f", shape, slots, load), func(t *testing.T) {
					t.Parallel()
					var sum tally
					for seed := range uint64(2) {
						r := market{slots: slots, load: load, shape: shape, n: int(4000 * max(1, load)), seed: seed}.run(t)
						sum.accepted += r.accepted
						sum.kept += r.kept
						sum.ideal += r.ideal
						sum.busy += r.busy / 2
					}
					kept := float64(sum.kept) / float64(sum.accepted)
					t.Logf("accepted %d, kept %.3f, of the ideal %.3f, busy %.3f", sum.accepted, kept, float64(sum.kept)/float64(sum.ideal), sum.busy)
					require.GreaterOrEqual(t, kept, 0.935)
					require.GreaterOrEqual(t, float64(sum.kept)/float64(sum.ideal), 0.93)
					if load > 1 {
						require.LessOrEqual(t, kept, 0.985)
						require.GreaterOrEqual(t, sum.busy, 0.98)
					}
				})
			}
		}
	}
}

// R5: when a replica becomes twice as slow, or twice as fast, the promises
// already made are lost or easy, but those made after it are kept as before.
func TestR5PromisesAfterAShift(t *testing.T) {
	for _, tt := range []struct{ load, shift float64 }{{1.5, 2}, {4, 0.5}} {
		for _, shape := range []string{"fixed", "lognormal"} {
			t.Run(fmt.Sprintf("%s/×%.1f", shape, tt.shift), func(t *testing.T) {
				t.Parallel()
				kept, n := 0, 0
				for seed := range uint64(4) {
					r := market{slots: 4, load: tt.load, shape: shape, n: int(2500 * tt.load), seed: seed, shift: tt.shift}.run(t)
					for _, k := range r.verdicts[r.shifted+200 : r.shifted+600] {
						kept += int(count(k))
						n++
					}
				}
				share := float64(kept) / float64(n)
				t.Logf("kept %.3f of %d", share, n)
				require.InDelta(t, 0.95, share, 0.025)
			})
		}
	}
}

// R5: while little waits near its deadline that may be broken more often; when
// load rises and all does, the share of all is soon back.
func TestR5PromisesWhenLoadRises(t *testing.T) {
	for _, shape := range []string{"fixed", "lognormal"} {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			kept, n := 0, 0
			for seed := range uint64(8) {
				r := market{slots: 4, load: 0.9, surge: 3, shape: shape, n: 4000, seed: seed}.run(t)
				for _, k := range r.verdicts[r.shifted+300 : r.shifted+700] {
					kept += int(count(k))
					n++
				}
			}
			share := float64(kept) / float64(n)
			t.Logf("kept %.3f of %d", share, n)
			require.InDelta(t, 0.95, share, 0.02)
		})
	}
}
