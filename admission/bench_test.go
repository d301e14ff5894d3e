package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"switchyard/replica"
)

const benchSlots = 4

// benchWorld has n replicas of four slots each, all busy when full.
func benchWorld(b testing.TB, n, queued int) (*Controller, time.Time, []*Assignment) {
	b.Helper()
	var cfgs []replica.Config
	for i := range n {
		r := rep(fmt.Sprint("r", i), benchSlots)
		r.CacheTokens = 100_000
		cfgs = append(cfgs, r)
	}
	cfg := testConfig(cfgs...)
	cfg.Queue, cfg.Affinity = QueueLimits{}, true
	now := time.Unix(1_700_000_000, 0)
	c := New(cfg, now)
	for _, r := range cfgs {
		c.Report(now, r.Name, facts("m"))
	}
	var running []*Assignment
	for len(running) < benchSlots*n || queued > 0 {
		t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
		if ref := c.Admit(now, t, benchAsk(now)); ref != nil {
			b.Fatal(ref)
		}
		select {
		case g := <-t.C():
			running = append(running, g.Assignment)
		default:
			queued--
		}
	}
	for _, r := range c.mu.fleet {
		r.Speed("m").Learn(replica.Sample{PromptTokens: 100, Prompt: time.Millisecond, Hold: 10 * time.Millisecond})
		c.mu.touch(r)
	}
	return c, now, running
}

// taught is benchWorld where answers have ended whose lengths spread (lognormal,
// σ 0.8), and four keys wait.
type taught struct {
	c   *Controller
	now time.Time
	rnd *rand.Rand
	i   int
}

func newTaught(b testing.TB, replicas, queued int) *taught {
	w := &taught{rnd: rand.New(rand.NewPCG(1, 2))}
	w.c, w.now, _ = benchWorld(b, replicas, queued)
	for range 8 * replicas * benchSlots {
		w.promise(func(do func()) { do() })
	}
	return w
}

// promise has a request accepted and queued while another, which runs, ends.
func (w *taught) promise(held func(do func())) {
	w.i++
	w.now = w.now.Add(4 * time.Millisecond)
	admitted(held, w.c, w.now, w.ticket(), benchAsk(w.now))
	r := w.c.mu.fleet[w.rnd.IntN(len(w.c.mu.fleet))]
	running := w.c.mu.runsOn(r.Pool("m")).list
	a := running[w.rnd.IntN(len(running))].a
	tokens := 1 + int(100*math.Exp(0.8*w.rnd.NormFloat64()))
	held(func() { w.c.FirstToken(w.now, a) })
	held(func() {
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now, Usage: Usage{
			PromptTokens: 100, Prompt: 100 * time.Millisecond, OutputTokens: tokens, Decode: time.Duration(tokens) * 20 * time.Millisecond,
		}})
	})
	held(func() { w.c.End(w.now, a.ticket, Completed, "") })
}

// round is promise with a refusal before it.
func (w *taught) round(held func(do func())) {
	t, ask := w.ticket(), benchAsk(w.now)
	ask.Deadline, ask.BodyHash = w.now.Add(5*time.Second), uint64(w.i)
	admitted(held, w.c, w.now, t, ask)
	held(func() { w.c.End(w.now, t, Refused, ReasonDeadlineUnmeetable) })
	w.promise(held)
}

func (w *taught) ticket() *Ticket {
	return newTicket(Arrival{ID: fmt.Sprint("b", w.i), Key: fmt.Sprint("k", w.i%4), At: w.now})
}

func benchAsk(now time.Time) Ask {
	return Ask{
		Models: []string{"m"}, Public: "m", Engines: []replica.Engine{replica.EngineOpenAI}, Width: 1, Bytes: 1000,
		PromptTokens: 100, MaxTokens: 100, Stream: true, Deadline: now.Add(time.Hour),
	}
}

// BenchmarkRound is a request's whole way through a loaded controller: it is
// admitted and queued, another ends, and its slot goes to the next in order.
func BenchmarkRound(b *testing.B) {
	for _, size := range []struct{ replicas, queued int }{{2, 10}, {2, 1000}, {2, 20000}, {10, 1000}, {100, 1000}, {100, 10000}, {1000, 1000}} {
		b.Run(fmt.Sprintf("replicas=%d/queued=%d", size.replicas, size.queued), func(b *testing.B) {
			c, now, _ := benchWorld(b, size.replicas, size.queued)
			for b.Loop() {
				now = now.Add(time.Millisecond)
				t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
				c.Admit(now, t, benchAsk(now))
				for _, rs := range c.mu.running { // some attempt that runs
					a := rs.list[0].a
					c.Finish(now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: now, Usage: Usage{OutputTokens: 10}})
					c.End(now, a.ticket, Completed, "")
					break
				}
			}
		})
	}
}

// BenchmarkRefusal is a refusal on arrival by forecast.
func BenchmarkRefusal(b *testing.B) {
	for _, n := range []int{2, 100, 1000} {
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			r := newRefuser(b, n, 1000)
			for b.Loop() {
				r.next(func(do func()) { do() })
			}
			b.ReportMetric(float64(len(r.c.mu.bookings.byID)), "booked")
		})
	}
}

