package simserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"switchyard/simserver/model"
)

// openAIFace speaks as vLLM, or as any server with only OpenAI's paths.
type openAIFace struct {
	s    *Server
	vllm bool
	kept responseStore
}

func (f *openAIFace) idleTimeout() time.Duration { return 2 * time.Minute }
func (f *openAIFace) headTime() headTime         { return headAtOnce }
func (f *openAIFace) newID(n int) string         { return fmt.Sprintf("%016x%08x", f.s.config.Seed, n) }

// gate: vLLM asks for the key under /v1 only.
func (f *openAIFace) gate(w http.ResponseWriter, r *http.Request, loading bool) bool {
	switch {
	case loading:
		f.fail(w, r, f.reject(&model.Rejection{Kind: model.RejectLoading}, nil))
	case f.s.opts.hasKey(r) || f.vllm && !isV1(r):
		return true
	case f.vllm:
		f.s.writeJSON(w, r, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
	default:
		f.fail(w, r, problem{status: http.StatusUnauthorized, message: "Incorrect API key provided."})
	}
	return false
}

func (f *openAIFace) headers(h http.Header, _ *http.Request, contentType string) {
	if contentType == "" {
		contentType = openAIJSON
	}
	h.Set("Content-Type", contentType)
	if f.vllm {
		h.Set("Server", "uvicorn")
	}
}

func (f *openAIFace) streamHeaders(h http.Header, contentType string) {
	f.headers(h, nil, contentType)
}

func (f *openAIFace) routes() []route {
	get, post := http.MethodGet, http.MethodPost
	all := []route{
		{get, "/v1/models", false, f.models},
		{get, "/v1/models/", false, f.oneModel},
		{post, "/v1/chat/completions", true, f.work(parseChat, &openAIForm{f: f, chat: true})},
		{post, "/v1/completions", true, f.work(parseCompletion, &openAIForm{f: f})},
		{post, "/v1/embeddings", true, f.work(parseEmbed, openAIEmbedForm{noStream{openAIJSON}})},
		{post, "/v1/responses", true, f.work(parseResponses, &responsesForm{f.s.config.Kind, &f.kept})},
		{get, "/v1/responses/", false, f.stored},
		{http.MethodDelete, "/v1/responses/", false, f.stored},
	}
	if !f.vllm {
		return all
	}
	rerank := f.work(parseRerank, rerankForm{noStream{openAIJSON}, true})
	return append(all,
		route{get, "/health", false, f.health},
		route{get, "/metrics", false, f.metrics},
		route{get, "/version", false, f.version},
		route{post, "/v1/messages", true, f.work(parseAnthropic, &anthropicForm{model.VLLM})},
		route{post, "/v1/messages/count_tokens", false, f.countTokens},
		route{post, "/rerank", true, rerank},
		route{post, "/v1/rerank", true, rerank},
		route{post, "/tokenize", false, f.tokenize},
		route{post, "/detokenize", false, f.detokenize},
	)
}

const openAIJSON = "application/json"

func (f *openAIFace) stray(w http.ResponseWriter, r *http.Request, method string) {
	if method == "" {
		f.fail(w, r, problem{status: http.StatusNotFound, message: "Not Found"})
		return
	}
	w.Header().Set("Allow", method)
	f.fail(w, r, problem{status: http.StatusMethodNotAllowed, message: "Method Not Allowed"})
}

// openAIKind is OpenAI's type of error for a status.
func openAIKind(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusServiceUnavailable:
		return "service_unavailable_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// vllmKind is vLLM's.
func vllmKind(status int) string {
	switch status {
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	case http.StatusTooManyRequests:
		return "TooManyRequestsError"
	}
	if status >= 500 {
		return "InternalServerError"
	}
	return "BadRequestError"
}

func (f *openAIFace) fail(w http.ResponseWriter, r *http.Request, p problem) {
	kind, code := p.kind, "null"
	if f.vllm {
		code = strconv.Itoa(p.status)
	}
	switch {
	case kind != "":
	case f.vllm:
		kind = vllmKind(p.status)
	default:
		kind = openAIKind(p.status)
	}
	b := append([]byte(`{"error":{"message":`), quotedString(p.message)...)
	b = append(append(b, `,"type":`...), quotedString(kind)...)
	b = append(b, `,"param":`...)
	if p.param == "" {
		b = append(b, "null"...)
	} else {
		b = quoted(b, p.param)
	}
	b = append(append(append(b, `,"code":`...), code...), "}}"...)
	if isAnthropic(r) {
		b = anthropicError(p)
	}
	p.setRetryAfter(w.Header())
	f.s.writeJSON(w, r, p.status, b)
}

func quotedString(s string) []byte { return quoted(nil, s) }

func (f *openAIFace) reject(rej *model.Rejection, a *ask) problem {
	switch rej.Kind {
	case model.RejectModel:
		return problem{status: http.StatusNotFound, param: "model", message: fmt.Sprintf("The model `%s` does not exist.", a.name)}
	case model.RejectTooLong:
		return problem{status: http.StatusBadRequest, message: fmt.Sprintf(
			"This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.", rej.ContextTokens, rej.PromptTokens)}
	case model.RejectLoading:
		return problem{status: http.StatusServiceUnavailable, message: "The model is loading"}
	case model.RejectQueueFull:
		return problem{status: http.StatusServiceUnavailable, message: "The request queue is full."}
	}
	return faulted(rej)
}

func (f *openAIFace) models(w http.ResponseWriter, r *http.Request) {
	b := []byte(`{"object":"list","data":[`)
	for i, name := range f.s.config.Models {
		if i > 0 {
			b = append(b, ',')
		}
		b = f.modelEntry(b, name)
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, "]}"...))
}

func (f *openAIFace) modelEntry(b []byte, name string) []byte {
	owner := "switchyard-sim"
	if f.vllm {
		owner = "vllm"
	}
	b = append(append(b, `{"id":`...), quotedString(name)...)
	b = fmt.Appendf(b, `,"object":"model","created":%d,"owned_by":%q`, f.s.born.Unix(), owner)
	if f.vllm {
		b = append(append(b, `,"root":`...), quotedString(name)...)
		b = fmt.Appendf(b, `,"parent":null,"max_model_len":%d,"permission":[]`, f.s.config.Context)
	}
	return append(b, '}')
}

func (f *openAIFace) oneModel(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path[len("/v1/models/"):]
	for _, m := range f.s.config.Models {
		if m == name {
			f.s.writeJSON(w, r, http.StatusOK, f.modelEntry(nil, m))
			return
		}
	}
	f.fail(w, r, f.reject(&model.Rejection{Kind: model.RejectModel}, &ask{name: name}))
}

// badBody says what is wrong with a body, as vLLM and OpenAI do.
func (f *openAIFace) badBody(w http.ResponseWriter, r *http.Request, err error) {
	f.s.count()
	p := problem{status: http.StatusBadRequest, message: err.Error()}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		p.param = wrong.Field
	}
	f.fail(w, r, p)
}

// work makes the handler of an inference path.
func (f *openAIFace) work(parse func([]byte) (*ask, error), form form) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := parse(f.s.body(r))
		switch {
		case err != nil:
			f.badBody(w, r, err)
		case a.previous != "" && !f.kept.goOn(a):
			f.s.count()
			f.fail(w, r, noResponse(a.previous))
		default:
			if a.name == "" {
				a.name = f.s.config.Models[0]
			}
			f.s.infer(w, r, a, form)
		}
	}
}
