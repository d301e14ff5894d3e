package probe

import (
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// finding is what a sink was given, and when.
type finding struct {
	at time.Duration // since the start of the test
	f  replica.Facts
}

// fleet is a Prober on an in-memory network, and what its sink was given.
type fleet struct {
	t     *testing.T
	net   network
	start time.Time
	*Prober

	mu    sync.Mutex
	found map[string][]finding
	stops []func()
}

func newFleet(t *testing.T, o Options) *fleet {
	fl := &fleet{t: t, start: time.Now(), found: map[string][]finding{}}
	o.Dial = fl.net.dial
	o.Sink = func(name string, f replica.Facts) {
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.found[name] = append(fl.found[name], finding{time.Since(fl.start), f})
	}
	fl.Prober = NewProber(o)
	return fl
}

func (fl *fleet) target(name string) Target {
	return Target{Name: name, URL: &url.URL{Scheme: "http", Host: name}, Engine: replica.EngineAuto}
}

func (fl *fleet) serve(name string, f *fake) (stop func()) {
	stop = fl.net.serve(name, f)
	fl.stops = append(fl.stops, stop)
	return stop
}

// Nudge asks for a round as early as the engine can bear it.
func (fl *fleet) Nudge(name string) {
	if w := fl.worker(name); w != nil {
		w.poke(true)
	}
}

// close ends everything, for nothing may be left in a bubble.
func (fl *fleet) close() {
	fl.Prober.Close()
	for _, stop := range fl.stops {
		stop()
	}
}

func (fl *fleet) of(name string) []finding {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return append([]finding(nil), fl.found[name]...)
}

func (fl *fleet) last(name string) finding {
	all := fl.of(name)
	require.NotEmpty(fl.t, all)
	return all[len(all)-1]
}

const second = time.Second

// elapse lets a bubble's clock run on.
func elapse(d time.Duration) { <-time.After(d) }

// The first round comes at once, the next ones an interval apart, with a
// little jitter.
func TestProberPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: 2 * second, Timeout: 2 * second})
		defer fl.close()
		fl.serve("a", anOllama(t))
		fl.Add(fl.target("a"))
		fl.Add(fl.target("a")) // nothing changed
		synctest.Wait()
		require.Len(t, fl.of("a"), 1)
		require.Zero(t, fl.of("a")[0].at)
		require.True(t, fl.of("a")[0].f.Up)
		elapse(time.Minute)
		all := fl.of("a")
		require.InDelta(t, 29, len(all), 2)
		for i, f := range all[1:] {
			apart := f.at - all[i].at
			require.GreaterOrEqual(t, apart, 2*second)
			require.LessOrEqual(t, apart, 2*second+2*second/10)
		}
	})
}

// llama.cpp is asked no faster than every 2 s, whatever the interval, nudges
// and questions: each answer delays its noticing of a departed client (R1).
func TestProberLlamaFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: 100 * time.Millisecond, Timeout: second})
		defer fl.close()
		f := aLlama(t)
		f.set(map[string]reply{"/slots": {body: llamaIdle, took: 300 * time.Millisecond}})
		var mu sync.Mutex
		var asked []time.Time
		f.hook = func(path string) {
			if path == "/slots" {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, time.Now())
			}
		}
		fl.serve("gpu0", f)
		fl.Add(fl.target("gpu0"))
		for range 300 {
			fl.Nudge("gpu0")
			elapse(100 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, len(asked), 10)
		for i, at := range asked[1:] {
			// From the answer of one to the next, not from its beginning.
			require.GreaterOrEqual(t, at.Sub(asked[i]), 2*second+300*time.Millisecond)
		}
	})
}

// A nudge brings the next round forward; the others are asked sooner.
func TestProberNudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: time.Minute, Timeout: second})
		defer fl.close()
		fl.serve("o", anOllama(t))
		fl.serve("l", aLlama(t))
		fl.Add(fl.target("o"))
		fl.Add(fl.target("l"))
		fl.Nudge("unknown")
		elapse(10 * second)
		require.Len(t, fl.of("o"), 1)
		fl.Nudge("o")
		fl.Nudge("l")
		synctest.Wait()
		require.Len(t, fl.of("o"), 2)
		require.Len(t, fl.of("l"), 2)
		fl.Nudge("o")
		fl.Nudge("l")
		elapse(second)
		require.Equal(t, 10*second+nudgeGap, fl.last("o").at)
		require.Len(t, fl.of("l"), 2)
		elapse(3 * second)
		require.Equal(t, 12*second, fl.last("l").at)
		require.Len(t, fl.of("l"), 3)
	})
}

// PAINS 27: a hung replica holds up nobody else, and is asked again.
// TestR1ProberSettled: once nobody who left is unnoticed, llama.cpp's word may
// be asked for without its silence, and frees their slots.
func TestR1ProberSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: time.Minute, Timeout: second})
		defer fl.close()
		fl.serve("l", aLlama(t))
		fl.Add(fl.target("l"))
		fl.Settled("unknown")
		elapse(settledGap)
		require.Len(t, fl.of("l"), 1)
		fl.Settled("l")
		elapse(2 * settledGap)
		require.Len(t, fl.of("l"), 2)
		fl.Nudge("l") // the next one waits as ever
		elapse(second)
		require.Len(t, fl.of("l"), 2)
	})
}

func TestProberHungReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: 2 * second, Timeout: 2 * second})
		defer fl.close()
		hung := newFake(t, "", nil)
		hung.otherwise = reply{hang: true}
		fl.serve("hung", hung)
		fl.serve("well", anOllama(t))
		fl.Add(fl.target("hung"))
		fl.Add(fl.target("well"))
		fl.Add(fl.target("absent"))
		elapse(60*second + second/2)
		require.InDelta(t, 29, len(fl.of("well")), 2)
		require.True(t, fl.last("well").f.Up)
		require.InDelta(t, 27, len(fl.of("hung")), 3)
		require.False(t, fl.last("hung").f.Up)
		require.False(t, fl.last("hung").f.Gone)
		require.InDelta(t, 29, len(fl.of("absent")), 2)
		require.True(t, fl.last("absent").f.Gone)
	})
}

// A replica that goes and comes back is seen at the interval, and its lists
// are read at once.
func TestProberOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: 2 * second, Timeout: 2 * second})
		defer fl.close()
		stop := fl.serve("gpu0", aLlama(t))
		fl.Add(fl.target("gpu0"))
		elapse(5 * second)
		require.True(t, fl.last("gpu0").f.Up)
		stop()
		elapse(3 * second)
		require.True(t, fl.last("gpu0").f.Gone)
		require.Equal(t, "tiny", fl.last("gpu0").f.Models[0].Name)
		changed := aLlama(t)
		changed.set(map[string]reply{"/v1/models": ok(`{"data":[{"id":"other","owned_by":"llamacpp"}]}`)})
		fl.serve("gpu0", changed)
		elapse(3 * second)
		require.True(t, fl.last("gpu0").f.Up)
		require.Equal(t, "other", fl.last("gpu0").f.Models[0].Name)
	})
}

// R15: what a reload changes; what it does not change is left alone.
func TestProberReconfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: time.Hour, Timeout: 2 * second})
		defer fl.close()
		for _, name := range []string{"kept", "changed", "dropped", "new"} {
			fl.serve(name, anOllama(t))
		}
		for _, name := range []string{"kept", "changed", "dropped"} {
			fl.Add(fl.target(name))
		}
		synctest.Wait()
		kept := fl.worker("kept")
		changed := fl.target("changed")
		changed.Engine = replica.EngineOpenAI
		elapse(second)
		fl.Reconfigure(time.Hour, second, []Target{fl.target("kept"), changed, fl.target("new")})
		synctest.Wait()
		require.Same(t, kept, fl.worker("kept"))
		require.Len(t, fl.of("kept"), 1)
		require.Len(t, fl.of("changed"), 2)
		require.Equal(t, replica.EngineOpenAI, fl.last("changed").f.Engine)
		require.Len(t, fl.of("new"), 1)
		require.Nil(t, fl.worker("dropped"))

		// A shorter interval holds at once, not after the long one.
		fl.Reconfigure(5*second, second, []Target{fl.target("kept")})
		elapse(60 * second)
		require.InDelta(t, 12, len(fl.of("kept")), 2)
		require.Len(t, fl.of("dropped"), 1)
		require.Len(t, fl.of("new"), 1)
	})
}

// After Remove and Close have returned nothing is reported any more, not even
// by a round that was under way.
func TestProberRemoveAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t, Options{Interval: 2 * second, Timeout: time.Hour})
		hung := newFake(t, "", nil)
		hung.otherwise = reply{hang: true}
		fl.serve("a", hung)
		fl.serve("b", hung)
		fl.Add(fl.target("a"))
		fl.Add(fl.target("b"))
		elapse(second)
		fl.Remove("a")
		fl.Remove("a")
		require.Equal(t, second, time.Since(fl.start), "it does not wait for the replica")
		fl.close()
		fl.Close()
		fl.Add(fl.target("c"))
		fl.Nudge("b")
		elapse(time.Hour)
		require.Empty(t, fl.found)
	})
}

// An idle llama.cpp that can sleep falls asleep behind the gateway, unless the
// gateway has work there, and is not woken.
func TestProberLetsSleep(t *testing.T) {
	const idle = 20 * second
	for _, working := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fl := newFleet(t, Options{Interval: 2 * second, Timeout: second, Working: func(string) bool { return working }})
			defer fl.close()
			f := aLlama(t)
			touched, asleep := time.Now(), false
			f.hook = func(path string) {
				if path == "/slots" {
					if asleep {
						t.Error("woken by a probe")
					}
					touched = time.Now()
				}
				if !asleep && time.Since(touched) >= idle {
					asleep = true
					f.set(map[string]reply{"/props": ok(propsAnswer("true"))})
				}
			}
			fl.serve("gpu0", f)
			fl.Add(fl.target("gpu0"))
			elapse(10 * time.Minute)
			last := fl.last("gpu0")
			require.True(t, last.f.Up)
			require.Equal(t, !working, last.f.Sleeping)
			require.Zero(t, last.f.InHand)
		})
	}
}
