package affinity

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// chain is a chain whose parts are told by the path to them, of 10 to 20 tokens
// each.
func chain(path string) (out []Part) {
	h := uint64(14695981039346656037)
	for _, c := range path {
		h = (h ^ uint64(c)) * 1099511628211
		out = append(out, Part{h, 10 + int(c%3)*5})
	}
	return out
}

func tokensOf(c []Part) (n int) {
	for _, p := range c {
		n += p.Tokens
	}
	return n
}

// naive is the same as an Index, with nothing clever in it.
type naive struct {
	open            bool
	capacity, limit int
	misses          int    // in a row
	parts           []Part // the most recent first
}

func (n *naive) insert(c []Part) {
	fit := 0
	for fit < len(c) && tokensOf(c[:fit+1]) <= n.limit && fit < n.limit/16+64 {
		fit++
	}
	n.parts = slices.DeleteFunc(n.parts, func(p Part) bool { return slices.Contains(c[:fit], p) })
	n.parts = append(slices.Clone(c[:fit]), n.parts...)
	n.shrink()
}

func (n *naive) shrink() {
	for len(n.parts) > 0 && (tokensOf(n.parts) > n.limit || len(n.parts) > n.limit/16+64) {
		n.parts = n.parts[:len(n.parts)-1]
	}
}

func (n *naive) lookup(c []Part) (sum int) {
	for _, p := range c {
		if !slices.Contains(n.parts, p) {
			break
		}
		sum += p.Tokens
	}
	return sum
}

// R6: the index says what a naive model of each cache alone says, and a part is
// never there without those before it.
func TestR6TheIndexIsItsNaiveModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := New()
		var caches []naive
		anyPath := rapid.StringMatching(`[abc]{1,12}`)
		some := func(rt *rapid.T) Cache {
			var open []int
			for i := range caches {
				if caches[i].open {
					open = append(open, i)
				}
			}
			if len(open) == 0 {
				rt.Skip("no cache")
			}
			return Cache(rapid.SampledFrom(open).Draw(rt, "cache"))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"open": func(rt *rapid.T) {
				tokens := rapid.IntRange(0, 400).Draw(rt, "tokens")
				id := x.Open(tokens)
				if int(id) == len(caches) {
					caches = append(caches, naive{})
				}
				require.False(rt, caches[id].open)
				caches[id] = naive{open: true, capacity: tokens, limit: tokens}
			},
			"close": func(rt *rapid.T) {
				id := some(rt)
				x.Close(id)
				caches[id] = naive{}
				require.Panics(rt, func() { x.Size(id) })
			},
			"insert": func(rt *rapid.T) {
				id, c := some(rt), chain(anyPath.Draw(rt, "path"))
				x.Insert(id, c)
				caches[id].insert(c)
			},
			"forget": func(rt *rapid.T) {
				id := some(rt)
				x.Forget(id)
				caches[id] = naive{open: true, capacity: caches[id].capacity, limit: caches[id].capacity}
			},
			"resize": func(rt *rapid.T) {
				id, tokens := some(rt), rapid.IntRange(-1, 400).Draw(rt, "tokens")
				x.Resize(id, tokens)
				n := &caches[id]
				tokens = max(tokens, 0)
				if n.limit == n.capacity || n.limit > tokens {
					n.limit = tokens
				}
				n.capacity = tokens
				n.shrink()
			},
			"correct": func(rt *rapid.T) {
				id := some(rt)
				expected, reported := rapid.IntRange(0, 400).Draw(rt, "expected"), rapid.IntRange(0, 400).Draw(rt, "reported")
				x.Correct(id, expected, reported)
				n := &caches[id]
				if reported < expected/2 {
					n.limit -= min((expected-reported)<<min(n.misses, 20), (n.limit+7)/8)
					n.misses++
					n.shrink()
				} else {
					n.misses, n.limit = 0, min(n.capacity, n.limit+reported/8)
				}
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, len(caches), x.Len())
				c := chain(anyPath.Draw(rt, "lookup"))
				got, want, most := make([]int, x.Len()), make([]int, x.Len()), 0
				different := map[uint64]bool{}
				for i := range caches {
					n := &caches[i]
					if !n.open {
						continue
					}
					want[i] = n.lookup(c)
					most = max(most, want[i])
					require.Equal(rt, want[i], x.Held(Cache(i), c))
					tokens, parts := x.Size(Cache(i))
					require.Equal(rt, tokensOf(n.parts), tokens)
					require.Equal(rt, len(n.parts), parts)
					require.Equal(rt, n.limit, x.Limit(Cache(i)))
					require.LessOrEqual(rt, tokens, n.capacity)
					for _, p := range n.parts {
						different[p.Hash] = true
					}
				}
				require.Equal(rt, most, x.Lookup(c, got))
				require.Equal(rt, want, got)
				require.Equal(rt, len(different), x.Parts())
				requireSound(rt, x)
			},
		})
	})
}

