package simserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/simserver/model"
)

// A zero that a fleet file says is not the default that it means to Options.
func TestFleetZeros(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(path, []byte("replicas:\n  - {name: a, slots: 0, time_scale: 0}\n  - {name: b, context: 0, prefill: 0, decode: 0}\n  - {name: c, cache_tokens: 0, batch_slowdown: 0}\n"), 0o600))
	all, err := LoadFleet(path)
	for _, want := range []string{
		"replicas[0] a: slots 0: want at least 1", "time_scale 0: want a factor above 0",
		"replicas[1] b: context 0: want at least 1 token", "prefill 0: want tokens per second above 0", "decode 0: want",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "replicas[2]")
	require.Equal(t, -1, all[2].CacheTokens, "no cache")
}

func TestOptionsThatAreNonsense(t *testing.T) {
	for what, o := range map[string]Options{
		"slots -1: want at least 1":              {Slots: -1},
		"time_scale -10: want a factor above 0":  {TimeScale: -10},
		"max_loaded -1: want at least 1":         {MaxLoaded: -1},
		"sleep_idle":                             {SleepIdle: -time.Second},
		"batch -5: want at least 1 token":        {Batch: -5},
		"output tokens \"many\": want fixed:N":   {OutputTokens: "many"},
		"engine \"llama\": want llamacpp":        {Engine: "llama"},
		"fault crash: rate 0.5":                  {Faults: []TimedFault{{Fault: Fault{Kind: model.FaultCrash, Rate: 0.5}}}},
		"fault 2 at 1s: want times in order":     {Faults: []TimedFault{{At: 2 * time.Second, Fault: Fault{Kind: model.FaultNone}}, {At: time.Second, Fault: Fault{Kind: model.FaultNone}}}},
		"batch_slowdown -1: want a factor of at": {BatchSlowdown: -1},
	} {
		require.ErrorContains(t, o.Check(), what)
	}
}

// Replicas of one seed give one prompt one length, whatever they are called
// and whatever else they were asked; and another seed gives others.
func TestOneSeedOneAnswer(t *testing.T) {
	lengths := func(name string, seed uint64, first uint64) map[uint64]int {
		cfg, _, err := Options{Name: name, Engine: "vllm", OutputTokens: "lognormal:200,0.8", Seed: seed, Slots: 64}.Model()
		require.NoError(t, err)
		e := model.New(cfg, nil, time.Time{})
		got := map[uint64]int{}
		for i := range uint64(20) {
			h := (first + i) % 20
			w, rej := e.Submit(time.Time{}.Add(time.Duration(i)*time.Second), model.Request{Model: "sim", Prompts: [][]model.Part{{{Hash: h, Tokens: 10}}}})
			require.Nil(t, rej)
			got[h] = w.Tasks[0].Target
		}
		return got
	}
	a := lengths("a", 7, 0)
	require.Equal(t, a, lengths("b", 7, 13))
	require.NotEqual(t, a, lengths("a", 8, 0))
}

// --time-scale 10: the same life in a tenth of the time, with everything in it
// to within 5%: loads, prompts, tokens, departures noticed, faults, sleep.
func TestTimeScaleKeepsTheProportions(t *testing.T) {
	for _, engine := range []string{"llamacpp", "ollama", "vllm", "openai"} {
		t.Run(engine, func(t *testing.T) {
			o := Options{
				Name: "r", Engine: engine, Models: []string{"m"}, Slots: 2, Prefill: 1000, Decode: 50, BatchSlowdown: 0.2,
				LoadTime: 2 * time.Second, SleepIdle: 3 * time.Second, OutputTokens: "lognormal:40,0.8", Seed: 5,
				Faults: []TimedFault{{At: 20 * time.Second, Fault: Fault{Kind: model.FaultSlow, Factor: 3, For: 10 * time.Second}}},
			}
			real := scaledLife(t, o, 1)
			o.TimeScale = 10
			fast := scaledLife(t, o, 10)
			require.Equal(t, len(real), len(fast))
			for i := range real {
				require.Equal(t, real[i].what, fast[i].what)
				require.InDelta(t, real[i].at.Seconds(), 10*fast[i].at.Seconds(), 0.05*real[i].at.Seconds(), "%s", real[i].what)
			}
		})
	}
}

type moment struct {
	what string
	at   time.Duration
}

// scaledLife is forty requests in forty seconds of a replica's clock, every
// fifth of which is left, and the times at which things happened.
func scaledLife(t *testing.T, o Options, scale float64) []moment {
	cfg, script, err := o.Model()
	require.NoError(t, err)
	born := time.Time{}.Add(time.Hour)
	e := model.New(cfg, script, born)
	var all []moment
	names := map[model.EventKind]string{model.Started: "started", model.Noticed: "noticed", model.Finished: "finished", model.FaultChanged: "fault"}
	until := func(now time.Time) {
		for _, ev := range e.Advance(now) {
			if what, ok := names[ev.Kind]; ok {
				all = append(all, moment{what, ev.At.Sub(born)})
			}
		}
	}
	var works []*model.Work
	for i := range 40 {
		now := born.Add(time.Duration(float64(3+i) / scale * float64(time.Second)))
		until(now)
		w, rej := e.Submit(now, model.Request{Model: "m", Stream: i%2 == 0, Prompts: [][]model.Part{{{Hash: uint64(i), Tokens: 200}}}})
		require.Nil(t, rej)
		works = append(works, w)
		if i%5 == 4 {
			e.Leave(now.Add(time.Duration(0.3/scale*float64(time.Second))), works[i-1])
		}
	}
	for range 100_000 {
		at, ok := e.Next()
		if !ok || at.Sub(born).Seconds()*scale > 200 {
			break
		}
		until(at)
	}
	require.Zero(t, e.Stats(born.Add(time.Hour)).InHand)
	return all
}
