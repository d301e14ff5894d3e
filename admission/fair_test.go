package admission

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
			b := bazaar{slots: 8, keys: tt.keys, until: 15 * time.Minute, warm: time.Minute, seed: 3}
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
				require.InDelta(t, 1, ratio[i], 0.05)
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

// R3.2, R5: a key that has filled the window alone keeps its promises when nine
// others come, and they need not wait until all of it is served.
func TestR3ALoneKeyAndThoseWhoCome(t *testing.T) {
	for _, burst := range []int{0, 60} {
		t.Run(fmt.Sprint("burst ", burst), func(t *testing.T) {
			const come = 2 * time.Minute
			keys := []stall{{"lone", 1, 1.5, 0, 0}}
			if burst > 0 {
				keys = []stall{{"lone", 1, 0.2, 0, 0}, {"lone", 1, 0, come - time.Second, burst}}
			}
			for i := range 9 {
				keys = append(keys, stall{fmt.Sprint("k", i), 1, 0.075, come, 0})
			}
			type course struct {
				asked, promised, kept int
				took                  time.Duration
			}
			var lone, others [20]course
			for seed := range uint64(20) {
				got := bazaar{slots: 8, keys: keys, until: 3 * time.Minute, seed: seed}.run(t)
				for key, g := range got {
					for _, x := range g.waits {
						i := int((x.at-come)/time.Second) + 10
						if i < 0 || i >= 20 {
							continue
						}
						c := &others[i]
						if key == "lone" {
							c = &lone[i]
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
			for i := range 20 {
				t.Logf("%d lone %d %d %d %v   others %d %d %d %v", i-10, lone[i].asked, lone[i].promised, lone[i].kept, lone[i].took/time.Duration(max(1, lone[i].kept)), others[i].asked, others[i].promised, others[i].kept, others[i].took/time.Duration(max(1, others[i].kept)))
			}
		})
	}
}
