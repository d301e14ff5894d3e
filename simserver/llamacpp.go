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

// llamaCppFace speaks as llama-server does, with one model.
type llamaCppFace struct {
	s      *Server
	params string // the sampling parameters that /props, /slots and answers repeat
}

func newLlamaCpp(s *Server) *llamaCppFace { return &llamaCppFace{s: s, params: llamaParams} }

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

// gate counts the requests of a connection: the hundredth is its last.
func (f *llamaCppFace) gate(w http.ResponseWriter, r *http.Request) bool {
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
	if r.Header.Get("Content-Encoding") != "" && r.Method == http.MethodPost {
		f.fail(w, r, problem{status: http.StatusUnsupportedMediaType, message: "Unsupported content encoding"})
		return false
	}
	return true
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
	return []route{
		{get, "/health", false, f.health},
		{get, "/v1/health", false, f.health},
		{get, "/props", false, f.props},
		{get, "/slots", false, f.slots},
		{get, "/v1/models", false, f.models},
		{get, "/models", false, f.models},
		{post, "/v1/chat/completions", true, f.chat},
		{post, "/chat/completions", true, f.chat},
		{post, "/v1/completions", true, f.completions},
		{post, "/completion", true, f.completion},
		{post, "/completions", true, f.completion},
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

// badBody says what is wrong with a body: bad JSON is llama.cpp's own failure.
func (f *llamaCppFace) badBody(w http.ResponseWriter, r *http.Request, body []byte, err error) {
	f.s.count()
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
	f.fail(w, r, p)
}

func (f *llamaCppFace) health(w http.ResponseWriter, r *http.Request) {
	f.s.writeJSON(w, r, http.StatusOK, []byte(`{"status":"ok"}`))
}

func (f *llamaCppFace) name() string { return f.s.config.Models[0] }

func (f *llamaCppFace) chat(w http.ResponseWriter, r *http.Request) {
	body, _ := f.s.body(r)
	a, err := parseChat(body)
	if err != nil {
		f.badBody(w, r, body, err)
		return
	}
	if a.image {
		f.s.count()
		f.fail(w, r, problem{status: http.StatusInternalServerError, message: "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"})
		return
	}
	f.infer(w, r, a, &llamaOpenAIForm{chat: true})
}

func (f *llamaCppFace) completions(w http.ResponseWriter, r *http.Request) {
	f.prompted(w, r, &llamaOpenAIForm{})
}

func (f *llamaCppFace) completion(w http.ResponseWriter, r *http.Request) {
	f.prompted(w, r, &llamaNativeForm{params: f.params})
}

func (f *llamaCppFace) prompted(w http.ResponseWriter, r *http.Request, form form) {
	body, _ := f.s.body(r)
	a, err := parseCompletion(body)
	if err != nil {
		f.badBody(w, r, body, err)
		return
	}
	f.infer(w, r, a, form)
}

// infer ignores the model's name; a conversation id makes a stream resumable.
func (f *llamaCppFace) infer(w http.ResponseWriter, r *http.Request, a *ask, form form) {
	a.name = f.name()
	a.Detached = a.Stream && r.Header.Get("X-Conversation-Id") != ""
	f.s.infer(w, r, a, form)
}
