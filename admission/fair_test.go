package admission

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bazaar is a market with several keys: each asks openly, in a Poisson stream,
// for what takes about a second.
type bazaar struct {
	slots int
	keys  []stall
	until time.Duration
	seed  uint64
	warm  time.Duration // what ends before is not counted
}

// stall is one key's traffic.
type stall struct {
	key    string
	weight float64
	load   float64       // asked for, as a multiple of the whole capacity
	from   time.Duration // when it begins
	burst  int           // so many at once then, instead of a stream
}

// takings are what a key got.
type takings struct {
	asked, accepted, kept int
	served                float64 // slot-seconds
	asks                  float64 // slot-seconds
	waits                 []wait
}

// wait is how long a request that came at some time waited for its first token;
// an hour if it was refused, at once or later.
type wait struct {
	at, took time.Duration
	promised bool
}

func (b bazaar) run(t *testing.T) map[string]*takings {
	cfg := testConfig(rep("r", b.slots))
	cfg.Queue.MaxRequests = 1 << 20
	cfg.Weights = map[string]float64{}
	for _, k := range b.keys {
		cfg.Weights[k.key] = k.weight
	}
	w := newWorld(t, cfg)
	r := rand.New(rand.NewPCG(b.seed, 7))
	const pace = 5 * time.Millisecond // a token
	mean := (marketPrompt + marketTokens*pace).Seconds()
	start := w.now
	coming := &agenda{}
	out := map[string]*takings{}
	type buyer struct {
		*takings
		ticket *Ticket
		at     time.Time
		length int
	}
	var waiting []*buyer
	begin := func(s *buyer, a *Assignment) {
		first := w.now.Add(marketPrompt)
		took := marketPrompt + time.Duration(s.length)*pace
		end := w.now.Add(took)
		coming.plan(first, func() {
			w.c.FirstToken(w.now, a)
			if first.Sub(start) > b.warm {
				s.kept += int(count(first.Sub(s.at) <= marketDeadline))
			}
			s.waits = append(s.waits, wait{s.at.Sub(start), first.Sub(s.at), true})
		})
		coming.plan(end, func() {
			if w.now.Sub(start) > b.warm && w.now.Sub(start) <= b.until {
				s.served += took.Seconds()
			}
			w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: first, Usage: Usage{PromptTokens: 100, OutputTokens: s.length}})
			w.c.End(w.now, s.ticket, Completed, "")
		})
	}
	look := func(s *buyer) bool {
		select {
		case g := <-s.ticket.C():
			if g.Refusal != nil {
				s.waits = append(s.waits, wait{s.at.Sub(start), time.Hour, true})
				w.c.End(w.now, s.ticket, Refused, g.Refusal.Reason)
			} else {
				begin(s, g.Assignment)
			}
			return true
		default:
			return false
		}
	}
	ask := func(k stall, in *takings) {
		length := max(1, int(marketTokens*math.Exp(0.5*r.NormFloat64()-0.125)))
		counts := w.now.Sub(start) > b.warm
		if counts {
			in.asked++
			in.asks += (marketPrompt + time.Duration(length)*pace).Seconds()
		}
		s := &buyer{
			takings: in, at: w.now, length: length,
			ticket: w.c.Arrive(w.now, Arrival{ID: k.key, Class: "standard", Key: k.key, At: w.now}),
		}
		a := w.ask()
		a.MaxTokens, a.Deadline = 0, w.now.Add(marketDeadline)
		if ref := w.c.Admit(w.now, s.ticket, a); ref != nil {
			w.c.End(w.now, s.ticket, Refused, ref.Reason)
			in.waits = append(in.waits, wait{w.now.Sub(start), time.Hour, false})
			return
		}
		if counts {
			in.accepted++
		}
		waiting = append(waiting, s)
	}
	for _, k := range b.keys {
		in := out[k.key]
		if in == nil {
			in = &takings{}
			out[k.key] = in
		}
		if k.burst > 0 {
			for range k.burst {
				coming.plan(start.Add(k.from), func() { ask(k, in) })
			}
			continue
		}
		for at := k.from; k.load > 0 && at < b.until; {
			at += time.Duration(r.ExpFloat64() * mean / (k.load * float64(b.slots)) * float64(time.Second))
			coming.plan(start.Add(at), func() { ask(k, in) })
		}
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
	return out
}

