package admission

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the processor time that this thread has had.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// BenchmarkLock is how long the controller's mutex is held, at the 99th
// percentile, over everything that requests do to it: 100 replicas, 10,000
// waiting, half of the requests refused. In one world the speeds are all that is
// known, and tens of thousands of places are booked; in the other lengths of answers
// are, too, and four keys share the slots.
//
// Nothing else runs, so a call takes as long as it holds the mutex. held is the
// thread's own time, so that others on a busy machine do not decide it; wall is the
// clock's; and nothing what this machine makes of the thread's time of no call at all,
// more than a microsecond of system calls.
//
// Interrupts, and what a virtual machine's host takes, are in both. Where that is 40
// µs 2,000 times a second, it hits one call in a hundred whose times are 5 µs on
// average, and so makes up the 99th percentile. So the same calls are made three times
// over: again is the median of each call's three held, which it seldom decides.
func BenchmarkLock(b *testing.B) {
	b.Run("speeds", func(b *testing.B) { benchLock(b, speedsKnown) })
	b.Run("lengths", func(b *testing.B) {
		benchLock(b, func(b *testing.B) func(func(do func())) { return newTaught(b, 100, 10000).round })
	})
}

// speedsKnown gives what makes the calls of one round.
func speedsKnown(b *testing.B) func(func(do func())) {
	r := newRefuser(b, 100, 10000)
	c, now, _ := benchWorld(b, 100, 10000)
	i := 0
	return func(held func(do func())) {
		i++
		r.next(held)
		now = now.Add(time.Millisecond)
		admitted(held, c, now, newTicket(Arrival{ID: "b", At: now}), benchAsk(now))
		some := c.mu.fleet[i*37%len(c.mu.fleet)]
		a := c.mu.runsOn(some.Pool("m")).list[0].a
		held(func() { c.FirstToken(now, a) })
		held(func() {
			c.Finish(now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: now, Usage: Usage{OutputTokens: 10}})
		})
		held(func() { c.End(now, a.ticket, Completed, "") })
		if i%100 == 0 {
			held(func() { c.Tick(now) })
			held(func() { r.c.Tick(r.now) })
		}
	}
}

func benchLock(b *testing.B, world func(b *testing.B) func(func(do func()))) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const rounds = 10_000
	took := map[string][]time.Duration{}
	note := func(what string, d time.Duration) { took[what] = append(took[what], d) }
	for b.Loop() {
		var same [3][]time.Duration // calls
		for i := range same {
			round := world(b)
			runtime.GC()
			for range rounds {
				round(func(do func()) {
					began, start := threadTime(), time.Now()
					do()
					wall := time.Since(start)
					held := threadTime() - began
					note("wall", wall)
					note("held", held)
					same[i] = append(same[i], held)
					began = threadTime()
					note("nothing", threadTime()-began)
				})
			}
		}
		for i := range same[0] {
			three := []time.Duration{same[0][i], same[1][i], same[2][i]}
			slices.Sort(three)
			note("again", three[1])
		}
	}
	for name, all := range took {
		slices.Sort(all)
		for _, p := range []int{50, 90, 99} {
			b.ReportMetric(float64(all[len(all)*p/100].Nanoseconds()), fmt.Sprintf("p%d-ns-%s", p, name))
		}
		b.ReportMetric(float64(all[len(all)-1].Nanoseconds()), "max-ns-"+name)
	}
	b.ReportMetric(0, "ns/op") // it is that of thousands of calls, and of the worlds they are made in
}
