package simserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFleetFile(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		p := filepath.Join(dir, "fleet.yaml")
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	all, err := LoadFleet(write(`
replicas:
  - {name: a, listen: 127.0.0.1:0, engine: llamacpp, model: m, slots: 2, prefill: 2000, decode: 100, batch_slowdown: 0.1,
     cache_tokens: 0, output_tokens: "fixed:40", notice: 200ms, faults: [{at: 20s, kind: crash, for: 10s}, {at: 40s, kind: busy, status: 429, retry_after: 2s}]}
  - {name: b, engine: ollama, model: [x, "y:1b"], load_time: 2s, queue: 4, context: 4096, gpu_share: g, time_scale: 2, seed: 7}
`))
	require.NoError(t, err)
	require.Equal(t, Options{
		Name: "a", Listen: "127.0.0.1:0", Engine: "llamacpp", Models: []string{"m"}, Slots: 2, Prefill: 2000, Decode: 100, BatchSlowdown: 0.1,
		CacheTokens: -1, OutputTokens: "fixed:40", Notice: 200 * time.Millisecond,
		Faults: []TimedFault{{At: 20 * time.Second, Fault: Fault{Kind: "crash", For: 10 * time.Second}}, {At: 40 * time.Second, Fault: Fault{Kind: "busy", Status: 429, RetryAfter: 2 * time.Second}}},
	}, all[0])
	require.Equal(t, Options{
		Name: "b", Engine: "ollama", Models: []string{"x", "y:1b"}, LoadTime: 2 * time.Second, Queue: 4, Context: 4096, GPUShare: "g", TimeScale: 2, Seed: 7,
	}, all[1])
	fleet, err := StartFleet(all)
	require.NoError(t, err)
	defer fleet.Close()
	require.Equal(t, "a", fleet[0].Name())
	require.NotEqual(t, fleet[0].URL(), fleet[1].URL())

	for text, want := range map[string]string{
		"replicas: []": "want a list of at least one",
		"replicas:\n  - {name: a, engine: tgi}\n  - {name: a, engine: vllm, output_tokens: many}": "fixed:N",
		"replicas:\n  - {name: a, slotz: 2}":                                                      "slotz",
		"replicas:\n  - {name: a, slots: two}":                                                    "line 2",
		"replicas:\n  - {name: a, load_time: 5}":                                                  "duration",
		"replicas:\n  - {name: a, faults: [{at: 1s, kind: boom}]}":                                "fault",
		"replicas:\n  - {name: a}\n  - {name: a}":                                                 "taken",
		"replicas:\n  - {name: a, faults: [{at: 2s, kind: none}, {at: 1s, kind: none}]}":          "order",
		"replicas:\n  - {name: a, decode: -1}":                                                    "tokens per second above 0",
	} {
		_, err := LoadFleet(write(text))
		require.ErrorContains(t, err, want)
	}
	_, err = LoadFleet(filepath.Join(dir, "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
