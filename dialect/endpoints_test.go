package dialect

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestR17EveryPathOfTheInterface(t *testing.T) {
	inference := map[string]Format{
		"/v1/chat/completions": OpenAI, "/v1/completions": OpenAI, "/v1/embeddings": OpenAI, "/v1/rerank": OpenAI,
		"/v1/responses": Responses, "/v1/messages": Anthropic,
		"/api/chat": Ollama, "/api/generate": Ollama, "/api/embed": Ollama, "/api/embeddings": Ollama,
		"/completion": LlamaCpp, "/infill": LlamaCpp, "/embedding": LlamaCpp, "/rerank": LlamaCpp,
	}
	for path, f := range inference {
		ep := at(t, path)
		require.Equal(t, f, ep.Format, path)
		require.True(t, ep.Inference(), path)
		require.Equal(t, []string{"POST"}, ep.Methods, path)
		require.NotEmpty(t, ep.Engines, path)
		require.Equal(t, path == "/api/chat" || path == "/api/generate", ep.StreamDefault, path)
	}
	others := map[string]Kind{
		"/v1/models": KindList, "/v1/models/org/name:tag": KindList, "/api/tags": KindList, "/api/ps": KindList,
		"/v1/messages/count_tokens": KindHelper, "/api/show": KindHelper, "/api/version": KindHelper,
		"/tokenize": KindHelper, "/detokenize": KindHelper, "/apply-template": KindHelper,
		"/": KindHealth, "/healthz": KindHealth, "/readyz": KindHealth,
		"/v1/responses/resp_1": KindStored, "/v1/responses/resp_1/cancel": KindStored,
		"/api/pull": KindManage, "/api/push": KindManage, "/api/create": KindManage, "/api/copy": KindManage,
		"/api/delete": KindManage, "/api/blobs/sha256:00": KindManage,
	}
	for path, kind := range others {
		ep := at(t, path)
		require.Equal(t, kind, ep.Kind, path)
		require.False(t, ep.Inference(), path)
	}
}

func TestR17UnknownPaths(t *testing.T) {
	for _, path := range []string{
		"", "//", "/v1", "/v1/", "/v1/models/", "/v1/responses/", "/api/blobs/", "/v1/chat/completions/", "/V1/chat/completions",
		"/health", "/slots", "/props", "/metrics", "/dashboard/", "/chat/completions", "v1/models",
	} {
		_, ok := Lookup(path)
		require.False(t, ok, path)
	}
}

func TestR17Methods(t *testing.T) {
	for i := range table {
		ep := &table[i]
		require.NotEmpty(t, ep.Methods)
		if ep.Allows(http.MethodGet) {
			require.True(t, ep.Allows(http.MethodHead), "HEAD wherever GET: %s", ep.Path)
		}
		require.False(t, ep.Allows("CONNECT"), ep.Path)
	}
	require.False(t, at(t, "/v1/chat/completions").Allows("GET"))
	require.True(t, at(t, "/v1/responses/resp_1").Allows("DELETE"))
}

func TestEnginesServeWhatTheyHave(t *testing.T) {
	serves := func(path, engine string) bool { return slices.Contains(at(t, path).Engines, engine) }
	for _, engine := range []string{"llamacpp", "ollama", "vllm", "openai"} {
		require.True(t, serves("/v1/chat/completions", engine))
		require.True(t, serves("/v1/messages", engine), "llama.cpp and Ollama serve it too")
	}
	require.False(t, serves("/v1/rerank", "ollama"))
	require.False(t, serves("/api/chat", "llamacpp"), "llama.cpp answers 404 there")
	require.False(t, serves("/completion", "ollama"))
}
