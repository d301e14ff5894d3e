package replica

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/breaker"
)

// up is a replica of an engine that answers and has one model.
func upReplica(e Engine) *Replica {
	r := New(Config{Name: "a", URL: "http://a", Engine: e, Slots: map[string]int{"*": 2}}, breaker.New(breaker.Config{Cooldown: time.Second, TrialStart: 0.05, TrialFactor: 1.6}))
	r.Observe(t0, Facts{At: t0, Up: true, Engine: e, ModelsRead: true, Models: []Model{{Name: "m", Resident: true, Size: 100, SizeVRAM: 100}}, InHand: -1})
	return r
}

// learned teaches n answers: 1,000 prompt tokens in one second, 50 tokens a second.
func learned(r *Replica, n int) *Speed {
	s := r.Speed("m")
	for range n {
		s.Learn(sample(time.Second, 20*time.Millisecond))
	}
	return s
}

func sample(prompt, perToken time.Duration) Sample {
	return Sample{PromptTokens: 1000, OutputTokens: 101, Prompt: prompt, First: prompt, Decode: 100 * perToken, Hold: prompt + 100*perToken}
}

func reading(util, clock float64, why Throttle) GPUFacts {
	return GPUFacts{Source: SourceNVML, GPUs: []GPU{{ID: "0", Utilization: &util, SMClockMHz: clock, MaxSMClockMHz: 2000, Throttle: why}}}
}

// R16: a fatal error opens the breaker at once, with the reason in words; the
// same facts without a new one do not open it again.
func TestR16AFatalErrorOpensTheBreaker(t *testing.T) {
	r := upReplica(EngineLlamaCpp)
	f := reading(0.9, 2000, 0)
	r.ObserveGPU(t0, f)
	require.True(t, r.Available(t0))
	f.Fault = "Xid 79 on GPU 0: it has fallen off the bus"
	r.ObserveGPU(t0, f)
	require.False(t, r.Available(t0))
	require.Equal(t, breaker.View{State: breaker.Open, Reason: f.Fault, NextTrial: t0.Add(time.Second), Opened: t0}, r.Breaker.View(t0))
	later := t0.Add(2 * time.Second)
	f.Fault = ""
	r.ObserveGPU(later, f)
	require.Equal(t, breaker.HalfOpen, r.Breaker.State(later), "trials decide whether it is back")
}

// R16: throttling enters the forecast of the very next request and leaves it
// as fast; the mean learns at the full clock meanwhile.
func TestR16ThrottlingScalesPromptSpeedAtOnce(t *testing.T) {
	r := upReplica(EngineLlamaCpp)
	s := learned(r, 20)
	expect := func(d time.Duration, slow bool) {
		t.Helper()
		got, known := s.FirstToken(1000)
		require.True(t, known)
		require.InDelta(t, d.Seconds(), got.Seconds(), 1e-6)
		require.Equal(t, slow, r.Slow != "", r.Slow)
	}
	r.ObserveGPU(t0, reading(0.9, 1990, 0))
	expect(time.Second, false)
	r.ObserveGPU(t0, reading(0.9, 1900, ThrottlePowerCap))
	expect(time.Second, false) // a power limit shaves a little off most cards
	r.ObserveGPU(t0, reading(0.9, 500, ThrottleHeat|ThrottlePowerCap))
	expect(4*time.Second, true)
	require.Equal(t, "GPU 0 is held down by heat and its power limit: its SM clock is at 25% (500 of 2000 MHz), and so are prompt speeds in forecasts", r.Slow)
	require.InDelta(t, 250, s.PromptTokensPerS(), 1e-6)
	require.InDelta(t, 50, s.DecodeTokensPerS(), 1e-6, "decoding waits for memory, not for the SM clock")
	for range 20 {
		s.Learn(sample(4*time.Second, 20*time.Millisecond))
	}
	expect(4*time.Second, true) // what is measured at that clock does not count twice
	r.ObserveGPU(t0, reading(0, 210, ThrottleIdle))
	expect(4*time.Second, true) // an idle card's clock says nothing: as it last worked
	r.ObserveGPU(t0, reading(0.9, 2000, 0))
	expect(time.Second, false)
	require.InDelta(t, 1, r.Speed("another").clock(), 0)
}

// Where prompt time does not follow the clock, the mean follows what is measured.
func TestR16AWrongScaleCorrectsItself(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := upReplica(EngineLlamaCpp)
		s := learned(r, 20)
		r.ObserveGPU(t0, reading(0.9, 2000*rapid.Float64Range(0.1, 0.9).Draw(rt, "clock"), ThrottleHeat))
		truth := time.Duration(rapid.Float64Range(0.5, 20).Draw(rt, "seconds") * float64(time.Second))
		for range 60 {
			s.Learn(sample(truth, 20*time.Millisecond))
		}
		got, _ := s.FirstToken(1000)
		require.InEpsilon(rt, truth.Seconds(), got.Seconds(), 0.02)
	})
}

// R16: a model that Ollama says fell to the CPU is forecast as slow before it
// has answered from there, then as measured; back on the GPU it is as it was.
func TestR16AModelOnTheCPUIsForecastAsOne(t *testing.T) {
	r := upReplica(EngineOllama)
	s := learned(r, 20)
	place := func(onCPU bool, vram int64) {
		r.Observe(t0, Facts{
			At: t0, Up: true, Engine: EngineOllama, ModelsRead: true, InHand: -1,
			Models: []Model{{Name: "m", Resident: true, Size: 100, SizeVRAM: vram, OnCPU: onCPU}},
		})
	}
	seconds := func() float64 { return whole(s, 1000, 101).Seconds() }
	require.InDelta(t, 3, seconds(), 1e-6)
	place(true, 25)
	require.InDelta(t, 30, seconds(), 1e-6, "assumed, until it has answered from there")
	require.Equal(t, "m fell off the GPU: 25% of it is there now", r.Slow)
	s.Learn(sample(20*time.Second, time.Second))
	require.InDelta(t, 120, seconds(), 1e-6, "one answer settles it")
	place(false, 100)
	require.InDelta(t, 3, seconds(), 1e-6)
	require.Empty(t, r.Slow)
	place(true, 0)
	require.InDelta(t, 120, seconds(), 1e-6, "and the CPU's speed is remembered")
}

