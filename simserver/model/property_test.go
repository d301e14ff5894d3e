package model

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drive lets an engine live through a random life and checks at each step what
// must always hold. The returned trace is all that happened.
func drive(rt *rapid.T, t require.TestingT) string {
	kind := rapid.SampledFrom([]Kind{LlamaCpp, Ollama, VLLM, OpenAI}).Draw(rt, "kind")
	cfg := Config{
		Kind: kind, Models: []string{"m", "o"}, Slots: rapid.IntRange(1, 4).Draw(rt, "slots"),
		Prefill: 500, Decode: 20, BatchSlowdown: rapid.Float64Range(0, 1).Draw(rt, "slowdown"),
		Batch: 64, Context: 400, CacheTokens: rapid.IntRange(-1, 500).Draw(rt, "cache"),
		Queue: rapid.IntRange(0, 3).Draw(rt, "queue"), Output: LogNormal(10, 1),
		LoadTime:  time.Duration(rapid.IntRange(0, 2).Draw(rt, "load")) * sec,
		KeepAlive: 10 * sec, Seed: rapid.Uint64().Draw(rt, "seed"),
		Notice: time.Duration(rapid.IntRange(-1, 2).Draw(rt, "notice")) * 500 * time.Millisecond,
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	start := now
	e := New(cfg, nil, now)
	open := map[*Work]bool{}
	all := []*Work{}
	over, most := 0, map[string]int{}
	var trace strings.Builder
	take := func() {
		for _, ev := range e.Advance(now) {
			id := 0
			if ev.Work != nil {
				id = ev.Work.ID
			}
			fmt.Fprintf(&trace, "%d %d %d %d\n", ev.At.Sub(start), ev.Kind, id, ev.Task)
			if ev.Kind == Finished {
				require.True(t, open[ev.Work], "work ends once")
				delete(open, ev.Work)
			}
		}
	}
	check := func() {
		hand := map[string]int{}
		for w := range open {
			left := 0
			for i := range w.Tasks {
				if !w.Tasks[i].ended {
					left++
				}
			}
			hand[w.Model] += min(left, cfg.Slots)
		}
		st := e.Stats(now)
		for name, s := range st.Models {
			require.Equal(t, hand[name], s.InHand, "in hand of %s", name)
			require.GreaterOrEqual(t, s.MaxInHand, most[name])
			most[name] = s.MaxInHand
		}
		require.Equal(t, over, st.OverSlotsEvents)
		busy := 0
		for _, r := range e.runners {
			used := 0
			for _, s := range r.slots {
				if s != nil {
					used++
					require.False(t, s.ended)
				}
			}
			require.Equal(t, len(r.slots)-used, r.free)
			require.False(t, r.state == resident && r.free > 0 && r.live > 0, "no slot idles while work waits")
			require.LessOrEqual(t, r.cache.used, r.cache.capacity)
			if !r.batchEnds.IsZero() {
				busy++
			}
		}
		require.Equal(t, busy, e.cfg.Device.computing)
	}
	for range rapid.IntRange(1, 60).Draw(rt, "steps") {
		switch rapid.IntRange(0, 9).Draw(rt, "what") {
		case 0, 1, 2, 3:
			req := Request{
				Model: rapid.SampledFrom([]string{"m", "o"}).Draw(rt, "model"), Stream: rapid.Bool().Draw(rt, "stream"),
				Copies: rapid.IntRange(0, 3).Draw(rt, "copies"), Max: rapid.IntRange(0, 30).Draw(rt, "max"),
				NoOutput: rapid.IntRange(0, 5).Draw(rt, "embed") == 0,
			}
			if rapid.IntRange(0, 4).Draw(rt, "other context") == 0 {
				req.Context = 300
			}
			for range rapid.IntRange(1, 2).Draw(rt, "prompts") {
				h := uint64(rapid.IntRange(1, 3).Draw(rt, "prefix"))
				req.Prompts = append(req.Prompts, []Part{{h, 100}, {h*10 + uint64(rapid.IntRange(0, 3).Draw(rt, "rest")), 50}})
			}
			before := e.Stats(now)
			w, rej := e.Submit(now, req)
			if rej == nil {
				all, open[w] = append(all, w), true
				if before.Models[w.Model].InHand+min(len(w.Tasks), cfg.Slots) > cfg.Slots {
					over++
				}
			}
		case 4, 5:
			if len(all) > 0 {
				e.Leave(now, all[rapid.IntRange(0, len(all)-1).Draw(rt, "who")])
			}
		case 6:
			f := Fault{
				Kind: rapid.SampledFrom([]FaultKind{FaultNone, FaultNone, FaultHang, FaultHangAfterHeaders, FaultStall, FaultCut, FaultEmpty, FaultSlow, FaultCrash, FaultError, FaultBusy, FaultGarbage}).Draw(rt, "fault"),
				For:  time.Duration(rapid.IntRange(1, 3000).Draw(rt, "for")) * time.Millisecond, AfterTokens: rapid.IntRange(0, 5).Draw(rt, "after"),
				Rate: rapid.SampledFrom([]float64{0, 0.5}).Draw(rt, "rate"),
			}
			f, err := f.Check()
			require.NoError(t, err)
			e.SetFault(now, f)
		default:
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond)
		}
		take()
		check()
	}
	e.SetFault(now, Fault{Kind: FaultNone})
	for range 1_000_000 {
		take()
		check()
		at, ok := e.Next()
		if !ok {
			break
		}
		now = at
	}
	take()
	require.Empty(t, open, "everything ends")
	return trace.String()
}

func TestWhateverHappensTheBooksAreRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { drive(rt, rt) })
}

func TestOneSeedGivesOneTrace(t *testing.T) {
	gen := rapid.Custom(func(rt *rapid.T) string { return drive(rt, t) })
	for seed := range 20 {
		require.Equal(t, gen.Example(seed), gen.Example(seed))
	}
}
