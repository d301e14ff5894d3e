package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"switchyard/simserver"
)

// simCmd runs simulated replicas until it is told to stop.
type simCmd struct {
	File string `short:"c" name:"config" placeholder:"FILE" type:"path" help:"Fleet file: replicas with these options in snake_case, and name, listen, faults. The other flags are then not used."`

	Listen        string         `default:"127.0.0.1:8080" placeholder:"ADDR" help:"Where to listen (default: ${default})."`
	Engine        string         `default:"openai" enum:"llamacpp,ollama,vllm,openai" help:"Whose API to speak: llamacpp, ollama, vllm, openai (default: ${default})."`
	Model         []string       `placeholder:"NAME" help:"A model it serves; may repeat (default: sim). Several make llama.cpp a router; vLLM and openai take them for aliases."`
	Slots         int            `default:"4" help:"Requests that run at once (Ollama: per model; default: ${default})."`
	Prefill       float64        `default:"2000" placeholder:"TOK/S" help:"Prompt tokens per second (default: ${default})."`
	Decode        float64        `default:"100" placeholder:"TOK/S" help:"Output tokens per second of a stream alone (default: ${default})."`
	BatchSlowdown float64        `default:"0" placeholder:"F" help:"n streams decode at decode/(1+F*(n-1)) each (default: ${default})."`
	CacheTokens   *int           `placeholder:"N" help:"Bound of the prompt cache, kept as the engine keeps it, the least recently used dropped first (default: slots times context)."`
	Queue         int            `placeholder:"N" help:"Its own hidden queue. Ollama: what may wait for a load (512); openai: what may wait for a slot (no limit); the others have no limit."`
	Context       int            `default:"8192" placeholder:"N" help:"Context size of a slot (default: ${default})."`
	LoadTime      time.Duration  `placeholder:"D" help:"Time to load a model: Ollama on first use, the others at the start."`
	MaxLoaded     int            `placeholder:"N" help:"Ollama: models resident at once (default: 3)."`
	SleepIdle     time.Duration  `placeholder:"D" help:"llama.cpp: sleeps after so long without work; waking takes the load time (default: never)."`
	OutputTokens  string         `default:"fixed:128" placeholder:"DIST" help:"Lengths of answers: fixed:200 or lognormal:200,0.8, up to the request's maximum (default: ${default})."`
	Notice        *time.Duration `placeholder:"D" help:"How long until a departed client is noticed (default: as the real engine does)."`
	GPUShare      string         `name:"gpu-share" placeholder:"GROUP" help:"Replicas of a group share one device (of use in a fleet file)."`
	TimeScale     float64        `default:"1" placeholder:"F" help:"10 is ten times faster (default: ${default})."`
	Seed          uint64         `placeholder:"N" help:"Seed of all random numbers."`
	APIKey        string         `name:"api-key" placeholder:"KEY" help:"A key that clients must say (Ollama has none)."`
	Embeddings    bool           `help:"llama.cpp: serve embeddings, as its own flag does; the others always do."`
	Reranking     bool           `help:"llama.cpp: serve reranking, as its own flag does; vLLM always does."`
}

// Run starts the replicas and prints one line for each: NAME URL.
func (c *simCmd) Run(ctx context.Context, out *console) error {
	all := []simserver.Options{c.options()}
	if c.File != "" {
		var err error
		if all, err = simserver.LoadFleet(c.File); err != nil {
			return usageError{err}
		}
	} else if err := errors.Join(c.zeros(), all[0].Check()); err != nil {
		return usageError{err}
	}
	fleet, err := simserver.StartFleet(all)
	if err != nil {
		return fmt.Errorf("starting the simulation: %w", err)
	}
	defer fleet.Close()
	for _, s := range fleet {
		out.printf("%s %s\n", s.Name(), s.URL())
	}
	<-ctx.Done()
	return nil
}

// zeros says which numbers were given as zero that must not be: the options
// take a zero for the default.
func (c *simCmd) zeros() error {
	var wrong []error
	for _, n := range []struct {
		flag, want string
		value      float64
	}{
		{"--slots", "at least 1", float64(c.Slots)},
		{"--context", "at least 1 token", float64(c.Context)},
		{"--prefill", "tokens per second above 0", c.Prefill},
		{"--decode", "tokens per second above 0", c.Decode},
		{"--time-scale", "a factor above 0, as 10 for ten times faster", c.TimeScale},
	} {
		if n.value == 0 {
			wrong = append(wrong, fmt.Errorf("%s 0: want %s", n.flag, n.want))
		}
	}
	return errors.Join(wrong...)
}

func (c *simCmd) options() simserver.Options {
	return simserver.Options{
		Listen: c.Listen, Engine: c.Engine, Models: c.Model, Slots: c.Slots,
		Prefill: c.Prefill, Decode: c.Decode, BatchSlowdown: c.BatchSlowdown,
		CacheTokens: simserver.OrNone(c.CacheTokens), Queue: c.Queue, Context: c.Context,
		LoadTime: c.LoadTime, MaxLoaded: c.MaxLoaded, SleepIdle: c.SleepIdle, OutputTokens: c.OutputTokens, Notice: simserver.OrNone(c.Notice),
		GPUShare: c.GPUShare, TimeScale: c.TimeScale, Seed: c.Seed,
		APIKey: c.APIKey, Embeddings: c.Embeddings, Reranking: c.Reranking,
	}
}
