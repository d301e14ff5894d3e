package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/config"
	"switchyard/gateway"
	"switchyard/simserver"
)

// turn is a message of a conversation.
type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// converse sends a conversation to a chat path and returns the answer's headers.
func (r *rig) converse(path string, said []turn, header ...string) http.Header {
	r.t.Helper()
	body, _ := json.Marshal(map[string]any{
		"model": simModel, "messages": said, "stream": true, "max_tokens": 8, "options": map[string]any{"num_predict": 8}, "stream_options": map[string]any{"include_usage": true},
	})
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+path, strings.NewReader(string(body)))
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusOK, resp.StatusCode, "%s", answer)
	return resp.Header
}

// story is a conversation of so many turns, each of some 500 tokens but for the
// first, of 3,000: what is cached is worth more than a busy machine's delays.
func story(name string, turns int) (out []turn) {
	for i := range turns {
		lines := 130
		if i == 0 {
			lines *= 6
		}
		out = append(out, turn{[]string{"user", "assistant"}[i%2], strings.Repeat(fmt.Sprintf("%s says \"%d\", \u00e9.\n", name, i), lines)})
	}
	return out
}

// R6: each conversation stays with the replica that has it in its prompt cache,
// through all engines; answers, metrics and decisions say so, and what was
// expected in the caches was there.
func TestR6ConversationsStayWithTheirCache(t *testing.T) {
	for _, engine := range []string{"llamacpp", "vllm", "ollama"} {
		for _, pin := range []bool{false, true} {
			if pin && engine != "llamacpp" {
				continue
			}
			t.Run(fmt.Sprintf("%s/pin=%v", engine, pin), func(t *testing.T) {
				path := "/v1/chat/completions"
				if engine == "ollama" {
					path = "/api/chat"
				}
				o := simserver.Options{Engine: engine, Models: []string{simModel}, Slots: 4, Prefill: 10000, Decode: 500, Context: 32768}
				a, b, c := o, o, o
				a.Name, b.Name, c.Name = "a", "b", "c"
				r := newRig(t, setup{replicas: []simserver.Options{a, b, c}, tune: func(c *config.Config) { c.Affinity.PinSlots = pin }})
				home := map[string]string{}
				talks, turns := 6, 7
				if engine == "ollama" {
					talks = 3 // its first idle slot takes whatever is new, whoever's prompt is in it
					r.untilLoaded()
				}
				for n := 1; n <= turns; n += 2 {
					for i := range talks {
						name := fmt.Sprint("talk", i)
						h := r.converse(path, story(name, n))
						if n == 1 {
							home[name] = h.Get("X-Switchyard-Replica")
							require.Equal(t, "miss", h.Get("X-Switchyard-Affinity"))
							continue
						}
						require.Equal(t, home[name], h.Get("X-Switchyard-Replica"), "turn %d of %s", n, name)
						require.Equal(t, "hit", h.Get("X-Switchyard-Affinity"), "turn %d of %s, of %v", n, name, home)
					}
				}
				r.untilEnded(talks * (turns + 1) / 2)
				require.GreaterOrEqual(t, len(spread(home)), 2, "conversations spread")
				cached, expected := 0, 0
				r.notes.count(func(x gateway.Record) bool {
					cached, expected = cached+x.Usage.CachedTokens, expected+x.CachedTokens
					return true
				})
				require.NotZero(t, expected)
				held := 0
				for _, s := range r.fleet {
					held += s.Stats().CachedTokens
				}
				require.InEpsilon(t, expected, held, 0.1, "what was expected in the caches was there")
				if engine != "ollama" { // which does not say
					require.Equal(t, held, cached)
				}
				metrics := r.page("/metrics")
				require.Contains(t, metrics, fmt.Sprintf("switchyard_affinity_total{result=\"miss\"} %d\n", talks))
				require.Contains(t, metrics, fmt.Sprintf("switchyard_affinity_total{result=\"hit\"} %d\n", talks*(turns-1)/2))
				require.Contains(t, metrics, "switchyard_cached_tokens_expected_total{")
				require.Contains(t, r.page("/admin/decisions?limit=1"), `"cached_tokens":`)
				r.untilFree()
			})
		}
	}
}

