package model

import "slices"

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

// promptCache is what one model of an engine remembers of the prompts that it
// has processed, and with it the choice of the slot. It holds at most
// Config.CacheTokens beside what is being worked on.
//
//   - llama.cpp: slotCache with a store; Ollama: slotCache without one.
//   - vLLM: treeCache of blocks of 16 tokens; others: treeCache of parts.
type promptCache interface {
	// take chooses a free slot for a task and says how many tokens at the head
	// of its prompt need no processing; there is a free slot.
	take(t *Task, slots []*Task) (slot, cached int)
	// peek says what take would, and changes nothing; slot -1: none is free.
	peek(parts []Part, slots []*Task) (slot, cached int)
	// filled is told when a task's prompt has been processed.
	filled(t *Task)
	// left is told when a task gives its slot back, whatever it has done.
	left(t *Task)
	// remember adds the text that followed a work's first prompt.
	remember(w *Work, parts []Part)
	tokens() int
}

func newCache(c *Config) promptCache {
	switch c.Kind {
	case LlamaCpp, Ollama:
		return newSlotCache(c)
	case VLLM:
		return newTreeCache(c.CacheTokens, vllmBlock)
	}
	return newTreeCache(c.CacheTokens, 0)
}

// vllmBlock is how many tokens vLLM keeps, finds and drops together.
const vllmBlock = 16

// treeCache holds prefixes of all prompts, shared by all slots, the least
// recently used dropped first. A prefix is always more recent than its
// continuations, so what is dropped is an end of some prompt, never its middle.
//
// With blocks it is vLLM's (v1/core/kv_cache_manager.py and block_pool.py): a
// block is known by the chained hash of all tokens up to its end, only whole
// blocks are found, the last token of a prompt never, and of a prompt the last
// block is dropped first. The blocks that end inside one part are one entry
// here, as they are always used together. What vLLM does when running requests
// need more than it has (preemption) is left out. Without blocks an entry is a
// part, whole or not there.
type treeCache struct {
	capacity, block int // block 0: parts are the unit
	used            int
	byHash          map[uint64]*entry
	ring            entry // sentinel: next is the most recent, prev the least
}

type entry struct {
	hash       uint64
	tokens     int // held; less than the whole when the end was dropped
	prev, next *entry
}

func newTreeCache(capacity, block int) *treeCache {
	c := &treeCache{capacity: capacity, block: block, byHash: make(map[uint64]*entry)}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
	return c
}

func (c *treeCache) tokens() int { return c.used }

// share is what is kept of a part that begins after so many tokens: all of it,
// or the blocks that end in it.
func (c *treeCache) share(begin, tokens int) int {
	if c.block == 0 {
		return tokens
	}
	end := begin + tokens
	return end - end%c.block - (begin - begin%c.block)
}

func (c *treeCache) take(t *Task, slots []*Task) (slot, cached int) {
	for slots[slot] != nil {
		slot++
	}
	if t.work.Request.NoCache || c.capacity == 0 {
		return slot, 0
	}
	n, cached := c.find(t.parts)
	c.touch(t.parts[:n])
	return slot, c.spare(cached, t.Prompt)
}

// spare is how many tokens of a prompt need no processing where so many are held.
func (c *treeCache) spare(held, prompt int) int {
	held = min(held, prompt-1)
	if c.block > 0 {
		held -= held % c.block
	}
	return held
}

// find is how much of a prompt is held, in parts and in tokens.
func (c *treeCache) find(parts []Part) (n, cached int) {
	begin := 0
	for _, p := range parts {
		want := c.share(begin, p.Tokens)
		if want > 0 {
			e := c.byHash[p.Hash]
			if e == nil {
				break
			}
			cached += e.tokens
			if e.tokens < want {
				n++
				break
			}
		}
		begin += p.Tokens
		n++
	}
	return n, cached
}

func (c *treeCache) peek(parts []Part, slots []*Task) (slot, cached int) {
	_, held := c.find(parts)
	return slices.Index(slots, nil), c.spare(held, tokensOf(parts))
}

// touch marks entries as used, the first part last.
func (c *treeCache) touch(parts []Part) {
	for i := len(parts) - 1; i >= 0; i-- {
		if e := c.byHash[parts[i].Hash]; e != nil {
			c.front(e)
		}
	}
}

func (c *treeCache) filled(t *Task) { c.keep(t, t.Prompt) }

func (c *treeCache) left(t *Task) {
	if t.prompting() {
		c.keep(t, t.Processed)
	}
}

func (c *treeCache) keep(t *Task, upTo int) {
	if !t.work.Request.NoCache {
		c.insert(t.parts, upTo)
	}
}

func (c *treeCache) remember(w *Work, parts []Part) {
	if !w.Request.NoCache {
		c.insert(parts, tokensOf(parts))
	}
}

// insert adds a prompt's head of so many tokens and drops what no longer fits.
func (c *treeCache) insert(parts []Part, upTo int) {
	if c.capacity == 0 {
		return
	}
	begin, n := 0, 0
	for ; n < len(parts) && begin+parts[n].Tokens <= upTo; n++ {
		begin += parts[n].Tokens
	}
	for i := n - 1; i >= 0; i-- {
		begin -= parts[i].Tokens
		want := c.share(begin, parts[i].Tokens)
		if want == 0 {
			continue
		}
		e := c.byHash[parts[i].Hash]
		if e == nil {
			e = &entry{hash: parts[i].Hash}
			c.byHash[e.hash] = e
		}
		c.used += want - e.tokens
		e.tokens = want
		c.front(e)
	}
	c.trim()
}

func (c *treeCache) trim() {
	for c.used > c.capacity {
		last, drop := c.ring.prev, c.ring.prev.tokens
		if c.block > 0 {
			over := c.used - c.capacity
			drop = min(drop, (over+c.block-1)/c.block*c.block)
		}
		c.used -= drop
		if last.tokens -= drop; last.tokens == 0 {
			last.unlink()
			delete(c.byHash, last.hash)
		}
	}
}

func (c *treeCache) front(e *entry) {
	if e.next != nil {
		e.unlink()
	}
	e.prev, e.next = &c.ring, c.ring.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
}
