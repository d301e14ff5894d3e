package probe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// R11: what Ollama has and what it has loaded; slots stay unknown.
func TestOllamaReportsItself(t *testing.T) {
	f := anOllama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	got := round(t, p)
	require.True(t, got.Up, got.Err)
	require.Equal(t, replica.EngineOllama, got.Engine)
	require.Equal(t, "0.33.0-rc2", got.Version)
	require.Zero(t, got.Slots)
	require.False(t, got.AnyModel)
	require.True(t, got.ModelsRead)
	require.Equal(t, -1, got.InHand)
	require.Equal(t, -1, got.Waiting)
	require.Len(t, got.Models, 2)

	slow, tiny := got.Models[0], got.Models[1]
	require.Equal(t, "slow:latest", slow.Name)
	require.Equal(t, []string{"slow"}, slow.Aliases, "x is x:latest")
	require.True(t, slow.Resident)
	require.Equal(t, 4096, slow.Context)
	require.Equal(t, int64(39461888), slow.Size)
	require.False(t, slow.OnCPU, "a host that never had VRAM")
	require.Equal(t, "tiny:1b", tiny.Name)
	require.Empty(t, tiny.Aliases)
	require.False(t, tiny.Resident)
	require.Nil(t, tiny.PS)

	// The entries are the replica's own, byte for byte.
	entry := func(list string, i int) string {
		open, shut := strings.Index(list, "["), strings.LastIndex(list, "]")
		return strings.Split(strings.ReplaceAll(list[open+1:shut], "},{", "}\n{"), "\n")[i]
	}
	require.Equal(t, entry(ollamaTags, 0), string(slow.Tag))
	require.Equal(t, entry(ollamaPS, 0), string(slow.PS))
	require.Equal(t, entry(ollamaList, 0), string(slow.OpenAI))
	require.Equal(t, entry(ollamaTags, 1), string(tiny.Tag))
	require.Equal(t, entry(ollamaList, 1), string(tiny.OpenAI))

	require.Equal(t, []string{"/", "/api/version", "/api/ps", "/api/tags", "/v1/models", "/api/version"}, f.took())
	for range listEvery - 1 {
		round(t, p)
		require.Equal(t, []string{"/api/ps"}, f.took())
	}
	round(t, p)
	require.Equal(t, []string{"/api/ps", "/api/tags", "/v1/models"}, f.took())
}

// A model that was pulled is found as soon as it is loaded; one that is loaded
// and was deleted is not looked for in every round.
func TestOllamaNewModel(t *testing.T) {
	f := anOllama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	round(t, p)
	f.set(map[string]reply{"/api/ps": ok(`{"models":[{"name":"new:latest","size":10,"size_vram":0}]}`)})
	f.took()
	got := round(t, p)
	require.Equal(t, []string{"/api/ps", "/api/tags", "/v1/models"}, f.took())
	require.Len(t, got.Models, 3)
	require.True(t, got.Models[2].Resident)
	require.Nil(t, got.Models[2].Tag)
	require.False(t, got.Models[0].Resident)
	round(t, p)
	require.Equal(t, []string{"/api/ps"}, f.took())
}

// v0.6.5: no context_length, and lists that are null while there is no model.
func TestOllamaOld(t *testing.T) {
	f := anOllama(t)
	f.set(map[string]reply{
		"/api/ps":    ok(`{"models":[{"name":"slow:latest","model":"slow:latest","size":546262016,"digest":"3e57","size_vram":0}]}`),
		"/api/tags":  ok(`{"models":null}`),
		"/v1/models": ok(`{"object":"list","data":null}`),
	})
	got := round(t, probing(t, f.serve(), replica.EngineAuto))
	require.True(t, got.ModelsRead)
	require.Len(t, got.Models, 1)
	require.Zero(t, got.Models[0].Context)
	require.Empty(t, got.Note)
}

