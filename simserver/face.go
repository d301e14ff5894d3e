package simserver

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"switchyard/simserver/model"
)

// face is how an engine speaks.
type face interface {
	idleTimeout() time.Duration
	headTime() headTime
	newID(work int) string
	headers(h http.Header, r *http.Request, contentType string) // of an answer that is whole
	streamHeaders(h http.Header, contentType string)
	routes() []route
	// stray answers what no route does: an unknown path, or a method that the
	// path, whose own one is given, does not take.
	stray(w http.ResponseWriter, r *http.Request, method string)
	// gate refuses what the engine refuses before it looks at the path: all of
	// it while it is loading, foreign hosts, a wrong key.
	gate(w http.ResponseWriter, r *http.Request, loading bool) bool
	fail(w http.ResponseWriter, r *http.Request, p problem)
	// reject says why the model did not take a request.
	reject(rej *model.Rejection, a *ask) problem
}

// problem is an error answer before it has its engine's form.
type problem struct {
	status     int
	kind       string // the engine's type of error; "": its usual one for the status
	message    string
	param      string
	retryAfter time.Duration
	fields     string // more fields of the error object, as JSON: ,"name":value
}

// route is one path of a face.
type route struct {
	method string
	path   string
	work   bool // an inference request: the model's faults strike it there
	serve  http.HandlerFunc
}

func newFace(s *Server) face {
	var f face
	switch s.config.Kind {
	case model.LlamaCpp:
		f = &llamaCppFace{s: s}
	case model.Ollama:
		f = &ollamaFace{s: s}
	default:
		f = &openAIFace{s: s, vllm: s.config.Kind == model.VLLM}
	}
	s.table = make(map[string]route)
	for _, r := range f.routes() {
		s.table[r.method+" "+r.path] = r
	}
	return f
}

// route answers one request.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if rest, ok := strings.CutPrefix(r.URL.Path, "/sim/"); ok {
		s.control(w, r, rest)
		return
	}
	rt, ok := s.find(r.Method, r.URL.Path)
	loading := s.struck(r, ok && rt.work)
	switch {
	case !s.face.gate(w, r, loading):
		if rt.work {
			s.count()
		}
	case ok:
		rt.serve(w, r)
	default:
		other := ""
		for _, m := range []string{http.MethodPost, http.MethodGet} {
			if _, is := s.table[m+" "+r.URL.Path]; is {
				other = m
			}
		}
		s.face.stray(w, r, other)
	}
}

// find gives the route of a path; one that ends in a slash has those below it.
// But for Ollama, which lists them, HEAD is served where GET is.
func (s *Server) find(method, path string) (route, bool) {
	if method == http.MethodHead && s.config.Kind != model.Ollama {
		method = http.MethodGet
	}
	rt, ok := s.table[method+" "+path]
	if i := strings.LastIndexByte(path, '/'); !ok && i > 0 {
		rt, ok = s.table[method+" "+path[:i+1]]
	}
	return rt, ok
}

// struck lets those faults strike a request that concern the whole server, as
// far as the model does not strike it later as work. It reports whether the
// server is loading.
func (s *Server) struck(r *http.Request, work bool) (loading bool) {
	for {
		var f Fault
		var turned chan struct{}
		s.do(func(now time.Time) {
			f, loading, turned = s.model.Fault(now), s.model.Loading(now), s.turned
		})
		all := f.Rate == 0 || f.Rate == 1
		switch {
		case work:
		case f.Kind == model.FaultReset && all:
			resetConn(r)
		case f.Kind == model.FaultCrash, f.Kind == model.FaultRefuse:
			closeConn(r)
		case f.Kind == model.FaultHang && all:
			select {
			case <-turned:
				continue
			case <-r.Context().Done():
			case <-s.done:
			}
			panic(http.ErrAbortHandler)
		}
		return loading && all && s.config.Kind != model.Ollama
	}
}

// reject answers a request that the model did not take.
func (s *Server) reject(w http.ResponseWriter, r *http.Request, rej *model.Rejection, a *ask) {
	switch rej.Kind {
	case model.RejectReset:
		resetConn(r)
	case model.RejectDown:
		closeConn(r)
	}
	s.face.fail(w, r, s.face.reject(rej, a))
}

// faulted is the part of rejections that is the same for all engines.
func faulted(rej *model.Rejection) problem {
	p := problem{status: rej.Status, retryAfter: rej.RetryAfter}
	switch {
	case rej.Kind == model.RejectBusy && rej.Status == http.StatusTooManyRequests:
		p.message = "too many requests"
	case rej.Kind == model.RejectBusy:
		p.message = "server is busy"
	default:
		p.message = "simulated failure: " + strings.ToLower(http.StatusText(rej.Status))
	}
	return p
}

// writeJSON sends a whole answer.
func (s *Server) writeJSON(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	s.face.headers(w.Header(), r, "")
	s.writeBody(w, r, status, body)
}

// writeBody sends a whole answer whose headers are set.
func (s *Server) writeBody(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	if s.config.Kind != model.Ollama { // it leaves that to net/http, which sends a long body in chunks
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

// retryAfter sets the header in whole seconds, rounded up.
func (p problem) setRetryAfter(h http.Header) {
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((p.retryAfter+time.Second-1)/time.Second)))
	}
}

// quoted appends a string as JSON.
func quoted(b []byte, s string) []byte {
	q, _ := json.Marshal(s)
	return append(b, q...)
}

func millis(t time.Duration) float64 { return float64(t.Microseconds()) / 1000 }
