package simserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// ChatCompletionRequest is OpenAI's chat body, as far as it matters here. Its
// name is part of the messages of engines written in Go.
type ChatCompletionRequest struct {
	Model               string     `json:"model"`
	Messages            []message  `json:"messages"`
	Stream              bool       `json:"stream"`
	MaxTokens           *int       `json:"max_tokens"`
	MaxCompletionTokens *int       `json:"max_completion_tokens"`
	NPredict            *int       `json:"n_predict"` // llama.cpp
	N                   int        `json:"n"`
	Tools               tools      `json:"tools"`
	ToolChoice          toolChoice `json:"tool_choice"`
	ReasoningEffort     string     `json:"reasoning_effort"`
	TemplateArguments   struct {
		Thinking bool `json:"enable_thinking"`
	} `json:"chat_template_kwargs"` // llama.cpp, vLLM
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	TimingsPerToken bool  `json:"timings_per_token"` // llama.cpp
	ReturnProgress  bool  `json:"return_progress"`   // llama.cpp
	CachePrompt     *bool `json:"cache_prompt"`      // llama.cpp
}

// CompletionRequest is OpenAI's and llama.cpp's body of a completion.
type CompletionRequest struct {
	Model         string `json:"model"`
	Prompt        texts  `json:"prompt"`
	Stream        bool   `json:"stream"`
	MaxTokens     *int   `json:"max_tokens"`
	NPredict      *int   `json:"n_predict"`
	N             int    `json:"n"`
	BestOf        int    `json:"best_of"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	TimingsPerToken bool   `json:"timings_per_token"`
	ReturnProgress  bool   `json:"return_progress"`
	CachePrompt     *bool  `json:"cache_prompt"`
	Grammar         string `json:"grammar"`      // llama.cpp
	InputPrefix     string `json:"input_prefix"` // infill
	InputSuffix     string `json:"input_suffix"`
}

var (
	errNoMessages = errors.New("'messages' is required")
	errCopies     = errors.New("'n' must be at most 16384")
)

// maxCopies bounds what one request may ask for: each copy is room in memory before any work is
// done: without a limit one request could end the whole fleet.
const maxCopies = 16384

func parseChat(body []byte) (*ask, error) {
	var q ChatCompletionRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	if len(q.Messages) == 0 {
		return nil, errNoMessages
	}
	if q.N > maxCopies {
		return nil, errCopies
	}
	a := &ask{name: q.Model, messages: true, perToken: q.TimingsPerToken, returnProgress: q.ReturnProgress && q.Stream}
	a.Model, a.Stream, a.Copies = q.Model, q.Stream, q.N
	a.Max = maxTokens(q.MaxCompletionTokens, q.MaxTokens, q.NPredict)
	a.Prompts = append(a.Prompts, promptOf("", q.Tools, q.Messages))
	a.includeUsage = q.StreamOptions != nil && q.StreamOptions.IncludeUsage
	a.NoCache = q.CachePrompt != nil && !*q.CachePrompt
	for _, m := range q.Messages {
		a.image = a.image || m.Content.image
	}
	a.wants(effort(q.ReasoningEffort) || q.TemplateArguments.Thinking, q.Tools, q.ToolChoice, lastOf(q.Messages))
	return a, nil
}

// effort reads a reasoning effort: any but none is some.
func effort(e string) bool { return e != "" && e != "none" }

var errNoPrompt = errors.New("\"prompt\" is required")

func parseCompletion(body []byte) (*ask, error) {
	var q CompletionRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	if q.InputPrefix+q.InputSuffix != "" {
		q.Prompt = texts{}
		q.Prompt.add(q.InputPrefix + q.InputSuffix)
	}
	if len(q.Prompt.list) == 0 {
		return nil, errNoPrompt
	}
	if max(q.N, q.BestOf) > maxCopies/len(q.Prompt.list) {
		return nil, errCopies
	}
	a := &ask{name: q.Model, grammar: q.Grammar, perToken: q.TimingsPerToken, returnProgress: q.ReturnProgress && q.Stream}
	a.Model, a.Stream, a.Copies = q.Model, q.Stream, max(q.N, q.BestOf)
	a.Max = maxTokens(q.NPredict, q.MaxTokens)
	a.Prompts, a.said = q.Prompt.list, q.Prompt.said
	a.includeUsage = q.StreamOptions != nil && q.StreamOptions.IncludeUsage
	a.NoCache = q.CachePrompt != nil && !*q.CachePrompt
	return a, nil
}

// body reads a request's body; a client that leaves meanwhile ends the handler.
func (s *Server) body(r *http.Request) []byte {
	b, err := readBody(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return b
}

// count counts a request that gets its answer before it is work.
func (s *Server) count() {
	s.do(func(now time.Time) { s.model.CountRequest(now) })
}
