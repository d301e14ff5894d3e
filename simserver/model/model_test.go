package model

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an engine on a made-up clock.
type world struct {
	*testing.T
	*Engine
	start time.Time
	now   time.Time
	log   []Event
	done  map[*Work]time.Duration // when each work ended
	first map[*Work]time.Duration // when each work's first token came
	begun map[*Work]time.Duration
	seen  map[*Work]time.Duration // departures noticed
}

func newWorld(t *testing.T, cfg Config, script ...TimedFault) *world {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := &world{
		T: t, Engine: New(cfg, script, t0), start: t0, now: t0,
		done: map[*Work]time.Duration{}, first: map[*Work]time.Duration{},
		begun: map[*Work]time.Duration{}, seen: map[*Work]time.Duration{},
	}
	return w
}

// take books the events up to now.
func (w *world) take() {
	for _, ev := range w.Advance(w.now) {
		w.log = append(w.log, ev)
		at := ev.At.Sub(w.start)
		switch ev.Kind {
		case Started:
			w.begun[ev.Work] = at
		case Token:
			if _, ok := w.first[ev.Work]; !ok {
				w.first[ev.Work] = at
			}
		case Finished:
			w.done[ev.Work] = at
		case Noticed:
			if _, ok := w.seen[ev.Work]; !ok {
				w.seen[ev.Work] = at
			}
		}
	}
}

// until lets the time pass to d after the start.
func (w *world) until(d time.Duration) {
	w.now = w.start.Add(d)
	w.take()
}

// drain goes from event to event until nothing is left to do.
func (w *world) drain() {
	w.take()
	for range 10_000_000 {
		at, ok := w.Next()
		if !ok {
			return
		}
		w.now = at
		w.take()
	}
	require.Fail(w, "the engine never comes to rest")
}

// ask submits a request with a prompt of n tokens that no other shares.
func (w *world) ask(n int, change ...func(*Request)) *Work {
	req := Request{Prompts: [][]Part{{{Hash: uint64(len(w.log)*1000 + w.nextID + 1), Tokens: n}}}, Stream: true}
	for _, f := range change {
		f(&req)
	}
	work, rej := w.Submit(w.now, req)
	require.Nil(w, rej)
	w.take()
	return work
}

func (w *world) leave(work *Work) {
	w.Leave(w.now, work)
	w.take()
}

func model(name string) func(*Request) { return func(r *Request) { r.Model = name } }
func output(n int) func(*Request)      { return func(r *Request) { r.Output = n } }
func whole(r *Request)                 { r.Stream = false }

const sec = time.Second

func near(t require.TestingT, want, got, within time.Duration, what string) {
	require.InDelta(t, want.Seconds(), got.Seconds(), within.Seconds(), what)
}

// base is an engine with round numbers: 1000 prompt tokens and 10 output
// tokens a second, two slots.
var base = Config{Kind: LlamaCpp, Slots: 2, Prefill: 1000, Decode: 10, CacheTokens: -1, Output: Fixed(41)}

func with(change func(*Config)) Config {
	c := base
	change(&c)
	return c
}

func TestSixStreamsOnTwoSlotsTakeThreeRounds(t *testing.T) {
	w := newWorld(t, base)
	var all []*Work
	for range 6 {
		all = append(all, w.ask(100))
	}
	require.Equal(t, 6, w.Stats(w.now).InHand, "R1: all of it is in hand, queued or not")
	w.drain()
	round := 4*sec + 200*time.Millisecond // two prompts of 100 in one batch or two, then 40 more tokens
	for i, work := range all {
		near(t, time.Duration(i/2+1)*round, w.done[work], sec/3, "end")
		near(t, time.Duration(i/2)*round, w.begun[work], sec/3, "start: headers go when the slot is taken")
	}
	st := w.Stats(w.now)
	held := w.now.Sub(w.start).Seconds() * 2 // both slots all the time
	require.InDelta(t, held, st.SlotSeconds, 0.2)
	require.Equal(t, Stats{
		SlotSeconds: st.SlotSeconds, Slots: 2, MaxInHand: 6, OverSlotsEvents: 4, QueuedMax: 4, Requests: 6, Completed: 6,
		TokensGenerated: 6 * 41, PromptTokens: 600,
		Models: map[string]Stats{"sim": {SlotSeconds: st.SlotSeconds, Slots: 2, MaxInHand: 6, OverSlotsEvents: 4, QueuedMax: 4, Completed: 6, TokensGenerated: 6 * 41, PromptTokens: 600}},
	}, st)
}

