package replica

import (
	"time"

	"switchyard/affinity"
)

// Caches is what is believed of the prompt caches of one model on a replica: one
// for all its slots, or, where prompts never leave the slot that processed them,
// one for each slot. So it is in Ollama, and in llama.cpp if the gateway says
// which slot to use.
type Caches struct {
	index  *affinity.Index
	slots  []slotCache
	kind   cacheKind
	model  string    // the model it was opened for
	filled time.Time // when a prompt was last taken in
	taken  int       // slots taken so far
}

type cacheKind uint8

const (
	oneCache    cacheKind = iota // for all slots
	ollamaSlots                  // each slot has its own, and Ollama chooses
	pinnedSlots                  // each slot has its own, and we choose
)

type slotCache struct {
	id   affinity.Cache
	busy bool // something of ours is in this slot; only where slots have their own
	last int  // when it was last taken, by count
}

// Held is how many tokens of a prompt it holds by what Index.Lookup said; all of
// it, or only what slots hold that are idle: another request cannot use a prompt
// in a slot that is at work.
func (c *Caches) Held(looked []int, all bool) (most int) {
	for _, s := range c.slots {
		if !s.busy || all {
			most = max(most, looked[s.id])
		}
	}
	return most
}

// One is the cache that all slots share; false where slots have their own.
func (c *Caches) One() (affinity.Cache, bool) {
	if c.kind != oneCache || len(c.slots) != 1 {
		return 0, false
	}
	return c.slots[0].id, true
}

// HeldNow is Held for a single replica, of idle slots.
func (c *Caches) HeldNow(chain []affinity.Part) (most int) {
	for _, s := range c.slots {
		if !s.busy {
			most = max(most, c.index.Held(s.id, chain))
		}
	}
	return most
}

// Take notes that a prompt goes there, and gives the number of the slot that it
// will be in, for Fill and Give; -1 where slots share a cache, or none is idle.
// Ollama takes the idle slot that has most of the prompt, the first of equals,
// and what else was in it is gone. Where we choose, it is that one only if the
// prompt goes on from at least half of what is in there; else the one that was
// not used for longest: half a conversation is worth more than its beginning.
func (c *Caches) Take(chain []affinity.Part) (slot int) {
	slot = -1
	if c.kind == oneCache {
		return slot
	}
	most, there, oldest := -1, 0, -1
	for i, s := range c.slots {
		if s.busy {
			continue
		}
		n := c.index.Held(s.id, chain)
		held, _ := c.index.Size(s.id)
		if n > most || n == most && c.kind == pinnedSlots && held < there {
			slot, most, there = i, n, held
		}
		if oldest < 0 || s.last < c.slots[oldest].last {
			oldest = i
		}
	}
	if slot < 0 {
		return slot
	}
	if c.kind == pinnedSlots && (most == 0 || 2*most < there) {
		slot = oldest
	}
	c.taken++
	c.slots[slot].busy, c.slots[slot].last = true, c.taken
	c.index.Forget(c.slots[slot].id)
	return slot
}

// Pinned reports whether the engine is to be told which slot to use.
func (c *Caches) Pinned() bool { return c.kind == pinnedSlots }

// Give notes that what Take announced has ended there.
func (c *Caches) Give(slot int) {
	if slot >= 0 && slot < len(c.slots) {
		c.slots[slot].busy = false
	}
}

// Fill notes that a prompt has been processed, in the slot that Take gave.
func (c *Caches) Fill(now time.Time, slot int, chain []affinity.Part) {
	c.filled = now
	if c.kind == oneCache {
		slot = 0
	}
	if slot >= 0 && slot < len(c.slots) {
		c.index.Insert(c.slots[slot].id, chain)
	}
}

// Correct takes in how much of a prompt was there, beside how much was expected.
// Slots with a cache of their own need none: what is in them is replaced anyway.
func (c *Caches) Correct(expected, reported int) {
	if c.kind == oneCache && len(c.slots) > 0 {
		c.index.Correct(c.slots[0].id, expected, reported)
	}
}

