package probe

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"switchyard/replica"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reply is what a fake server answers on one path.
type reply struct {
	status int // 0: 200
	body   string
	header string        // "Name: value"
	hang   bool          // no answer until the client gives up
	took   time.Duration // time the answer takes
}

func ok(body string) reply { return reply{body: body} }

// fake is a server whose answers a test sets by path (with query, or without).
type fake struct {
	t  *testing.T
	mu struct {
		sync.Mutex
		replies map[string]reply
		asked   []string
		seen    []*http.Request
	}
	server    string // Server header
	otherwise reply  // on any other path
	prefix    string
	hook      func(path string) // called for each request
}

func newFake(t *testing.T, server string, replies map[string]reply) *fake {
	f := &fake{t: t, server: server, otherwise: reply{status: 404, body: "404 page not found"}}
	f.mu.replies = map[string]reply{}
	f.set(replies)
	return f
}

// set changes the answers on some paths.
func (f *fake) set(replies map[string]reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.mu.replies, replies)
}

// took returns what was asked since the last call.
func (f *fake) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.mu.asked
	f.mu.asked = nil
	return asked
}

func (f *fake) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mu.seen)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, inside := strings.CutPrefix(r.URL.Path, f.prefix)
	full := path
	if r.URL.RawQuery != "" {
		full += "?" + r.URL.RawQuery
	}
	if f.hook != nil {
		f.hook(path)
	}
	f.mu.Lock()
	f.mu.asked = append(f.mu.asked, full)
	f.mu.seen = append(f.mu.seen, r)
	answer, found := f.mu.replies[full]
	if !found {
		answer, found = f.mu.replies[path]
	}
	f.mu.Unlock()
	if !found || !inside || r.Method != http.MethodGet {
		answer = f.otherwise
	}
	if answer.hang {
		<-r.Context().Done()
		return
	}
	if answer.took > 0 {
		select {
		case <-time.After(answer.took):
		case <-r.Context().Done():
		}
	}
	if f.server != "" {
		w.Header().Set("Server", f.server)
	}
	if name, value, has := strings.Cut(answer.header, ": "); has {
		w.Header().Set(name, value)
	}
	if answer.status != 0 {
		w.WriteHeader(answer.status)
	}
	fmt.Fprint(w, answer.body)
}

// serve starts the fake on a real socket.
func (f *fake) serve() *url.URL {
	s := httptest.NewServer(f)
	f.t.Cleanup(s.Close)
	return address(f.t, s.URL)
}

func address(t *testing.T, s string) *url.URL {
	u, err := url.Parse(s)
	require.NoError(t, err)
	return u
}

// probing returns a probe of what listens at u.
func probing(t *testing.T, u *url.URL, e replica.Engine) *Probe {
	p := New(Target{Name: "gpu0", URL: u, Engine: e}, nil)
	t.Cleanup(p.Close)
	return p
}

const patient = 10 * time.Second // a timeout that a test never waits for

func round(t *testing.T, p *Probe) replica.Facts {
	t.Helper()
	return p.Round(t.Context(), patient, true)
}

