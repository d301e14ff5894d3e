package model

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkReplica is one replica under an open load of four fifths of what it
// can do: conversations of some 2,000 prompt tokens in ten parts, answers of
// 200 tokens in the median. It tells what a request costs, from its submission
// to its end.
func BenchmarkReplica(b *testing.B) {
	for _, kind := range allKinds {
		for _, milestones := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/milestones=%t", kind, milestones), func(b *testing.B) {
				t0 := time.Time{}
				e := New(Config{
					Kind: kind, Models: []string{"m"}, Slots: 8, Prefill: 8000, Decode: 100, BatchSlowdown: 0.05,
					CacheTokens: 60_000, Output: LogNormal(200, 0.8), Milestones: milestones,
				}, nil, t0)
				b.ReportAllocs()
				tokens := drive(b, e, t0)
				b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}

// drive sends b.N requests and sees them through.
func drive(b *testing.B, e *Engine, now time.Time) int {
	dice := rand.New(rand.NewPCG(1, 2))
	const users = 40
	var turns [users][]Part
	for b.Loop() {
		now = now.Add(time.Duration(dice.ExpFloat64() * 0.9 * float64(time.Second)))
		for {
			at, ok := e.Next()
			if !ok || at.After(now) {
				break
			}
			e.Advance(at)
		}
		u := dice.IntN(users)
		if len(turns[u]) > 16 {
			turns[u] = nil
		}
		for range 2 {
			turns[u] = append(turns[u][:len(turns[u]):len(turns[u])], Part{dice.Uint64(), 200})
		}
		if _, rej := e.Submit(now, Request{Model: "m", Stream: true, Prompts: [][]Part{turns[u]}}); rej != nil {
			b.Fatal(rej)
		}
	}
	return e.Stats(now).TokensGenerated
}

// BenchmarkFleet is what a virtual run asks of the model: 1,000 replicas under
// one clock, each request to one at random. A million requests of it, which
// is -benchtime 1000000x, should take well under a minute of one core.
func BenchmarkFleet(b *testing.B) {
	t0 := time.Time{}
	dice := rand.New(rand.NewPCG(1, 2))
	plan := &agenda{}
	for i := range 1000 {
		plan.engines = append(plan.engines, &planned{at: never, index: i, e: New(Config{
			Kind: allKinds[i%len(allKinds)], Models: []string{"m"}, Slots: 8, Prefill: 8000, Decode: 100,
			BatchSlowdown: 0.05, CacheTokens: 60_000, Milestones: true,
		}, nil, t0)})
	}
	heap.Init(plan)
	all := append([]*planned(nil), plan.engines...)
	now, events := t0, 0
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Duration(dice.ExpFloat64() * float64(time.Millisecond)))
		for plan.engines[0].at.Before(now) {
			p := plan.engines[0]
			events += len(p.e.Advance(p.at))
			plan.fix(p)
		}
		p := all[dice.IntN(len(all))]
		if _, rej := p.e.Submit(now, Request{
			Model: "m", Stream: true, Output: 1 + int(dice.ExpFloat64()*200),
			Prompts: [][]Part{{{dice.Uint64N(5000), 1000}, {dice.Uint64(), 500}}},
		}); rej != nil {
			b.Fatal(rej)
		}
		events += len(p.e.Advance(now))
		plan.fix(p)
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

// agenda is a heap of engines by what they have to do next.
type agenda struct{ engines []*planned }

type planned struct {
	e     *Engine
	at    time.Time
	index int
}

var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func (a *agenda) fix(p *planned) {
	at, ok := p.e.Next()
	if !ok {
		at = never
	}
	p.at = at
	heap.Fix(a, p.index)
}

func (a *agenda) Len() int           { return len(a.engines) }
func (a *agenda) Less(i, j int) bool { return a.engines[i].at.Before(a.engines[j].at) }
func (a *agenda) Push(any)           {}
func (a *agenda) Pop() any           { return nil }
func (a *agenda) Swap(i, j int) {
	a.engines[i], a.engines[j] = a.engines[j], a.engines[i]
	a.engines[i].index, a.engines[j].index = i, j
}
