//go:build unix

package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// R7, R8, R9, R13: a replica is killed under load, with all its processes. Who had no byte yet never learns of
// it; who was reading is told, in the right format; the books balance, the
// other replica goes on, and the killed one is used again when it is back.
func TestRealEngineKilled(t *testing.T) {
	r := newEngineRig(t, false)
	r.warm()
	l := r.load()
	killed := l.kill(func() { r.servers["b"].Kill() })
	r.until("its breaker is open", func() bool { return r.state().replica("b").Breaker.State != "closed" })
	t.Logf("breaker open %v after the kill: %s", time.Since(killed).Round(time.Millisecond), r.state().replica("b").Breaker.Reason)
	r.until("the probes have missed it", func() bool { return !r.state().replica("b").Up })
	t.Logf("seen as gone %v after the kill: %s", time.Since(killed).Round(time.Millisecond), r.state().replica("b").Breaker.Reason)
	l.goesOn("a", 4)
	l.stop()
	l.check(killed)

	l = r.load()
	require.NoError(t, r.servers["b"].Start(r.ctx))
	back := time.Now()
	l.goesOn("b", 1)
	t.Logf("first answer %v after it came back", time.Since(back).Round(time.Millisecond))
	r.until("its breaker is closed", func() bool { return r.state().replica("b").Breaker.State == "closed" })
	t.Logf("closed %v after it came back", time.Since(back).Round(time.Millisecond))
	l.stop()
	r.timeline(killed)
	l.allWhole()
}

// R7, R8: as above, but the server lives and answers for its dead runner: with a
// 500, with an error event of its own, and now and then for one of two requests
// never, which only the time-outs end.
func TestRealEngineRunnerKilled(t *testing.T) {
	r := newEngineRig(t, false)
	r.warm()
	l := r.load()
	killed := l.kill(func() {
		n, err := r.servers["b"].KillRunners()
		require.NoError(t, err)
		require.Equal(t, 1, n, "runners of one loaded model")
	})
	l.goesOn("b", 1) // it loads again with the next request
	t.Logf("first answer %v after the kill", time.Since(killed).Round(time.Millisecond))
	l.goesOn("a", 2)
	l.goesOn("b", 2)
	l.stop()
	r.timeline(killed)
	l.check(killed)
}

// engineLoad is twelve clients that ask again and again in all four ways.
type engineLoad struct {
	r      *engineRig
	before engineState
	wg     sync.WaitGroup
	done   atomic.Bool
	mu     struct {
		sync.Mutex
		reading map[string]time.Time // streams from b that have begun and not ended
		answers []engineAnswer
	}
}

const (
	loadClients = 12
	loadTokens  = 150
)

func (r *engineRig) load() *engineLoad {
	r.t.Helper()
	l := &engineLoad{r: r, before: r.state()}
	l.mu.reading = map[string]time.Time{}
	for c := range loadClients {
		l.wg.Go(func() {
			for i := 0; !l.done.Load(); i++ {
				a := engineKinds()[(c+i)%len(engineKinds())]
				a.id, a.tokens = fmt.Sprintf("load-%d-%d", c, i), loadTokens
				l.ask(a)
			}
		})
	}
	r.t.Cleanup(l.stop)
	return l
}

func (l *engineLoad) ask(a engineAsk) {
	a.began = func(replica string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if a.stream && replica == "b" {
			l.mu.reading[a.id] = time.Now()
		}
	}
	got := l.r.send(l.r.ctx, a)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.reading, a.id)
	l.mu.answers = append(l.mu.answers, got)
}

// stop ends the load when what was asked is answered.
func (l *engineLoad) stop() {
	l.done.Store(true)
	l.wg.Wait()
}

// kill waits for the moment at which b has one client that has just begun to
// read and another that has nothing yet, with more waiting, and kills then.
func (l *engineLoad) kill(how func()) (at time.Time) {
	l.r.t.Helper()
	oneReads := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, since := range l.mu.reading {
			return len(l.mu.reading) == 1 && time.Since(since) < 10*engineGlance
		}
		return false
	}
	l.r.until("one client of b reads and one has nothing yet", func() bool {
		if !oneReads() {
			return false
		}
		s := l.r.state()
		return s.replica("b").Slots.Busy == engineSlots && s.Totals.Queued > 0 && oneReads()
	})
	at = time.Now()
	how()
	return at
}

// goesOn waits for so many more whole answers from a replica.
func (l *engineLoad) goesOn(replica string, n int) {
	l.r.t.Helper()
	whole := func() (n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, got := range l.mu.answers {
			if got.replica() == replica && got.whole() == nil {
				n++
			}
		}
		return n
	}
	want := whole() + n
	l.r.until(fmt.Sprintf("%s has given %d more answers", replica, n), func() bool { return whole() >= want })
}

// check judges all answers of a load during which b was killed.
func (l *engineLoad) check(killed time.Time) {
	t := l.r.t
	t.Helper()
	broken, moved := 0, 0
	for _, got := range l.mu.answers {
		if err := got.whole(); err != nil {
			require.NoError(t, got.broken(), "not whole: %v", err)
			require.Equal(t, "b", got.replica())
			require.True(t, got.first.Before(killed), "only who was reading may see an error")
			t.Logf("%s broke %v after the kill, with %s", got.ask, got.ended.Sub(killed).Round(time.Millisecond), lastLine(got.body))
			broken++
			continue
		}
		if got.header.Get("X-Switchyard-Attempts") != "1" {
			moved++
		}
	}
	require.Positive(t, broken, "one was reading when it was killed")
	require.LessOrEqual(t, broken, engineSlots)
	require.Positive(t, moved, "one had nothing yet when it was killed")
	t.Logf("%d answers: %d broke, %d went on elsewhere unnoticed", len(l.mu.answers), broken, moved)
	l.books(broken)
}

// allWhole judges a load in which nobody may notice anything.
func (l *engineLoad) allWhole() {
	l.r.t.Helper()
	for _, got := range l.mu.answers {
		require.NoError(l.r.t, got.whole())
	}
	l.books(0)
}

// books compares the gateway's with the clients' (R13).
func (l *engineLoad) books(broken int) {
	t := l.r.t
	t.Helper()
	s := l.r.state()
	require.True(t, s.balanced(), "%+v", s.Totals)
	was, now := l.before.Totals, s.Totals
	require.Equal(t, []int{len(l.mu.answers), len(l.mu.answers) - broken, broken, 0, 0, 0, 0}, []int{
		now.Arrived - was.Arrived, now.Completed - was.Completed, now.Failed - was.Failed,
		now.Refused - was.Refused, now.Cancelled - was.Cancelled, now.Queued, now.Running,
	}, "arrived, completed, failed, refused, cancelled, queued, running: %+v after %+v", now, was)
}

func lastLine(body []byte) string {
	lines := strings.Split(strings.TrimSpace(string(body)), "\n")
	return lines[len(lines)-1]
}
