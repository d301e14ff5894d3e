package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// everyFault is a script in which each fault has its turn, most of them with a
// share of the requests.
func everyFault(t *testing.T) (script []TimedFault) {
	for i, f := range []Fault{
		{Kind: FaultReset, Rate: 0.3},
		{Kind: FaultError, Rate: 0.3},
		{Kind: FaultBusy, Rate: 0.3, RetryAfter: sec},
		{Kind: FaultLoading, Rate: 0.3},
		{Kind: FaultSlow, Rate: 0.3},
		{Kind: FaultSlow, Factor: 2},
		{Kind: FaultHang, Rate: 0.3},
		{Kind: FaultHangAfterHeaders, Rate: 0.3},
		{Kind: FaultStall, Rate: 0.3, AfterTokens: 5},
		{Kind: FaultCut, Rate: 0.3, AfterTokens: 5},
		{Kind: FaultEmpty, Rate: 0.3},
		{Kind: FaultGarbage, Rate: 0.3},
		{Kind: FaultCPU},
		{Kind: FaultRefuse},
		{Kind: FaultRunnerCrash},
		{Kind: FaultCrash},
	} {
		f.For = 8 * sec
		f, err := f.Check()
		require.NoError(t, err)
		script = append(script, TimedFault{At: time.Duration(10*i) * sec, Fault: f})
	}
	return script
}

// trace is all that an engine tells in such a life: each event, each refusal
// and the counts, as bytes.
func trace(t *testing.T, kind Kind, seed uint64) []byte {
	var b bytes.Buffer
	born := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := New(Config{
		Kind: kind, Models: []string{"m", "o"}, Slots: 3, Prefill: 1000, Decode: 30, BatchSlowdown: 0.1, Batch: 256,
		CacheTokens: 3000, Context: 2000, Queue: 6, LoadTime: sec, MaxLoaded: 1, KeepAlive: 5 * sec, SleepIdle: 5 * sec,
		Output: LogNormal(30, 0.8), Seed: seed, OutputSeed: seed,
	}, everyFault(t), born)
	dice := rand.New(rand.NewPCG(1, 1)) // the traffic is always the same
	tell := func(now time.Time) {
		for _, ev := range e.Advance(now) {
			fmt.Fprintf(&b, "%s %d %d %s", ev.At.Sub(born), ev.Kind, ev.Task, ev.Fault)
			if w := ev.Work; w != nil {
				fmt.Fprintf(&b, " %d %d %v %s", w.ID, w.End, w.Load, w.Struck)
				for i := range w.Tasks {
					t := &w.Tasks[i]
					fmt.Fprintf(&b, " %d/%d/%d/%d/%d/%x", t.Slot, t.Cached, t.Processed, t.Decoded, t.Target, t.Seed)
				}
			}
			b.WriteByte('\n')
		}
	}
	now := born
	var works []*Work
	for range 600 {
		now = now.Add(time.Duration(dice.ExpFloat64() * 0.3 * float64(sec)))
		tell(now)
		h := dice.Uint64N(12)
		w, rej := e.Submit(now, Request{
			Model: []string{"m", "m", "o"}[dice.IntN(3)], Stream: dice.IntN(2) == 0, Copies: dice.IntN(3),
			Prompts: [][]Part{{{h % 3, 200}, {h * 100, 100 + int(h)}}},
		})
		if rej != nil {
			fmt.Fprintf(&b, "%s %+v\n", now.Sub(born), *rej)
			continue
		}
		if works = append(works, w); dice.IntN(4) == 0 {
			e.Leave(now, works[dice.IntN(len(works))])
		}
	}
	for range 100_000 {
		at, ok := e.Next()
		if !ok {
			break
		}
		tell(at)
	}
	st, err := json.Marshal(e.Stats(now))
	require.NoError(t, err)
	require.Zero(t, e.Stats(now).InHand)
	return append(b.Bytes(), st...)
}

// Two runs with one seed are alike to the byte, another seed is another run;
// with every engine, through every fault.
func TestOneSeedGivesOneTrace(t *testing.T) {
	for _, kind := range allKinds {
		one := trace(t, kind, 1)
		require.Greater(t, bytes.Count(one, []byte("\n")), 2000, kind)
		require.True(t, bytes.Equal(one, trace(t, kind, 1)), kind)
		require.False(t, bytes.Equal(one, trace(t, kind, 2)), kind)
	}
}

// The length of an answer hangs on the seed and the prompt: not on the order in
// which prompts come, what runs beside them, or the engine's other dice.
func TestOutputHangsOnThePromptAlone(t *testing.T) {
	lengths := func(kind Kind, seed, outputSeed uint64, order []int) map[int][]int {
		w := newWorld(t, with(func(c *Config) {
			c.Kind, c.Models, c.Slots, c.Output, c.Seed, c.OutputSeed = kind, []string{"m"}, 100, LogNormal(200, 1), seed, outputSeed
		}))
		got := map[int][]int{}
		for _, i := range order {
			work := w.ask(0, m, func(r *Request) { r.Prompts, r.Copies = [][]Part{{{Hash: uint64(i), Tokens: 50}}}, 2 })
			got[i] = []int{work.Tasks[0].Target, work.Tasks[1].Target}
		}
		return got
	}
	first := lengths(LlamaCpp, 1, 7, []int{1, 2, 3, 4, 5, 6, 7, 8})
	for _, kind := range allKinds {
		require.Equal(t, first, lengths(kind, 2, 7, []int{8, 2, 2, 3, 7, 6, 5, 4, 1}), kind)
	}
	require.NotEqual(t, first, lengths(LlamaCpp, 1, 8, []int{1, 2, 3, 4, 5, 6, 7, 8}))
	differ := 0
	for _, copies := range first {
		if copies[0] != copies[1] {
			differ++
		}
	}
	require.Greater(t, differ, 5, "copies of one prompt are answers of their own")
}

// Engines that share a device are told of each other by nobody, so Milestones
// does each of their steps, and is exact there, too.
func TestMilestonesOnASharedDevice(t *testing.T) {
	run := func(milestones bool) (ends []time.Duration) {
		device := &Device{}
		var engines []*Engine
		for range 2 {
			engines = append(engines, New(with(func(c *Config) { c.Device, c.Milestones = device, milestones }), nil, time.Time{}))
		}
		for i := range 12 {
			at := time.Time{}.Add(time.Duration(i) * 700 * time.Millisecond)
			ends = append(ends, together(engines, at)...)
			_, rej := engines[i%2].Submit(at, Request{Stream: true, Output: 5 + i, Prompts: [][]Part{{{Hash: uint64(i), Tokens: 100}}}})
			require.Nil(t, rej)
		}
		return append(ends, together(engines, time.Time{}.Add(time.Hour))...)
	}
	require.Len(t, run(true), 12)
	require.Equal(t, run(false), run(true))
}

// together brings engines to a time in the order of what happens.
func together(engines []*Engine, until time.Time) (ends []time.Duration) {
	for {
		at, any := until, false
		for _, e := range engines {
			if next, ok := e.Next(); ok && !next.After(at) {
				at, any = next, true
			}
		}
		for _, e := range engines {
			for _, ev := range e.Advance(at) {
				if ev.Kind == Finished {
					ends = append(ends, ev.At.Sub(time.Time{}))
				}
			}
		}
		if !any {
			return ends
		}
	}
}
