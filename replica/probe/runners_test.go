package probe

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// TestR11NamesOfOneDigestAreLoadedTogether: /api/ps lists one of them only.
func TestR11NamesOfOneDigestAreLoadedTogether(t *testing.T) {
	list := []replica.Model{
		{Name: "a:latest", Digest: "d1"},
		{Name: "b:latest", Digest: "d1", Resident: true, Context: 4096, PS: json.RawMessage("{}")},
		{Name: "c:latest", Digest: "d2"},
	}
	shareRunners(list)
	require.True(t, list[0].Resident)
	require.Equal(t, 4096, list[0].Context)
	require.Nil(t, list[0].PS, "it is not listed as loaded")
	require.False(t, list[2].Resident)
}

// TestR11WhatHidesBehindAnotherServer: a llama.cpp behind a proxy that took its
// Server header, and a gateway like this one in front of no Ollama.
func TestR11WhatHidesBehindAnotherServer(t *testing.T) {
	list := ok(`{"object":"list","data":[{"id":"m","object":"model","owned_by":"me"}]}`)
	for want, replies := range map[replica.Engine]map[string]reply{
		replica.EngineLlamaCpp: {
			"/": ok("welcome"), "/v1/models": list, "/slots": ok(`[]`),
			"/props": ok(`{"total_slots":3,"default_generation_settings":{"n_ctx":4096},"model_path":"m.gguf"}`),
		},
		replica.EngineOpenAI: {
			"/": ok("Ollama is running"), "/v1/models": list, "/api/version": {status: 503, body: `{"error":"out"}`},
		},
	} {
		f := newFake(t, "nginx", replies)
		p := New(Target{Name: "a", URL: f.serve(), Engine: replica.EngineAuto}, nil)
		facts := p.Round(t.Context(), time.Second, true)
		p.Close()
		require.True(t, facts.Up, facts.Err)
		require.Equal(t, want, facts.Engine)
	}
}
