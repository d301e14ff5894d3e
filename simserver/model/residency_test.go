package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOllamaLoadsOnFirstUse(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.LoadTime = 2 * sec; c.Models = []string{"m", "other"} }))
	require.False(t, w.Models(w.now)[0].Resident)
	work := w.ask(1000, m)
	require.Equal(t, 1, w.Stats(w.now).Models["m:latest"].InHand, "R1: waiting for the load is in hand")
	w.until(sec)
	require.True(t, w.Models(w.now)[0].Loading)
	w.until(4 * sec)
	require.Equal(t, 2*sec, work.Load)
	near(t, 3*sec, w.first[work], 1, "the load, then the prompt")
	views := w.Models(w.now)
	require.True(t, views[0].Resident)
	require.False(t, views[1].Resident)
	require.Equal(t, w.now.Add(5*time.Minute), views[0].Expires)
	w.drain()
	near(t, 7*sec+5*time.Minute, w.now.Sub(w.start), 1, "idle for five minutes: unloaded")
	require.False(t, w.Models(w.now)[0].Resident)
}

func TestOllamaSlotsArePerModel(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.Models = []string{"m", "o"} }))
	for range 2 {
		w.ask(100, m)
		w.ask(100, model("o:latest"))
	}
	st := w.Stats(w.now)
	require.Equal(t, 4, st.InHand)
	require.Equal(t, 2, st.MaxInHand, "R1 is judged per model")
	require.Zero(t, st.OverSlotsEvents)
	w.drain()
}

func TestOllamaPreloadAndUnload(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.LoadTime = sec }))
	pre := w.ask(0, m, func(r *Request) { r.Preload, r.KeepAlive, r.Prompts = true, -1, nil })
	w.until(sec)
	require.Equal(t, EndDone, pre.End)
	require.True(t, w.Models(w.now)[0].Resident)
	_, planned := w.Next()
	require.False(t, planned, "kept for ever")

	work := w.ask(100, m)
	require.True(t, w.Unload(w.now, "m"))
	w.until(2 * sec)
	require.True(t, w.Models(w.now)[0].Resident, "not under a running request")
	w.drain()
	require.Equal(t, EndDone, work.End)
	require.False(t, w.Models(w.now)[0].Resident)
	require.False(t, w.Unload(w.now, "nope"))
}

// OLLAMA_MAX_LOADED_MODELS: an idle model makes room, of several the one that
// would stay the shortest; with none idle the one to be loaded waits, and so do
// those behind it that want a load, but nobody who finds his model there.
func TestOllamaEvictsAModelForAnother(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.Models, c.MaxLoaded, c.LoadTime = []string{"a", "b", "c"}, 2, sec }))
	there := func() (names []string) {
		for _, v := range w.Models(w.now) {
			if v.Resident {
				names = append(names, v.Name)
			}
		}
		return names
	}
	w.ask(10, model("a"), output(1))
	w.ask(10, model("b"), output(1), func(r *Request) { r.KeepAlive = time.Minute })
	w.until(10 * sec)
	require.Equal(t, []string{"a:latest", "b:latest"}, there())
	c := w.ask(10, model("c"), output(1))
	require.Equal(t, []string{"a:latest"}, there(), "both are idle, and b would stay a minute only")
	w.until(20 * sec)
	near(t, 11*sec, w.begun[c], 1, "one second to load it")
	require.Equal(t, []string{"a:latest", "c:latest"}, there())

	busyA, busyC := w.ask(100, model("a")), w.ask(100, model("c"), output(101))
	b := w.ask(100, model("b"))
	again := w.ask(100, model("c"), output(1))
	w.until(21 * sec)
	require.Equal(t, EndDone, again.End, "its model is there: it does not wait behind b")
	w.drain()
	require.Less(t, w.done[busyA], w.done[busyC])
	near(t, w.done[busyA]+sec, w.begun[b], 1, "the first model with nothing to do makes room")
}

