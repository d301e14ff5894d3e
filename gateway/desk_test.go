package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/replica"
)

// desk is a gateway with the real controller on a real socket, for tests of
// the intake: its replicas may differ in engine and models.
type desk struct {
	t    *testing.T
	ctl  *admission.Controller
	gw   *Gateway
	addr string
	seen *clerk
	cfg  admission.Config
	set  Settings
}

// seat is one replica before a desk.
type seat struct {
	name    string
	engine  replica.Engine
	models  []replica.Model
	any     bool
	slots   int // 0: 4
	version string
	unread  bool // its models could not be read
	down    bool
}

func model(name string) replica.Model { return replica.Model{Name: name, Resident: true} }

func newDesk(t *testing.T, tr *troupe, change func(*Settings), seats ...seat) *desk {
	d := &desk{t: t, seen: &clerk{}}
	d.cfg = admission.Config{
		Classes: []admission.Class{
			{Name: "interactive", Deadline: 10 * time.Second},
			{Name: "standard", Deadline: time.Minute, MinShare: 0.05},
			{Name: "batch", Deadline: 15 * time.Minute, MinShare: 0.05},
		},
		DefaultClass: "standard", Queue: admission.QueueLimits{MaxRequests: 1000, MaxBytes: 1 << 30}, Enabled: true,
		Retry: admission.Retry{
			MaxAttempts: 3, Budget: 0.2, FirstTokenFloor: 5 * time.Second, FirstTokenFactor: 4, LoadTimeout: 5 * time.Second,
		},
		ProbeEvery: 2 * time.Second,
	}
	d.set.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	if change != nil {
		change(&d.set)
	}
	for _, s := range seats {
		d.add(tr, s)
	}
	d.ctl = admission.New(d.cfg, time.Now())
	d.gw = New(d.set, d.ctl, d.seen)
	for _, s := range seats {
		d.report(s)
	}
	d.open(tr)
	return d
}

func (d *desk) add(tr *troupe, s seat) {
	at := tr.listen(s.name)
	u, err := url.Parse(at)
	require.NoError(d.t, err)
	slots := s.slots
	if slots == 0 {
		slots = 4
	}
	d.cfg.Replicas = append(d.cfg.Replicas, replica.Config{Name: s.name, URL: at, Engine: s.engine, Slots: map[string]int{"*": slots}})
	d.set.Replicas = append(d.set.Replicas, Replica{Name: s.name, URL: u})
}

// report tells the controller what a probe would find.
func (d *desk) report(s seat) {
	now := time.Now()
	d.ctl.Report(now, s.name, replica.Facts{
		At: now, Up: true, Engine: s.engine, Version: s.version, Models: s.models, ModelsRead: !s.unread, AnyModel: s.any,
		InHand: -1, Waiting: -1, Progress: -1,
	})
	if s.down {
		d.ctl.Report(now, s.name, replica.Facts{At: now, Gone: true, Err: "connection refused", Engine: s.engine})
	}
}

func (d *desk) open(tr *troupe) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { d.gw.Run(ctx) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(d.t, err)
	d.addr = l.Addr().String()
	server := NewServer(d.set, d.gw)
	wg.Go(func() { d.gw.Serve(server, l) })
	d.t.Cleanup(func() {
		server.Close()
		tr.close()
		d.settled()
		cancel()
		wg.Wait()
		d.gw.Close()
		for _, l := range d.gw.view.Load().links {
			l.client.Close()
		}
	})
}

// settled waits until nothing is under way and checks the books (R13).
func (d *desk) settled() admission.Totals {
	var totals admission.Totals
	require.True(d.t, soon(func() bool {
		totals = d.ctl.Snapshot(time.Now()).Totals
		return totals.Queued == 0 && totals.Running == 0
	}), "requests are left: %+v", totals)
	require.True(d.t, totals.Balanced(), "the books do not balance: %+v", totals)
	return totals
}

// dial opens a connection to the gateway.
func (d *desk) dial() net.Conn {
	c, err := net.Dial("tcp", d.addr)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patienceInTests))
	return c
}

// raw sends bytes as they are and reads the one answer.
func (d *desk) raw(text string) reply {
	c := d.dial()
	defer c.Close()
	_, err := io.WriteString(c, text)
	require.NoError(d.t, err)
	method, _, _ := strings.Cut(text, " ")
	return d.read(bufio.NewReader(c), method)
}

func (d *desk) read(br *bufio.Reader, method string) reply {
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	require.NoError(d.t, err)
	body, err := io.ReadAll(resp.Body)
	if resp.Close { // which net/http takes out of the headers
		resp.Header.Set("Connection", "close")
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: string(body), clean: err == nil}
}

// post sends a body to a path.
func (d *desk) post(path, body string, headers ...string) reply {
	return d.raw(request(path, body, headers...))
}

// get asks for a path.
func (d *desk) get(path string, headers ...string) reply {
	return d.raw("GET " + path + " HTTP/1.1\r\nHost: gateway.example\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n")
}

// clerk is an Observer that also remembers how long refusals took.
type clerk struct {
	witness
	refused []string
	took    []time.Duration
}

func (c *clerk) Refused(class, reason string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = append(c.refused, class+" "+reason)
	c.took = append(c.took, took)
}

// chatAct answers like an OpenAI-compatible server.
func chatAct(k *call) {
	k.whole(200, "application/json", `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`)
}

// echoAct answers with where it was asked and what, as helpers do.
func echoAct(k *call) {
	body, _ := json.Marshal(map[string]string{"replica": k.replica, "uri": k.request.RequestURI, "body": k.body})
	k.whole(200, "application/json", string(body))
}

const (
	chat     = "/v1/chat/completions"
	chatBody = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
)

func openAI(name string, models ...string) seat {
	s := seat{name: name, engine: replica.EngineOpenAI}
	for _, m := range models {
		s.models = append(s.models, model(m))
	}
	return s
}
