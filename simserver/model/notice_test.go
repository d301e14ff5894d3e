package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func ollama(change ...func(*Config)) Config {
	return with(func(c *Config) {
		c.Kind, c.Models = Ollama, []string{"m"}
		for _, f := range change {
			f(c)
		}
	})
}

var m = model("m")

// The four lateness rules of llama.cpp, one phase each (R1, R10).
func TestLlamaCppNoticesAStreamAtItsNextToken(t *testing.T) {
	w := newWorld(t, base)
	work := w.ask(100)
	w.until(2050 * time.Millisecond)
	w.leave(work)
	require.Equal(t, 1, w.Stats(w.now).InHand, "R1: it counts until the engine has noticed")
	w.drain()
	near(t, 2100*time.Millisecond, w.done[work], 1, "the next token")
	require.Equal(t, EndLeft, work.End)
	st := w.Stats(w.now)
	require.Zero(t, st.InHand)
	require.Equal(t, 1, st.CutByClient)
	require.Zero(t, st.Completed)
	require.Equal(t, 1, st.TokensWasted)
	require.InDelta(t, 0.05, st.ZombieSeconds, 1e-6)
	require.InDelta(t, 2.1, st.SlotSeconds, 1e-6)
}

func TestLlamaCppNoticesADepartureInPromptProcessingAfterTheBatch(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.Batch, c.Context = 2048, 100_000 }))
	other := w.ask(10)
	w.until(sec)
	work := w.ask(8192) // four batches of two seconds
	w.until(4500 * time.Millisecond)
	w.leave(work)
	w.drain()
	near(t, 5400*time.Millisecond, w.done[work], sec/5, "the end of the second batch")
	require.Less(t, w.done[work], w.done[other])
	require.Zero(t, w.Stats(w.now).TokensWasted)
}

func TestLlamaCppKeepsAQueuedStreamUntilItsTurn(t *testing.T) {
	w := newWorld(t, base)
	a, b := w.ask(100), w.ask(100)
	queued := w.ask(100)
	w.until(sec)
	w.leave(queued)
	w.until(3 * sec)
	require.Equal(t, 3, w.Stats(w.now).InHand)
	w.drain()
	require.Equal(t, EndLeft, queued.End)
	near(t, min(w.done[a], w.done[b])+200*time.Millisecond, w.done[queued], 101*time.Millisecond, "its turn, and a batch")
}

func TestLlamaCppNoticesAWholeAnswerOnlyAfterAQuietSecond(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t, base)
		work := w.ask(100, whole, output(200))
		w.until(2500 * time.Millisecond)
		w.leave(work)
		w.drain()
		near(t, 3*sec, w.seen[work], 1, "it looks each second from its arrival on")
		near(t, 3*sec, w.done[work], 101*time.Millisecond, "and the batch ends first")
	})
	t.Run("beside a stream", func(t *testing.T) {
		w := newWorld(t, base)
		work := w.ask(100, whole, output(200))
		w.ask(100, output(120))
		w.until(2 * sec)
		w.leave(work)
		w.until(10 * sec)
		require.Equal(t, 2, w.Stats(w.now).InHand, "the stream's tokens hide the departure")
		w.drain()
		require.Equal(t, EndLeft, work.End)
		near(t, 13*sec, w.done[work], 500*time.Millisecond, "a second after the stream's end")
		require.InDelta(t, 11, w.Stats(w.now).ZombieSeconds, 0.5)
	})
	t.Run("polled", func(t *testing.T) {
		w := newWorld(t, base)
		work := w.ask(100, whole, output(200))
		w.until(2050 * time.Millisecond)
		w.leave(work)
		for at := 2050 * time.Millisecond; at < 25*sec; at += 900 * time.Millisecond {
			w.until(at)
			w.Polled(w.now)
		}
		require.Equal(t, EndDone, work.End, "polling /slots keeps the zombie running to its end")
		st := w.Stats(w.now)
		require.Zero(t, st.Completed)
		require.InDelta(t, 180, st.TokensWasted, 1)
	})
	t.Run("queued", func(t *testing.T) {
		w := newWorld(t, base)
		w.ask(100, whole)
		w.ask(100, whole)
		queued := w.ask(100, whole)
		w.until(500 * time.Millisecond)
		w.leave(queued)
		w.drain()
		near(t, sec, w.done[queued], 1, "nothing streams, so it is seen and never runs")
		require.Equal(t, 2*41, w.Stats(w.now).TokensGenerated)
	})
}

