package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// As recorded: 12 requests to a model that is not resident, a queue of 4.
func TestOllamaQueueCountsOnlyWhoWaitsForALoad(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.Queue, c.LoadTime = 4, 2*sec }))
	refused := 0
	for i := range 12 {
		w.until(time.Duration(i) * 10 * time.Millisecond)
		_, rej := w.Submit(w.now, Request{Model: "m", Prompts: [][]Part{{{Hash: uint64(i), Tokens: 10}}}})
		if rej != nil {
			require.Equal(t, RejectQueueFull, rej.Kind)
			refused++
		}
	}
	require.Equal(t, 7, refused)
	w.drain()
	require.Equal(t, 5, w.Stats(w.now).Completed)

	w = newWorld(t, ollama(func(c *Config) { c.Queue = 4 }))
	w.ask(1, m)
	w.until(10 * sec)
	for range 10 {
		w.ask(10, m) // none refused: there is no limit while it is resident
	}
	w.drain()
	require.Equal(t, 11, w.Stats(w.now).Completed)
}

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

// As recorded: B wants another context size while A runs; C, with A's, waits behind B.
func TestOllamaReloadsForAnotherContextSize(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.LoadTime = sec }))
	a := w.ask(100, m)
	w.until(2 * sec)
	b := w.ask(100, m, func(r *Request) { r.Context = 2048 })
	c := w.ask(100, m)
	w.until(30 * sec)
	near(t, 5100*time.Millisecond, w.done[a], 1, "A ends undisturbed")
	near(t, w.done[a]+sec, w.begun[b], 1, "then it is loaded anew for B")
	near(t, w.done[b]+sec, w.begun[c], 1, "and again for C")
	require.Equal(t, 8192, w.Models(w.now)[0].Context)
}

func TestOllamaDepartureWhileTheModelLoads(t *testing.T) {
	w := newWorld(t, ollama(func(c *Config) { c.LoadTime = 3 * sec }))
	work := w.ask(100, m)
	w.until(sec)
	w.leave(work)
	w.until(2 * sec)
	require.Zero(t, w.Stats(w.now).InHand)
	w.until(4 * sec)
	require.True(t, w.Models(w.now)[0].Resident, "the load goes on")
}
