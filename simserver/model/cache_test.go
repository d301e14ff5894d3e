package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The parts of prompts in these tests: a part's hash stands for all before it.
var (
	head   = Part{Hash: 1, Tokens: 300}
	tailA  = Part{Hash: 2, Tokens: 200}
	tailB  = Part{Hash: 3, Tokens: 400}
	answer = Part{Hash: 4, Tokens: 50}
	more   = Part{Hash: 5, Tokens: 10}
	other  = Part{Hash: 9, Tokens: 300}
	others = Part{Hash: 8, Tokens: 200}
)

func prompt(parts ...Part) func(*Request) {
	return func(r *Request) { r.Model, r.Prompts, r.Output = "m", [][]Part{parts}, 2 }
}

// cached asks, waits for the end and gives slot and cached tokens.
func (w *world) cached(change func(*Request)) []int {
	work := w.ask(0, change)
	w.drain()
	require.Equal(w, EndDone, work.End)
	return []int{work.Tasks[0].Slot, work.Tasks[0].Cached}
}

func cacheWorld(t *testing.T, kind Kind, tokens int) *world {
	return newWorld(t, with(func(c *Config) { c.Kind, c.Models, c.CacheTokens, c.KeepAlive = kind, []string{"m"}, tokens, -1 }))
}

// An engine of no known kind: prefixes, whole parts, the least recently used
// end dropped first.
func TestCacheOfPrefixes(t *testing.T) {
	w := cacheWorld(t, OpenAI, 1000)
	require.Equal(t, []int{0, 0}, w.cached(prompt(head, tailA)))
	require.Equal(t, []int{0, 499}, w.cached(prompt(head, tailA)), "one token is always processed")
	require.Equal(t, []int{0, 300}, w.cached(prompt(head, tailB)), "the shared prefix")
	require.Equal(t, []int{0, 0}, w.cached(prompt(other, others)), "a part counts only behind its prefix")
	old := w.ask(0, prompt(head, tailA))
	w.drain()
	require.Equal(t, 300, old.Tasks[0].Cached, "the end of the oldest prompt was dropped first")

	w.Remember(w.now, old, []Part{head, tailA, answer})
	require.Equal(t, []int{0, 550}, w.cached(prompt(head, tailA, answer, more)), "the conversation's next turn finds the answer")
	require.Equal(t, 499+300+300+550, w.Stats(w.now).CachedTokens)
}

// vLLM: blocks of 16 tokens, only whole ones, the last token never.
func TestCacheOfBlocks(t *testing.T) {
	w := cacheWorld(t, VLLM, 1008) // 63 blocks
	require.Equal(t, []int{0, 0}, w.cached(prompt(head, tailA)))
	require.Equal(t, []int{0, 496}, w.cached(prompt(head, tailA)), "31 blocks of 500 tokens")
	require.Equal(t, []int{0, 288}, w.cached(prompt(head, tailB)), "18 blocks of the 300 that are shared")
	require.Equal(t, 31+43-18, w.runners[0].cache.tokens()/vllmBlock)

	even := Part{Hash: 20, Tokens: 64}
	require.Equal(t, []int{0, 0}, w.cached(prompt(even)))
	require.Equal(t, []int{0, 48}, w.cached(prompt(even)), "with the last token goes its block")

	// 56 blocks and 4; 31 more are 28 too many. They come from the ends of what
	// was used longest ago: 13 from A, then from B's 25, and 18 of the head stay.
	require.Equal(t, []int{0, 0}, w.cached(prompt(other, others)))
	require.Equal(t, 63, w.runners[0].cache.tokens()/vllmBlock)
	require.Equal(t, []int{0, 16 * (18 + 25 - 15)}, w.cached(prompt(head, tailB)))
}

// llama.cpp: the slot with the longest common prefix, else the one idle
// longest; what a slot loses goes to host memory and comes back from there.
func TestCacheOfSlotsAndStore(t *testing.T) {
	w := cacheWorld(t, LlamaCpp, 3000)
	store := func() int { return len(w.runners[0].cache.(*slotCache).saved) }
	require.Equal(t, []int{1, 0}, w.cached(prompt(head, tailA)), "the last of those never used")
	require.Equal(t, []int{0, 0}, w.cached(prompt(other, others)))
	require.Equal(t, []int{1, 499}, w.cached(prompt(head, tailA)))
	require.Equal(t, []int{1, 300}, w.cached(prompt(head, tailB)), "the longest common prefix, though the other is idle longer")
	require.Zero(t, store(), "it kept more than half of what it held")
	third := Part{Hash: 7, Tokens: 600}
	require.Equal(t, []int{0, 0}, w.cached(prompt(third)), "the slot that is idle longest")
	require.Equal(t, 1, store())
	require.Equal(t, []int{1, 0}, w.cached(prompt(Part{Hash: 6, Tokens: 600})))
	require.Equal(t, 2, store())
	require.Equal(t, []int{0, 499}, w.cached(prompt(other, others)), "back from host memory, to the slot that is idle longest")
	require.Equal(t, 2, store(), "which has saved what it held")
	require.Equal(t, []int{1, 699}, w.cached(prompt(head, tailB)))

	// A head alone is too little of what was saved to take it out.
	short := Part{Hash: 30, Tokens: 40}
	w.cached(prompt(short, Part{Hash: 31, Tokens: 400}))
	w.cached(prompt(Part{Hash: 32, Tokens: 500}))
	w.cached(prompt(Part{Hash: 33, Tokens: 500}))
	require.Equal(t, 0, w.cached(prompt(short, Part{Hash: 34, Tokens: 100}))[1])
}