func TestAloneAnAnswerTakesPromptPlusTokens(t *testing.T) {
	w := newWorld(t, base)
	work := w.ask(1500)
	w.drain()
	near(t, 1500*time.Millisecond, w.first[work], 1, "first token: the end of the prompt")
	near(t, 5500*time.Millisecond, w.done[work], 1, "40 more tokens at 10 a second")
	require.Equal(t, EndDone, work.End)
}

func TestBatchSlowdown(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8} {
		w := newWorld(t, with(func(c *Config) { c.Slots, c.BatchSlowdown = 8, 0.25 }))
		var all []*Work
		for range n {
			all = append(all, w.ask(1))
		}
		w.drain()
		each := 0.1 * (1 + 0.25*float64(n-1))
		for _, work := range all {
			took := w.done[work] - w.first[all[n-1]]
			require.InDelta(t, 40*each, took.Seconds(), 2*each, "%d streams", n)
		}
	}
}

func TestALongPromptStallsTheOthersForABatch(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.Batch, c.Output, c.Context = 2000, Fixed(200), 100_000 }))
	w.ask(10)
	w.until(5 * sec)
	long := w.ask(5000) // 2000, 2000 and 1000 tokens
	w.drain()
	var gaps []float64
	var last time.Time
	for _, ev := range w.log {
		if ev.Kind == Token && ev.Work != long {
			if !last.IsZero() {
				gaps = append(gaps, ev.At.Sub(last).Seconds())
			}
			last = ev.At
		}
	}
	var stalls int
	for _, g := range gaps {
		if g > 1 {
			stalls++
		}
	}
	require.Equal(t, 3, stalls, "one for each batch of the long prompt")
	require.InDelta(t, 5.3, (w.first[long] - 5*sec).Seconds(), 0.11)
}

func TestOutputUpToTheMaximum(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.Context = 120 }))
	short := w.ask(10, func(r *Request) { r.Max = 5 })
	free := w.ask(10)
	full := w.ask(100)
	exact := w.ask(10, func(r *Request) { r.Max, r.Output = 41, 41 })
	w.drain()
	require.Equal(t, []int{5, 41, 20, 41}, []int{short.Generated(), free.Generated(), full.Generated(), exact.Generated()})
	require.True(t, short.Tasks[0].Limited)
	require.False(t, free.Tasks[0].Limited)
	require.True(t, full.Tasks[0].Limited, "the context is full")

	// Ollama goes on when the context is full. As recorded: a prompt longer than
	// it, prompt_eval_count 4096, num_predict 4, eval_count 4.
	w = newWorld(t, ollama(func(c *Config) { c.Context, c.Output = 4096, Fixed(5000) }))
	over := w.ask(6018, m, func(r *Request) { r.Max = 4 })
	long := w.ask(4000, m)
	w.drain()
	require.Equal(t, []int{4096, 4}, []int{over.Tasks[0].Prompt, over.Generated()})
	require.Equal(t, 5000, long.Generated())
}

func TestDistributions(t *testing.T) {
	for _, s := range []string{"fixed:7", "lognormal:200,0.8"} {
		d, err := ParseDist(s)
		require.NoError(t, err)
		require.Equal(t, s, d.String())
	}
	for _, s := range []string{"", "fixed", "fixed:0", "fixed:-1", "fixed:1.5", "normal:1,1", "lognormal:200", "lognormal:0,1", "lognormal:200,-1", "lognormal:200,NaN", "lognormal:Inf,1"} {
		_, err := ParseDist(s)
		require.Error(t, err, s)
	}
	var logs, squares float64
	const n = 20000
	for i := range uint64(n) {
		l := math.Log(float64(LogNormal(200, 0.8).Draw(mix(3, i))))
		logs += l
		squares += l * l
	}
	mean := logs / n
	require.InDelta(t, math.Log(200), mean, 0.02)
	require.InDelta(t, 0.8, math.Sqrt(squares/n-mean*mean), 0.02)
}