func TestLlamaCppGoesOnWithAConversationID(t *testing.T) {
	w := newWorld(t, base)
	work := w.ask(100, func(r *Request) { r.Detached = true })
	w.until(sec)
	w.leave(work)
	w.drain()
	require.Equal(t, EndDone, work.End)
	require.Equal(t, 1, w.Stats(w.now).CutByClient)
	require.Equal(t, 41-10, w.Stats(w.now).TokensWasted)
}

func TestOllamaNoticesWithinAThirdOfASecond(t *testing.T) {
	for name, change := range map[string]func(*Request){"stream": func(*Request) {}, "whole": whole} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ollama())
			run, other, queued := w.ask(100, m, change), w.ask(100, m, change), w.ask(100, m, change)
			w.until(sec)
			w.leave(queued)
			w.leave(run)
			w.until(1301 * time.Millisecond)
			for _, work := range []*Work{run, queued} {
				require.Equal(t, EndLeft, work.End)
				require.GreaterOrEqual(t, w.done[work], 1100*time.Millisecond)
			}
			require.Equal(t, 1, w.Stats(w.now).InHand)
			require.Equal(t, Running, other.End)
		})
	}
}

func TestOthersNoticeBetweenTwoBatches(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.Kind = VLLM }))
	a, b, queued := w.ask(100), w.ask(100), w.ask(100)
	w.until(1050 * time.Millisecond)
	w.leave(queued)
	require.Equal(t, EndLeft, queued.End, "queued: at once")
	w.leave(a)
	require.Equal(t, Running, a.End)
	w.until(1150 * time.Millisecond)
	require.Equal(t, EndLeft, a.End)
	require.Equal(t, Running, b.End)
}

func TestAFixedNoticeHoldsInEachPhase(t *testing.T) {
	for _, kind := range []Kind{LlamaCpp, Ollama, VLLM, OpenAI} {
		w := newWorld(t, with(func(c *Config) {
			c.Kind, c.Models, c.Notice, c.Context, c.Slots = kind, []string{"m"}, 700*time.Millisecond, 100_000, 3
		}))
		decoding := w.ask(1, m, output(1000))
		whole := w.ask(1, m, output(1000), whole)
		prompting := w.ask(50_000, m)
		queued := w.ask(1, m)
		w.until(sec)
		for _, work := range []*Work{decoding, whole, prompting, queued} {
			w.leave(work)
		}
		w.until(1699 * time.Millisecond)
		require.Equal(t, 4, w.Stats(w.now).InHand, kind)
		w.until(1700 * time.Millisecond)
		require.Zero(t, w.Stats(w.now).InHand, kind)
		require.InDelta(t, 3*0.7, w.Stats(w.now).ZombieSeconds, 1e-6, "only what holds a slot is a zombie")
		w.ask(1, m)
		w.drain()
		require.Equal(t, 1, w.Stats(w.now).Completed, "the slots are of use again")
	}
	w := newWorld(t, with(func(c *Config) { c.Notice = -1 }))
	work := w.ask(100)
	w.leave(work)
	require.Equal(t, EndLeft, work.End, "a negative notice: at once")
}

func TestLeavingTwiceOrAfterTheEndIsNothing(t *testing.T) {
	w := newWorld(t, base)
	work := w.ask(100)
	w.drain()
	w.leave(work)
	require.Equal(t, 0, w.Stats(w.now).CutByClient)
	work = w.ask(100)
	w.leave(work)
	w.leave(work)
	w.drain()
	require.Equal(t, 1, w.Stats(w.now).CutByClient)
}