// refuser asks 5,000 times a second for what would come too late, and comes
// back in time with each tenth.
type refuser struct {
	b   testing.TB
	c   *Controller
	now time.Time
	ids []string
	i   int
	due map[int64][]int // returns by millisecond
}

func newRefuser(b testing.TB, replicas, queued int) *refuser {
	r := &refuser{b: b, due: map[int64][]int{}}
	r.c, r.now, _ = benchWorld(b, replicas, queued)
	r.now = r.now.Add(80 * time.Second) // what runs is expected to run 10 s still
	for i := range 2 * maxBookings {
		r.ids = append(r.ids, fmt.Sprint("b", i))
	}
	for range 50000 { // more than ten seconds
		r.next(func(do func()) { do() })
	}
	return r
}

func (r *refuser) next(held func(do func())) {
	r.i++
	before := r.now.UnixMilli()
	r.now = r.now.Add(200 * time.Microsecond)
	r.refuse(r.i, held)
	if ms := r.now.UnixMilli(); ms > before {
		for _, i := range r.due[ms] {
			r.refuse(i, held)
		}
		delete(r.due, ms)
	}
}

func (r *refuser) refuse(i int, held func(do func())) {
	ask := benchAsk(r.now)
	ask.Deadline, ask.BodyHash = r.now.Add(5*time.Second), uint64(i)
	t := newTicket(Arrival{ID: r.ids[i%len(r.ids)], Key: "k", At: r.now})
	ref := admitted(held, r.c, r.now, t, ask)
	if ref == nil {
		r.b.Fatal("accepted")
	}
	held(func() { r.c.End(r.now, t, Refused, ReasonDeadlineUnmeetable) })
	if i%10 == 0 {
		ms := r.now.Add(ref.RetryAfter).UnixMilli() + 1
		r.due[ms] = append(r.due[ms], i)
	}
}

// admitted is Arrive and Admit, in which held measures what the mutex is held for.
func admitted(held func(do func()), c *Controller, now time.Time, t *Ticket, ask Ask) (ref *Refusal) {
	held(func() { c.arrive(now, t, "standard") })
	t.bring()
	held(func() { ref = c.admit(now, t, ask) })
	if ref != nil {
		ref.phrase()
	}
	return ref
}

// BenchmarkDecision is one decision on arrival with 10,000 waiting on 100
// replicas: Arrive, Admit, End.
func BenchmarkDecision(b *testing.B) {
	b.Run("promise", func(b *testing.B) {
		c, now, _ := benchWorld(b, 100, 10000)
		for b.Loop() {
			now = now.Add(time.Millisecond)
			t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
			if c.Admit(now, t, benchAsk(now)) != nil {
				b.Fatal("refused")
			}
			c.Leave(now, t)
			c.End(now, t, Cancelled, "")
		}
	})
	b.Run("refusal", func(b *testing.B) {
		r := newRefuser(b, 100, 10000)
		for b.Loop() {
			r.next(func(do func()) { do() })
		}
		b.ReportMetric(float64(len(r.c.mu.bookings.byID)), "booked")
	})
	b.Run("both, lengths learned, four keys", func(b *testing.B) {
		w := newTaught(b, 100, 10000)
		for b.Loop() {
			w.round(func(do func()) { do() })
		}
	})
}

// BenchmarkChoose is the choice among replicas (R3, R6: at most 20 µs among
// 1,000) that all have room, with a prompt of 64 parts that nothing is known of,
// that one holds, that all hold, or that one holds which is busy. It reports the
// least and the median time, so that a busy machine does not decide it.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{10, 30, 100, 300, 1000} {
		for _, prompt := range []string{"unknown", "on-one", "on-all", "on-a-busy-one"} {
			b.Run(fmt.Sprintf("replicas=%d/prompt=%s", n, prompt), func(b *testing.B) {
				c, now, running := benchWorld(b, n, 0)
				for _, a := range running {
					if prompt == "on-a-busy-one" && a.Replica == "r0" {
						continue
					}
					c.Finish(now, a, AttemptResult{Kind: ResultOK})
					c.End(now, a.ticket, Completed, "")
				}
				t := c.Arrive(now, Arrival{ID: "b", Class: "standard", At: now})
				t.ask, t.lane = benchAsk(now), lane{model: "m", engines: "openai"}
				if prompt != "unknown" {
					t.ask.Chain = talk("x", 64)
					t.ask.PromptTokens = 64000
					for i, r := range c.mu.fleet {
						if i == 0 || prompt == "on-all" {
							r.Caches("m").Fill(now, -1, t.ask.Chain)
						}
					}
				}
				var took []time.Duration
				for b.Loop() {
					c.mu.touch(c.mu.fleet[len(took)%n]) // one replica changes for each that is chosen
					start := time.Now()
					c.mu.choose(now, t)
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[0].Nanoseconds()), "min-ns")
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			})
		}
	}
}