func TestRejections(t *testing.T) {
	one := func(n int) Request { return Request{Model: "x", Prompts: [][]Part{{{Hash: 1, Tokens: n}}}} }
	kindOf := func(e *Engine, r Request) RejectKind {
		_, rej := e.Submit(e.born, r)
		require.NotNil(t, rej)
		return rej.Kind
	}
	for _, k := range []Kind{Ollama, VLLM, OpenAI} {
		require.Equal(t, RejectModel, kindOf(New(with(func(c *Config) { c.Kind = k }), nil, time.Time{}), one(1)), k)
	}
	e := New(with(func(c *Config) { c.Context = 100 }), nil, time.Time{})
	_, rej := e.Submit(e.born, one(100))
	require.Equal(t, &Rejection{Kind: RejectTooLong, Status: 400, PromptTokens: 100, ContextTokens: 100}, rej, "llama.cpp ignores the model's name, not the length")

	o := New(with(func(c *Config) { c.Kind, c.Models, c.Context = Ollama, []string{"x"}, 100 }), nil, time.Time{})
	w, rej := o.Submit(o.born, one(500))
	require.Nil(t, rej, "Ollama cuts the prompt silently")
	require.Equal(t, 100, w.Tasks[0].Prompt)
	strict := one(500)
	strict.Strict = true
	require.Equal(t, RejectTooLong, kindOf(o, strict))

	q := New(with(func(c *Config) { c.Kind, c.Models, c.Queue = OpenAI, []string{"x"}, 1 }), nil, time.Time{})
	for range 3 {
		_, rej := q.Submit(q.born, one(1))
		require.Nil(t, rej)
	}
	require.Equal(t, RejectQueueFull, kindOf(q, one(1)))

	l := New(with(func(c *Config) { c.LoadTime = sec }), nil, time.Time{})
	require.True(t, l.Loading(l.born))
	require.Equal(t, RejectLoading, kindOf(l, one(1)))
	require.False(t, l.Loading(l.born.Add(sec)))
	require.Equal(t, 1, l.Stats(l.born.Add(sec)).Requests, "what was not taken was asked all the same")
}

func TestSeveralTasksInOneRequest(t *testing.T) {
	w := newWorld(t, with(func(c *Config) { c.Slots = 3 }))
	wide := w.ask(100, func(r *Request) { r.Copies = 5 })
	require.Equal(t, 3, w.Stats(w.now).InHand, "R1: a request of width f counts min(f, slots)")
	require.Zero(t, w.Stats(w.now).OverSlotsEvents)
	w.until(5 * sec)
	require.Equal(t, 2, w.Stats(w.now).InHand, "three of five are done")
	w.ask(100)
	require.Equal(t, 3, w.Stats(w.now).InHand)
	w.ask(100)
	require.Equal(t, 1, w.Stats(w.now).OverSlotsEvents, "beside it there was room for one")
	w.drain()
	require.Equal(t, 5*41, wide.Generated())
	require.Equal(t, 100, wide.Tasks[0].Prompt)
	require.Equal(t, 99, wide.Tasks[4].Cached, "copies share the processed prompt")
	require.Zero(t, w.Stats(w.now).InHand)

	embed := w.ask(0, whole, func(r *Request) {
		r.NoOutput = true
		r.Prompts = [][]Part{{{Hash: 71, Tokens: 100}}, {{Hash: 72, Tokens: 300}}, {{Hash: 73, Tokens: 200}}, {{Hash: 74, Tokens: 100}}}
	})
	at := w.now
	w.drain()
	near(t, 700*time.Millisecond, w.start.Add(w.done[embed]).Sub(at), 1, "vectors are made when the prompts are processed")
	require.Zero(t, embed.Generated())
}

func TestSharedDevice(t *testing.T) {
	device := &Device{}
	shared := with(func(c *Config) { c.Device = device })
	t0 := time.Time{}
	a, b := New(shared, nil, t0), New(shared, nil, t0)
	req := Request{Prompts: [][]Part{{{Hash: 1, Tokens: 100}}}, Stream: true}
	for _, e := range []*Engine{a, b} {
		_, rej := e.Submit(t0, req)
		require.Nil(t, rej)
	}
	var end time.Time
	for {
		at, ok := a.Next()
		bt, bok := b.Next()
		if !ok && !bok {
			break
		}
		if !ok || bok && bt.Before(at) {
			at = bt
		}
		end = at
		a.Advance(at)
		b.Advance(at)
	}
	require.InDelta(t, 2*4.1, end.Sub(t0).Seconds(), 0.3, "two engines at half their speed")
	require.Zero(t, device.computing)
}
