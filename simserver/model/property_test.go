package model

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// story is a random life of an engine: what it is, and what happens to it.
type story struct {
	cfg   Config
	deeds []deed
}

// deed is one thing that happens.
type deed struct {
	what  string
	req   Request
	who   int
	fault Fault
	wait  time.Duration
}

// waits are times of the size of what happens; some end when a step does.
var waits = []time.Duration{
	1, 50 * time.Millisecond, 100 * time.Millisecond, 128 * time.Millisecond, 333 * time.Millisecond,
	700 * time.Millisecond, sec, 1500 * time.Millisecond, 4 * sec, 30 * sec,
}

var allKinds = []Kind{LlamaCpp, Ollama, VLLM, OpenAI}

func drawStory(rt *rapid.T) story {
	pick := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(rt, what) }
	s := story{cfg: Config{
		Kind:   rapid.SampledFrom(allKinds).Draw(rt, "kind"),
		Models: []string{"m", "o"}, Slots: pick(1, 4, "slots"),
		Prefill: 500, Decode: rapid.SampledFrom([]float64{20, 2}).Draw(rt, "decode"), BatchSlowdown: rapid.Float64Range(0, 1).Draw(rt, "slowdown"),
		Batch: 64, Context: 400, CacheTokens: pick(-1, 500, "cache"),
		Queue: pick(0, 3, "queue"), Output: LogNormal(10, 1),
		LoadTime: time.Duration(pick(0, 2, "load")) * sec, KeepAlive: 10 * sec, MaxLoaded: pick(1, 2, "loaded"),
		SleepIdle: time.Duration(pick(0, 2, "sleep")) * 3 * sec,
		Notice:    rapid.SampledFrom([]time.Duration{0, 0, 0, -1, 500 * time.Millisecond}).Draw(rt, "notice"),
		Seed:      rapid.Uint64().Draw(rt, "seed"), OutputSeed: rapid.Uint64().Draw(rt, "output seed"),
	}}
	for range pick(1, 60, "deeds") {
		d := deed{what: rapid.SampledFrom([]string{
			"arrive", "arrive", "arrive", "wait", "wait", "wait", "leave", "leave", "fault", "poll", "reset",
		}).Draw(rt, "deed")}
		switch d.what {
		case "arrive":
			d.req = drawRequest(rt)
		case "leave":
			d.who = pick(0, 1000, "who")
		case "fault":
			d.fault = drawFault(rt)
		case "wait":
			d.wait = rapid.SampledFrom(waits).Draw(rt, "wait")
		}
		s.deeds = append(s.deeds, d)
	}
	return s
}

func drawRequest(rt *rapid.T) Request {
	pick := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(rt, what) }
	req := Request{
		Model:  rapid.SampledFrom([]string{"m", "o"}).Draw(rt, "model"),
		Stream: rapid.Bool().Draw(rt, "stream"), Copies: pick(0, 3, "copies"), Max: pick(0, 30, "max"),
		NoOutput: pick(0, 5, "embed") == 0, NoCache: pick(0, 5, "no cache") == 0, Detached: pick(0, 8, "detached") == 0,
		Context: []int{0, 0, 0, 300}[pick(0, 3, "context")],
	}
	for range pick(1, 2, "prompts") {
		h := uint64(pick(1, 3, "prefix"))
		req.Prompts = append(req.Prompts, []Part{{h, 100}, {h*10 + uint64(pick(0, 3, "rest")), 50}})
	}
	return req
}

func drawFault(rt *rapid.T) Fault {
	pick := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(rt, what) }
	kinds := []FaultKind{
		FaultNone, FaultNone, FaultReset, FaultError, FaultBusy, FaultLoading, FaultHang, FaultHangAfterHeaders,
		FaultStall, FaultCut, FaultEmpty, FaultGarbage, FaultSlow, FaultCPU, FaultRefuse, FaultCrash, FaultRunnerCrash,
	}
	f := Fault{
		Kind: rapid.SampledFrom(kinds).Draw(rt, "fault"), For: rapid.SampledFrom(waits).Draw(rt, "for"),
		AfterTokens: pick(0, 5, "after"),
	}
	if !slices.Contains([]FaultKind{FaultRefuse, FaultCPU, FaultCrash, FaultRunnerCrash}, f.Kind) {
		f.Rate = float64(pick(0, 1, "rate")) / 2
	}
	f, err := f.Check()
	require.NoError(rt, err)
	return f
}

// life is a story being lived, checked at each step for what must always hold.
type life struct {
	t     require.TestingT
	e     *Engine
	cfg   Config
	start time.Time
	now   time.Time
	open  map[*Work]bool // not ended, by the events
	all   []*Work
	over  int            // arrivals that made more than the slots
	most  map[string]int // the largest max_in_hand seen
	spoke map[*Task]bool // has had its first token
	trace strings.Builder
}

