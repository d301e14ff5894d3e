package model

// Part is a piece of a prompt. Hash stands for the whole prefix up to and with
// the piece: two prompts share a prefix as far as their hashes are equal.
type Part struct {
	Hash   uint64
	Tokens int
}

func tokensOf(parts []Part) int {
	n := 0
	for _, p := range parts {
		n += p.Tokens
	}
	return n
}

// cache is the prompt cache: prefixes, bounded by tokens, least recently used
// dropped first. A prefix is always more recent than its continuations, so
// what is dropped is an end of some prompt, never its middle.
type cache struct {
	capacity int
	used     int
	byHash   map[uint64]*entry
	ring     entry // sentinel: next is the most recent, prev the least
}

type entry struct {
	hash       uint64
	tokens     int
	prev, next *entry
}

func newCache(capacity int) *cache {
	c := &cache{capacity: capacity, byHash: make(map[uint64]*entry)}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
	return c
}

// match gives the tokens of the longest prefix held, and marks it as used.
func (c *cache) match(parts []Part) int {
	tokens, n := 0, 0
	for _, p := range parts {
		if c.byHash[p.Hash] == nil {
			break
		}
		tokens += p.Tokens
		n++
	}
	for i := n - 1; i >= 0; i-- {
		c.front(c.byHash[parts[i].Hash])
	}
	return tokens
}

// insert adds a whole prompt and drops what no longer fits.
func (c *cache) insert(parts []Part) {
	for i := len(parts) - 1; i >= 0; i-- {
		e := c.byHash[parts[i].Hash]
		if e == nil {
			e = &entry{hash: parts[i].Hash, tokens: parts[i].Tokens}
			c.byHash[e.hash] = e
			c.used += e.tokens
		}
		c.front(e)
	}
	for c.used > c.capacity {
		last := c.ring.prev
		last.unlink()
		delete(c.byHash, last.hash)
		c.used -= last.tokens
	}
}

func (c *cache) front(e *entry) {
	if e.next != nil {
		e.unlink()
	}
	e.prev, e.next = &c.ring, c.ring.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
}
