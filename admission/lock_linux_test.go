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
// waiting, half of the requests refused with tens of thousands of places booked.
// Nothing else runs, so a call takes as long as it holds the mutex. What counts
// is the thread's own time, so that a busy machine does not decide it; wall is the
// clock's, and nothing what this machine makes of the time of no call at all:
// a p99 is worth as much as it is above that.
func BenchmarkLock(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := newRefuser(b, 100, 10000)
	c, now, _ := benchWorld(b, 100, 10000)
	var took, wall, nothing []time.Duration
	held := func(do func()) {
		start, began := time.Now(), threadTime()
		do()
		took, wall = append(took, threadTime()-began), append(wall, time.Since(start))
		began = threadTime()
		nothing = append(nothing, threadTime()-began)
	}
	i := 0
	for b.Loop() {
		i++
		r.next(held)
		now = now.Add(time.Millisecond)
		admitted(held, c, now, newTicket(Arrival{ID: "b", At: now}), benchAsk(now))
		var a *Assignment
		for _, rs := range c.mu.running { // some attempt that runs
			a = rs.list[0].a
			break
		}
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
	for name, all := range map[string][]time.Duration{"held": took, "wall": wall, "nothing": nothing} {
		slices.Sort(all)
		for _, p := range []int{50, 90, 99} {
			b.ReportMetric(float64(all[len(all)*p/100].Nanoseconds()), fmt.Sprintf("p%d-ns-%s", p, name))
		}
	}
}
