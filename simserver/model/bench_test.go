package model

import (
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