// fairParts divides what there is by weight so that nobody gets more than he
// asks for and what that leaves is divided among the others again: max-min.
func fairParts(asks, weights []float64, all float64) []float64 {
	parts := make([]float64, len(asks))
	full := make([]bool, len(asks))
	for {
		left, weight := all, 0.0
		for i := range asks {
			if full[i] {
				left -= asks[i]
			} else {
				weight += weights[i]
			}
		}
		again := false
		for i := range asks {
			if full[i] {
				parts[i] = asks[i]
				continue
			}
			parts[i] = left * weights[i] / weight
			if parts[i] >= asks[i] {
				full[i], again = true, true
			}
		}
		if !again {
			return parts
		}
	}
}

func jain(xs []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range xs {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(xs)) * squares)
}

// R3.2: keys that ask for more than there is get what a max-min fair division
// by weight gives them, however much more than that each of them asks for, and
// those that ask for less get all of it.
func TestR3KeysShareByWeight(t *testing.T) {
	tests := []struct {
		name string
		keys []stall
	}{
		{"equal weights, unequal greed", []stall{{"a", 1, 0.5, 0, 0}, {"b", 1, 1, 0, 0}, {"c", 1, 2, 0, 0}, {"d", 1, 4, 0, 0}}},
		{"1:2:4", []stall{{"a", 1, 1.5, 0, 0}, {"b", 2, 1.5, 0, 0}, {"c", 4, 1.5, 0, 0}}},
		{"1:2:4, the light one greediest", []stall{{"a", 1, 4, 0, 0}, {"b", 2, 1, 0, 0}, {"c", 4, 1, 0, 0}}},
		{"1:2:4 and two that ask for little", []stall{{"a", 1, 1, 0, 0}, {"b", 2, 1, 0, 0}, {"c", 4, 1, 0, 0}, {"d", 2, 0.1, 0, 0}, {"e", 1, 0.05, 0, 0}}},
		{"ten of equal weight", func() (ks []stall) {
			for i := range 10 {
				ks = append(ks, stall{fmt.Sprint("k", i), 1, 0.15 + 0.1*float64(i%3), 0, 0})
			}
			return ks
		}()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := bazaar{slots: 8, keys: tt.keys, until: 9 * time.Minute, warm: time.Minute, seed: 3}
			got := b.run(t)
			var asks, weights, served, ratio []float64
			all := 0.0
			for _, k := range tt.keys {
				g := got[k.key]
				asks, weights, served = append(asks, g.asks), append(weights, k.weight), append(served, g.served)
				all += g.served
			}
			require.Greater(t, all, 0.98*float64(b.slots)*(b.until-b.warm).Seconds(), "R2: busy")
			for i, part := range fairParts(asks, weights, all) {
				ratio = append(ratio, served[i]/part)
				g := got[tt.keys[i].key]
				t.Logf("%s: asked for %.0f slot-seconds, fair %.0f, served %.0f (%.3f), kept %d of %d", tt.keys[i].key, asks[i], part, served[i], ratio[i], g.kept, g.accepted)
			}
			for i := range ratio {
				near := 0.05
				if asks[i]*ratio[i] < 250 { // a few long answers are more than that
					near = 0.08
				}
				require.InDelta(t, 1, ratio[i], near)
			}
			require.GreaterOrEqual(t, jain(ratio), 0.98)
		})
	}
}

