package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// inMemory tells whether Ollama a has model m in memory.
func (w *world) inMemory(yes bool) {
	f := facts("m")
	f.Engine, f.Models[0].Resident = replica.EngineOllama, yes
	w.report("a", f)
}

// answered is the whole answer of one whose first token came so much later.
func (w *world) answered(a *Assignment, first time.Duration) {
	w.pass(first)
	w.c.FirstToken(w.now, a)
	at := w.now
	w.pass(time.Second)
	w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: at, Usage: Usage{PromptTokens: 100, OutputTokens: 100}})
	w.c.End(w.now, a.ticket, Completed, "")
}

// R4, R5: a load is known by the clock where the engine does not say how long it
// took. Somebody has to wait for the next one, though it takes longer than he may
// wait; who comes while it is under way is told when it will be over, and who
// comes shortly before its end is served by it. What a first token says is known
// before the next probe.
func TestR4ALoadIsInTheForecast(t *testing.T) {
	rc := rep("a", 2)
	rc.Engine = replica.EngineOllama
	w := newWorld(t, testConfig(rc))
	w.inMemory(false)
	w.answered(w.granted(w.accept(w.ask())), 12*time.Second)
	w.answered(w.granted(w.accept(w.ask())), 100*time.Millisecond)
	for range 4 {
		w.answered(w.granted(w.accept(w.ask())), 100*time.Millisecond)
	}
	d, known := w.c.mu.fleet[0].LoadTime("m")
	require.True(t, known)
	require.InDelta(t, 12, d.Seconds(), 0.2)

	w.pass(time.Second)
	w.inMemory(false)
	first := w.granted(w.accept(w.ask()))
	require.InDelta(t, 12, first.ticket.record.forecastS, 0.5, "nobody would load it otherwise")
	w.pass(time.Second)
	tk := w.arrive()
	ref := w.c.Admit(w.now, tk, w.ask())
	require.NotNil(t, ref)
	require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
	require.Contains(t, ref.Message, "its model is being loaded, which takes 11s still")
	require.InDelta(t, 1.2, ref.RetryAfter.Seconds(), 0.3)
	require.False(t, ref.NoRetry)
	w.c.End(w.now, tk, Refused, ref.Reason)

	w.pass(4 * time.Second)
	second := w.granted(w.accept(w.ask()))
	require.InDelta(t, 7.1, second.ticket.record.forecastS, 0.3)
	w.pass(7 * time.Second)
	w.c.FirstToken(w.now, first)
	w.c.FirstToken(w.now, second)
	require.False(t, w.c.mu.route(second.ticket.lane).usable[0].cold("m"), "the probe is older")
	require.Equal(t, int64(2), w.snap().Promises.Broken, "of the two that began a load")
	d, _ = w.c.mu.fleet[0].LoadTime("m")
	require.InDelta(t, 12, d.Seconds(), 0.2, "who joined says nothing of a whole load")
}

// R4: the first token of one model says nothing of another that the same slots
// serve, as at a llama.cpp router; nor is a load under way because one has been.
func TestR4LoadsAreOfModels(t *testing.T) {
	rc := rep("a", 3)
	rc.Engine = replica.EngineLlamaCpp
	w := newWorld(t, testConfig(rc))
	f := facts("m", "n")
	f.Engine, f.Models[0].Resident, f.Models[1].Resident = rc.Engine, false, false
	w.report("a", f)
	first := w.granted(w.accept(w.ask()))
	w.pass(3 * time.Second)
	w.c.FirstToken(w.now, first) // and goes on
	ask := w.ask()
	ask.Models, ask.Deadline = []string{"n"}, w.now.Add(time.Minute)
	tk := w.accept(ask)
	other := w.granted(tk)
	require.True(t, other.lease.cold)
	require.True(t, other.lease.loads, "nobody loads it yet")
	require.InDelta(t, 3, tk.record.forecastS, 0.1, "as long as the other model took")
	ask.Models = []string{"m"}
	require.Zero(t, w.accept(ask).record.forecastS)
}

// R4, R6: a replica that would have to load the model may be free, be asked about
// and be reported on while one waits for another's cache, or is slow to begin.
func TestR4AReplicaThatWouldLoadIsAskedAbout(t *testing.T) {
	a, b := rep("a", 1), rep("b", 1)
	a.Engine, b.Engine = replica.EngineOllama, replica.EngineOllama
	cfg := testConfig(a, b)
	cfg.Affinity = true
	w := newWorld(t, cfg)
	report := func(name string, resident bool) {
		f := facts("m")
		f.Engine, f.Models[0].Resident = replica.EngineOllama, resident
		w.report(name, f)
	}
	report("a", true)
	report("b", false)
	for _, r := range w.c.mu.fleet {
		w.learn(r, "m", replica.Sample{
			PromptTokens: 100, Prompt: 100 * time.Millisecond, OutputTokens: 101, Decode: 2 * time.Second, Hold: 2100 * time.Millisecond,
		})
	}
	require.Equal(t, "a", w.converse(talk("x", 5)).Replica)
	w.pass(time.Second)
	report("b", false)
	busy := w.full("a", 1, 2*time.Second)[0]
	tk := w.accept(w.turn(talk("x", 6)))
	w.waits(tk)
	report("b", false)
	w.waits(tk)
	busy.ticket.lane.pin = "" // b would be in time, load included
	require.True(t, w.c.MayMove(w.now, busy))
	report("b", true)
	w.serve(busy, time.Second)
	require.Equal(t, "a", w.granted(tk).Replica)
}