// requireSound: every part in use is reached, and nothing else is kept.
func requireSound(t require.TestingT, x *Index) {
	places, open := 0, 0
	for i := range x.caches {
		if x.caches[i].open {
			places += x.caches[i].parts
			open++
		}
	}
	holders, sets := 0, 0
	for hash, at := range x.table {
		n := x.nodes.at(at)
		require.Equal(t, hash, n.hash)
		require.NotZero(t, n.count)
		holders += int(n.count)
		if n.count > 1 {
			sets++
			require.Len(t, x.shared[n.only.place], int(n.count))
		}
	}
	require.Equal(t, places, holders)
	require.Equal(t, places+open, int(x.places.used)-len(x.places.free))
	require.Len(t, x.table, int(x.nodes.used)-len(x.nodes.free))
	require.Equal(t, sets, len(x.shared)-len(x.spare))
}

// R6: ends go before beginnings, the least recently used first.
func TestR6EvictionTakesTheEndsOfWhatIsOldest(t *testing.T) {
	x := New()
	id := x.Open(tokensOf(chain("xaaa")) + tokensOf(chain("xbbb")) - tokensOf(chain("x")))
	x.Insert(id, chain("xaaa"))
	x.Insert(id, chain("xbbb"))
	require.Equal(t, tokensOf(chain("xaaa")), cached(x, id, "xaaa"), "both fit, what they share is there once")
	x.Insert(id, chain("xc"))
	require.Equal(t, tokensOf(chain("xaa")), cached(x, id, "xaaa"))
	require.Equal(t, tokensOf(chain("xbbb")), cached(x, id, "xbbb"))
	require.Equal(t, tokensOf(chain("xc")), cached(x, id, "xc"))
}

func cached(x *Index, id Cache, path string) int {
	out := make([]int, x.Len())
	x.Lookup(chain(path), out)
	return out[id]
}

// R6: of a prompt larger than the cache its beginning is kept, and all else goes.
func TestR6APromptLargerThanTheCache(t *testing.T) {
	x := New()
	id := x.Open(tokensOf(chain("aaaa")) + 1)
	x.Insert(id, chain("b"))
	x.Insert(id, chain("aaaaaaaa"))
	require.Equal(t, tokensOf(chain("aaaa")), cached(x, id, "aaaaaaaa"))
	require.Zero(t, cached(x, id, "b"))
	x.Insert(x.Open(0), chain("a"))
}

// R6: a cache that turns out to be half as large as was said is believed so
// after a while, and one that never has anything is believed empty.
func TestR6CorrectionLearnsTheSize(t *testing.T) {
	conversation := func(i int) string { return fmt.Sprintf("%c%c%c%c", 'A'+i, 'b', 'c', 'd') }
	size := tokensOf(chain(conversation(0)))
	for _, share := range []float64{1, 0.5, 0.25, 0} {
		believed, truth := New(), New()
		const users = 20
		b, tr := believed.Open(users*size), truth.Open(int(share*users)*size)
		wrong := 0
		for turn := range 3000 {
			path := conversation((turn*turn + turn/7) % users)
			expected, reported := cached(believed, b, path), cached(truth, tr, path)
			if turn >= 1000 && reported < expected/2 {
				wrong++
			}
			believed.Correct(b, expected, reported)
			believed.Insert(b, chain(path))
			truth.Insert(tr, chain(path))
		}
		require.Less(t, wrong, 200, "of 2000 turns, where the cache has %v of what was said", share)
		require.InDelta(t, share*users, float64(believed.Limit(b))/float64(size), 4)
	}
}

// R6: what a restart or an unload has emptied is empty, and learning begins anew.
func TestR6Forget(t *testing.T) {
	x := New()
	a, b := x.Open(1000), x.Open(1000)
	x.Insert(a, chain("abc"))
	x.Insert(b, chain("abc"))
	x.Correct(a, 100, 0)
	x.Forget(a)
	require.Zero(t, cached(x, a, "abc"))
	require.Equal(t, tokensOf(chain("abc")), cached(x, b, "abc"))
	require.Equal(t, 1000, x.Limit(a))
	x.Close(b)
	require.Zero(t, x.Parts())
	requireSound(t, x)
}

// Hashes that do not say what comes before them (a collision) break nothing.
func TestCollisionsAreHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New()
		ids := []Cache{x.Open(100), x.Open(300), x.Open(50)}
		for range rapid.IntRange(1, 50).Draw(t, "n") {
			var c []Part
			for _, h := range rapid.SliceOfN(rapid.Uint64Range(0, 9), 0, 10).Draw(t, "hashes") {
				c = append(c, Part{h, rapid.IntRange(-1, 40).Draw(t, "tokens")})
			}
			x.Insert(rapid.SampledFrom(ids).Draw(t, "cache"), c)
			x.Lookup(c, make([]int, x.Len()))
			requireSound(t, x)
		}
		for _, id := range ids {
			x.Close(id)
		}
		require.Zero(t, x.Parts())
	})
}
