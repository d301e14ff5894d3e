// Package affinity remembers which prompt prefixes the prompt caches of replicas
// hold (R6). It guesses what each cache has kept from what it was given, and is
// corrected by what replicas report. It chooses nothing, knows no replica, model
// or time, and never waits.
//
// # Chains
//
// A prompt is a chain of parts, each with a hash over all of the prompt up to its
// end; so a hash says which hashes come before it. A cache that holds a part
// holds all before it, as engines do: a prefix is always more recent than what
// continues it, and so what falls out for want of room is an end of some prompt,
// never its middle.
//
// # Sets
//
// All caches share one table from hash to the set of caches that hold it. Going
// along a chain these sets can only shrink, and two of equal size are equal:
// Lookup looks at the members of a set only where the next one is smaller. For a
// chain of n parts it costs n look-ups in the table and, where caches have kept
// beginnings of different lengths, one pass over the set for each length. Nothing
// is allocated.
//
// # Memory
//
// A part costs about 55 bytes, and 12 for the cache that holds it, or 20 for each
// if there are several, however many tokens it has: a byte a token with parts of
// 60 tokens. A cache never has more than a part for every 16 tokens of its
// capacity, and 64. What is forgotten is used again, not given back.
//
// An Index is not safe for concurrent use; its owner's lock guards it.
package affinity

import "slices"

// Part is one piece of a prompt: the hash of the prompt up to its end, and its
// own tokens.
type Part struct {
	Hash   uint64
	Tokens int
}

// Cache is one prompt cache: of a replica, or of a model on it where the engine
// has caches per model. Caches are numbered from 0; numbers of closed ones are
// given again.
type Cache int

// Index is what is believed of all caches.
type Index struct {
	caches []cache
	closed []Cache
	nodes  arena[node]
	places arena[place]
	table  map[uint64]uint32 // hash → node
	shared [][]holder        // sets of more than one, by number
	spare  []uint32          // numbers in shared that are free
}

// cache is one cache's share: a ring of places, the most recent first.
type cache struct {
	open     bool
	ring     uint32 // the place that is begin and end of the ring
	parts    int
	tokens   int // of all parts
	capacity int // tokens, as told
	limit    int // tokens, as learned; at most capacity
	misses   int // in a row
}

// node is a part that some cache holds.
type node struct {
	hash   uint64
	tokens uint32
	count  uint32 // caches that hold it
	only   holder // the one; if there are more, only.place is the number of the set
}

// holder is a cache that holds a part, and the part's place in its ring.
type holder struct{ cache, place uint32 }

// place is a part's place in the ring of one cache.
type place struct{ node, prev, next uint32 }

// New returns an index without caches.
func New() *Index { return &Index{table: map[uint64]uint32{}} }

// Open adds an empty cache of a capacity in tokens.
func (x *Index) Open(tokens int) Cache {
	var id Cache
	if n := len(x.closed); n > 0 {
		id, x.closed = x.closed[n-1], x.closed[:n-1]
	} else {
		id = Cache(len(x.caches))
		x.caches = append(x.caches, cache{})
	}
	ring := x.places.take()
	*x.places.at(ring) = place{prev: ring, next: ring}
	tokens = max(tokens, 0)
	x.caches[id] = cache{open: true, ring: ring, capacity: tokens, limit: tokens}
	return id
}

// Close removes a cache. Its number may be given to another.
func (x *Index) Close(id Cache) {
	x.Forget(id)
	c := x.get(id)
	x.places.give(c.ring)
	*c = cache{}
	x.closed = append(x.closed, id)
}

func (x *Index) get(id Cache) *cache {
	c := &x.caches[id]
	if !c.open {
		panic("affinity: use of a cache that is closed")
	}
	return c
}

// Len is one more than the highest number of a cache: the room Lookup needs.
func (x *Index) Len() int { return len(x.caches) }

// Lookup writes into tokens, by cache, how many tokens of the chain's beginning
// each cache is believed to hold. Tokens must have room for Len caches. It
// returns the most that any holds.
func (x *Index) Lookup(chain []Part, tokens []int) (most int) {
	clear(tokens[:len(x.caches)])
	var last *node
	for i := range chain {
		at, ok := x.table[chain[i].Hash]
		if !ok {
			break
		}
		n := x.nodes.at(at)
		if last != nil && n.count < last.count {
			x.mark(last, tokens, most)
		}
		most += int(n.tokens)
		last = n
	}
	if last != nil {
		x.mark(last, tokens, most)
	}
	return most
}