func TestOllamaLoadsOneModelAtATime(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.Models, c.LoadTime = []string{"a", "b"}, sec }))
	first, second := w.ask(10, model("a")), w.ask(10, model("b"))
	w.until(500 * time.Millisecond)
	require.False(t, w.Models(w.now)[1].Loading)
	w.drain()
	near(t, sec, w.begun[first], 1, "a")
	near(t, 2*sec, w.begun[second], 1, "then b")
}

// Ollama's own log line is "client connection closed before server finished
// loading, aborting load".
func TestOllamaGivesUpALoadThatNobodyWaitsFor(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.LoadTime = 3 * sec }))
	work := w.ask(100, m)
	w.until(sec)
	w.leave(work)
	w.until(2 * sec)
	require.Zero(t, w.Stats(w.now).InHand)
	require.False(t, w.Models(w.now)[0].Loading)
	w.until(4 * sec)
	require.False(t, w.Models(w.now)[0].Resident)

	left, stays := w.ask(100, m), w.ask(100, m)
	w.until(5 * sec)
	w.leave(left)
	w.drain()
	near(t, w.done[left]+3*sec, w.begun[stays], 1, "the next in the queue has it loaded from the beginning")
}

// Requests reach the queue of a busy model in no order that they came in, but
// none is overtaken by one that came much later.
func TestOllamaServesInNoFairOrder(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.Slots = 1 }))
	w.ask(1, m)
	w.until(sec)
	var all []*Work
	for range 10 {
		all = append(all, w.ask(100, m, output(2)))
	}
	w.until(sec + ollamaJostle)
	late := w.ask(100, m, output(2))
	w.drain()
	overtaken := false
	for i, work := range all {
		require.Less(t, w.begun[work], w.begun[late])
		overtaken = overtaken || i > 0 && w.begun[work] < w.begun[all[i-1]]
	}
	require.True(t, overtaken)
	require.Zero(t, w.Stats(w.now).InHand)
}

func TestOnlyOllamaHasAModelsProcess(t *testing.T) {
	for _, kind := range []Kind{LlamaCpp, VLLM, OpenAI} {
		w := newWorld(t, with(func(c *Config) { c.Kind, c.Models = kind, []string{"m"} }))
		work := w.ask(100, m)
		w.fault(Fault{Kind: FaultRunnerCrash})
		w.drain()
		require.Equal(t, EndDone, work.End, kind)
	}
}

// llama.cpp with --sleep-idle-seconds.
func TestLlamaCppSleeps(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.SleepIdle, c.LoadTime, c.CacheTokens = 4*sec, 200*time.Millisecond, 0 }))
	same := func(r *Request) { r.Prompts = [][]Part{{{Hash: 7, Tokens: 100}}} }
	w.until(sec)
	first := w.ask(0, same)
	w.until(6 * sec)
	near(t, 5100*time.Millisecond, w.done[first], 1, "40 tokens after the prompt")
	slept := w.done[first] + 4*sec
	w.until(slept - 1)
	require.False(t, w.Sleeping(w.now, ""))
	w.Polled(w.now)
	w.until(slept)
	require.True(t, w.Sleeping(w.now, ""), "metrics neither put it off nor wake it")
	w.Polled(w.now)
	require.True(t, w.Sleeping(w.now, ""))
	require.False(t, w.Loading(w.now), "it answers, which one that loads does not")

	w.until(20 * sec)
	work := w.ask(0, same)
	require.Equal(t, 1, w.Stats(w.now).InHand, "R1: it waits inside")
	require.True(t, w.Sleeping(w.now, ""))
	w.until(30 * sec)
	near(t, 20*sec+200*time.Millisecond, w.begun[work], 1, "waking takes as long as loading")
	require.Equal(t, 200*time.Millisecond, work.Load)
	require.Zero(t, work.Tasks[0].Cached, "its memory was given back, the prompt cache with it")

	w.until(60 * sec)
	require.True(t, w.Sleeping(w.now, ""))
	require.Equal(t, w.now.Add(200*time.Millisecond), w.Wake(w.now, ""), "as a look at /slots does")
	w.until(61 * sec)
	require.False(t, w.Sleeping(w.now, ""))
	require.Equal(t, w.now, w.Wake(w.now, ""))
}
