package replica

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/affinity"
	"switchyard/breaker"
)

var prompt = []affinity.Part{{Hash: 1, Tokens: 100}, {Hash: 2, Tokens: 200}}

// remembering is a replica with its prompt caches in an index.
func remembering(cfg Config) (*Replica, *affinity.Index) {
	x := affinity.New()
	r := New(cfg, breaker.New(breaker.Config{ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20, Cooldown: time.Second, MaxCooldown: time.Minute, TrialStart: 0.05, TrialFactor: 1.6}))
	r.Remember(x)
	return r, x
}

// held is how much of the prompt the replica is believed to hold for model.
func held(t require.TestingT, x *affinity.Index, r *Replica, model string) int {
	c := r.Caches(model)
	if c == nil {
		return -1
	}
	out := make([]int, x.Len())
	x.Lookup(prompt, out)
	require.Equal(t, c.Held(out, false), c.HeldNow(prompt))
	return c.Held(out, true)
}

// fill takes the prompt in as a request of it would.
func fill(now time.Time, r *Replica, model string) {
	c := r.Caches(model)
	slot := c.Take(prompt)
	c.Fill(now, slot, prompt)
	c.Give(slot)
}

// R6: a cache per model where the engine has one per model, else one.
func TestR6WhichCache(t *testing.T) {
	facts := Facts{Up: true, ModelsRead: true, Models: []Model{{Name: "a", Resident: true}, {Name: "b", Resident: true}}}
	for _, tt := range []struct {
		engine Engine
		any    bool
		digest string
		shared bool
	}{
		{EngineLlamaCpp, true, "", true},
		{EngineLlamaCpp, false, "", false},
		{EngineVLLM, false, "", false},
		{EngineOllama, false, "", false},
		{EngineOllama, false, "sha", true},
	} {
		r, x := remembering(Config{Name: "r", Engine: tt.engine})
		f := facts
		f.AnyModel = tt.any
		f.Models = []Model{{Name: "a", Resident: true, Digest: tt.digest}, {Name: "b", Resident: true, Digest: tt.digest}}
		r.Observe(t0, f)
		fill(t0, r, "a")
		require.Equal(t, 300, held(t, x, r, "a"))
		require.Equal(t, tt.shared, held(t, x, r, "b") == 300, "%+v", tt)
	}
	r, x := remembering(Config{Name: "r", Engine: EngineOllama})
	fill(t0, r, "a")
	require.Equal(t, 300, held(t, x, r, "a:latest"))

	for i := range 1000 { // a client that names models at will
		r.Caches(string(rune('a' + i)))
	}
	require.LessOrEqual(t, x.Len(), maxCaches+1)
	c := r.Caches("a")
	r.Remember(nil)
	require.Equal(t, -1, held(t, x, r, "a"))
	require.Zero(t, x.Parts())
	c.Fill(t0, c.Take(prompt), prompt) // an attempt that is still under way
	c.Correct(300, 0)
	c.Give(0)
}

