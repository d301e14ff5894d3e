package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was observed of llama-server v0.4.0 and Ollama v0.17.4 and v0.33.0-rc2
// with two slots on a CPU, and here comes out of the model: each test cites
// what was recorded, in seconds. The speeds are those of the recorded machine.

func at(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// seconds is a duration as the recordings have it.
func seconds(d time.Duration) float64 { return d.Seconds() }

// chat is a prompt that begins as all do, with ten tokens of the template.
func chat(own uint64, tokens int) func(*Request) {
	return func(r *Request) { r.Prompts = [][]Part{{{Hash: 1, Tokens: 10}, {Hash: own, Tokens: tokens - 10}}} }
}

// Six streams of 40 tokens on two slots of llama.cpp:
//
//	idx start headers_at first_token_at total
//	0   0.013 0.023      0.473          3.895
//	1   0.026 0.011      0.462          3.884
//	2   0.06  3.855      4.017          6.06
//	3   0.056 3.859      4.02           6.061
//	4   0.066 6.058      6.274          8.027
//	5   0.08  6.044      6.26           8.012
//
// all accepted at once, headers when the slot starts, the first token when the
// prompt is done. The machine did other things in the first round: a step took
// 88 ms there and 49 ms after it.
func TestRecordedSixStreamsOnTwoSlots(t *testing.T) {
	slow := TimedFault{Fault: Fault{Kind: FaultSlow, Factor: 1.81, For: at(3.88)}}
	w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096, Prefill: 265, Decode: 41.2, BatchSlowdown: 1, Output: Fixed(40)}, slow)
	recorded := []struct{ start, headers, first, total float64 }{
		{0.013, 0.023, 0.473, 3.895},
		{0.026, 0.011, 0.462, 3.884},
		{0.06, 3.855, 4.017, 6.06},
		{0.056, 3.859, 4.02, 6.061},
		{0.066, 6.058, 6.274, 8.027},
		{0.08, 6.044, 6.26, 8.012},
	}
	order := []int{0, 1, 3, 2, 4, 5} // by start
	works := make([]*Work, len(recorded))
	for _, i := range order {
		w.until(at(recorded[i].start))
		works[i] = w.ask(0, chat(uint64(100+i), 37))
	}
	require.Equal(t, 6, w.Stats(w.now).InHand)
	require.Equal(t, 4, w.Models(w.now)[0].Queued, "requests_deferred 4")
	w.drain()
	for i, r := range recorded {
		const within = 0.25
		require.InDelta(t, r.start+r.headers, seconds(w.begun[works[i]]), within, "headers of %d", i)
		require.InDelta(t, r.start+r.first, seconds(w.first[works[i]]), within, "first token of %d", i)
		require.InDelta(t, r.start+r.total, seconds(w.done[works[i]]), within, "end of %d", i)
	}
}

// 64 streams of 3 tokens on two slots: "64 x 200, longest wait for headers
// 14.186s", "wall 15.165".
func TestRecordedSixtyFourStreamsOnTwoSlots(t *testing.T) {
	w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096, Prefill: 139, Decode: 29.4, BatchSlowdown: 1, Output: Fixed(3)})
	for i := range 64 {
		w.ask(0, chat(uint64(100+i), 37))
	}
	w.drain()
	require.Equal(t, 64, w.Stats(w.now).Completed)
	longest, wall := time.Duration(0), time.Duration(0)
	for work, end := range w.done {
		longest, wall = max(longest, w.begun[work]), max(wall, end)
	}
	require.InDelta(t, 14.186/15.165, seconds(longest)/seconds(wall), 0.05)
	require.InDelta(t, 15.165, seconds(wall), 3)
}

