package simserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"switchyard/simserver/model"
)

// llamaCppFace speaks as llama-server does, with one model or as a router.
type llamaCppFace struct{ s *Server }

const (
	llamaBuild        = "b1-80fb11a"
	llamaIdle         = 5 * time.Second
	llamaConnRequests = 100
	llamaJSON         = "application/json; charset=utf-8"
)

func (f *llamaCppFace) idleTimeout() time.Duration { return llamaIdle }
func (f *llamaCppFace) headTime() headTime         { return headAtStart }

func (f *llamaCppFace) newID(n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	x := f.s.config.Seed + uint64(n)*0x9e3779b97f4a7c15
	var b [32]byte
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = letters[(x>>33)%uint64(len(letters))]
	}
	return string(b[:])
}

// gate counts the requests of a connection, the hundredth is its last, and
// refuses in llama.cpp's order: loading, the key, then what it cannot read.
func (f *llamaCppFace) gate(w http.ResponseWriter, r *http.Request, loading bool) bool {
	h := w.Header()
	h["Date"] = nil // cpp-httplib sends none
	h.Set("Server", "llama.cpp")
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	if c := connOf(r); c != nil {
		if c.seen++; c.seen >= llamaConnRequests {
			h.Set("Connection", "close")
		}
	}
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", "*")
		h.Set("Content-Type", "text/html")
		f.keepAlive(h)
		w.WriteHeader(http.StatusOK)
		return false
	}
	switch {
	case loading:
		f.fail(w, r, f.reject(&model.Rejection{Kind: model.RejectLoading}, nil))
	case !f.s.opts.hasKey(r) && r.URL.Path != "/health" && r.URL.Path != "/v1/health":
		f.fail(w, r, problem{status: http.StatusUnauthorized, kind: "authentication_error", message: "Invalid API Key"})
	case r.Header.Get("Content-Encoding") != "" && r.Method == http.MethodPost:
		h.Set("Connection", "close")
		h.Set("Content-Length", "0")
		w.WriteHeader(http.StatusUnsupportedMediaType) // not a word about it
	default:
		return true
	}
	return false
}

func (f *llamaCppFace) keepAlive(h http.Header) {
	if h.Get("Connection") == "" {
		h.Set("Keep-Alive", "timeout=5, max=100")
	}
}

func (f *llamaCppFace) headers(h http.Header, _ *http.Request, contentType string) {
	if contentType == "" {
		contentType = llamaJSON
	}
	h.Set("Content-Type", contentType)
	f.keepAlive(h)
}

func (f *llamaCppFace) streamHeaders(h http.Header, contentType string) {
	h.Set("X-Accel-Buffering", "no")
	f.headers(h, nil, contentType)
}

func (f *llamaCppFace) routes() []route {
	get, post := http.MethodGet, http.MethodPost
	whole := noStream{llamaJSON}
	chat := f.work(parseChat, &llamaOpenAIForm{chat: true})
	completion := f.work(parseCompletion, llamaNativeForm{})
	responses := f.work(parseResponses, &responsesForm{kind: model.LlamaCpp})
	embedding, openEmbedding := f.work(parseEmbed, llamaEmbedForm{whole}), f.work(parseEmbed, openAIEmbedForm{whole})
	if !f.s.opts.Embeddings {
		embedding = f.flagMissing("embeddings", "--embeddings")
		openEmbedding = embedding
	}
	rerank := f.work(parseRerank, rerankForm{noStream: whole})
	if !f.s.opts.Reranking {
		rerank = f.flagMissing("reranking", "--reranking")
	}
	props, models := f.ofModel(f.props), f.models
	if f.router() {
		models = f.routerModels
		props = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("model") == "" {
				f.routerProps(w, r)
				return
			}
			f.ofModel(f.props)(w, r)
		}
	}
	return []route{
		{get, "/health", false, f.health},
		{get, "/v1/health", false, f.health},
		{get, "/props", false, props},
		{get, "/slots", false, f.ofModel(f.slots)},
		{post, "/slots/", false, f.flagMissing("slots action", "--slot-save-path")},
		{get, "/metrics", false, f.ofModel(f.metrics)},
		{get, "/v1/models", false, models},
		{get, "/models", false, models},
		{post, "/v1/chat/completions", true, chat},
		{post, "/chat/completions", true, chat},
		{post, "/v1/completions", true, f.work(parseCompletion, &llamaOpenAIForm{})},
		{post, "/completion", true, completion},
		{post, "/completions", true, completion},
		{post, "/infill", true, completion},
		{post, "/v1/messages", true, f.work(parseAnthropic, &anthropicForm{model.LlamaCpp})},
		{post, "/v1/responses", true, responses},
		{post, "/responses", true, responses},
		{post, "/v1/embeddings", true, openEmbedding},
		{post, "/embedding", true, embedding},
		{post, "/embeddings", true, embedding},
		{post, "/rerank", true, rerank},
		{post, "/v1/rerank", true, rerank},
		{post, "/reranking", true, rerank},
		{post, "/v1/reranking", true, rerank},
		{post, "/tokenize", false, f.tokens(func(b []byte, q *tokenRequest) []byte {
			return append(appendIDs(append(b, `{"tokens":`...), tokenize(q.Content)), '}')
		})},
		{post, "/detokenize", false, f.tokens(func(b []byte, q *tokenRequest) []byte {
			return append(quoted(append(b, `{"content":`...), detokenize(q.Tokens)), '}')
		})},
		{post, "/apply-template", false, f.tokens(func(b []byte, q *tokenRequest) []byte {
			return append(quoted(append(b, `{"prompt":`...), template(q.Messages)), '}')
		})},
		{post, "/v1/messages/count_tokens", false, f.tokens(func(b []byte, q *tokenRequest) []byte {
			return fmt.Appendf(b, `{"input_tokens":%d}`, q.count())
		})},
		{post, "/v1/chat/completions/input_tokens", false, f.tokens(func(b []byte, q *tokenRequest) []byte {
			return fmt.Appendf(b, `{"input_tokens":%d,"object":"response.input_tokens"}`, q.count())
		})},
	}
}