// Held is how many tokens of the chain's beginning one cache is believed to hold.
func (x *Index) Held(id Cache, chain []Part) (tokens int) {
	for i := range chain {
		at, ok := x.table[chain[i].Hash]
		if !ok {
			break
		}
		n := x.nodes.at(at)
		if _, ok := x.find(n, id); !ok {
			break
		}
		tokens += int(n.tokens)
	}
	return tokens
}

// mark writes a sum for each cache that holds a part.
func (x *Index) mark(n *node, tokens []int, sum int) {
	if n.count == 1 {
		tokens[n.only.cache] = sum
		return
	}
	for _, h := range x.shared[n.only.place] {
		tokens[h.cache] = sum
	}
}

// Insert notes that a cache has taken in a whole prompt, and forgets what it has
// no room for any more: the least recently used ends. Of a prompt that is larger
// than the cache the beginning is kept.
func (x *Index) Insert(id Cache, chain []Part) {
	c := x.get(id)
	n, sum := 0, 0
	for n < min(len(chain), c.mostParts()) && sum+chain[n].Tokens <= c.limit {
		sum += chain[n].Tokens
		n++
	}
	for _, p := range slices.Backward(chain[:n]) {
		x.front(c.ring, x.placeOf(id, p))
	}
	x.shrink(id)
}

// mostParts bounds the memory of a cache by its capacity.
func (c *cache) mostParts() int { return c.limit/16 + 64 }

// shrink forgets the least recently used until all else fits.
func (x *Index) shrink(id Cache) {
	c := x.get(id)
	for c.parts > 0 && (c.tokens > c.limit || c.parts > c.mostParts()) {
		x.drop(id, x.places.at(c.ring).prev)
	}
}

// Forget empties a cache: its process has restarted, its model was unloaded.
// What was learned of its size is forgotten, too.
func (x *Index) Forget(id Cache) {
	c := x.get(id)
	for c.parts > 0 {
		x.drop(id, x.places.at(c.ring).prev)
	}
	c.limit, c.misses = c.capacity, 0
}

// Resize changes a cache's capacity. What was learned of its size stays.
func (x *Index) Resize(id Cache, tokens int) {
	c := x.get(id)
	tokens = max(tokens, 0)
	if c.limit == c.capacity || c.limit > tokens {
		c.limit = tokens
	}
	c.capacity = tokens
	x.shrink(id)
}

// How fast Correct learns.
const (
	lossShare = 8 // of the limit is taken at most when a cache had lost what was expected
	gainShare = 8 // of the tokens reported is added when it had not
)

// Correct takes in how many tokens of a prompt a cache had in truth, beside how
// many Lookup had said before the prompt went there. A cache that had less than
// half is smaller than it is believed to be, or has lost something: it is
// believed to be smaller by what was missing, by twice that the second time in a
// row and so on, but never by more than an eighth, and the least recently used of
// what it held is forgotten. The prompt itself needs no correction: it is there now, and
// Insert says so. A cache that reports what was expected, or more, is believed
// larger again, up to its capacity.
//
// A cache that says 0 again and again comes to hold nothing. A single 0 costs no
// more than it misses, and not everything as old as that: llama.cpp says 0
// whenever it had to put a prompt into a slot other than the one that holds its
// beginning, which with a system prompt that many share is often, and forgetting
// too much sends conversations away from caches that they have.
func (x *Index) Correct(id Cache, expected, reported int) {
	c := x.get(id)
	if reported < expected/2 {
		lost := (expected - reported) << min(c.misses, 20)
		c.limit -= min(lost, (c.limit+lossShare-1)/lossShare)
		c.misses++
		x.shrink(id)
		return
	}
	c.misses = 0
	c.limit = min(c.capacity, c.limit+reported/gainShare)
}

// Size is how many tokens a cache is believed to hold, and in how many parts.
func (x *Index) Size(id Cache) (tokens, parts int) {
	c := x.get(id)
	return c.tokens, c.parts
}

// Limit is how many tokens a cache is believed to have room for.
func (x *Index) Limit(id Cache) int { return x.get(id).limit }

// Parts is how many different parts all caches hold together.
func (x *Index) Parts() int { return len(x.table) }