// Which slot, and how much of the prompt was there: A, B, then each longer.
//
//	id_slot cache_n prompt_n
//	0       1       8
//	1       1       12
//	0       9       2
//	1       13      2
func TestRecordedSlotChoice(t *testing.T) {
	w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096})
	prompt := func(parts ...Part) func(*Request) {
		return func(r *Request) { r.Prompts, r.Output = [][]Part{append([]Part{{Hash: 1, Tokens: 1}}, parts...)}, 1 }
	}
	for i := range uint64(3) { // what the server had done before
		w.ask(0, prompt(Part{Hash: 90 + i, Tokens: 30}))
		w.drain()
	}
	a, b := Part{Hash: 2, Tokens: 8}, Part{Hash: 3, Tokens: 12}
	for _, r := range []struct {
		ask                  func(*Request)
		slot, cached, prompt int
	}{
		{prompt(a), 0, 1, 8},
		{prompt(b), 1, 1, 12},
		{prompt(a, Part{Hash: 4, Tokens: 2}), 0, 9, 2},
		{prompt(b, Part{Hash: 5, Tokens: 2}), 1, 13, 2},
	} {
		task := &w.ask(0, r.ask).Tasks[0]
		w.drain()
		require.Equal(t, r.slot, task.Slot)
		require.Equal(t, r.cached, task.Cached)
		require.Equal(t, r.prompt, task.Prompt-task.Cached)
	}
}

// "the same prompt again": cache_n 18, prompt_n 1 of 19 tokens; with
// cache_prompt false: cache_n 0, prompt_n 19.
func TestRecordedSamePromptAgain(t *testing.T) {
	w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096})
	for _, r := range []struct {
		noCache bool
		cached  int
	}{{false, 0}, {false, 18}, {true, 0}, {false, 18}} {
		work := w.ask(0, chat(100, 19), func(q *Request) { q.NoCache = r.noCache })
		w.drain()
		require.Equal(t, r.cached, work.Tasks[0].Cached)
	}
}

// A request that does not stream, closed beside a running stream:
//
//	busy [0, 1]
//	non-stream closed 1s ago, other stream running: busy [0, 1]
//	non-stream closed 3s ago, other stream running: busy [0, 1]
//	non-stream closed 6s ago, other stream running: busy [0, 1]
//	other stream closed 0.5s ago: [0]
//	3 s after: []
func TestRecordedZombieBesideAStream(t *testing.T) {
	w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096, Prefill: 139, Decode: 29.4, BatchSlowdown: 1, Output: Fixed(1000)})
	zombie, other := w.ask(0, chat(100, 37), whole), w.ask(0, chat(101, 37))
	busy := func() (works []*Work) {
		for _, s := range w.Slots(w.now, "") {
			if s.Work != nil {
				works = append(works, s.Work)
			}
		}
		return works
	}
	w.until(2 * sec)
	w.leave(zombie)
	for _, after := range []time.Duration{1, 3, 6} {
		w.until(2*sec + after*sec)
		require.Len(t, busy(), 2, "closed %d s ago", after)
	}
	w.leave(other)
	w.until(8*sec + 500*time.Millisecond)
	require.Equal(t, []*Work{zombie}, busy())
	w.until(11 * sec)
	require.Empty(t, busy())
	require.InDelta(t, 7, w.Stats(w.now).ZombieSeconds, 1)
	require.Positive(t, w.Stats(w.now).TokensWasted)
}

// Looked at through /slots all the time: "nonstream closed: busy slots 0,
// deferred 0 after 23.045s", its end; a stream: "after 0.215s".
func TestRecordedZombieUnderPolling(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096, Prefill: 139, Decode: 21, Output: Fixed(500)})
		work := w.ask(0, chat(100, 37), func(r *Request) { r.Stream = stream })
		left := at(1.5)
		for d := time.Duration(0); d < 30*sec; d += 200 * time.Millisecond {
			if d == left+at(0.1) {
				w.until(left)
				w.leave(work)
			}
			w.until(d)
			w.Polled(w.now)
		}
		if stream {
			require.Equal(t, EndLeft, work.End)
			require.Less(t, w.done[work]-left, 215*time.Millisecond)
			continue
		}
		require.Equal(t, EndDone, work.End)
		require.InDelta(t, 23.045, seconds(w.done[work]-left), 1)
	}
}