// live lives a story to the end of all work and writes down its milestones.
func (s *story) live(t require.TestingT, milestones bool) string {
	cfg := s.cfg
	cfg.Milestones = milestones
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := &life{
		t: t, e: New(cfg, nil, start), cfg: cfg, start: start, now: start,
		open: map[*Work]bool{}, most: map[string]int{}, spoke: map[*Task]bool{},
	}
	for _, d := range s.deeds {
		l.do(d)
		l.take()
		l.check()
		l.count()
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
	l.count()
	require.Empty(t, l.open, "everything ends")
	return l.trace.String()
}

func (l *life) do(d deed) {
	switch d.what {
	case "arrive":
		l.arrive(d.req)
	case "leave":
		if len(l.all) > 0 {
			l.e.Leave(l.now, l.all[d.who%len(l.all)])
		}
	case "fault":
		l.e.SetFault(l.now, d.fault)
	case "poll":
		if d.who%2 == 0 {
			l.e.Wake(l.now, "")
		}
		l.e.Polled(l.now)
	case "wait":
		l.now = l.now.Add(d.wait)
	case "reset":
		l.e.Reset(l.now)
		l.over = 0
		clear(l.most)
	}
}

func (l *life) arrive(req Request) {
	before := l.e.Stats(l.now)
	w, rej := l.e.Submit(l.now, req)
	if rej != nil {
		fmt.Fprintf(&l.trace, "%d refused %+v\n", l.now.Sub(l.start), *rej)
		return
	}
	l.all, l.open[w] = append(l.all, w), true
	if before.Models[w.Model].InHand+min(len(w.Tasks), l.cfg.Slots) > l.cfg.Slots {
		l.over++
	}
}

// take books and writes down what has happened.
func (l *life) take() {
	for _, ev := range slices.Clone(l.e.Advance(l.now)) {
		id := 0
		if ev.Work != nil {
			id = ev.Work.ID
		}
		switch ev.Kind {
		case Progress:
			continue
		case Token:
			t := &ev.Work.Tasks[ev.Task]
			if l.spoke[t] {
				continue
			}
			l.spoke[t] = true
		case Finished:
			require.True(l.t, l.open[ev.Work], "work ends once")
			delete(l.open, ev.Work)
			l.finish(ev.Work)
		}
		fmt.Fprintf(&l.trace, "%d %d %d %d %s\n", ev.At.Sub(l.start), ev.Kind, id, ev.Task, ev.Fault)
	}
}

// count writes down the counts.
func (l *life) count() {
	st, err := json.Marshal(l.e.Stats(l.now))
	require.NoError(l.t, err)
	fmt.Fprintf(&l.trace, "%s\n", st)
	for _, name := range l.cfg.Models {
		fmt.Fprintf(&l.trace, "%+v\n", l.e.Usage(l.now, name))
	}
}

// finish writes down how a work ended, and remembers its answer.
func (l *life) finish(w *Work) {
	fmt.Fprintf(&l.trace, "end %d load %d", w.End, w.Load)
	for i := range w.Tasks {
		t := &w.Tasks[i]
		fmt.Fprintf(&l.trace, " [%d: %d %d %d of %d, %d %d %d]", t.Slot, t.Cached, t.Processed, t.Decoded, t.Target,
			t.Started.Sub(l.start), t.First.Sub(l.start), t.Ended.Sub(l.start))
	}
	fmt.Fprintln(&l.trace)
	if p := w.Request.Prompts[0]; w.End == EndDone {
		l.e.Remember(l.now, w, append(slices.Clone(p), Part{p[1].Hash * 7, 20}))
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
	computing, loaded, loads, waits := 0, 0, 0, 0
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
		l.checkCache(r)
		require.Equal(l.t, r.computing, !r.batchEnds.IsZero())
		if r.computing {
			computing++
		}
		waits += r.waits
		switch r.state {
		case resident:
			loaded++
		case loading:
			loads++
		}
	}
	require.Equal(l.t, computing, l.e.cfg.Device.computing)
	require.Len(l.t, l.e.pending, waits)
	if l.cfg.Kind == Ollama {
		require.LessOrEqual(l.t, loaded+loads, l.e.cfg.MaxLoaded, "no more models than there may be")
		require.LessOrEqual(l.t, loads, 1, "one load at a time")
		require.LessOrEqual(l.t, waits, l.e.cfg.Queue+1, "one is being loaded for, the others are its queue")
	}
}

// checkCache counts the prompt cache anew.
func (l *life) checkCache(r *runner) {
	sum, working := 0, 0
	switch c := r.cache.(type) {
	case *treeCache:
		n := 0
		for e := c.ring.next; e != &c.ring; e = e.next {
			sum, n = sum+e.tokens, n+1
			require.Same(l.t, e, c.byHash[e.hash])
			require.Positive(l.t, e.tokens)
		}
		require.Len(l.t, c.byHash, n)
	case *slotCache:
		for i := range c.held {
			sum += c.held[i].tokens
			if c.busy[i] {
				working += c.held[i].tokens
			}
		}
		for i := range c.saved {
			sum += c.saved[i].tokens
			require.Positive(l.t, c.saved[i].tokens)
		}
	}
	require.Equal(l.t, sum, r.cache.tokens())
	require.LessOrEqual(l.t, sum, max(working, l.e.cfg.CacheTokens), "beside what is worked on it is within its bound")
}

func TestWhateverHappensTheBooksAreRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		s.live(rt, false)
	})
}

// Milestones is only cheaper: to the nanosecond the same times, refusals,
// caches and counts at each moment anyone looks.
func TestMilestonesAreThoseOfEachStep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		each, few := strings.Split(s.live(rt, false), "\n"), strings.Split(s.live(rt, true), "\n")
		for i := range min(len(each), len(few)) {
			require.Equal(rt, each[i], few[i], "line %d", i)
		}
		require.Len(rt, few, len(each))
	})
}
