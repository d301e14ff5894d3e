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
