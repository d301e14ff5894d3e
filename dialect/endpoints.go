package dialect

import (
	"net/http"
	"slices"
	"strings"
)

// Who serves what. Where it is not known whether an engine has a path the
// table is generous: a replica that lacks it says so, and the request goes on.
var (
	anyEngine    = []string{"llamacpp", "ollama", "vllm", "openai"}
	notOllama    = []string{"llamacpp", "vllm", "openai"} // Ollama neither ranks nor counts tokens
	onlyOllama   = []string{"ollama"}
	onlyLlamaCpp = []string{"llamacpp"}
	rerankers    = []string{"llamacpp", "vllm"}
)

// Methods, as an Allow header lists them; HEAD wherever GET.
var (
	post      = []string{http.MethodPost}
	get       = []string{http.MethodGet, http.MethodHead}
	getDelete = []string{http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodPost} // POST: …/cancel
	remove    = []string{http.MethodDelete}
	blobs     = []string{http.MethodHead, http.MethodPost}
)

// table is every path of the data plane. What is not here is a 404.
var table = [...]Endpoint{
	{Path: "/v1/chat/completions", Methods: post, Format: OpenAI, Kind: KindChat, Engines: anyEngine},
	{Path: "/v1/completions", Methods: post, Format: OpenAI, Kind: KindGenerate, Engines: anyEngine},
	{Path: "/v1/embeddings", Methods: post, Format: OpenAI, Kind: KindEmbed, Engines: anyEngine},
	{Path: "/v1/responses", Methods: post, Format: Responses, Kind: KindChat, Engines: anyEngine},
	{Path: "/v1/rerank", Methods: post, Format: OpenAI, Kind: KindRerank, Engines: notOllama},
	{Path: "/v1/models", Methods: get, Format: OpenAI, Kind: KindList},
	{Path: "/v1/models/", Methods: get, Format: OpenAI, Kind: KindList},
	{Path: "/v1/responses/", Methods: getDelete, Format: Responses, Kind: KindStored, Engines: anyEngine},

	{Path: "/v1/messages", Methods: post, Format: Anthropic, Kind: KindChat, Engines: anyEngine},
	{Path: "/v1/messages/count_tokens", Methods: post, Format: Anthropic, Kind: KindHelper, Engines: notOllama},

	{Path: "/api/chat", Methods: post, Format: Ollama, Kind: KindChat, Engines: onlyOllama, StreamDefault: true},
	{Path: "/api/generate", Methods: post, Format: Ollama, Kind: KindGenerate, Engines: onlyOllama, StreamDefault: true},
	{Path: "/api/embed", Methods: post, Format: Ollama, Kind: KindEmbed, Engines: onlyOllama},
	{Path: "/api/embeddings", Methods: post, Format: Ollama, Kind: KindEmbed, Engines: onlyOllama},
	{Path: "/api/show", Methods: post, Format: Ollama, Kind: KindHelper, Engines: onlyOllama},
	{Path: "/api/tags", Methods: get, Format: Ollama, Kind: KindList},
	{Path: "/api/ps", Methods: get, Format: Ollama, Kind: KindList},
	{Path: "/api/version", Methods: get, Format: Ollama, Kind: KindHelper, Engines: onlyOllama},
	{Path: "/api/pull", Methods: post, Format: Ollama, Kind: KindManage, Engines: onlyOllama},
	{Path: "/api/push", Methods: post, Format: Ollama, Kind: KindManage, Engines: onlyOllama},
	{Path: "/api/create", Methods: post, Format: Ollama, Kind: KindManage, Engines: onlyOllama},
	{Path: "/api/copy", Methods: post, Format: Ollama, Kind: KindManage, Engines: onlyOllama},
	{Path: "/api/delete", Methods: remove, Format: Ollama, Kind: KindManage, Engines: onlyOllama},
	{Path: blobPath, Methods: blobs, Format: Ollama, Kind: KindManage, Engines: onlyOllama},

	{Path: "/completion", Methods: post, Format: LlamaCpp, Kind: KindGenerate, Engines: onlyLlamaCpp},
	{Path: "/infill", Methods: post, Format: LlamaCpp, Kind: KindGenerate, Engines: onlyLlamaCpp},
	{Path: "/embedding", Methods: post, Format: LlamaCpp, Kind: KindEmbed, Engines: onlyLlamaCpp},
	{Path: "/rerank", Methods: post, Format: LlamaCpp, Kind: KindRerank, Engines: rerankers},
	{Path: "/tokenize", Methods: post, Format: LlamaCpp, Kind: KindHelper, Engines: onlyLlamaCpp},
	{Path: "/detokenize", Methods: post, Format: LlamaCpp, Kind: KindHelper, Engines: onlyLlamaCpp},
	{Path: "/apply-template", Methods: post, Format: LlamaCpp, Kind: KindHelper, Engines: onlyLlamaCpp},

	{Path: "/", Methods: get, Format: Ollama, Kind: KindHealth},
	{Path: "/healthz", Methods: get, Format: OpenAI, Kind: KindHealth},
	{Path: "/readyz", Methods: get, Format: OpenAI, Kind: KindHealth},
}

// blobPath takes raw bytes instead of JSON.
const blobPath = "/api/blobs/"

var (
	exact    = make(map[string]*Endpoint, len(table))
	prefixed []*Endpoint
)

func init() {
	for i := range table {
		e := &table[i]
		if len(e.Path) > 1 && strings.HasSuffix(e.Path, "/") {
			prefixed = append(prefixed, e)
		} else {
			exact[e.Path] = e
		}
	}
}

// Lookup finds the endpoint of a request's path (decoded, without the query).
// Endpoints whose Path ends in a slash take anything that follows it, but not
// nothing. The result is shared: do not change it.
func Lookup(path string) (*Endpoint, bool) {
	if e, ok := exact[path]; ok {
		return e, true
	}
	for _, e := range prefixed {
		if len(path) > len(e.Path) && strings.HasPrefix(path, e.Path) {
			return e, true
		}
	}
	return nil, false
}

// Allows reports whether the endpoint takes the method.
func (e *Endpoint) Allows(method string) bool {
	return slices.Contains(e.Methods, method)
}
