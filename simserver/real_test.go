//go:build unix

package simserver

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	real "switchyard/internal/engines"
)

// The simulated Ollama is v0.17.4. These are the differences that v0.6.5 shows in
// the same exchanges, and all there are: part of what differences says of each.
var knownDifferences = map[string][]string{
	"/api/ps loaded":                     {"context_length"}, // not told before v0.7
	"unknown model /api/chat":            {"try pulling it first"},
	"unknown model /v1/chat/completions": {"try pulling it first"},
	"GET on POST route":                  {"status 405, not 404"},
	"/api/show":                          {"shape"}, // of the model: lists short enough to be shown
	"embed input longer than the context, truncate=false":          {"input length exceeds maximum context length"},
	"prompt longer than the context, /api/generate truncate=false": {"status 400, not 200"}, // it always cuts
}

// realRig is a real Ollama with the models of the recordings.
type realRig struct {
	t      *testing.T
	server *real.Ollama
}

func newRealRig(t *testing.T) *realRig {
	program, found, err := real.FindOllama()
	require.NoError(t, err)
	if !found {
		t.Skip(real.Missing)
	}
	t.Logf("Ollama %s, %s", real.OllamaVersion(program), program)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	r := &realRig{t, &real.Ollama{Program: program, Dir: t.TempDir(), Parallel: 2, Queue: 1, Context: 512}}
	t.Cleanup(r.server.Kill)
	require.NoError(t, r.server.Start(ctx))
	for i, name := range []string{"tiny", "slow"} {
		file := filepath.Join(t.TempDir(), name+".gguf")
		require.NoError(t, real.Small(uint64(i+1)).Write(file))
		require.NoError(t, r.server.Create(ctx, name, file))
	}
	return r
}

func (r *realRig) post(path, body string) (*http.Response, error) {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return c.Post(r.server.URL()+path, "application/json", strings.NewReader(body))
}

// say sends a request and forgets the answer.
func (r *realRig) say(path, body string) {
	resp, err := r.post(path, body)
	require.NoError(r.t, err)
	require.NoError(r.t, resp.Body.Close())
}

// unloaded waits until no model is resident.
func (r *realRig) unloaded() {
	for _, name := range []string{"tiny", "slow"} {
		r.say("/api/generate", `{"model":"`+name+`","keep_alive":0}`)
	}
	until(r.t, "the models are unloaded", func() bool {
		a := askAs(r.t, r.server.Addr, exchange{method: "GET", path: "/api/ps"})
		return a.body == `{"models":[]}`
	})
}

// loaded waits until the model is resident, and answers.
func (r *realRig) loaded() {
	until(r.t, "the model is loaded", func() bool {
		a := askAs(r.t, r.server.Addr, exchange{method: "POST", path: "/api/chat", body: `{"model":"tiny","stream":false,"options":{"num_predict":1},"messages":[{"role":"user","content":"hello"}]}`})
		return a.status == "200"
	})
}

// ask makes what the exchange presumes and asks.
func (r *realRig) ask(x exchange) asked {
	switch x.setup {
	case "nothing loaded":
		r.unloaded()
	case "again":
		r.say(x.path, x.body)
	case "queue full":
		return r.askOneTooMany(x)
	case "runner dies":
		r.loaded() // else it may die before it has begun, of which Ollama says something else
		x.body = strings.Replace(x.body, `{"model":"tiny"`, `{"model":"tiny","max_tokens":2000,"options":{"num_predict":2000}`, 1)
		time.AfterFunc(time.Second, func() { _, _ = r.server.KillRunners() })
	}
	return askAs(r.t, r.server.Addr, x)
}

// askOneTooMany has many ask for a model that is not loaded, and gives the
// answer of one that was refused.
func (r *realRig) askOneTooMany(x exchange) asked {
	r.unloaded()
	answers := make(chan asked, 12)
	for range cap(answers) {
		go func() {
			a, err := x.ask(r.server.Addr)
			if err != nil {
				a.status = err.Error()
			}
			answers <- a
		}()
	}
	var refused asked
	for range cap(answers) {
		if a := <-answers; a.status == "503" {
			refused = a
		}
	}
	return refused
}

// Each recorded exchange, asked of a real Ollama and of the simulated one: they
// differ in what is known and in nothing else.
func TestRealEngineConformance(t *testing.T) {
	rig := newRealRig(t)
	o := Options{
		Engine: "ollama", Models: []string{"slow", "tiny"}, Slots: 2, Context: 512,
		Prefill: 1e6, Decode: 1e5, OutputTokens: "fixed:4000",
	}
	shared := start(t, o)
	send(t, shared, "POST", "/api/generate", `{"model":"tiny"}`)
	seen := map[string]bool{}
	for _, x := range exchanges(t, "testdata/ollama.txt") {
		t.Run(x.title, func(t *testing.T) {
			x.body = strings.ReplaceAll(x.body, "{{long}}", strings.Repeat("word ", 600))
			s := shared
			if x.setup != "" {
				s = setups[x.setup](t, o, x)
			}
			said := askAs(t, s.front.addr, x)
			var unexpected []string
			for _, d := range differences(x, rig.ask(x), said) {
				i := slices.IndexFunc(knownDifferences[x.title], func(known string) bool { return strings.Contains(d, known) })
				if i < 0 {
					unexpected = append(unexpected, d)
					continue
				}
				seen[x.title+": "+knownDifferences[x.title][i]] = true
			}
			require.Empty(t, unexpected)
		})
	}
	for title, list := range knownDifferences {
		for _, d := range list {
			require.True(t, seen[title+": "+d], "%s: %s: is no longer so", title, d)
		}
	}
}
