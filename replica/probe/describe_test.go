package probe

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// One line says what was found and where each number comes from, and advises
// where the engine cannot say (R11: Ollama).
func TestDescribe(t *testing.T) {
	look := func(f *fake, e replica.Engine) replica.Facts { return round(t, probing(t, f.serve(), e)) }
	loading := newFake(t, "llama.cpp", nil)
	loading.otherwise = reply{status: 503, body: llamaLoading}
	asleep := aLlama(t)
	asleep.set(map[string]reply{"/props": ok(propsAnswer("true"))})
	bare := newFake(t, "", map[string]reply{"/v1/models": {status: 401}})
	crowd := replica.Facts{Up: true, Engine: replica.EngineOpenAI, ModelsRead: true}
	for i := range 9 {
		crowd.Models = append(crowd.Models, replica.Model{Name: fmt.Sprintf("m%d", i)})
	}
	resident := func(size, vram int64, fell bool) replica.Facts {
		return replica.Facts{
			Up: true, Engine: replica.EngineOllama, ModelsRead: true,
			Models: []replica.Model{{Name: "a", Resident: true, Size: size, SizeVRAM: vram, OnCPU: fell}},
		}
	}
	for _, c := range []struct {
		name  string
		f     replica.Facts
		slots map[string]int
		want  string
	}{
		{
			"llama.cpp", look(aLlama(t), replica.EngineAuto), nil,
			"llama.cpp b1-80fb11a; 2 slots (as it reports); context 4096 tokens; model tiny (it answers to any name)",
		},
		{
			"llama.cpp, other slots configured", look(aLlama(t), replica.EngineAuto),
			map[string]int{"*": 4},
			"llama.cpp b1-80fb11a; 4 slots (configured; it reports 2); context 4096 tokens; model tiny (it answers to any name)",
		},
		{
			"loading", look(loading, replica.EngineAuto), nil,
			"llama.cpp; still loading its model; it is used as soon as it is ready",
		},
		{
			"asleep", look(asleep, replica.EngineAuto), nil,
			"llama.cpp b1-80fb11a; 2 slots (as it reports); context 4096 tokens; model tiny (it answers to any name); asleep",
		},
		{
			"Ollama", look(anOllama(t), replica.EngineAuto), nil,
			"Ollama 0.33.0-rc2; 1 slot per model, because Ollama does not report its parallelism: start it with OLLAMA_NUM_PARALLEL=N and write slots: N here; models slow:latest, tiny:1b, loaded: slow:latest (on the CPU)",
		},
		{
			"Ollama, slots configured", look(anOllama(t), replica.EngineAuto),
			map[string]int{"*": 1},
			"Ollama 0.33.0-rc2; 1 slot per model (configured); models slow:latest, tiny:1b, loaded: slow:latest (on the CPU)",
		},
		{
			"by model", resident(100, 100, false),
			map[string]int{"a": 2, "*": 1},
			"Ollama; slots others 1, a 2 (configured); model a, loaded: a (on the GPU)",
		},
		{
			"fell off", resident(100, 60, true),
			map[string]int{"*": 2},
			"Ollama; 2 slots per model (configured); model a, loaded: a (60% on the GPU, was on the GPU before)",
		},
		{
			"vLLM", look(aVLLM(t), replica.EngineAuto), nil,
			"vLLM 0.11.0; slots are learned, beginning with 16, because vLLM does not report --max-num-seqs: write it as slots: N to fix them; context 32768 tokens; model qwen",
		},
		{
			"key wanted", look(bare, replica.EngineAuto), nil,
			"OpenAI-compatible server; 1 slot, because it does not report how many requests it runs at once: write slots: N; models unknown, any name is sent there; note: it wants an API key (GET /v1/models: 401): name its variable in api_key_env",
		},
		{
			"many models", crowd,
			map[string]int{"*": 8},
			"OpenAI-compatible server; 8 slots (configured); models m0, m1, m2, m3, m4, m5 and 3 more",
		},
		{
			"wrong engine", look(anOllama(t), replica.EngineVLLM), nil,
			`not usable yet: configured as engine: vllm, but it is ollama (GET / says "Ollama is running"); write engine: ollama, or auto; it is asked again and again`,
		},
		{
			"control characters",
			replica.Facts{Up: true, Engine: replica.EngineOpenAI, ModelsRead: true, Models: []replica.Model{{Name: "a\x1b[2J\nb"}}},
			nil,
			"OpenAI-compatible server; 1 slot, because it does not report how many requests it runs at once: write slots: N; model a?[2J?b",
		},
	} {
		require.Equal(t, c.want, Describe(c.f, c.slots), c.name)
	}
}
