package probe

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"switchyard/replica"
)

// vLLM's metric families. The two counters together grow with every token
// processed or decoded.
const (
	vllmRunning   = "vllm:num_requests_running"
	vllmWaiting   = "vllm:num_requests_waiting"
	vllmPrompt    = "vllm:prompt_tokens_total"
	vllmGenerated = "vllm:generation_tokens_total"
	vllmCache     = "vllm:cache_config_info" // 1, with the configuration in its labels
)

// vllm asks a vLLM server. It does not report --max-num-seqs, so slots stay
// unknown.
type vllm struct {
	http     *client
	list     modelList
	version  string
	progress int // as last read; 0: it does not say
}

func (v *vllm) forget() {
	v.list.forget()
	v.version = ""
}

func (v *vllm) ask(ctx context.Context, _ bool) (replica.Facts, error) {
	f := up(replica.EngineVLLM)
	f.Progress = v.progress
	if err := v.work(ctx, &f); err != nil {
		return f, err
	}
	if v.list.due() {
		if _, err := v.list.update(ctx, v.http); err != nil && !isTimeout(err) {
			return f, err
		}
		if v.version == "" {
			v.version = readVersion(ctx, v.http, "/version")
		}
	}
	f.Version = v.version
	v.list.put(&f)
	f.Context = smallestContext(f.Models)
	return f, nil
}

// work reads what the engine is doing; where it does not say (statistics
// switched off), at least whether it is well.
func (v *vllm) work(ctx context.Context, f *replica.Facts) error {
	a, err := v.http.get(ctx, "/metrics")
	if err != nil {
		f.Note, err = alive(ctx, v.http, "/health", err)
		return err
	}
	if a.status == http.StatusOK {
		sums := readMetrics(a.body, vllmRunning, vllmWaiting, vllmPrompt, vllmGenerated)
		f.InHand, f.Waiting = count(sums, vllmRunning), count(sums, vllmWaiting)
		v.progress = max(0, count(sums, vllmPrompt)) + max(0, count(sums, vllmGenerated))
		f.Progress = v.progress
		f.CacheTokens = vllmCacheTokens(a.body)
	}
	if f.InHand >= 0 {
		return nil
	}
	f.Note = "GET /metrics has no vllm: numbers: its running and waiting requests are unknown"
	health, err := v.http.get(ctx, "/health")
	if err != nil {
		return err
	}
	if health.status >= 500 {
		return fmt.Errorf("GET /health: %s: the engine behind the server has died", health.summary())
	}
	return nil
}

// vllmCacheTokens is how many tokens the prompt cache has room for; 0 where it
// does not say, -1 where prefix caching is switched off.
func vllmCacheTokens(metrics []byte) int {
	if strings.EqualFold(readLabel(metrics, vllmCache, "enable_prefix_caching"), "false") {
		return -1
	}
	blocks, _ := strconv.Atoi(readLabel(metrics, vllmCache, "num_gpu_blocks"))
	size, _ := strconv.Atoi(readLabel(metrics, vllmCache, "block_size"))
	return tokens(blocks) * min(max(size, 0), 1<<20)
}

// readVersion asks for a {"version":…}; "" where there is none.
func readVersion(ctx context.Context, c *client, path string) string {
	var v struct {
		Version string `json:"version"`
	}
	a, err := c.get(ctx, path)
	if err != nil || !a.decode(&v) || v.Version == "" {
		return ""
	}
	return v.Version
}
