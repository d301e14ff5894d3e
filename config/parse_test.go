package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("f.yaml", []byte(text))
	require.NoError(t, err)
	return c
}

func TestEmptyFileIsTheDefault(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "~\n", "{}\n", "\ufeff", "replicas:\nkeys:\nadmin:\nretry: {}\n"} {
		c := parse(t, text)
		c.marks = nil
		require.Equal(t, Default(), c, "%q", text)
	}
}

func TestDefaultIsValid(t *testing.T) {
	c := Default()
	require.NoError(t, c.Validate())
	require.Equal(t, Default(), c)
	require.Empty(t, c.Warnings())
}

// The defaults that users rely on, written out once more by hand.
func TestDefaults(t *testing.T) {
	c := Default()
	require.Equal(t, "127.0.0.1:8700", c.Listen)
	require.Equal(t, Admin{Listen: "127.0.0.1:8701"}, c.Admin)
	require.Equal(t, []Class{{"interactive", 10 * time.Second, 0}, {"standard", time.Minute, 0.05}, {"batch", 15 * time.Minute, 0.05}}, c.Classes)
	require.Equal(t, "standard", c.DefaultClass)
	require.False(t, c.Keys.Required)
	require.Equal(t, Queue{MaxRequests: 2048, MaxBytes: 512 << 20}, c.Queue)
	require.Equal(t, Admission{Enabled: true, Keep: 0.95, Mode: "enforce"}, c.Admission)
	require.Equal(t, Retry{3, 0.2, 15 * time.Second, 4, 5 * time.Minute, time.Minute, 4 << 20}, c.Retry)
	require.Equal(t, Breaker{3, 0.5, 20, 5 * time.Second, 2 * time.Minute, 0.05, 1.6, false}, c.Breaker)
	require.Equal(t, Health{2 * time.Second, 2 * time.Second}, c.Health)
	require.Equal(t, Affinity{true, "X-Session-ID", false}, c.Affinity)
	require.Equal(t, Limits{64 << 20, 30 * time.Minute, 10 * time.Second, time.Minute, time.Minute, time.Minute, false}, c.Limits)
	require.Empty(t, c.CORS.Origins)
	require.Equal(t, Log{"info", "text", ""}, c.Log)
}

func TestMinShareOfTheMostUrgentClassIsNoneUnlessGiven(t *testing.T) {
	shares := func(text string) (s []float64) {
		for _, c := range parse(t, text).Classes {
			s = append(s, c.MinShare)
		}
		return s
	}
	require.Equal(t, []float64{0, 0.05}, shares("default_class: a\nclasses: [{name: a, deadline: 1s}, {name: b, deadline: 2s}]"))
	require.Equal(t, []float64{0.2, 0}, shares("default_class: a\nclasses: [{name: a, deadline: 1s, min_share: 0.2}, {name: b, deadline: 2s, min_share: 0}]"))
	require.Equal(t, []float64{0.05}, shares("default_class: a\nclasses: [{name: a, deadline: 1s, min_share: 0.05}]"))
}

func TestReplicas(t *testing.T) {
	c := parse(t, `
replicas:
  - url: HTTP://LocalHost:11434/V1
  - {name: b, url: "https://gpu.example.org/openai/v1/", slots: 4, models: ["*"], tier: 2, ca_file: ca.pem, api_key_env: KEY_B}
  - {name: c, url: "http://[::1]:8080/", slots: {qwen3:8b: 2, "*": 1}, models: [qwen3:8b, "70"], engine: ollama, cache_tokens: 32768}
  - {name: d, url: http://10.0.0.1, gpu: {nvml: 0}}
  - {name: e, url: "http://10.0.0.2", gpu: {nvml: "GPU-5f1c"}}
  - {name: f, url: "http://10.0.0.3", gpu: {exporter: "http://10.0.0.3:9400/metrics"}}
  - {name: g, url: "http://10.0.0.4", gpu: {exporter: "http://10.0.0.4:9400/metrics", gpu: GPU-77aa}, slots: auto, models: auto, cache_tokens: auto}
  - {name: h, url: "http://10.0.0.5", gpu: none}
`)
	auto := GPU{Mode: GPUAuto}
	require.Equal(t, []Replica{
		{Name: "localhost:11434", URL: "http://localhost:11434/V1", Engine: "auto", GPU: auto},
		{Name: "b", URL: "https://gpu.example.org/openai", Engine: "auto", Slots: Slots{"*": 4}, Models: ModelNames{"*"}, Tier: 2, APIKeyEnv: "KEY_B", CAFile: "ca.pem", GPU: auto},
		{Name: "c", URL: "http://[::1]:8080", Engine: "ollama", Slots: Slots{"qwen3:8b": 2, "*": 1}, Models: ModelNames{"qwen3:8b", "70"}, CacheTokens: 32768, GPU: auto},
		{Name: "d", URL: "http://10.0.0.1", Engine: "auto", GPU: GPU{Mode: GPUNVML, ID: "0"}},
		{Name: "e", URL: "http://10.0.0.2", Engine: "auto", GPU: GPU{Mode: GPUNVML, ID: "GPU-5f1c"}},
		{Name: "f", URL: "http://10.0.0.3", Engine: "auto", GPU: GPU{Mode: GPUExporter, ID: "0", URL: "http://10.0.0.3:9400/metrics"}},
		{Name: "g", URL: "http://10.0.0.4", Engine: "auto", GPU: GPU{Mode: GPUExporter, ID: "GPU-77aa", URL: "http://10.0.0.4:9400/metrics"}},
		{Name: "h", URL: "http://10.0.0.5", Engine: "auto", GPU: GPU{Mode: GPUNone}},
	}, c.Replicas)

	var shown []string
	for _, r := range c.Replicas {
		shown = append(shown, r.Slots.String()+" "+r.Models.String()+" "+r.GPU.String())
	}
	require.Equal(t, []string{
		"auto auto auto",
		"4 [*] auto",
		`{"*": 1, "qwen3:8b": 2} [qwen3:8b, 70] auto`,
		"auto auto {nvml: 0}",
		`auto auto {nvml: "GPU-5f1c"}`,
		`auto auto {exporter: "http://10.0.0.3:9400/metrics", gpu: 0}`,
		`auto auto {exporter: "http://10.0.0.4:9400/metrics", gpu: "GPU-77aa"}`,
		"auto auto none",
	}, shown)
}

