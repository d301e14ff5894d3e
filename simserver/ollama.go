package simserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"switchyard/simserver/model"
)

// ollamaFace speaks as Ollama does, natively and as OpenAI.
type ollamaFace struct{ s *Server }

const (
	ollamaJSON    = "application/json; charset=utf-8"
	ollamaVersion = "0.17.4"
)

func (f *ollamaFace) idleTimeout() time.Duration { return 2 * time.Minute }
func (f *ollamaFace) headTime() headTime         { return headAtToken }
func (f *ollamaFace) newID(n int) string         { return fmt.Sprint(n % 1000) }

// gate is Ollama's check on a loopback address: foreign hosts and origins get
// an empty 403.
func (f *ollamaFace) gate(w http.ResponseWriter, r *http.Request, _ bool) bool {
	origin := r.Header.Get("Origin")
	if localHost(r.Host) && (origin == "" || localOrigin(origin)) {
		return true
	}
	w.WriteHeader(http.StatusForbidden)
	return false
}

func localHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(strings.ToLower(host), "[]")
	if host == "" || host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

func localOrigin(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	h := u.Hostname()
	return h == "localhost" || h == "127.0.0.1" || h == "0.0.0.0"
}

func isV1(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/") }

func (f *ollamaFace) headers(h http.Header, r *http.Request, contentType string) {
	switch {
	case contentType != "":
	case h.Get("Content-Type") != "":
		return
	case r != nil && isV1(r) && r.Method == http.MethodGet:
		contentType = "application/json"
	default:
		contentType = ollamaJSON
	}
	h.Set("Content-Type", contentType)
}

func (f *ollamaFace) streamHeaders(h http.Header, contentType string) {
	h.Set("Content-Type", contentType)
}

func (f *ollamaFace) routes() []route {
	get, head, post := http.MethodGet, http.MethodHead, http.MethodPost
	return []route{
		{get, "/", false, f.root},
		{head, "/", false, f.root},
		{get, "/api/version", false, f.version},
		{head, "/api/version", false, f.version},
		{get, "/api/tags", false, f.tags},
		{head, "/api/tags", false, f.tags},
		{get, "/api/ps", false, f.ps},
		{post, "/api/show", false, f.show},
		{get, "/v1/models", false, f.models},
		{get, "/v1/models/", false, f.oneModel},
		{post, "/api/chat", true, f.work(parseOllamaChat, &ollamaForm{chat: true})},
		{post, "/api/generate", true, f.work(parseOllamaGenerate, &ollamaForm{})},
		{post, "/api/embed", true, f.work(parseEmbed, ollamaEmbedForm{noStream{ollamaJSON}, false})},
		{post, "/api/embeddings", true, f.work(parseEmbed, ollamaEmbedForm{noStream{ollamaJSON}, true})},
		{post, "/v1/chat/completions", true, f.work(parseChat, &ollamaOpenAIForm{chat: true})},
		{post, "/v1/completions", true, f.work(parseCompletion, &ollamaOpenAIForm{})},
		{post, "/v1/embeddings", true, f.work(parseEmbed, openAIEmbedForm{noStream{openAIJSON}})},
		{post, "/v1/messages", true, f.work(parseAnthropic, &anthropicForm{model.Ollama})},
		{post, "/v1/responses", true, f.work(parseResponses, &responsesForm{kind: model.Ollama})},
	}
}

func (f *ollamaFace) stray(w http.ResponseWriter, _ *http.Request, method string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain")
	status, text := http.StatusNotFound, "404 page not found"
	if method != "" {
		h.Set("Allow", method)
		status, text = http.StatusMethodNotAllowed, "405 method not allowed"
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// fail answers an error in the native form, or OpenAI's under /v1.
func (f *ollamaFace) fail(w http.ResponseWriter, r *http.Request, p problem) {
	p.setRetryAfter(w.Header())
	if !isV1(r) {
		f.s.writeJSON(w, r, p.status, append(quoted([]byte(`{"error":`), p.message), '}'))
		return
	}
	kind := p.kind
	if kind == "" {
		kind = "api_error"
		if p.status == http.StatusBadRequest {
			kind = "invalid_request_error"
		}
	}
	b := append(quoted([]byte(`{"error":{"message":`), p.message), `,"type":`...)
	b = append(quoted(b, kind), `,"param":null,"code":null}}`+"\n"...)
	if isAnthropic(r) {
		b = anthropicError(p)
	}
	if p.status != http.StatusBadRequest { // those the model itself gives
		w.Header().Set("Content-Type", openAIJSON)
	}
	f.s.writeJSON(w, r, p.status, b)
}

func (f *ollamaFace) reject(rej *model.Rejection, a *ask) problem {
	switch rej.Kind {
	case model.RejectModel:
		p := problem{status: http.StatusNotFound, message: fmt.Sprintf("model '%s' not found", a.name)}
		if a.inputs > 0 {
			p.message = fmt.Sprintf("model %q not found, try pulling it first", a.name)
		}
		return p
	case model.RejectTooLong:
		return problem{status: http.StatusBadRequest, message: "the input length exceeds the context length"}
	case model.RejectQueueFull:
		return problem{status: http.StatusServiceUnavailable, message: "server busy, please try again.  maximum pending requests exceeded"}
	case model.RejectLoading:
		return problem{status: http.StatusServiceUnavailable, message: "llm server loading model"}
	}
	return faulted(rej)
}

// badBody says what is wrong with a body: a wrong option is Ollama's own failure.
func (f *ollamaFace) badBody(w http.ResponseWriter, r *http.Request, body []byte, err error) {
	f.s.count()
	p := problem{status: http.StatusBadRequest, message: err.Error()}
	var wrong *json.UnmarshalTypeError
	switch {
	case len(body) == 0:
		p.message = "missing request body"
		if isV1(r) {
			p.message = "EOF"
		}
	case errors.Is(err, errNoMessages):
		p.message = "[] is too short - 'messages'"
	case errors.As(err, &wrong) && strings.HasPrefix(wrong.Field, "options."):
		p.status = http.StatusInternalServerError
		p.message = fmt.Sprintf("option %q must be of type %s", strings.TrimPrefix(wrong.Field, "options."), optionType(wrong.Type.Kind().String()))
	}
	f.fail(w, r, p)
}

func optionType(kind string) string {
	if kind == "int" {
		return "integer"
	}
	return kind
}

// work makes the handler of an inference path.
func (f *ollamaFace) work(parse func([]byte) (*ask, error), form form) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := f.s.body(r)
		a, err := parse(body)
		switch {
		case err != nil:
			f.badBody(w, r, body, err)
		case a.name == "":
			f.badBody(w, r, body, errNoModel)
		case r.URL.Path == "/v1/completions" && len(a.Prompts) > 1:
			f.badBody(w, r, body, errOnePrompt)
		case a.unload:
			f.unload(w, r, a, form)
		default:
			a.store = false
			if !a.NoOutput {
				a.Copies = 1 // whatever n says
			}
			f.s.infer(w, r, a, form)
		}
	}
}

// unload answers keep_alive 0 without a prompt. It is counted as a request.
func (f *ollamaFace) unload(w http.ResponseWriter, r *http.Request, a *ask, form form) {
	f.s.count()
	var known bool
	f.s.do(func(now time.Time) { known = f.s.model.Unload(now, a.name) })
	if !known {
		f.fail(w, r, f.reject(&model.Rejection{Kind: model.RejectModel}, a))
		return
	}
	f.s.writeJSON(w, r, http.StatusOK, form.(*ollamaForm).empty(nil, a.name, "unload", time.Now()))
}
