package simserver

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"switchyard/simserver/model"
)

// Options says what one simulated replica is like. The zero value is a small
// OpenAI-compatible server on a free port.
type Options struct {
	Name   string // "" : its address
	Listen string // "" : a free port on 127.0.0.1

	Engine        string   // llamacpp, ollama, vllm, openai
	Models        []string // "" : sim
	Slots         int      // Ollama: per model
	Prefill       float64  // prompt tokens per second
	Decode        float64  // output tokens per second of a stream alone
	BatchSlowdown float64  // n streams decode at Decode/(1+BatchSlowdown*(n-1)) each
	Batch         int      // prompt tokens in one batch
	CacheTokens   int      // 0: slots times context; negative: no prompt cache
	Queue         int      // Ollama: what may wait for a load; openai: what may wait at all
	Context       int      // tokens per slot
	LoadTime      time.Duration
	OutputTokens  string        // fixed:N or lognormal:MEDIAN,SIGMA
	Notice        time.Duration // 0: as the engine does; negative: at once
	GPUShare      string        // replicas of one Fleet with the same name here share one device
	TimeScale     float64       // 10: ten times faster: speeds, times, faults' At and For, but not their RetryAfter
	Seed          uint64
	Faults        []TimedFault

	APIKey     string // clients must say it; Ollama has none
	Embeddings bool   // llama.cpp: makes vectors (its --embeddings)
	Reranking  bool   // llama.cpp: ranks documents (its --reranking)

	share *share
}

// Fault is what can be wrong with a replica; TimedFault begins by itself.
type (
	Fault      = model.Fault
	TimedFault = model.TimedFault
	Stats      = model.Stats
)

// Check says what is wrong with the options.
func (o Options) Check() error {
	_, err := o.config()
	_, err2 := o.faults()
	return errors.Join(err, err2)
}

// config turns the options into the model's.
func (o *Options) config() (model.Config, error) {
	c := model.Config{
		Kind: model.Kind(o.Engine), Models: o.Models, Slots: o.Slots,
		Prefill: o.Prefill, Decode: o.Decode, BatchSlowdown: o.BatchSlowdown, Batch: o.Batch,
		CacheTokens: o.CacheTokens, Context: o.Context, Queue: o.Queue,
		LoadTime: o.LoadTime, Notice: o.Notice, Seed: o.Seed,
	}
	switch c.Kind {
	case model.LlamaCpp, model.Ollama, model.VLLM, model.OpenAI, "":
	default:
		return c, fmt.Errorf("engine %q: want llamacpp, ollama, vllm or openai", o.Engine)
	}
	for what, v := range map[string]float64{
		"slots": float64(o.Slots), "prefill": o.Prefill, "decode": o.Decode, "batch_slowdown": o.BatchSlowdown,
		"queue": float64(o.Queue), "context": float64(o.Context), "load_time": float64(o.LoadTime), "time_scale": o.TimeScale,
	} {
		if !(v >= 0) {
			return c, fmt.Errorf("%s %v: want a number of at least 0", what, v)
		}
	}
	if o.OutputTokens != "" {
		d, err := model.ParseDist(o.OutputTokens)
		if err != nil {
			return c, err
		}
		c.Output = d
	}
	// Replicas of a fleet with one seed must not all draw the same numbers.
	c.Seed ^= xxhash.Sum64String(o.Name)
	c = c.WithDefaults()
	if f := o.scale(); f != 1 {
		c.Prefill *= f
		c.Decode *= f
		c.LoadTime = o.scaled(c.LoadTime)
		c.KeepAlive = o.scaled(c.KeepAlive)
		c.Notice = o.scaled(c.Notice)
	}
	return c, nil
}

func (o *Options) scale() float64 {
	if o.TimeScale > 0 {
		return o.TimeScale
	}
	return 1
}

// scaled is a duration on the replica's clock; what is negative means none and
// stays so, and what is some stays some.
func (o *Options) scaled(d time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	return max(1, time.Duration(float64(d)/o.scale()))
}

// faults checks the script and puts its times on the replica's clock.
func (o *Options) faults() ([]TimedFault, error) {
	script := make([]TimedFault, 0, len(o.Faults))
	last := time.Duration(0)
	for i, tf := range o.Faults {
		f, err := o.check(tf.Fault)
		if err != nil {
			return nil, fmt.Errorf("fault %d: %w", i+1, err)
		}
		if tf.At < last {
			return nil, fmt.Errorf("fault %d at %s: want times in order, none before 0s", i+1, tf.At)
		}
		last = tf.At
		f.For = o.scaled(f.For)
		script = append(script, TimedFault{At: o.scaled(tf.At), Fault: f})
	}
	return script, nil
}

// check fills in the defaults of a fault, or says what is wrong with it here.
func (o *Options) check(f Fault) (Fault, error) {
	if f.Kind == model.FaultRunnerCrash && o.Engine != string(model.Ollama) {
		return f, fmt.Errorf("fault %s: want it of an ollama replica: no other has a process for each model", f.Kind)
	}
	return f.Check()
}

// hasKey reports whether a request says the key, in either of the usual ways.
func (o *Options) hasKey(r *http.Request) bool {
	said, _ := strings.CutPrefix(cmp.Or(r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")), "Bearer ")
	return o.APIKey == "" || said == o.APIKey
}

// listenAddress is where to listen.
func (o *Options) listenAddress() string {
	if o.Listen == "" {
		return net.JoinHostPort("127.0.0.1", "0")
	}
	return o.Listen
}
