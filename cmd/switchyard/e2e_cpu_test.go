package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// R16: an Ollama whose model falls to the CPU is forecast as slow before it has
// answered from there, and is as it was
// when it comes back.
func TestE2ER16AModelFallsToTheCPU(t *testing.T) {
	r := newRig(t, setup{replicas: three()[1:2]})
	ask := func(n int) {
		ollama.ask(t.Context(), r.client, r.base, query{prompt: prompt(n, 200), tokens: 20}).mustBe(t, "whole")
	}
	for n := range 4 {
		ask(n)
	}
	r.untilEnded(4)
	name := r.fleet[0].Name()
	fast := r.replica(name)
	require.Empty(t, fast.Slow)
	require.Positive(t, fast.DecodeTokensPerS)
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "cpu"}))
	eventually(t, "the fall to be seen", func() bool { return r.replica(name).Slow != "" })
	slow := r.replica(name)
	require.Contains(t, slow.Slow, "fell off the GPU: 0% of it is there now")
	require.InEpsilon(t, fast.DecodeTokensPerS/10, slow.DecodeTokensPerS, 1e-6, "assumed: nothing was asked since")
	eventually(t, "the fall to be told", func() bool { return len(r.notes.changed(admission.EventSlow)) > 0 })
	require.Len(t, r.notes.changed(admission.EventSlow), 1)
	require.NoError(t, r.fleet[0].SetFault(simserver.Fault{Kind: "none"}))
	eventually(t, "the return to be seen", func() bool { return r.replica(name).Slow == "" })
	require.InDelta(t, fast.DecodeTokensPerS, r.replica(name).DecodeTokensPerS, 1e-9)
}
