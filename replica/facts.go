// Package replica keeps the books of one inference server: how many slots it
// has and who holds them, how fast it has been, and what its engine last said.
// It is pure: time comes in as an argument, nothing here waits or does I/O.
// Sub-packages probe and gpu do the talking.
package replica

import (
	"encoding/json"
	"time"
)

// Engine says what kind of server a replica is.
type Engine string

// The engines Switchyard knows. EngineOpenAI is any other OpenAI-compatible
// server (SGLang, LM Studio, …): only /v1/models is relied on.
const (
	EngineAuto     Engine = "auto" // to be found out by the first probe
	EngineOllama   Engine = "ollama"
	EngineLlamaCpp Engine = "llamacpp"
	EngineVLLM     Engine = "vllm"
	EngineOpenAI   Engine = "openai"
)

// Facts is what one round of probing learned about a replica. A zero field
// means "the engine did not say".
type Facts struct {
	At      time.Time     // when the round began
	Took    time.Duration // how long it lasted
	Up      bool          // the process answers; busy and loading count as up
	Gone    bool          // connection refused or reset: nothing listens there
	Err     string        // why Up is false, in words, for people
	Note    string        // what an operator should know although it is up: its key is refused, /slots is off
	Engine  Engine        // what it is; EngineAuto while unknown
	Version string        // as the engine gives it

	Loading  bool // a llama.cpp that is still loading its model
	Sleeping bool // a llama.cpp asleep; it must not be woken by probing

	Slots       int     // slots the engine reports (llama.cpp total_slots; the smallest of a router's models); 0 unknown
	Context     int     // tokens per slot; 0 unknown
	CacheTokens int     // tokens the prompt cache holds in all (vLLM: its blocks); 0 unknown, negative: it has none
	Models      []Model // models present
	ModelsRead  bool    // the model list could be read; while false any model is served
	AnyModel    bool    // the engine ignores the model name (llama.cpp, one model)

	InHand   int // requests the engine is working on, whoever sent them; -1 unknown
	Waiting  int // requests in the engine's own queue; -1 unknown
	Progress int // tokens processed and decoded (or batches) so far, as far as probes saw: a round that finds it grown saw work being done; -1 unknown
}

// Model is one model a replica has.
type Model struct {
	Name     string
	Aliases  []string // other names the engine answers to
	Digest   string   // Ollama: names of one digest share one runner, and so its slots
	Resident bool     // loaded in memory now (always true where the engine loads at start)
	Context  int      // tokens; 0 unknown
	Size     int64    // bytes in memory; 0 unknown
	SizeVRAM int64    // bytes of Size on the GPU
	OnCPU    bool     // it has fallen off a GPU it was on before

	// The replica's own list entries, passed on unchanged in unions.
	OpenAI json.RawMessage // entry of /v1/models
	Tag    json.RawMessage // entry of /api/tags
	PS     json.RawMessage // entry of /api/ps
}