// R16, PAINS 30: a model that fell off the GPU is told from one that was never
// there, by what the replica showed before.
func TestOllamaCPUFallback(t *testing.T) {
	type load struct {
		model      string
		size, vram int64
	}
	for _, c := range []struct {
		name  string
		steps [][]load
		want  bool // of the first model of the last step
	}{
		{"on the GPU", [][]load{{{"a", 100, 100}}, {{"a", 100, 100}}}, false},
		{"a host without VRAM", [][]load{{{"a", 100, 0}}, {{"a", 100, 0}}}, false},
		{"a CPU build that reports some bytes", [][]load{{{"a", 396, 200}}, {{"a", 320, 200}}, {{"a", 396, 200}}}, false},
		{"never fitted", [][]load{{{"a", 100, 40}}, {{"a", 100, 40}}}, false},
		{"fell wholly", [][]load{{{"a", 100, 100}}, {{"a", 100, 0}}}, true},
		{"fell partly", [][]load{{{"a", 100, 100}}, {{"a", 100, 60}}}, true},
		{"a smaller context", [][]load{{{"a", 100, 100}}, {{"a", 60, 60}}}, false},
		{"a larger context", [][]load{{{"a", 60, 60}}, {{"a", 100, 100}}}, false},
		{"unloaded between", [][]load{{{"a", 100, 100}}, {}, {{"a", 100, 0}}}, true},
		{"came back", [][]load{{{"a", 100, 100}}, {{"a", 100, 0}}, {{"a", 100, 100}}}, false},
		{"another model had the GPU, none has it now", [][]load{{{"b", 100, 100}}, {{"a", 100, 0}}}, true},
		{"another model has the GPU: this one is meant for the CPU", [][]load{{{"a", 100, 0}, {"b", 100, 100}}}, false},
		{"no size", [][]load{{{"a", 0, 0}}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := anOllama(t)
			p := probing(t, f.serve(), replica.EngineAuto)
			var got replica.Facts
			for _, step := range c.steps {
				var rows []string
				for _, l := range step {
					rows = append(rows, fmt.Sprintf(`{"name":"%s:latest","size":%d,"size_vram":%d}`, l.model, l.size, l.vram))
				}
				f.set(map[string]reply{"/api/ps": ok(`{"models":[` + strings.Join(rows, ",") + `]}`)})
				got = round(t, p)
				// A crash between the steps loses nothing of what was seen.
				f.set(map[string]reply{"/api/ps": {status: 500}})
				require.False(t, round(t, p).Up)
			}
			for _, m := range got.Models {
				if m.Name == "a:latest" {
					require.Equal(t, c.want, m.OnCPU)
				}
			}
		})
	}
}

func TestOllamaBusyIsNotDead(t *testing.T) {
	f := anOllama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	round(t, p)
	f.set(map[string]reply{"/api/ps": {hang: true}})
	got := p.Round(t.Context(), 50*time.Millisecond, true)
	require.True(t, got.Up)
	require.True(t, got.Models[0].Resident, "as last said")
	require.Contains(t, got.Note, "busy")
}

// R11: one whose list cannot be read serves any model.
func TestOllamaListHidden(t *testing.T) {
	f := newFake(t, "nginx", map[string]reply{"/api/version": ok(`{"version":"0.20.0"}`)})
	for _, e := range []replica.Engine{replica.EngineAuto, replica.EngineOllama} {
		got := round(t, probing(t, f.serve(), e))
		require.True(t, got.Up)
		require.Equal(t, replica.EngineOllama, got.Engine)
		require.False(t, got.ModelsRead)
		require.Contains(t, got.Note, "/api/ps does not tell")
	}
}