// network is an in-memory one, for synctest bubbles: real sockets would
// freeze their clock.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipes
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipes) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// serve starts h under a name, and returns what stops it.
func (n *network) serve(name string, h http.Handler) (stop func()) {
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	if n.listeners == nil {
		n.listeners = map[string]*pipes{}
	}
	n.listeners[name+":80"] = l
	n.mu.Unlock()
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return func() {
		n.mu.Lock()
		delete(n.listeners, name+":80")
		n.mu.Unlock()
		_ = s.Close()
		<-done
	}
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	if l == nil {
		return nil, refused
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The answers of real servers, shortened.
const (
	llamaLoading  = `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`
	llamaNoKey    = `{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}`
	llamaModels   = `{"models":[{"name":"tiny","model":"tiny"}],"object":"list","data":[{"id":"tiny","aliases":["tiny","small"],"tags":[],"object":"model","created":1795992595,"owned_by":"llamacpp","meta":{"vocab_type":true,"n_ctx":4096,"n_ctx_train":32768}}]}`
	llamaIdle     = `[{"id":0,"n_ctx":4096,"speculative":false,"is_processing":false},{"id":1,"n_ctx":4096,"speculative":false,"is_processing":false}]`
	llamaOneBusy  = `[{"id":0,"n_ctx":4096,"speculative":false,"is_processing":false},{"id":1,"n_ctx":4096,"speculative":false,"is_processing":true,"id_task":0,"n_prompt_tokens":81,"n_prompt_tokens_processed":22,"n_prompt_tokens_cache":0,"params":{"seed":4294967295},"next_token":[{"has_next_token":true,"n_remain":34,"n_decoded":6}]}]`
	llamaNoSlots  = `{"error":{"code":501,"message":"This server does not support slots endpoint. Start it with ` + "`--slots`" + `","type":"not_supported_error"}}`
	llamaNotFound = `{"error":{"message":"File Not Found","type":"not_found_error","code":404}}`
	llamaNumbers  = `# HELP llamacpp:n_decode_total Total number of llama_decode() calls
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 110
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 4
`
	ollamaTags  = `{"models":[{"name":"slow:latest","model":"slow:latest","size":250107326,"digest":"ab4b","details":{"family":"llama"}},{"name":"tiny:1b","model":"tiny:1b","size":39795997,"digest":"172b"}]}`
	ollamaList  = `{"object":"list","data":[{"id":"slow:latest","object":"model","created":1795993772,"owned_by":"library"},{"id":"tiny:1b","object":"model","created":1795993771,"owned_by":"library"}]}`
	ollamaPS    = `{"models":[{"name":"slow:latest","model":"slow:latest","size":39461888,"digest":"ab4b","expires_at":"2026-11-29T23:15:07.842865042Z","size_vram":0,"context_length":4096}]}`
	vllmModels  = `{"object":"list","data":[{"id":"qwen","object":"model","created":1,"owned_by":"vllm","root":"Qwen/Qwen3","parent":null,"max_model_len":32768}]}`
	vllmNumbers = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b \" c"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="qwen"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9
vllm:prompt_tokens_total{model_name="qwen"} 1000
vllm:generation_tokens_total{model_name="qwen"} 1.5e+03
`
)

func propsAnswer(sleeping string) string {
	if sleeping != "" {
		sleeping = `,"is_sleeping":` + sleeping
	}
	return `{"default_generation_settings":{"params":{"seed":1},"n_ctx":4096},"total_slots":2,"model_alias":"tiny","model_path":"/models/tiny.gguf","endpoint_slots":true,"endpoint_metrics":true,"chat_template":"{% for %}","build_info":"b1-80fb11a"` + sleeping + `}`
}

// aLlama is a llama-server as recorded: awake, idle, two slots.
func aLlama(t *testing.T) *fake {
	f := newFake(t, "llama.cpp", map[string]reply{
		"/":          ok("<html>"),
		"/health":    ok(`{"status":"ok"}`),
		"/props":     ok(propsAnswer("false")),
		"/slots":     ok(llamaIdle),
		"/v1/models": ok(llamaModels),
		"/metrics":   ok(llamaNumbers),
	})
	f.otherwise = reply{status: 404, body: llamaNotFound}
	return f
}

func anOllama(t *testing.T) *fake {
	return newFake(t, "", map[string]reply{
		"/":            ok("Ollama is running"),
		"/api/version": ok(`{"version":"0.33.0-rc2"}`),
		"/api/tags":    ok(ollamaTags),
		"/api/ps":      ok(ollamaPS),
		"/v1/models":   ok(ollamaList),
	})
}

func aVLLM(t *testing.T) *fake {
	return newFake(t, "uvicorn", map[string]reply{
		"/health":    ok(""),
		"/version":   ok(`{"version":"0.11.0"}`),
		"/v1/models": ok(vllmModels),
		"/metrics":   ok(vllmNumbers),
	})
}