// Forget notes that all is gone.
func (c *Caches) Forget() {
	for _, s := range c.slots {
		c.index.Forget(s.id)
	}
}

// resize brings it in line with what is said of slots and sizes.
func (c *Caches) resize(slots, tokens int) {
	if c.kind == oneCache {
		slots = 1
	}
	for len(c.slots) > slots {
		last := len(c.slots) - 1
		c.index.Close(c.slots[last].id)
		c.slots = c.slots[:last]
	}
	for _, s := range c.slots {
		c.index.Resize(s.id, tokens)
	}
	for len(c.slots) < slots {
		c.slots = append(c.slots, slotCache{id: c.index.Open(tokens)})
	}
}

// Tokens assumed where an engine does not say how much its cache holds.
const (
	unknownContext = 4096    // of a slot of llama.cpp or Ollama
	unknownCache   = 1 << 16 // of another server, which has one cache for all slots
)

// maxCaches bounds what clients can make the gateway remember by naming many
// models to a replica that takes any name.
const maxCaches = 64

// Remember has the replica's prompt caches kept in an index from now on, or in
// none if x is nil.
func (r *Replica) Remember(x *affinity.Index) {
	if r.prompts == x {
		return
	}
	for _, c := range r.caches {
		for _, s := range c.slots {
			r.prompts.Close(s.id)
		}
		c.slots = nil // whoever still holds it finds nothing there
	}
	r.prompts, r.caches = x, map[string]*Caches{}
}

// Caches is where requests for model find their prompts; nil where no account is
// kept of it. Models have caches of their own; names that share a runner share
// them.
func (r *Replica) Caches(model string) *Caches {
	if r.prompts == nil {
		return nil
	}
	key := r.poolKey(model)
	switch {
	case r.Facts.AnyModel:
		key = ""
	case !r.PerModel():
		key = model
	}
	if _, known := r.caches[key]; !known && len(r.caches) >= maxCaches {
		key = ""
	}
	c := r.caches[key]
	if c == nil {
		c = &Caches{index: r.prompts, kind: r.cacheKind(), model: model}
		c.resize(r.cacheSize(c))
		r.caches[key] = c
	}
	return c
}

func (r *Replica) cacheKind() cacheKind {
	switch {
	case r.Engine() == EngineOllama:
		return ollamaSlots
	case r.Engine() == EngineLlamaCpp && r.Config.PinSlots:
		return pinnedSlots
	}
	return oneCache
}

// cacheSize is how many slots there are and how much each prompt cache holds: as
// configured, as reported, or as the engine's kind makes likely.
func (r *Replica) cacheSize(c *Caches) (slots, tokens int) {
	slots = max(r.total(canonical(r.Engine(), c.model)), 1)
	context := r.ContextOf(c.model)
	if context == 0 {
		context = unknownContext
	}
	switch {
	case c.kind != oneCache:
		tokens = context
		if n := r.Config.CacheTokens; n > 0 {
			tokens = min(tokens, n)
		}
	case r.Config.CacheTokens > 0:
		tokens = r.Config.CacheTokens
	case r.Facts.CacheTokens != 0:
		tokens = max(r.Facts.CacheTokens, 0)
	case r.Engine() == EngineLlamaCpp:
		tokens = context * slots
	default:
		tokens = max(context, unknownCache)
	}
	return slots, tokens
}

// follow brings what is believed of prompt caches in line with what a round of
// probes found. A prompt taken in since it began is newer than its findings.
func (r *Replica) follow(f Facts, restarted bool) {
	for _, c := range r.caches {
		m := r.find(c.model)
		if m == nil && r.Facts.AnyModel && len(r.Facts.Models) > 0 {
			m = &r.Facts.Models[0]
		}
		if (restarted || f.Loading || m != nil && !m.Resident) && c.filled.Before(f.At) {
			c.Forget()
		}
		if k := r.cacheKind(); k != c.kind {
			c.Forget()
			c.kind = k
		}
		c.resize(r.cacheSize(c))
	}
}