// flagMissing answers a path that the server was not started for.
func (f *llamaCppFace) flagMissing(what, flag string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if rt, _ := f.s.find(r.Method, r.URL.Path); rt.work {
			f.s.count()
		}
		f.fail(w, r, problem{
			status:  http.StatusNotImplemented,
			message: fmt.Sprintf("This server does not support %s. Start it with `%s`", what, flag),
		})
	}
}

// tokens makes the handler of a path around the tokenizer, which takes no slot.
func (f *llamaCppFace) tokens(say func([]byte, *tokenRequest) []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q tokenRequest
		body := f.s.body(r)
		if err := json.Unmarshal(body, &q); err != nil {
			f.fail(w, r, f.bodyProblem(body, err))
			return
		}
		if _, ok := f.asked(w, r, q.Model); ok {
			f.s.writeJSON(w, r, http.StatusOK, say(nil, &q))
		}
	}
}

// stray: to llama.cpp a wrong method is an unknown path.
func (f *llamaCppFace) stray(w http.ResponseWriter, r *http.Request, _ string) {
	f.fail(w, r, problem{status: http.StatusNotFound, kind: "not_found_error", message: "File Not Found"})
}

// fail answers an error, after which llama.cpp closes the connection.
func (f *llamaCppFace) fail(w http.ResponseWriter, r *http.Request, p problem) {
	kind := p.kind
	if kind == "" {
		switch p.status {
		case http.StatusServiceUnavailable:
			kind = "unavailable_error"
		case http.StatusNotImplemented:
			kind = "not_supported_error"
		default:
			kind = "invalid_request_error"
			if p.status >= 500 {
				kind = "server_error"
			}
		}
	}
	b := fmt.Appendf(nil, `{"error":{"code":%d,"message":`, p.status)
	b = append(append(quoted(b, p.message), `,"type":`...), quotedString(kind)...)
	b = append(append(b, p.fields...), "}}"...)
	h := w.Header()
	h.Set("Connection", "close")
	h.Del("Keep-Alive")
	p.setRetryAfter(h)
	f.s.writeJSON(w, r, p.status, b)
}

func (f *llamaCppFace) reject(rej *model.Rejection, _ *ask) problem {
	switch rej.Kind {
	case model.RejectLoading:
		return problem{status: http.StatusServiceUnavailable, message: "Loading model"}
	case model.RejectTooLong:
		return problem{
			status: http.StatusBadRequest, kind: "exceed_context_size_error",
			message: fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", rej.PromptTokens, rej.ContextTokens),
			fields:  fmt.Sprintf(`,"n_prompt_tokens":%d,"n_ctx":%d`, rej.PromptTokens, rej.ContextTokens),
		}
	}
	return faulted(rej)
}

// bodyProblem is what is wrong with a body: bad JSON is llama.cpp's own failure.
func (f *llamaCppFace) bodyProblem(body []byte, err error) problem {
	p := problem{status: http.StatusBadRequest, message: err.Error()}
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax) && len(body) == 0:
		p.status = http.StatusInternalServerError
		p.message = "[json.exception.parse_error.101] parse error at line 1, column 1: attempting to parse an empty input; check that your input string or stream contains the expected JSON"
	case errors.As(err, &syntax):
		p.status = http.StatusInternalServerError
		read := body[:min(int(syntax.Offset), len(body))]
		p.message = fmt.Sprintf("[json.exception.parse_error.101] parse error at line %d, column %d: syntax error while parsing value - invalid literal; last read: '%s'",
			1+strings.Count(string(read), "\n"), len(read), read[max(0, len(read)-12):])
	case errors.Is(err, errContent):
		p.message = "Expected 'content' to be a string or an array"
	case errors.As(err, &wrong) && wrong.Field == "messages":
		p.message = "Expected 'messages' to be an array"
	case errors.As(err, &wrong):
		want := "number"
		switch wrong.Type.Kind().String() {
		case "string":
			want = "string"
		case "bool":
			want = "boolean"
		}
		p.message = fmt.Sprintf("Field '%s': [json.exception.type_error.302] type must be %s, but is %s", wrong.Field, want, wrong.Value)
	}
	return p
}

func (f *llamaCppFace) health(w http.ResponseWriter, r *http.Request) {
	f.s.writeJSON(w, r, http.StatusOK, []byte(`{"status":"ok"}`))
}

// work makes the handler of an inference path. A conversation id makes a stream
// resumable.
func (f *llamaCppFace) work(parse func([]byte) (*ask, error), form form) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := f.s.body(r)
		a, err := parse(body)
		var p problem
		switch {
		case err != nil:
			p = f.bodyProblem(body, err)
		case a.image:
			p = problem{status: http.StatusInternalServerError, message: "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"}
		case strings.Count(a.grammar, "(") != strings.Count(a.grammar, ")"):
			p = problem{status: http.StatusBadRequest, message: "Failed to initialize samplers: failed to parse grammar"}
		case a.previous != "":
			p = problem{status: http.StatusBadRequest, message: "llama.cpp does not support 'previous_response_id'."}
		default:
			name, ok := f.asked(w, r, a.name)
			if !ok {
				f.s.count()
				return
			}
			a.name, a.Model, a.store = name, name, false
			a.Detached = a.Stream && r.Header.Get("X-Conversation-Id") != ""
			f.s.infer(w, r, a, form)
			return
		}
		f.s.count()
		f.fail(w, r, p)
	}
}