// R3.2: nine keys that ask for less than their share hardly notice a tenth that
// asks for ten times as much as its own.
func TestR3NoisyNeighbour(t *testing.T) {
	honest := func() (ks []stall) {
		for i := range 9 {
			ks = append(ks, stall{fmt.Sprint("k", i), 1, 0.075, 0, 0})
		}
		return ks
	}()
	sum := func(got map[string]*takings) (kept, asked int) {
		for _, k := range honest {
			kept += got[k.key].kept
			asked += got[k.key].asked
		}
		return kept, asked
	}
	for _, slots := range []int{4, 16} {
		t.Run(fmt.Sprint(slots, " slots"), func(t *testing.T) {
			t.Parallel()
			b := bazaar{slots: slots, keys: honest, until: 20 * time.Minute, warm: time.Minute}
			alone, _ := sum(b.run(t))
			b.keys = append(slices.Clone(honest), stall{"noisy", 1, 1, 0, 0})
			got := b.run(t)
			beside, asked := sum(got)
			t.Logf("alone %d, beside the noisy one %d, of %d; it had %.3f of the capacity", alone, beside, asked, got["noisy"].served/float64(slots)/(b.until-b.warm).Seconds())
			require.GreaterOrEqual(t, float64(beside), 0.95*float64(alone))
		})
	}
}

// course is what became of some requests.
type course struct {
	asked, promised, kept int
	took                  time.Duration // of those in time
}

func (c *course) mean() time.Duration { return c.took / time.Duration(max(1, c.kept)) }

// follow sums up what became of the requests that came in a span of time: those
// of one key, and all others.
func follow(got map[string]*takings, key string, from, to time.Duration, its, others *course) {
	for k, g := range got {
		c := others
		if k == key {
			c = its
		}
		for _, x := range g.waits {
			if x.at < from || x.at >= to {
				continue
			}
			c.asked++
			c.promised += int(count(x.promised))
			if x.took <= marketDeadline {
				c.kept++
				c.took += x.took
			}
		}
	}
}

// R3.2, R5: a key that has filled the window alone keeps its promises when nine
// others come, and they need not wait until all of it is served: they are
// promised a start from the first second on, as what is tight lets them.
func TestR3ALoneKeyAndThoseWhoCome(t *testing.T) {
	const come = 2 * time.Minute
	visitors := func(lone ...stall) []stall {
		for i := range 9 {
			lone = append(lone, stall{fmt.Sprint("k", i), 1, 0.075, come, 0})
		}
		return lone
	}
	t.Run("a stream that fills every second", func(t *testing.T) {
		t.Parallel()
		var before, during, others, later course
		for seed := range uint64(10) {
			got := bazaar{slots: 8, keys: visitors(stall{"lone", 1, 1.5, 0, 0}), until: 3 * time.Minute, seed: seed}.run(t)
			follow(got, "lone", time.Minute, come-marketDeadline, &before, &course{})
			follow(got, "lone", come-marketDeadline, come+marketDeadline, &during, &others)
			follow(got, "lone", come+2*marketDeadline, 3*time.Minute, &course{}, &later)
		}
		t.Logf("lone: before %+v, mean %v; during %+v. Others: %+v, mean %v; later %+v, mean %v", before, before.mean(), during, others, others.mean(), later, later.mean())
		kept := func(c *course) float64 { return float64(c.kept) / float64(c.promised) }
		require.Greater(t, before.mean(), 8*time.Second, "the window is full")
		require.InDelta(t, kept(&before), kept(&during), 0.03)
		require.Greater(t, float64(others.kept), 0.9*float64(others.asked))
		require.Less(t, others.mean(), before.mean()*9/10)
		require.Greater(t, float64(later.kept), 0.97*float64(later.asked))
		require.Less(t, later.mean(), before.mean()/2)
	})
	t.Run("a burst just before they come", func(t *testing.T) {
		t.Parallel()
		var lone, others course
		for seed := range uint64(10) {
			keys := visitors(stall{"lone", 1, 0.2, 0, 0}, stall{"lone", 1, 0, come - time.Second, 60})
			got := bazaar{slots: 8, keys: keys, until: 3 * time.Minute, seed: seed}.run(t)
			follow(got, "lone", come-time.Second, come, &lone, &course{})
			follow(got, "lone", come, come+2*time.Second, &course{}, &others)
		}
		t.Logf("lone: %+v, mean %v. Others: %+v, mean %v", lone, lone.mean(), others, others.mean())
		require.Greater(t, lone.promised, 10*55)
		require.Greater(t, float64(lone.kept), 0.97*float64(lone.promised))
		require.Equal(t, others.asked, others.kept)
		require.Less(t, others.mean(), time.Second, "what has slack lets them pass")
	})
}

