package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What is foreseen is what happens, if nothing comes between.
func TestFirstTokenIsForeseen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		e := New(Config{
			Kind:   rapid.SampledFrom([]Kind{LlamaCpp, Ollama, VLLM, OpenAI}).Draw(rt, "kind"),
			Models: []string{"m"}, Slots: 4, Prefill: 1000, Decode: 50, BatchSlowdown: 0.3, Batch: 512,
			LoadTime: time.Second, Milestones: rapid.Bool().Draw(rt, "milestones"),
		}, nil, now)
		e.Submit(now, Request{Model: "m", Prompts: [][]Part{{{Hash: 1, Tokens: 10}}}, Output: 1})
		now = now.Add(5 * time.Second) // loaded
		words := rapid.Custom(func(rt *rapid.T) Request {
			parts := []Part{{Hash: uint64(rapid.IntRange(1, 3).Draw(rt, "who")), Tokens: rapid.SampledFrom([]int{40, 400, 1500}).Draw(rt, "tokens")}}
			parts[0].Hash = parts[0].Hash<<16 + uint64(parts[0].Tokens)
			return Request{Model: "m", Prompts: [][]Part{parts}, Output: rapid.IntRange(1, 60).Draw(rt, "output"), Stream: true}
		})
		for range rapid.IntRange(0, 6).Draw(rt, "before") {
			now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(rt, "ms")) * time.Millisecond)
			if e.Stats(now).InHand < 3 {
				_, rej := e.Submit(now, words.Draw(rt, "request"))
				require.Nil(rt, rej)
			}
		}
		req := words.Draw(rt, "request")
		want := e.FirstToken(now, req)
		w, rej := e.Submit(now, req)
		require.Nil(rt, rej)
		for w.Tasks[0].First.IsZero() {
			at, ok := e.Next()
			require.True(rt, ok)
			e.Advance(at)
		}
		require.WithinDuration(rt, w.Tasks[0].First, want, time.Microsecond)
	})
}
