package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
)

// peek looks at a trial under way.
type peek func()

func (p peek) wake() { p() }

// midway is what the gateway says of replica a at 20 s of a trial in which a has
// a fault from 10 s on.
func midway(t *testing.T, engine, fault, target string) (a admission.ReplicaState) {
	t.Helper()
	s := scenario(t, fmt.Sprintf(`
replicas: [{name: a, engine: %s, model: m, slots: 2, prefill: 1000, decode: 100, faults: [{at: 10s, kind: %s}]}]
classes: [{name: standard, deadline: 1m}]
traffic: [{kind: poisson, rate: 1, requests: 1}]
`, engine, fault))
	to, err := ParseTarget(target)
	require.NoError(t, err)
	w := newWorld(t.Context(), newScript(steady(100, 250*time.Millisecond, 60)...), s.Seed)
	require.NoError(t, w.addServers(s))
	g, err := wiredGateway(w, s, to, VirtualOptions{Wire: wire})
	require.NoError(t, err)
	w.front = g
	look := alarm{who: peek(func() { a = g.ctl.Snapshot(w.now).Replicas[0] })}
	w.plan.set(&look, dawn.Add(20*time.Second))
	require.NoError(t, w.run())
	return a
}

// R16: under a made-up clock, too, the gateway learns of its GPUs by readings and
// by the engine's word, and an ablation by neither.
func TestR16VirtualReadings(t *testing.T) {
	for _, c := range []struct{ engine, fault, why string }{
		{"llamacpp", "slow, factor: 4", "GPU 0 is held down by heat: its SM clock is at 25% (500 of 2000 MHz)"},
		{"vllm", "cpu", "while GPU 0 did nothing"},
		{"ollama", "cpu", "m:latest fell off the GPU"},
	} {
		a := midway(t, c.engine, c.fault, "switchyard")
		require.Contains(t, a.Slow, c.why)
		require.NotNil(t, a.GPU)
		a = midway(t, c.engine, c.fault, "switchyard-no-gpu")
		require.NotContains(t, a.Slow, "GPU")
		require.Nil(t, a.GPU)
	}
}

// R16, what it buys: the same requests with GPU awareness and without. Where the
// fault is in what requests wait for, fewer promises are broken, at next to no
// cost; where it is not, nothing is much worse.
func TestR16WhatGPUAwarenessBuys(t *testing.T) {
	for _, c := range []struct {
		scenario string
		trials   int
		broken   float64 // of those without, at most
	}{
		{"cpu-fallback", 12, 0.75}, {"throttle-prompts", 96, 1.05}, {"throttle", 8, 1.5},
	} {
		s, err := Load(c.scenario)
		require.NoError(t, err)
		s.Trials = c.trials
		kept, broken := promises(t, s, "switchyard")
		keptBlind, brokenBlind := promises(t, s, "switchyard-no-gpu")
		t.Logf("%s, %d trials: %d on time and %d promises broken with GPU awareness, %d and %d without",
			c.scenario, c.trials, kept, broken, keptBlind, brokenBlind)
		require.Greater(t, brokenBlind, c.trials/2, "there is something to be seen")
		require.LessOrEqual(t, float64(broken), c.broken*float64(brokenBlind), c.scenario)
		require.Greater(t, float64(kept), 0.98*float64(keptBlind), c.scenario)
	}
}

// promises counts over all trials the requests that were on time, and those that
// were accepted and were not.
func promises(t *testing.T, s *Scenario, target string) (kept, broken int) {
	t.Helper()
	for _, r := range pool(t, s, target) {
		switch {
		case r.OnTime:
			kept++
		case r.outcome() != refused || r.Code == string(admission.ReasonDeadlineExpired):
			broken++
		}
	}
	return kept, broken
}