// keyed admits a request of a key with a minute to its first token.
func (w *world) keyed(key string) *Ticket {
	w.t.Helper()
	t := w.c.Arrive(w.now, Arrival{ID: key, Class: "standard", Key: key, At: w.now})
	a := w.ask()
	a.Deadline = w.now.Add(time.Minute)
	require.Nil(w.t, w.c.Admit(w.now, t, a))
	return t
}

// R3.2: slots that a key's zombies hold are its own, too.
func TestR3ZombiesCountForTheirKey(t *testing.T) {
	w := newWorld(t, testConfig(rep("r", 1)))
	w.teach(time.Second)
	first := w.keyed("a")
	var waiting []*Ticket
	for range 6 {
		waiting = append(waiting, w.keyed("a"), w.keyed("b"))
	}
	a := w.granted(first)
	w.pass(time.Second)
	w.c.Finish(w.now, a, AttemptResult{Kind: ResultClientGone, Running: true})
	w.c.End(w.now, first, Cancelled, "")
	w.pass(4 * time.Second)
	w.c.Released(w.now, a, true)
	var order strings.Builder
	for len(waiting) > 0 {
		i := slices.IndexFunc(waiting, func(t *Ticket) bool { return len(t.C()) > 0 })
		order.WriteString(waiting[i].key)
		w.serve(w.granted(waiting[i]), time.Second)
		waiting = slices.Delete(waiting, i, i+1)
	}
	require.Equal(t, "bbbbbabaaaaa", order.String(), "b has had its five seconds before a has another")
}

// R3: a retry goes back where it stood: its key is not charged for what it did
// not get.
func TestR3ARetryOfAKeyGoesBackWhereItStood(t *testing.T) {
	w := newWorld(t, testConfig(rep("r", 1)))
	w.teach(time.Second)
	first := w.keyed("a")
	b, later := w.keyed("b"), w.keyed("a")
	a := w.granted(first)
	n := w.c.Finish(w.now, a, AttemptResult{Kind: ResultConnect, NothingSent: true})
	require.Equal(t, ActWait, n.Action)
	w.serve(w.granted(first), time.Second)
	w.serve(w.granted(b), time.Second)
	w.serve(w.granted(later), time.Second)
}

// What runs when its class is taken away goes on in another, however often
// classes change: its books, its slot time and its key's charge are there.
func TestR15ClassesThatAreGoneTwice(t *testing.T) {
	w := newWorld(t, testConfig(rep("r", 2)))
	a := w.granted(w.accept(w.ask()))
	cfg := testConfig(rep("r", 2))
	cfg.Classes, cfg.DefaultClass = []Class{{Name: "x", Deadline: time.Minute}, {Name: "y", Deadline: time.Minute}}, "y"
	w.c.Reconfigure(w.now, cfg)
	cfg.Classes = []Class{{Name: "y", Deadline: time.Minute}}
	w.c.Reconfigure(w.now, cfg)
	w.serve(a, time.Second)
	require.Zero(t, w.c.mu.q.Meter().Running(0))
}

// R3: what is remembered of keys is of the last minute, and of those that are
// owed or owe something.
func TestR3IdleKeysAreForgotten(t *testing.T) {
	w := newWorld(t, testConfig(rep("r", 1)))
	w.teach(time.Millisecond)
	for i := range 10_000 {
		w.serve(w.granted(w.keyed(fmt.Sprint("k", i))), time.Millisecond)
	}
	k := &w.c.mu.classes[1].claims
	require.Len(t, k.keys, 10_000)
	w.pass(time.Minute)
	w.serve(w.granted(w.keyed("other")), time.Millisecond)
	require.Len(t, k.keys, 1)
	require.Equal(t, 1, k.latest.Len())
	require.InDelta(t, 1, k.weight, 1e-6)
}