// Streams queued behind two that run: "one queued closed: NOT reached in 5s:
// busy 2, deferred 2", "both running closed: busy slots 0, deferred 0 after
// 5.266s": the turn of each comes, and it is noticed after a batch.
func TestRecordedQueuedDepartures(t *testing.T) {
	w := newWorld(t, Config{Kind: LlamaCpp, Slots: 2, Context: 4096, Prefill: 139, Decode: 29.4, BatchSlowdown: 1, Output: Fixed(1000)})
	running := []*Work{w.ask(0, chat(100, 37)), w.ask(0, chat(101, 37))}
	queued := []*Work{w.ask(0, chat(102, 370)), w.ask(0, chat(103, 370))}
	for i, q := range queued {
		w.until(time.Duration(2+5*i) * sec)
		w.leave(q)
		w.until(time.Duration(7+5*i) * sec)
		v := w.Models(w.now)[0]
		require.Equal(t, []int{2, 2}, []int{v.Running, v.Queued}, "not in 5 s")
	}
	for _, r := range running {
		w.leave(r)
	}
	w.until(12*sec + 500*time.Millisecond)
	require.Equal(t, 2, w.Models(w.now)[0].Running, "the turn of those who had queued")
	w.drain()
	require.InDelta(t, 5.266, seconds(w.done[queued[1]]-12*sec), 0.5)
	require.Equal(t, 4, w.Stats(w.now).TokensWasted, "one of each: that of the batch in which it is noticed")
}

// A stream closed during its prompt of 2,000 tokens, beside one that runs:
//
//	14.46 closed
//	15.97 [(0, 1, 29), (1, 0, 0)]   slot, generating, tokens
//	 …
//	23.53 [(0, 1, 29), (1, 0, 0)]
//	25.04 [(0, 1, 45)]
//	26.61 [(0, 1, 60)]
//
// One batch takes many seconds; it is noticed after it, and the other stream
// stands still as long. Alone: closed at 1.03, busy at 2.34, free by 12.44.
func TestRecordedDepartureInThePrompt(t *testing.T) {
	cfg := Config{Kind: LlamaCpp, Slots: 2, Context: 4096, Prefill: 200, Decode: 12, Output: Fixed(1000)}
	w := newWorld(t, cfg)
	alone := w.ask(2000)
	w.until(at(1.03))
	w.leave(alone)
	w.until(at(2.34))
	require.Equal(t, Running, alone.End)
	w.until(at(12.44))
	require.Equal(t, EndLeft, alone.End)
	require.Equal(t, 1, w.Stats(w.now).TokensGenerated, "that of the batch in which it is noticed")

	w = newWorld(t, cfg)
	w.until(at(11.4))
	other := w.ask(10)
	w.until(at(13.9))
	gone := w.ask(2000)
	w.until(at(14.46))
	w.leave(gone)
	w.until(at(15.97))
	stands := other.Generated()
	require.InDelta(t, 29, stands, 2)
	w.until(at(23.53))
	require.Equal(t, stands, other.Generated(), "the other stream stands still")
	require.Equal(t, Running, gone.End)
	w.until(at(25.04))
	require.Equal(t, EndLeft, gone.End)
	require.InDelta(t, 45, other.Generated(), 5)
	w.until(at(26.61))
	require.InDelta(t, 60, other.Generated(), 5)
}

// A sleeping llama.cpp (--sleep-idle-seconds 4): is_sleeping true, /health and
// /metrics answer and leave it so, "slots took 0.196936s", is_sleeping false.
func TestRecordedSleep(t *testing.T) {
	w := newWorld(t, Config{Kind: LlamaCpp, SleepIdle: 4 * sec, LoadTime: at(0.197)})
	w.until(10 * sec)
	require.True(t, w.Sleeping(w.now, ""))
	w.Polled(w.now)
	require.True(t, w.Sleeping(w.now, ""))
	awake := w.Wake(w.now, "")
	require.InDelta(t, 0.196936, seconds(awake.Sub(w.now)), 0.001)
	w.until(awake.Sub(w.start))
	require.False(t, w.Sleeping(w.now, ""))
}