// untilLoaded has every Ollama load its model: else what is new waits for none.
func (r *rig) untilLoaded() {
	r.t.Helper()
	for _, s := range r.fleet {
		resp, err := r.client.Post(s.URL()+"/api/generate", "application/json", strings.NewReader(`{"model":"`+simModel+`"}`))
		require.NoError(r.t, err)
		resp.Body.Close()
		require.Equal(r.t, http.StatusOK, resp.StatusCode)
		eventually(r.t, "the model to be seen", func() bool {
			models := r.replica(s.Name()).Models
			return len(models) == 1 && models[0].Resident
		})
	}
}

func spread(home map[string]string) map[string]bool {
	all := map[string]bool{}
	for _, at := range home {
		all[at] = true
	}
	return all
}

// R6: what has no prompt cache has no affinity, a replica that restarts has
// nothing in it, and switched off there is none.
func TestR6WhereThereIsNoAffinity(t *testing.T) {
	o := simserver.Options{Engine: "vllm", Models: []string{simModel}, Slots: 2, Prefill: 20000, Decode: 500, Context: 32768}
	a, b := o, o
	a.Name, b.Name = "a", "b"
	r := newRig(t, setup{replicas: []simserver.Options{a, b}})
	resp, err := r.client.Post(r.base+"/v1/embeddings", "application/json", strings.NewReader(`{"model":"`+simModel+`","input":"x"}`))
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, "none", resp.Header.Get("X-Switchyard-Affinity"))

	first := r.converse("/v1/chat/completions", story("x", 1))
	require.Equal(t, "hit", r.converse("/v1/chat/completions", story("x", 3)).Get("X-Switchyard-Affinity"))
	for _, s := range r.fleet {
		if s.Name() == first.Get("X-Switchyard-Replica") {
			require.NoError(t, s.SetFault(simserver.Fault{Kind: "crash", For: 300 * time.Millisecond}))
		}
	}
	home := first.Get("X-Switchyard-Replica")
	eventually(t, "the crash to be seen", func() bool { return !r.replica(home).Up })
	eventually(t, "it to be back", func() bool { return r.replica(home).Up })
	require.Equal(t, "miss", r.converse("/v1/chat/completions", story("x", 5)).Get("X-Switchyard-Affinity"))

	off := newRig(t, setup{replicas: []simserver.Options{{Engine: "llamacpp", Name: "c", Models: []string{simModel}}}, tune: func(c *config.Config) { c.Affinity.Enabled = false }})
	for range 2 {
		require.Equal(t, "none", off.converse("/v1/chat/completions", story("x", 1)).Get("X-Switchyard-Affinity"))
	}
}

// R6: a session's id stands in where the body says nothing of its prompt.
func TestR6SessionHeader(t *testing.T) {
	o := simserver.Options{Engine: "llamacpp", Models: []string{simModel}, Slots: 4, Prefill: 20000, Decode: 500}
	a, b, c := o, o, o
	a.Name, b.Name, c.Name = "a", "b", "c"
	r := newRig(t, setup{replicas: []simserver.Options{a, b, c}})
	ask := func(session string) http.Header {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/completion", strings.NewReader(`{"prompt":"","n_predict":4}`))
		req.Header.Set("X-Session-ID", session)
		resp, err := r.client.Do(req)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return resp.Header
	}
	require.Equal(t, "none", ask("").Get("X-Switchyard-Affinity"))
	home := map[string]string{}
	for _, id := range []string{"one", "two", "three"} {
		home[id] = ask(id).Get("X-Switchyard-Replica")
	}
	for range 3 {
		for id, at := range home {
			h := ask(id)
			require.Equal(t, at, h.Get("X-Switchyard-Replica"))
			require.Equal(t, "hit", h.Get("X-Switchyard-Affinity"))
		}
	}
}

// page is what the admin side answers.
func (r *rig) page(path string) string {
	r.t.Helper()
	resp, err := r.client.Get(r.admin + path)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return string(b)
}