// R11: vLLM's running and waiting requests, over all its engines.
func TestVLLMReportsItself(t *testing.T) {
	f := aVLLM(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	got := round(t, p)
	require.True(t, got.Up, got.Err)
	require.Equal(t, replica.EngineVLLM, got.Engine)
	require.Equal(t, "0.11.0", got.Version)
	require.Equal(t, 5, got.InHand)
	require.Equal(t, 1, got.Waiting)
	require.Equal(t, 2500, got.Progress)
	require.Zero(t, got.Slots)
	require.Equal(t, 32768, got.Context)
	require.Equal(t, "qwen", got.Models[0].Name)
	require.True(t, got.Models[0].Resident)
	require.Empty(t, got.Note)
	f.took()
	round(t, p)
	require.Equal(t, []string{"/metrics"}, f.took())
}

func TestVLLMRecognisedByItsMetrics(t *testing.T) {
	f := aVLLM(t)
	f.set(map[string]reply{"/v1/models": {status: 401, body: `{"error":"Unauthorized"}`}})
	got := round(t, probing(t, f.serve(), replica.EngineAuto))
	require.Equal(t, replica.EngineVLLM, got.Engine)
	require.False(t, got.ModelsRead)
	require.Equal(t, 5, got.InHand)
	require.Contains(t, got.Note, "api_key_env")
}

// PAINS 28: with its statistics switched off, its health is asked: the engine
// may be dead behind a server that lists its models.
func TestVLLMWithoutNumbers(t *testing.T) {
	f := aVLLM(t)
	f.set(map[string]reply{"/metrics": ok("# HELP python_info\npython_info 1\n")})
	p := probing(t, f.serve(), replica.EngineAuto)
	got := round(t, p)
	require.True(t, got.Up)
	require.Equal(t, -1, got.InHand)
	require.Contains(t, got.Note, "/metrics has no vllm: numbers")
	f.set(map[string]reply{"/health": {status: 503}})
	got = round(t, p)
	require.False(t, got.Up)
	require.Contains(t, got.Err, "the engine behind the server has died")
	require.Equal(t, "qwen", got.Models[0].Name, "an outage does not make a model unknown")

	f.set(map[string]reply{"/metrics": {hang: true}, "/health": ok("")})
	got = p.Round(t.Context(), 50*time.Millisecond, true)
	require.True(t, got.Up, "busy is not dead: %s", got.Err)
	require.Equal(t, -1, got.InHand)
}

// Any OpenAI-compatible server: its list is all there is.
func TestOpenAI(t *testing.T) {
	const list = `{"object":"list","data":[{"id":"a","owned_by":"me","context_length":8192},{"id":"b","object":"model","max_model_len":4096},{"id":"a"},{"id":""},{"id":"odd","max_model_len":"many"},7]}`
	f := newFake(t, "", map[string]reply{"/v1/models": ok(list)})
	p := probing(t, f.serve(), replica.EngineAuto)
	got := round(t, p)
	require.True(t, got.Up, got.Err)
	require.Equal(t, replica.EngineOpenAI, got.Engine)
	require.True(t, got.ModelsRead)
	require.Len(t, got.Models, 3)
	require.Equal(t, 8192, got.Models[0].Context)
	require.Equal(t, 4096, got.Models[1].Context)
	require.Equal(t, "odd", got.Models[2].Name)
	require.Zero(t, got.Context, "one of them is unknown")
	require.Equal(t, -1, got.InHand)
	f.took()
	round(t, p)
	require.Equal(t, []string{"/v1/models"}, f.took())

	for _, c := range []struct {
		name string
		r    reply
		up   bool
		read bool
		says string
	}{
		{"a key is wanted", reply{status: 401}, true, false, "it wants an API key"},
		{"forbidden", reply{status: 403}, true, false, "it wants an API key"},
		{"no such path", reply{status: 404, body: "not found"}, true, false, "any name is sent there"},
		{"not a list", ok("<html>hello"), true, false, "is no list of models"},
		{"listed again", ok(list), true, true, ""},
		{"busy", reply{status: 503, body: "no worker"}, true, true, ""},
		{"too many requests", reply{status: 429}, true, true, ""},
		{"failing", reply{status: 500, body: "boom"}, false, true, `GET /v1/models: 500 "boom"`},
		{"nothing behind the proxy", reply{status: 502}, false, true, "GET /v1/models: 502"},
		{"moved", reply{status: 308, header: "Location: https://elsewhere/v1/models"}, false, true, `redirected (308) to "https://elsewhere/v1/models"`},
	} {
		f.set(map[string]reply{"/v1/models": c.r})
		got := round(t, p)
		require.Equal(t, c.up, got.Up, c.name)
		require.Equal(t, c.read, got.ModelsRead, c.name)
		require.False(t, got.Gone, c.name)
		if c.up {
			require.Contains(t, got.Note, c.says, c.name)
		} else {
			require.Contains(t, got.Err, c.says, c.name)
		}
	}
	f.set(map[string]reply{"/v1/models": {status: 503, body: llamaLoading}})
	require.False(t, round(t, probing(t, f.serve(), replica.EngineOpenAI)).ModelsRead)
}

// A configured engine is checked against what answers; openai is never
// contradicted, for every engine speaks it.
func TestWrongEngine(t *testing.T) {
	servers := map[replica.Engine]*fake{
		replica.EngineLlamaCpp: aLlama(t), replica.EngineOllama: anOllama(t), replica.EngineVLLM: aVLLM(t),
		replica.EngineOpenAI: newFake(t, "", map[string]reply{"/v1/models": ok(`{"data":[{"id":"x","owned_by":"sglang"}]}`)}),
	}
	for is, f := range servers {
		u := f.serve()
		for _, configured := range []replica.Engine{replica.EngineLlamaCpp, replica.EngineOllama, replica.EngineVLLM, replica.EngineOpenAI, replica.EngineAuto} {
			p := probing(t, u, configured)
			got := round(t, p)
			switch {
			case configured == is, configured == replica.EngineAuto:
				require.True(t, got.Up, "%s as %s: %s", is, configured, got.Err)
				require.Equal(t, is, got.Engine)
			case configured == replica.EngineOpenAI:
				require.True(t, got.Up, "%s as %s: %s", is, configured, got.Err)
				require.Equal(t, replica.EngineOpenAI, got.Engine)
				require.NotEmpty(t, got.Models)
			case is == replica.EngineOpenAI:
				// Nothing contradicts it: the operator knows better.
				require.True(t, got.Up, "%s as %s: %s", is, configured, got.Err)
				require.Equal(t, configured, got.Engine)
			default:
				require.False(t, got.Up)
				require.Contains(t, got.Err, fmt.Sprintf("configured as engine: %s, but it is %s (", configured, is))
				require.Contains(t, got.Err, fmt.Sprintf("write engine: %s, or auto", is))
			}
		}
	}
}

// An auto replica may come back as another engine, and as another version.
func TestEngineChangesAfterOutage(t *testing.T) {
	f := anOllama(t)
	p := probing(t, f.serve(), replica.EngineAuto)
	require.Equal(t, replica.EngineOllama, round(t, p).Engine)
	f.set(map[string]reply{"/api/ps": {status: 500}})
	got := round(t, p)
	require.False(t, got.Up)
	require.Equal(t, replica.EngineOllama, got.Engine)
	require.Equal(t, "0.33.0-rc2", got.Version)
	require.Len(t, got.Models, 2)

	f.set(map[string]reply{"/api/ps": ok(ollamaPS), "/api/version": ok(`{"version":"0.34.0"}`)})
	require.Equal(t, "0.34.0", round(t, p).Version)

	f.set(map[string]reply{"/api/ps": {status: 500}})
	round(t, p)
	f.set(aLlama(t).mu.replies)
	got = round(t, p)
	require.Equal(t, replica.EngineLlamaCpp, got.Engine, "its models say owned_by llamacpp")
	require.Equal(t, 2, got.Slots)
}

// What is no inference server at all is not taken for one.
func TestNotAnInferenceServer(t *testing.T) {
	for body, r := range map[string]reply{
		"a web page":     ok("<html>hello</html>"),
		"a bad upstream": {status: 502, body: "bad gateway"},
		"overloaded":     {status: 503},
	} {
		f := newFake(t, "", nil)
		f.otherwise = r
		got := round(t, probing(t, f.serve(), replica.EngineAuto))
		require.False(t, got.Up, body)
		require.Equal(t, replica.EngineAuto, got.Engine, body)
		require.Contains(t, got.Err, "GET /v1/models", body)
	}
}
