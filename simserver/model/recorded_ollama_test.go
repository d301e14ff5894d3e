package model

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ollamaMachine is the one of the v0.33.0-rc2 recordings.
var ollamaMachine = Config{
	Kind: Ollama, Models: []string{"slow", "tiny"}, Slots: 2, Context: 4096, Queue: 4,
	Prefill: 200, Decode: 37, BatchSlowdown: 0.15, LoadTime: at(0.53), Seed: 4,
}

func slowModel(own uint64) func(*Request) {
	return func(r *Request) { r.Model, r.Prompts = "slow", [][]Part{{{Hash: own, Tokens: 18}}} }
}

// Ten streams of 25 tokens on a model that is loaded, OLLAMA_MAX_QUEUE=4: none
// refused, and they end (start and total added up) at
//
//	0.998 1.026 1.932 1.961 2.868 2.894 3.804 3.831 4.698 4.699
func TestRecordedTenOnALoadedModel(t *testing.T) {
	w := newWorld(t, ollamaMachine)
	w.ask(0, slowModel(1), func(r *Request) { r.Preload = true })
	w.until(5 * sec)
	var works []*Work
	for i := range 10 {
		w.until(5*sec + at(float64(i)/100))
		works = append(works, w.ask(0, slowModel(uint64(10+i)), output(25)))
	}
	w.drain()
	var ends []float64
	for _, work := range works {
		require.Equal(t, EndDone, work.End)
		ends = append(ends, seconds(w.done[work]-5*sec))
	}
	slices.Sort(ends)
	for i, end := range []float64{0.998, 1.026, 1.932, 1.961, 2.868, 2.894, 3.804, 3.831, 4.698, 4.699} {
		require.InDelta(t, end, ends[i], 0.1, "the %dth to end", i)
	}
	require.Equal(t, 10, w.Stats(w.now).MaxInHand)
}

// Twelve streams of 10 tokens on one that is not: five are served, seven get
// 503 at once. The five ended at
//
//	0.992 1.019 1.444 1.473 1.801
func TestRecordedTwelveOnAModelThatIsNotLoaded(t *testing.T) {
	w := newWorld(t, ollamaMachine)
	w.ask(0, slowModel(1), func(r *Request) { r.Model, r.Preload = "tiny", true })
	w.until(5 * sec)
	var works []*Work
	var refused []int
	for i := range 12 {
		w.until(5*sec + at(float64(i)/100))
		req := Request{Stream: true, Output: 10}
		slowModel(uint64(10 + i))(&req)
		work, rej := w.Submit(w.now, req)
		if rej != nil {
			require.Equal(t, RejectQueueFull, rej.Kind)
			refused = append(refused, i)
			continue
		}
		works = append(works, work)
	}
	require.Equal(t, []int{5, 6, 7, 8, 9, 10, 11}, refused)
	w.drain()
	var ends []float64
	for _, work := range works {
		ends = append(ends, seconds(w.done[work]-5*sec))
	}
	slices.Sort(ends)
	for i, end := range []float64{0.992, 1.019, 1.444, 1.473, 1.801} {
		require.InDelta(t, end, ends[i], 0.1, "the %dth to end", i)
	}
}

// "running stream closed: probe's first bytes 0.32 s after the close", "running
// non-stream closed: 0.22 s", "3 queued ones closed first, then a running
// stream: 0.2 s"; with v0.33.0-rc2 0.15, 0.1 and 0.11.
func TestRecordedDeparturesFromOllama(t *testing.T) {
	cfg := ollamaMachine
	cfg.Slots = 1
	for _, queued := range []int{0, 3} {
		for _, stream := range []bool{true, false} {
			w := newWorld(t, cfg)
			w.ask(0, slowModel(1), func(r *Request) { r.Preload = true })
			w.until(5 * sec)
			leaving := []*Work{w.ask(0, slowModel(2), output(1000), func(r *Request) { r.Stream = stream })}
			for i := range queued {
				leaving = append(leaving, w.ask(0, slowModel(uint64(3+i)), output(1000)))
			}
			w.until(6 * sec)
			slices.Reverse(leaving)
			for _, work := range leaving {
				w.leave(work)
			}
			probe := w.ask(0, slowModel(9), output(1))
			w.drain()
			require.InDelta(t, 0.21, seconds(w.begun[probe]-6*sec), 0.115)
			require.Equal(t, EndDone, probe.End)
		}
	}
}