func TestDefaultNameIsHostAndPort(t *testing.T) {
	for url, name := range map[string]string{
		"http://127.0.0.1:8080/v1": "127.0.0.1:8080",
		"http://gpu":               "gpu:80",
		"https://gpu/x":            "gpu:443",
		"http://[2001:db8::1]:80":  "[2001:db8::1]:80",
	} {
		c := parse(t, "replicas: [{url: '"+url+"'}]")
		require.Equal(t, name, c.Replicas[0].Name)
	}
}

func TestScalars(t *testing.T) {
	c := parse(t, `
listen: ":0"
queue: {max_bytes: 1048576, heartbeat: 1500ms}
retry: {buffer: 65536B, budget: 1, first_token_factor: 1e1}
limits: {max_body: 1KiB, max_deadline: 1h30m, ollama_admin: true}
cors: {origins: ["HTTPS://Chat.example.org:443", "app://obsidian.md", "http://localhost:3000"]}
admin: {listen: "0.0.0.0:8701", token_env: ADMIN_TOKEN}
affinity: {session_header: X-Conversation}
log: {level: debug, format: json, decisions: /var/log/d.jsonl}
`)
	require.Equal(t, ":0", c.Listen)
	require.Equal(t, Queue{2048, 1 << 20, 1500 * time.Millisecond}, c.Queue)
	require.Equal(t, Size(65536), c.Retry.Buffer)
	require.Equal(t, 10.0, c.Retry.FirstTokenFactor)
	require.Equal(t, Size(1024), c.Limits.MaxBody)
	require.Equal(t, 90*time.Minute, c.Limits.MaxDeadline)
	require.True(t, c.Limits.OllamaAdmin)
	require.Equal(t, []string{"https://chat.example.org", "app://obsidian.md", "http://localhost:3000"}, c.CORS.Origins)
	require.Equal(t, Log{"debug", "json", "/var/log/d.jsonl"}, c.Log)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "switchyard.yaml")
	require.NoError(t, os.WriteFile(path, []byte("listen: 127.0.0.1:9000\r\nlog: {level: warn}\r\n"), 0o600))
	c, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9000", c.Listen)

	missing := filepath.Join(dir, "missing.yaml")
	_, err = Load(missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorAs(t, err, new(*Problem))
	require.True(t, strings.HasPrefix(err.Error(), missing+": there is no such file: want the path of a configuration"), err)

	_, err = Load(dir)
	require.ErrorContains(t, err, "the file cannot be read")

	huge := filepath.Join(dir, "model.gguf")
	require.NoError(t, os.WriteFile(huge, nil, 0o600))
	require.NoError(t, os.Truncate(huge, maxFile+1))
	_, err = Load(huge)
	require.ErrorContains(t, err, "the file is larger than 16MiB")
}

func TestFormats(t *testing.T) {
	for s, want := range map[Size]string{0: "0", 1: "1", 1024: "1KiB", 1536: "1536", 4 << 20: "4MiB", 3 << 30: "3GiB"} {
		require.Equal(t, want, s.String())
		back, err := parseSize(want)
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
	for d, want := range map[time.Duration]string{0: "0s", 90 * time.Second: "1m30s", time.Minute: "1m", 2 * time.Hour: "2h", time.Hour + time.Second: "1h0m1s", 10 * time.Second: "10s"} {
		require.Equal(t, want, FormatDuration(d))
	}
}