// R4, R5: nobody is promised what waits for a load that takes too long, though
// nothing else is known of its model, only to be turned away a moment later.
func TestR4ALoadThatTakesTooLongIsKnownAtOnce(t *testing.T) {
	rc := rep("a", 2)
	rc.Engine = replica.EngineOllama
	w := newWorld(t, testConfig(rc))
	f := facts("m", "n")
	f.Engine, f.Models[0].Resident, f.Models[1].Resident = rc.Engine, false, false
	w.report("a", f)
	w.answered(w.granted(w.accept(w.ask())), 12*time.Second)
	ask := func() Ask {
		a := w.ask()
		a.Models, a.Public = []string{"n"}, "n"
		return a
	}
	w.granted(w.accept(ask())) // so that it is loaded
	w.pass(time.Second)
	tk := w.arrive()
	ref := w.c.Admit(w.now, tk, ask())
	require.NotNil(t, ref)
	require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
	require.Contains(t, ref.Message, "its model is being loaded, which takes 11s still")
	require.InDelta(t, 1, ref.RetryAfter.Seconds(), 0.1)
	require.False(t, ref.NoRetry)
	w.c.End(w.now, tk, Refused, ref.Reason)
	w.pass(2 * time.Second)
	w.granted(w.accept(ask())) // nine seconds are left of it
}

// R4, R5: one that is accepted so that a model is loaded may wait for a slot in
// which it is until its deadline, and is not told then that others took too long.
// More than one could only be late with it.
func TestR4WhoIsToFindOutMayWait(t *testing.T) {
	for _, free := range []time.Duration{5 * time.Second, 20 * time.Second} {
		w := unloadedAndHeldOff(t, free)
		one := w.accept(w.ask())
		w.waits(one)
		tk := w.arrive()
		ref := w.c.Admit(w.now, tk, w.ask())
		require.NotNil(t, ref, "one is enough")
		require.Contains(t, ref.Message, "its model has to be loaded first, which takes about 12s", "nobody loads it yet")
		w.c.End(w.now, tk, Refused, ref.Reason)
		w.pass(4 * time.Second)
		w.waits(one)
		w.pass(7 * time.Second)
		if free < 10*time.Second {
			require.True(t, w.granted(one).lease.loads)
			continue
		}
		ref = w.refused(one)
		require.Equal(t, ReasonDeadlineExpired, ref.Reason)
		require.Contains(t, ref.Message, "there was no slot in which to find out")
		d := w.c.End(w.now, one, Refused, ref.Reason)
		d.Explain()
		require.Contains(t, d.Explanation[0], "no slot was free for that in time")
	}
}

// unloadedAndHeldOff is a replica that is left alone for so long and whose model is
// not in memory: a load is known to take 12 s, and an answer a tenth of one.
func unloadedAndHeldOff(t *testing.T, free time.Duration) *world {
	rc := rep("a", 1)
	rc.Engine = replica.EngineOllama
	w := newWorld(t, testConfig(rc))
	w.inMemory(true)
	w.inMemory(false)
	w.answered(w.granted(w.accept(w.ask())), 12*time.Second)
	w.answered(w.granted(w.accept(w.ask())), 100*time.Millisecond)
	w.pass(time.Second)
	w.inMemory(false)
	held := w.c.mu.fleet[0]
	held.HoldUntil = w.now.Add(free) // by a 503
	w.c.mu.touch(held)
	return w
}

// R14: while the load that a request needs has not begun, it is told when the rest
// of that will be short enough, counted from when it can begin.
func TestR14WhoNeedsALoadThatHasNotBegun(t *testing.T) {
	w := unloadedAndHeldOff(t, 8*time.Second)
	w.waits(w.accept(w.ask())) // it is to begin the load
	tries := 0
	for ; ; tries++ {
		tk := w.arrive()
		ref := w.c.Admit(w.now, tk, w.ask())
		if ref == nil {
			break
		}
		if tries == 0 {
			require.InDelta(t, 10.0, ref.RetryAfter.Seconds(), 0.5, "a load of 12 s from 8 s on, and 10 s of patience")
		}
		w.c.End(w.now, tk, Refused, ref.Reason)
		w.pass(ref.RetryAfter)
	}
	require.LessOrEqual(t, tries, 3, "what runs by then looks a little longer than it did ahead")
}