// R6, R11: how much a cache holds, as configured, reported or likely.
func TestR6CacheTokens(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config Config
		facts  Facts
		want   int
	}{
		{"configured", Config{Engine: EngineLlamaCpp, CacheTokens: 77}, Facts{Slots: 4, Context: 1000, AnyModel: true}, 77},
		{"llama.cpp", Config{Engine: EngineLlamaCpp}, Facts{Slots: 4, Context: 1000, AnyModel: true}, 4000},
		{"Ollama", Config{Engine: EngineOllama, Slots: map[string]int{"m": 3, "*": 2}}, Facts{Models: []Model{{Name: "m:latest", Context: 500, Resident: true}}, ModelsRead: true}, 1500},
		{"Ollama, configured", Config{Engine: EngineOllama, Slots: map[string]int{"*": 2}, CacheTokens: 600}, Facts{}, 1200},
		{"pinned slots", Config{Engine: EngineLlamaCpp, PinSlots: true}, Facts{Slots: 4, Context: 1000, AnyModel: true}, 4000},
		{"Ollama that does not say", Config{Engine: EngineOllama}, Facts{}, unknownContext},
		{"vLLM", Config{Engine: EngineVLLM}, Facts{CacheTokens: 9168, Context: 32768}, 9168},
		{"vLLM without prefix caching", Config{Engine: EngineVLLM}, Facts{CacheTokens: -1, Context: 32768}, 0},
		{"vLLM that does not say", Config{Engine: EngineVLLM}, Facts{Context: 32768}, unknownCache},
		{"vLLM with a larger context", Config{Engine: EngineVLLM}, Facts{Context: 131072}, 131072},
		{"others", Config{Engine: EngineOpenAI, Slots: map[string]int{"*": 8}}, Facts{}, unknownCache},
	} {
		tt.config.Name = "r"
		r, x := remembering(tt.config)
		c := r.Caches("m") // opened before anything is known
		tt.facts.Up = true
		r.Observe(t0, tt.facts)
		if tt.facts.AnyModel {
			c = r.Caches("m")
		}
		room := 0
		for _, s := range c.slots {
			room += x.Limit(s.id)
		}
		require.Equal(t, tt.want, room, tt.name)
	}
	r, x := remembering(Config{Name: "r", Engine: EngineLlamaCpp})
	r.Observe(t0, Facts{Up: true, Slots: 2, Context: 100, AnyModel: true})
	r.Caches("m").Fill(t0, -1, prompt[:1])
	r.Reconfigure(Config{Name: "r", Engine: EngineLlamaCpp, CacheTokens: 50})
	require.Zero(t, held(t, x, r, "m"), "a reload that makes it smaller counts at once")
}

// R6: what a restart, an unload or a sleep has emptied is forgotten, and a
// prompt that came after the probe began is not.
func TestR6WhatEmptiesACache(t *testing.T) {
	up := Facts{At: t0, Up: true, Version: "1", ModelsRead: true, Models: []Model{{Name: "m", Resident: true}}}
	for _, tt := range []struct {
		name   string
		engine Engine
		then   func(f Facts) Facts
		want   int
	}{
		{"a good round", EngineOpenAI, func(f Facts) Facts { return f }, 300},
		{"a round without an answer", EngineOpenAI, func(f Facts) Facts { return Facts{At: f.At, Err: "timeout"} }, 300},
		{"nothing listens there", EngineOpenAI, func(f Facts) Facts { return Facts{At: f.At, Gone: true} }, 0},
		{"another version", EngineVLLM, func(f Facts) Facts { f.Version = "2"; return f }, 0},
		{"llama.cpp loads", EngineLlamaCpp, func(f Facts) Facts { f.Loading = true; return f }, 0},
		{"Ollama has unloaded it", EngineOllama, func(f Facts) Facts { f.Models = []Model{{Name: "m"}}; return f }, 0},
		{"the list could not be read", EngineOllama, func(f Facts) Facts { f.Models, f.ModelsRead = nil, false; return f }, 300},
	} {
		for _, late := range []bool{false, true} {
			r, x := remembering(Config{Name: "r", Engine: tt.engine})
			r.Observe(t0, up)
			fill(t0.Add(time.Second), r, "m")
			f := up
			f.At = t0.Add(2 * time.Second)
			if late {
				fill(t0.Add(3*time.Second), r, "m")
			}
			r.Observe(t0.Add(4*time.Second), tt.then(f))
			want := tt.want
			if late {
				want = 300
			}
			require.Equal(t, want, held(t, x, r, "m"), "%s, late: %v", tt.name, late)
		}
	}
	r, x := remembering(Config{Name: "r", Engine: EngineLlamaCpp})
	awake := Facts{At: t0, Up: true, AnyModel: true, ModelsRead: true, Slots: 2, Context: 1000, Models: []Model{{Name: "x", Resident: true}}}
	r.Observe(t0, awake)
	fill(t0, r, "whatever it is called")
	asleep := awake
	asleep.At, asleep.Sleeping, asleep.Models = t0.Add(time.Second), true, []Model{{Name: "x"}}
	require.Equal(t, 300, held(t, x, r, "m"))
	r.Observe(asleep.At, asleep)
	require.Zero(t, held(t, x, r, "m"))
}