// R16: a collapse of tokens per second is believed after three answers, and
// followed at once both ways.
func TestR16ACollapseOfSpeedIsFollowed(t *testing.T) {
	r := upReplica(EngineOpenAI)
	s := learned(r, 20)
	look := func() string {
		r.Observe(t0, Facts{At: t0, Up: true, Engine: EngineOpenAI, InHand: -1})
		return r.Slow
	}
	s.Learn(sample(time.Second, 200*time.Millisecond))
	s.Learn(sample(time.Second, 20*time.Millisecond))
	s.Learn(sample(time.Second, 200*time.Millisecond))
	s.Learn(sample(time.Second, 200*time.Millisecond))
	require.Empty(t, look(), "not three in a row")
	s.Learn(sample(10*time.Second, 200*time.Millisecond))
	require.Regexp(t, `^m makes 5\.0 tokens a second, \d+\.\d before: so does a model that fell to the CPU$`, look())
	require.InDelta(t, 30, whole(s, 1000, 101).Seconds(), 1e-6, "the last answer, not an eighth of it")
	s.Learn(sample(time.Second, 20*time.Millisecond))
	require.Empty(t, look())
	require.InDelta(t, 3, whole(s, 1000, 101).Seconds(), 1e-6)
}

// A full batch slows each stream down; that is no collapse.
func TestR16ContentionIsNoCollapse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &Speed{}
		for range 100 {
			s.Learn(sample(time.Second, time.Duration(rapid.IntRange(20, 80).Draw(rt, "ms"))*time.Millisecond))
			require.False(rt, s.Collapsed())
		}
	})
}

// R16: a process that has left the GPU it was on is on the CPU: believed at
// the second reading, so that a restart is not taken for it.
func TestR16AProcessThatLeftTheGPU(t *testing.T) {
	r := upReplica(EngineLlamaCpp)
	s := learned(r, 20)
	off := reading(0, 2000, 0)
	off.Off = true
	r.ObserveGPU(t0, off)
	require.Empty(t, r.Slow)
	r.ObserveGPU(t0, off)
	require.Equal(t, "its process was on a GPU and no longer is: it runs on the CPU", r.Slow)
	d, _ := s.FirstToken(1000)
	require.InDelta(t, 10, d.Seconds(), 1e-6)
	r.ObserveGPU(t0, reading(0, 2000, 0))
	require.Empty(t, r.Slow)

	o := upReplica(EngineOllama)
	for range 5 {
		o.ObserveGPU(t0, off)
	}
	require.Empty(t, o.Slow, "Ollama unloads, and says itself where a model is")
}

// R16: a GPU that stands idle while its replica makes tokens does not run it.
// Only readings while there is work count, and all the time there was.
func TestR16AnIdleGPUWhileTokensAreMade(t *testing.T) {
	r := upReplica(EngineLlamaCpp)
	read := func(util float64, n int) {
		for range n {
			r.ObserveGPU(t0, reading(util, 2000, 0))
			r.OutputTokens += 10
		}
	}
	r.Pool("m").Take(t0, 1)
	read(0, 20)
	require.Empty(t, r.Slow, "it was never seen at work for it: the binding may be wrong")
	read(0.9, 1)
	read(0, idleReadings-1)
	r.Pool("m").Give(t0, 1)
	read(0, 5)
	r.Pool("m").Take(t0, 1)
	read(0, idleReadings-1)
	require.Empty(t, r.Slow)
	read(0, 1)
	require.Equal(t, "it made 40 tokens while GPU 0 did nothing: it runs on the CPU", r.Slow)
	r.Pool("m").Give(t0, 1)
	read(0, 5)
	require.NotEmpty(t, r.Slow, "silence proves nothing")
	r.Pool("m").Take(t0, 1)
	read(0.5, 1)
	require.Empty(t, r.Slow)
}

// Slots held while nothing comes out (a load, a hang) prove nothing either.
func TestR16AnIdleGPUWithoutTokens(t *testing.T) {
	r := upReplica(EngineLlamaCpp)
	r.Pool("m").Take(t0, 1)
	r.ObserveGPU(t0, reading(0.9, 2000, 0))
	for range 20 {
		r.ObserveGPU(t0, reading(0, 2000, 0))
	}
	require.Empty(t, r.Slow)
}

func TestGPUFactsAsJSON(t *testing.T) {
	f := reading(0.5, 1000, ThrottleHardHeat|ThrottleHardware)
	f.Note = "as configured"
	b, err := json.Marshal(f)
	require.NoError(t, err)
	require.JSONEq(t, `{"time":"0001-01-01T00:00:00Z","source":"nvml","note":"as configured","joules_per_1k_tokens":0,"gpu_s_per_1k_tokens":0,
		"devices":[{"id":"0","utilization":0.5,"sm_clock_mhz":1000,"max_sm_clock_mhz":2000,"throttle":"heat"}]}`, string(b))
	var back GPUFacts
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, "heat", back.GPUs[0].Throttle.String())
}
