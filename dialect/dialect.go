// Package dialect knows the client formats: which paths there are, what a body
// asks for, how errors and stream events look. It keeps no state beyond one
// body or one stream, does no I/O and never decodes a body into maps.
package dialect

// Format is the message format a client speaks; it decides how errors look.
type Format uint8

// The formats.
const (
	OpenAI    Format = iota // chat, completions, embeddings, rerank, lists
	Responses               // OpenAI Responses API
	Anthropic               // /v1/messages
	Ollama                  // /api/…
	LlamaCpp                // /completion, /infill, …
)

// Kind is what a path does.
type Kind uint8

// The kinds of path.
const (
	KindChat     Kind = iota // messages in, text out
	KindGenerate             // prompt in, text out
	KindEmbed                // inputs in, vectors out
	KindRerank
	KindHelper // takes no slot: show, version, tokenize, count_tokens, …
	KindList   // model lists, answered by the gateway itself
	KindHealth // /healthz, /readyz, /
	KindStored // /v1/responses/{id}
	KindManage // Ollama's model management: forbidden unless allowed
)

// Endpoint is one path of the data plane.
type Endpoint struct {
	Path    string // as a client sends it; a trailing slash marks a prefix
	Methods []string
	Format  Format
	Kind    Kind
	// Engines names the engines that serve it ("ollama", "llamacpp", "vllm",
	// "openai"); empty for what the gateway answers itself.
	Engines []string
	// StreamDefault: an absent "stream" field means a stream (Ollama native).
	StreamDefault bool
}

// Inference reports whether requests to the path take a slot and are counted.
func (e *Endpoint) Inference() bool {
	return e.Kind <= KindRerank
}
