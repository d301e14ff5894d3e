package model

import "slices"

// slotCache is a cache in which each slot holds the one prompt it worked on
// last, and a new prompt is reused as far as it begins alike.
//
// llama.cpp (tools/server: get_available_slot and server_prompt_cache, as of
// the --cache-ram of October 2025): the free slot that shares most of the
// prompt is taken if it shares more than a tenth of it, else the one that has
// been idle longest. A slot that would lose more than half of what it holds is
// first saved to a store in host memory, and the saved prompt that fits best
// takes its place, if it fits better in both ways: more of the new prompt, and
// more of itself. The store drops its oldest when the cache is full; after
// that, idle slots lose their ends.
//
// Ollama (runner/ollamarunner/cache.go, findLongestCacheSlot): the free slot
// that shares most, the first of equals, and no store.
type slotCache struct {
	store    bool
	capacity int
	held     []prefix // by slot
	busy     []bool
	lastUsed []int // when it was given back, by count; 0: never
	uses     int
	saved    []prefix // oldest first
	total    int      // tokens in held and saved
}

// prefix is the head of a prompt that is in memory.
type prefix struct {
	parts  []Part
	tokens int // of them there
	work   int // whose it was
}

// shared is how many tokens a prompt has in common with it.
func (p *prefix) shared(parts []Part) int {
	n := 0
	for i := range min(len(p.parts), len(parts)) {
		if p.parts[i].Hash != parts[i].Hash {
			break
		}
		n += parts[i].Tokens
	}
	return min(n, p.tokens)
}

const (
	slotSimilarity = 0.1  // llama.cpp's --slot-prompt-similarity
	slotKeeps      = 0.5  // a slot that keeps less of what it holds is saved
	storedKeeps    = 0.25 // a saved prompt of which less would be of use stays
)

func newSlotCache(c *Config) *slotCache {
	return &slotCache{
		store: c.Kind == LlamaCpp, capacity: c.CacheTokens,
		held: make([]prefix, c.Slots), busy: make([]bool, c.Slots), lastUsed: make([]int, c.Slots),
	}
}

func (c *slotCache) tokens() int { return c.total }

func (c *slotCache) take(t *Task, slots []*Task) (slot, cached int) {
	slot, spill := c.choose(t.parts, t.Prompt, slots)
	if spill {
		c.save(c.held[slot])
		c.load(slot, t)
	}
	h := &c.held[slot]
	if !t.work.Request.NoCache {
		cached = min(h.shared(t.parts), t.Prompt-1)
	}
	c.total += cached - h.tokens
	*h = prefix{parts: t.parts, tokens: cached, work: t.work.ID}
	c.busy[slot] = true
	c.trim()
	return slot, cached
}

// choose is the free slot for a prompt, -1 if there is none, and whether what it
// holds is saved before.
func (c *slotCache) choose(parts []Part, prompt int, slots []*Task) (slot int, spill bool) {
	slot, best := -1, -1
	for i, s := range slots {
		if s != nil {
			continue
		}
		if n := c.held[i].shared(parts); n > best {
			slot, best = i, n
		}
	}
	if !c.store || slot < 0 {
		return slot, false
	}
	similar := float64(best) > slotSimilarity*float64(prompt)
	if !similar {
		slot = c.idlest(slots)
	}
	return slot, !similar || float64(best) < slotKeeps*float64(c.held[slot].tokens)
}

func (c *slotCache) peek(parts []Part, slots []*Task) (slot, cached int) {
	slot, spill := c.choose(parts, tokensOf(parts), slots)
	if slot < 0 {
		return slot, 0
	}
	h := &c.held[slot]
	if spill {
		if i := c.suits(h, parts); i >= 0 {
			h = &c.saved[i]
		}
	}
	return slot, h.shared(parts)
}

// idlest is the slot that was given back longest ago, the last of equals.
func (c *slotCache) idlest(slots []*Task) int {
	slot := -1
	for i, s := range slots {
		if s == nil && (slot < 0 || c.lastUsed[i] <= c.lastUsed[slot]) {
			slot = i
		}
	}
	return slot
}

// save adds a prompt to the store, unless it is a part of one, and without
// those that are a part of it.
func (c *slotCache) save(p prefix) {
	if p.tokens == 0 {
		return
	}
	kept := c.saved[:0]
	contained := false
	for _, s := range c.saved {
		n := s.shared(p.parts)
		contained = contained || n >= p.tokens
		if n < s.tokens || contained {
			kept = append(kept, s)
		} else {
			c.total -= s.tokens
		}
	}
	clear(c.saved[len(kept):])
	c.saved = kept
	if !contained {
		c.saved = append(c.saved, p)
		c.total += p.tokens
	}
}

// load puts the saved prompt that suits a task best in the place of what the
// slot holds.
func (c *slotCache) load(slot int, t *Task) {
	h := &c.held[slot]
	i := c.suits(h, t.parts)
	if i < 0 {
		return
	}
	c.total -= h.tokens
	*h = c.saved[i]
	c.saved = slices.Delete(c.saved, i, i+1)
}

// suits is the saved prompt that suits a new one better than what a slot holds,
// -1 if there is none.
func (c *slotCache) suits(h *prefix, parts []Part) int {
	shared, keeps, best := h.shared(parts), -1.0, -1
	if h.tokens > 0 {
		keeps = float64(shared) / float64(h.tokens)
	}
	for i := range c.saved {
		s := &c.saved[i]
		n := s.shared(parts)
		if k := float64(n) / float64(s.tokens); k >= storedKeeps && k > keeps && n > shared {
			shared, keeps, best = n, k, i
		}
	}
	return best
}

func (c *slotCache) filled(*Task) {}

func (c *slotCache) left(t *Task) {
	h := &c.held[t.Slot]
	n := min(t.Processed, tokensOf(t.parts))
	c.total += n - h.tokens
	*h = prefix{parts: t.parts, tokens: n, work: t.work.ID}
	c.uses++
	c.busy[t.Slot], c.lastUsed[t.Slot] = false, c.uses
	c.trim()
}

func (c *slotCache) remember(w *Work, parts []Part) {
	longer := func(p *prefix) bool {
		if p.work != w.ID || p.tokens == 0 || p.shared(parts) < p.tokens {
			return false
		}
		n := tokensOf(parts)
		c.total += n - p.tokens
		p.parts, p.tokens = parts, n
		return true
	}
	for i := range c.held {
		if !c.busy[i] && longer(&c.held[i]) {
			c.trim()
			return
		}
	}
	for i := range c.saved {
		if longer(&c.saved[i]) {
			c.trim()
			return
		}
	}
}

// trim drops what is too much: the oldest of the store, then the ends of what
// the longest idle slots hold. What is worked on stays.
func (c *slotCache) trim() {
	drop := 0
	for ; drop < len(c.saved) && c.total > c.capacity; drop++ {
		c.total -= c.saved[drop].tokens
	}
	c.saved = slices.Delete(c.saved, 0, drop)
	for c.total > c.capacity {
		slot := -1
		for i := range c.held {
			if !c.busy[i] && c.held[i].tokens > 0 && (slot < 0 || c.lastUsed[i] < c.lastUsed[slot]) {
				slot = i
			}
		}
		if slot < 0 {
			return
		}
		n := min(c.total-c.capacity, c.held[slot].tokens)
		c.held[slot].tokens -= n
		c.total -= n
	}
}