// A conversation's turns come back to their slot, and to the host's memory when
// the slot has been given to another; the answer is part of it wherever it is.
func TestCacheRemembersTheAnswer(t *testing.T) {
	for _, kind := range []Kind{LlamaCpp, Ollama} {
		w := newWorld(t, with(func(c *Config) {
			c.Kind, c.Models, c.CacheTokens, c.KeepAlive, c.Slots = kind, []string{"m"}, 5000, -1, 1
		}))
		first := w.ask(0, prompt(head, tailA))
		w.drain()
		w.Remember(w.now, first, []Part{head, tailA, answer})
		require.Equal(t, []int{0, 550}, w.cached(prompt(head, tailA, answer, more)), kind)

		first = w.ask(0, prompt(other, others))
		w.ask(0, prompt(Part{Hash: 7, Tokens: 600})) // takes the slot at the very end of the first
		w.drain()
		w.Remember(w.now, first, []Part{other, others, {Hash: 40, Tokens: 50}})
		want := map[Kind]int{LlamaCpp: 550, Ollama: 0}[kind]
		require.Equal(t, []int{0, want}, w.cached(prompt(other, others, Part{Hash: 40, Tokens: 50}, more)), kind)
	}
}

// Ollama: the free slot that shares most, the first of equals, and no more.
func TestCacheOfOllamasSlots(t *testing.T) {
	w := cacheWorld(t, Ollama, 0)
	require.Equal(t, []int{0, 0}, w.cached(prompt(head, tailA)))
	require.Equal(t, []int{0, 0}, w.cached(prompt(other, others)), "no prefix: the first slot, whatever it held")
	require.Equal(t, []int{0, 0}, w.cached(prompt(head, tailA)))
	long := w.ask(0, prompt(head, tailA), output(100))
	require.Equal(t, []int{1, 0}, w.cached(prompt(head, tailA)), "a slot at work lends nothing")
	require.Equal(t, 499, long.Tasks[0].Cached)
	require.Equal(t, []int{0, 300}, w.cached(prompt(head, tailB)))
	require.Equal(t, []int{1, 499}, w.cached(prompt(head, tailA)))
}

// A departure in the middle of a prompt leaves what was done of it.
func TestCacheOfAnUnfinishedPrompt(t *testing.T) {
	long := []Part{{Hash: 1, Tokens: 4096}, {Hash: 2, Tokens: 4096}}
	for kind, want := range map[Kind]int{LlamaCpp: 4096, Ollama: 4096, VLLM: 4096, OpenAI: 4096} {
		w := newWorld(t, with(func(c *Config) {
			c.Kind, c.Models, c.CacheTokens, c.Context, c.Batch, c.Notice, c.KeepAlive = kind, []string{"m"}, 100_000, 10_000, 2048, -1, -1
		}))
		gone := w.ask(0, prompt(long...))
		w.until(5 * sec)
		w.leave(gone)
		require.Equal(t, 4096, gone.Tasks[0].Processed)
		require.Equal(t, want, w.cached(prompt(long...))[1], kind)
	}
}

// --cache-tokens bounds it: what is idle loses its ends.
func TestCacheIsBounded(t *testing.T) {
	for _, kind := range []Kind{LlamaCpp, Ollama} {
		w := cacheWorld(t, kind, 400)
		w.cached(prompt(head, tailA))
		require.Equal(t, 400, w.runners[0].cache.tokens())
		require.Equal(t, 400, w.cached(prompt(head, tailA))[1], kind)
	}
	for _, kind := range allKinds {
		w := cacheWorld(t, kind, -1)
		w.cached(prompt(head, tailA))
		require.Zero(t, w.cached(prompt(head, tailA))[1], kind)
		require.Zero(t, w.runners[0].cache.tokens())
	}
}
