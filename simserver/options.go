package simserver

import (
	"cmp"
	"errors"
	"fmt"
	"math"
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
	MaxLoaded     int           // Ollama: models resident at once; 0: 3
	SleepIdle     time.Duration // llama.cpp: sleeps after so long without work; 0: never
	OutputTokens  string        // fixed:N or lognormal:MEDIAN,SIGMA
	Notice        time.Duration // 0: as the engine does; negative: at once
	GPUShare      string        // replicas of one Fleet with the same name here share one device
	TimeScale     float64       // 10: ten times faster: speeds, times, faults' At and For, but not their RetryAfter
	// Seed makes answers: replicas with one seed give the same length to the same
	// prompt, whatever else they were asked. Their other dice (a fault's rate,
	// when a departure is noticed) differ by their names.
	Seed   uint64
	Faults []TimedFault

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

// Model gives what Start would run, for a caller that drives the model itself:
// its configuration, without a device to share, and its faults.
func (o Options) Model() (model.Config, []TimedFault, error) {
	c, err := o.config()
	script, err2 := o.faults()
	return c, script, errors.Join(err, err2)
}

// config turns the options into the model's.
func (o *Options) config() (model.Config, error) {
	c := model.Config{
		Kind: model.Kind(o.Engine), Models: o.Models, Slots: o.Slots,
		Prefill: o.Prefill, Decode: o.Decode, BatchSlowdown: o.BatchSlowdown, Batch: o.Batch,
		CacheTokens: o.CacheTokens, Context: o.Context, Queue: o.Queue,
		LoadTime: o.LoadTime, MaxLoaded: o.MaxLoaded, SleepIdle: o.SleepIdle, Notice: o.Notice,
		Seed: o.Seed ^ xxhash.Sum64String(o.Name), OutputSeed: o.Seed, TimeScale: o.TimeScale,
	}
	switch c.Kind {
	case model.LlamaCpp, model.Ollama, model.VLLM, model.OpenAI, "":
	default:
		return c, fmt.Errorf("engine %q: want llamacpp, ollama, vllm or openai", o.Engine)
	}
	if o.APIKey != "" && c.Kind == model.Ollama {
		return c, errors.New("api_key: want none: Ollama asks for no key")
	}
	for _, n := range []struct {
		what, want string
		value      float64
	}{
		{"slots", "at least 1", float64(o.Slots)},
		{"context", "at least 1 token", float64(o.Context)},
		{"prefill", "tokens per second above 0", o.Prefill},
		{"decode", "tokens per second above 0", o.Decode},
		{"batch_slowdown", "a factor of at least 0", o.BatchSlowdown},
		{"batch", "at least 1 token", float64(o.Batch)},
		{"queue", "at least 0", float64(o.Queue)},
		{"load_time", "a duration of at least 0s", float64(o.LoadTime)},
		{"max_loaded", "at least 1", float64(o.MaxLoaded)},
		{"sleep_idle", "a duration of at least 0s", float64(o.SleepIdle)},
		{"time_scale", "a factor above 0", o.TimeScale},
	} {
		if !(n.value >= 0) || math.IsInf(n.value, 0) {
			return c, fmt.Errorf("%s %v: want %s", n.what, n.value, n.want)
		}
	}
	if o.OutputTokens != "" {
		d, err := model.ParseDist(o.OutputTokens)
		if err != nil {
			return c, err
		}
		c.Output = d
	}
	c = c.WithDefaults()
	if f := o.scale(); f != 1 {
		c.Prefill *= f
		c.Decode *= f
		c.LoadTime = o.scaled(c.LoadTime)
		c.KeepAlive = o.scaled(c.KeepAlive)
		c.SleepIdle = o.scaled(c.SleepIdle)
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
