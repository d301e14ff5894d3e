package model

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// life is a random life of an engine, checked at each step for what must
// always hold.
type life struct {
	rt    *rapid.T
	t     require.TestingT
	e     *Engine
	cfg   Config
	start time.Time
	now   time.Time
	open  map[*Work]bool // not ended, by the events
	all   []*Work
	over  int            // arrivals that made more than the slots
	most  map[string]int // the largest max_in_hand seen
	trace strings.Builder
}

func newLife(rt *rapid.T, t require.TestingT) *life {
	pick := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(rt, what) }
	cfg := Config{
		Kind:   rapid.SampledFrom([]Kind{LlamaCpp, Ollama, VLLM, OpenAI}).Draw(rt, "kind"),
		Models: []string{"m", "o"}, Slots: pick(1, 4, "slots"),
		Prefill: 500, Decode: 20, BatchSlowdown: rapid.Float64Range(0, 1).Draw(rt, "slowdown"),
		Batch: 64, Context: 400, CacheTokens: pick(-1, 500, "cache"),
		Queue: pick(0, 3, "queue"), Output: LogNormal(10, 1),
		LoadTime: time.Duration(pick(0, 2, "load")) * sec, KeepAlive: 10 * sec,
		Notice: time.Duration(pick(-1, 2, "notice")) * 500 * time.Millisecond,
		Seed:   rapid.Uint64().Draw(rt, "seed"),
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &life{
		rt: rt, t: t, e: New(cfg, nil, start), cfg: cfg, start: start, now: start,
		open: map[*Work]bool{}, most: map[string]int{},
	}
}

func (l *life) pick(low, high int, what string) int {
	return rapid.IntRange(low, high).Draw(l.rt, what)
}

// live does random things and then lets all come to its end.
func (l *life) live() string {
	for range l.pick(1, 60, "steps") {
		switch l.pick(0, 9, "what") {
		case 0, 1, 2, 3:
			l.arrive()
		case 4, 5:
			if len(l.all) > 0 {
				l.e.Leave(l.now, l.all[l.pick(0, len(l.all)-1, "who")])
			}
		case 6:
			l.fault()
		default:
			l.now = l.now.Add(time.Duration(l.pick(0, 3000, "ms")) * time.Millisecond)
		}
		l.take()
		l.check()
	}
	l.e.SetFault(l.now, Fault{Kind: FaultNone})
	for range 1_000_000 {
		l.take()
		l.check()
		at, ok := l.e.Next()
		if !ok {
			break
		}
		l.now = at
	}
	l.take()
	require.Empty(l.t, l.open, "everything ends")
	return l.trace.String()
}

func (l *life) arrive() {
	req := Request{
		Model:  rapid.SampledFrom([]string{"m", "o"}).Draw(l.rt, "model"),
		Stream: rapid.Bool().Draw(l.rt, "stream"), Copies: l.pick(0, 3, "copies"), Max: l.pick(0, 30, "max"),
		NoOutput: l.pick(0, 5, "embed") == 0, Context: []int{0, 0, 0, 300}[l.pick(0, 3, "context")],
	}
	for range l.pick(1, 2, "prompts") {
		h := uint64(l.pick(1, 3, "prefix"))
		req.Prompts = append(req.Prompts, []Part{{h, 100}, {h*10 + uint64(l.pick(0, 3, "rest")), 50}})
	}
	before := l.e.Stats(l.now)
	w, rej := l.e.Submit(l.now, req)
	if rej != nil {
		return
	}
	l.all, l.open[w] = append(l.all, w), true
	if before.Models[w.Model].InHand+min(len(w.Tasks), l.cfg.Slots) > l.cfg.Slots {
		l.over++
	}
}

func (l *life) fault() {
	kinds := []FaultKind{
		FaultNone, FaultNone, FaultHang, FaultHangAfterHeaders, FaultStall, FaultCut, FaultEmpty,
		FaultSlow, FaultCrash, FaultError, FaultBusy, FaultGarbage,
	}
	f, err := Fault{
		Kind: rapid.SampledFrom(kinds).Draw(l.rt, "fault"), For: time.Duration(l.pick(1, 3000, "for")) * time.Millisecond,
		AfterTokens: l.pick(0, 5, "after"), Rate: float64(l.pick(0, 1, "rate")) / 2,
	}.Check()
	require.NoError(l.t, err)
	l.e.SetFault(l.now, f)
}

// take books and writes down what has happened.
func (l *life) take() {
	for _, ev := range l.e.Advance(l.now) {
		id := 0
		if ev.Work != nil {
			id = ev.Work.ID
		}
		fmt.Fprintf(&l.trace, "%d %d %d %d %s\n", ev.At.Sub(l.start), ev.Kind, id, ev.Task, ev.Fault)
		if ev.Kind == Finished {
			require.True(l.t, l.open[ev.Work], "work ends once")
			delete(l.open, ev.Work)
		}
	}
}

// check compares the engine's counts (R1) with those made from outside, and
// its slots, cache and device with each other.
func (l *life) check() {
	hand := map[string]int{}
	for w := range l.open {
		left := 0
		for i := range w.Tasks {
			if !w.Tasks[i].ended {
				left++
			}
		}
		hand[w.Model] += min(left, l.cfg.Slots)
	}
	st := l.e.Stats(l.now)
	for name, s := range st.Models {
		require.Equal(l.t, hand[name], s.InHand, "in hand of %s", name)
		require.GreaterOrEqual(l.t, s.MaxInHand, l.most[name])
		l.most[name] = s.MaxInHand
	}
	require.Equal(l.t, l.over, st.OverSlotsEvents)
	batches := 0
	for _, r := range l.e.runners {
		used := 0
		for _, s := range r.slots {
			if s != nil {
				used++
				require.False(l.t, s.ended)
			}
		}
		require.Equal(l.t, len(r.slots)-used, r.free)
		require.False(l.t, r.state == resident && r.free > 0 && r.live > 0, "no slot idles while work waits")
		require.LessOrEqual(l.t, r.cache.used, r.cache.capacity)
		if !r.batchEnds.IsZero() {
			batches++
		}
	}
	require.Equal(l.t, batches, l.e.cfg.Device.computing)
}

func TestWhateverHappensTheBooksAreRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { newLife(rt, rt).live() })
}

func TestOneSeedGivesOneTrace(t *testing.T) {
	gen := rapid.Custom(func(rt *rapid.T) string { return newLife(rt, t).live() })
	for seed := range 20 {
		require.Equal(t, gen.Example(seed), gen.Example(seed))
	}
}
