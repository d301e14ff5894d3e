package replica

import (
	"time"

	"switchyard/affinity"
)

// promptCache is one prompt cache of the replica in the index.
type promptCache struct {
	id     affinity.Cache
	model  string    // the model it was opened for
	filled time.Time // last prompt taken in
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
		r.prompts.Close(c.id)
	}
	r.prompts, r.caches = x, map[string]*promptCache{}
}

// cache is the prompt cache that requests for model find their prompts in; nil
// where none are kept. Engines have one per model; names that share a runner
// share it.
func (r *Replica) cache(model string) *promptCache {
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
		c = &promptCache{id: r.prompts.Open(r.cacheTokens(model)), model: model}
		r.caches[key] = c
	}
	return c
}

// Cache is the number of the prompt cache for model in the index; false where
// none is kept.
func (r *Replica) Cache(model string) (affinity.Cache, bool) {
	c := r.cache(model)
	if c == nil {
		return 0, false
	}
	return c.id, true
}

// Filled notes that the replica has processed a prompt for model.
func (r *Replica) Filled(now time.Time, model string, chain []affinity.Part) {
	if c := r.cache(model); c != nil {
		c.filled = now
		r.prompts.Insert(c.id, chain)
	}
}

// Unloaded notes that the model was not in memory just before now.
func (r *Replica) Unloaded(model string) {
	if c := r.cache(model); c != nil {
		r.prompts.Forget(c.id)
	}
}

// cacheTokens is how much the prompt cache for model holds, as configured, as
// reported, or as the engine's kind makes likely.
func (r *Replica) cacheTokens(model string) int {
	switch {
	case r.Config.CacheTokens > 0:
		return r.Config.CacheTokens
	case r.Facts.CacheTokens != 0:
		return max(r.Facts.CacheTokens, 0)
	}
	context := r.ContextOf(model)
	switch r.Engine() {
	case EngineLlamaCpp, EngineOllama:
		if context == 0 {
			context = unknownContext
		}
		return context * r.total(canonical(r.Engine(), model))
	}
	return max(context, unknownCache)
}

// follow brings what is believed of the prompt caches in line with what a round
// of probes found. A prompt taken in since it began is newer than its findings.
func (r *Replica) follow(f Facts, restarted bool) {
	for _, c := range r.caches {
		m := r.find(c.model)
		if m == nil && r.Facts.AnyModel && len(r.Facts.Models) > 0 {
			m = &r.Facts.Models[0]
		}
		if (restarted || f.Loading || m != nil && !m.Resident) && c.filled.Before(f.At) {
			r.prompts.Forget(c.id)
		}
		r.prompts.Resize(c.id, r.cacheTokens(c.model))
	}
}
