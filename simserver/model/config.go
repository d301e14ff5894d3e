package model

import (
	"time"
)

// Kind is the engine that is imitated.
type Kind string

// The engines.
const (
	LlamaCpp Kind = "llamacpp"
	Ollama   Kind = "ollama"
	VLLM     Kind = "vllm"
	OpenAI   Kind = "openai" // any other OpenAI-compatible server
)

// Config is one engine's shape. All speeds are those of the engine while
// nothing else runs on its device.
type Config struct {
	Kind   Kind
	Models []string // several: Ollama; llama.cpp as a router, all of them loaded; aliases of the first elsewhere
	Slots  int      // requests that run at once; Ollama: per model

	Prefill       float64 // prompt tokens per second
	Decode        float64 // output tokens per second of one stream alone
	BatchSlowdown float64 // n streams decode at Decode/(1+BatchSlowdown*(n-1)) each
	Batch         int     // prompt tokens in one batch; 0: the engine's usual

	// CacheTokens bounds the prompt cache (of each model); 0: slots times
	// context; negative: none. See promptCache.
	CacheTokens int
	Context     int // tokens per slot
	// Queue bounds what waits inside: for Ollama the requests that wait for a
	// load (its OLLAMA_MAX_QUEUE), for OpenAI everything that waits for a slot;
	// llama.cpp and vLLM have no bound. 0: Ollama's 512, none for the others.
	Queue    int
	LoadTime time.Duration // Ollama: on first use; the others: from the start
	// KeepAlive is how long an idle Ollama model stays resident; 0: 5 minutes.
	KeepAlive time.Duration
	// MaxLoaded bounds the models that Ollama has resident at once (its
	// OLLAMA_MAX_LOADED_MODELS); 0: its 3.
	MaxLoaded int
	// SleepIdle is after how long without work llama.cpp goes to sleep (its
	// --sleep-idle-seconds); waking takes LoadTime. 0: never.
	SleepIdle time.Duration

	Output Dist
	Notice time.Duration // 0: as the engine does; negative: at once
	Device *Device       // nil: a device of its own
	// TimeScale is how many times faster the engine's own fixed times pass, of
	// which only the engine knows: how soon it notices departures. All else is
	// in this Config. 0: 1.
	TimeScale float64
	// Milestones spares whoever does not look at each token: of a task's tokens
	// only the first is told, and no Progress. All times and counts are exactly
	// those of the engine that tells each, at a cost that no longer grows with
	// the tokens: what nothing disturbs is done in one go.
	Milestones bool

	// Seed is of the engine's own dice: which requests a fault's rate strikes,
	// when Ollama notices a departure, in which order it serves.
	Seed uint64
	// OutputSeed is of the lengths of answers, which depend on it and the
	// prompt alone: engines with the same one answer alike, in whatever order
	// they are asked.
	OutputSeed uint64
}

// The engines' usual numbers.
const (
	defaultSlots     = 4
	defaultPrefill   = 2000
	defaultDecode    = 100
	defaultContext   = 8192
	defaultOutput    = 128
	ollamaQueue      = 512
	ollamaKeepAlive  = 5 * time.Minute
	ollamaBatch      = 512
	ollamaMaxLoaded  = 3
	defaultBatch     = 2048
	defaultModelName = "sim"
)

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	if c.Kind == "" {
		c.Kind = OpenAI
	}
	if len(c.Models) == 0 {
		c.Models = []string{defaultModelName}
	}
	c.Slots = orInt(c.Slots, defaultSlots)
	c.Prefill = orFloat(c.Prefill, defaultPrefill)
	c.Decode = orFloat(c.Decode, defaultDecode)
	c.Context = orInt(c.Context, defaultContext)
	if c.Output == (Dist{}) {
		c.Output = Fixed(defaultOutput)
	}
	if c.Kind == Ollama {
		c.Batch = orInt(c.Batch, ollamaBatch)
		c.Queue = orInt(c.Queue, ollamaQueue)
		c.MaxLoaded = orInt(c.MaxLoaded, ollamaMaxLoaded)
	}
	c.Batch = orInt(c.Batch, defaultBatch)
	if c.KeepAlive == 0 {
		c.KeepAlive = ollamaKeepAlive
	}
	switch {
	case c.CacheTokens == 0:
		c.CacheTokens = c.Slots * c.Context
	case c.CacheTokens < 0:
		c.CacheTokens = 0
	}
	if c.Device == nil {
		c.Device = &Device{}
	}
	c.TimeScale = orFloat(c.TimeScale, 1)
	return c
}

// scaled is one of the engine's own fixed times.
func (c *Config) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / c.TimeScale)
}

func orInt(v, otherwise int) int {
	if v > 0 {
		return v
	}
	return otherwise
}

func orFloat(v, otherwise float64) float64 {
	if v > 0 {
		return v
	}
	return otherwise
}

// Device is what several engines may share: while m of their models compute,
// each runs at 1/m of its speed. The share is taken anew at the start of each
// batch.
type Device struct {
	computing int
	engines   int
}