// Another num_ctx while a stream runs (v0.17.4; ps before, while B waits, at
// the end: 4096, 4096, 2048):
//
//	C ctx 4096 (after B):  headers 0.24s end 0.41s load_duration 0.02s
//	A ctx 4096, 60 tokens: headers 0.11s end 2.39s load_duration 0.02s
//	B num_ctx 2048:        headers 1.87s end 2.01s load_duration 1.75s
//
// B waits for A and a load; C, which wants what is there, does not wait for B.
func TestRecordedReloadForAnotherContextSize(t *testing.T) {
	cfg := ollamaMachine
	cfg.Decode, cfg.LoadTime = 26.5, at(0.36)
	w := newWorld(t, cfg)
	w.ask(0, slowModel(1), func(r *Request) { r.Preload = true })
	w.until(5 * sec)
	small := func(r *Request) { r.Context = 2048 }
	a := w.ask(0, slowModel(2), output(60))
	w.until(6 * sec)
	b := w.ask(0, slowModel(3), small, output(2))
	w.until(6*sec + 200*time.Millisecond)
	require.Equal(t, 4096, w.Models(w.now)[0].Context, "ps while B waits")
	c := w.ask(0, slowModel(4), output(4))
	w.drain()
	took := func(work *Work) float64 { return seconds(w.done[work] - work.Arrived.Sub(w.start)) }
	require.InDelta(t, 0.41, took(c), 0.25)
	require.Zero(t, c.Load)
	require.InDelta(t, 2.39, took(a), 0.15)
	require.InDelta(t, 2.01, took(b), 0.15)
	require.InDelta(t, 1.75, seconds(b.Load), 0.15)
	require.Equal(t, 2048, w.Models(w.now)[0].Context)

	// Who comes when it is being loaded for B waits for that, and then for the
	// reload that he wants himself.
	w = newWorld(t, cfg)
	b = w.ask(0, slowModel(3), small, output(2))
	w.until(at(0.1))
	c = w.ask(0, slowModel(4), output(4))
	w.drain()
	near(t, w.done[b]+at(0.36), w.begun[c], 1, "after B, and a load")
}

// The process that runs the model is killed under an answer: "response ended
// 0.04 s after the kill"; the next request is served, load_duration 0.63 to
// 0.78 s. Those who wait for another model are not concerned.
func TestRecordedRunnerDies(t *testing.T) {
	w := newWorld(t, ollamaMachine)
	w.ask(0, slowModel(1), func(r *Request) { r.Preload = true })
	w.until(5 * sec)
	running, beside, queued := w.ask(0, slowModel(2), output(200)), w.ask(0, slowModel(3), whole, output(200)), w.ask(0, slowModel(4))
	w.until(7 * sec)
	other := w.ask(0, slowModel(5), model("tiny"), output(2))
	w.fault(Fault{Kind: FaultRunnerCrash, For: 10 * sec})
	for _, work := range []*Work{running, beside, queued} {
		require.Equal(t, EndDied, work.End)
		near(t, 7*sec, w.done[work], 40*time.Millisecond, "end")
	}
	require.Positive(t, running.Generated())
	require.Equal(t, FaultNone, w.Fault(w.now).Kind, "it happens once")
	require.False(t, w.Models(w.now)[0].Resident)
	w.until(9 * sec)
	require.Equal(t, EndDone, other.End)
	next := w.ask(0, slowModel(6), output(2))
	w.drain()
	require.Equal(t, EndDone, next.End)
	require.InDelta(t, 0.63, seconds(next.Load), 0.16)
	require.Zero(t, w.cfg.Device.computing)
}