// R6: in Ollama a prompt never leaves its slot. A new one takes the idle slot
// that has most of it, and what else was in there is gone; what is in a slot at
// work is of no use to anybody else.
func TestR6OllamaKeepsPromptsBySlot(t *testing.T) {
	r, x := remembering(Config{Name: "r", Engine: EngineOllama, Slots: map[string]int{"*": 2}})
	r.Observe(t0, Facts{Up: true, ModelsRead: true, Models: []Model{{Name: "m", Resident: true, Context: 1000}}})
	c := r.Caches("m")
	part := func(h uint64) affinity.Part { return affinity.Part{Hash: h, Tokens: 100} }
	shared, a, b := []affinity.Part{part(1)}, []affinity.Part{part(1), part(2)}, []affinity.Part{part(1), part(3)}
	other := []affinity.Part{part(9)}
	serve := func(chain []affinity.Part) (slot int) {
		slot = c.Take(chain)
		c.Fill(t0, slot, chain)
		return slot
	}
	first := serve(a)
	require.Zero(t, c.HeldNow(a), "its slot is at work")
	second := serve(other)
	require.NotEqual(t, first, second)
	require.Equal(t, -1, c.Take(shared), "no slot is idle")
	c.Give(-1)
	c.Give(first)
	c.Give(second)
	require.Equal(t, 200, c.HeldNow(a))
	require.Equal(t, 100, c.HeldNow(b))
	require.Equal(t, 100, c.HeldNow(other))

	slot := c.Take(b)
	require.Equal(t, first, slot)
	require.Zero(t, c.HeldNow(a), "it gives way when the new prompt is begun, not when it is done")
	c.Give(slot) // failed before its first token: nobody knows what is there
	require.Zero(t, c.HeldNow(a))
	require.Equal(t, 100, c.HeldNow(other))
	c.Correct(100, 0)
	require.Equal(t, 100, c.HeldNow(other))

	r.Reconfigure(Config{Name: "r", Engine: EngineOllama, Slots: map[string]int{"*": 1}})
	c.Fill(t0, second, other) // in a slot that is not there any more
	c.Give(second)
	require.Zero(t, c.HeldNow(other))
	require.LessOrEqual(t, x.Len(), 2)
}

// R6: where the gateway chooses the slot, a prompt goes where at least half of
// what is there is its own, else where nothing was for longest.
func TestR6PinnedSlots(t *testing.T) {
	cfg := Config{Name: "r", Engine: EngineLlamaCpp, PinSlots: true}
	r, x := remembering(cfg)
	r.Observe(t0, Facts{Up: true, AnyModel: true, Slots: 3, Context: 10_000})
	c := r.Caches("m")
	require.True(t, c.Pinned())
	talk := func(name uint64, n int) (chain []affinity.Part) {
		for i := range n {
			h := uint64(i)
			if i > 1 { // the first two are a system prompt
				h = name<<32 | uint64(i)
			}
			chain = append(chain, affinity.Part{Hash: h + 1, Tokens: 100})
		}
		return chain
	}
	serve := func(chain []affinity.Part) int {
		slot := c.Take(chain)
		c.Fill(t0, slot, chain)
		c.Give(slot)
		return slot
	}
	a, b := serve(talk(1, 6)), serve(talk(2, 6))
	require.NotEqual(t, a, b, "the beginning that they share is not worth the rest")
	require.Equal(t, a, serve(talk(1, 8)))
	require.Equal(t, b, serve(talk(2, 8)))
	fresh := serve(talk(3, 3))
	require.NotContains(t, []int{a, b}, fresh)
	require.Equal(t, fresh, serve(talk(4, 3)), "two thirds of what is there")
	require.Equal(t, a, serve([]affinity.Part{{Hash: 1 << 40, Tokens: 900}}), "the one not used for longest")
	require.Equal(t, 800, c.HeldNow(talk(2, 8)))

	cfg.PinSlots = false
	r.Reconfigure(cfg)
	require.False(t, c.Pinned())
	require.Zero(t, x.Parts())
	require.Equal(t, -1, serve(talk(1, 3)))
	require.Equal(t, 300, c.HeldNow(talk(1, 3)))
}
