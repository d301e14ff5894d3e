package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/replica"
)

// slowChat answers when told to.
func slowChat(started chan<- struct{}, release <-chan struct{}) act {
	return func(k *call) {
		started <- struct{}{}
		<-release
		chatAct(k)
	}
}

// TestDrainLosesNothingR15: what runs and what waits finishes, what comes is
// told to go elsewhere, and Shutdown returns when the last is done.
func TestDrainLosesNothingR15(t *testing.T) {
	started, release := make(chan struct{}, 8), make(chan struct{})
	one := openAI("a", "m")
	one.slots = 1
	d := newDesk(t, newTroupe(t, slowChat(started, release)), nil, one)
	running, queued, idle := d.dial(), d.dial(), d.dial()
	io.WriteString(running, request(chat, chatBody))
	<-started
	io.WriteString(queued, request(chat, chatBody))
	require.True(t, soon(func() bool { return d.ctl.Snapshot(time.Now()).Totals.Queued == 1 }))
	require.Equal(t, 200, d.get("/readyz").status)

	down := make(chan error, 1)
	go func() { down <- d.gw.Shutdown(context.Background()) }()
	require.True(t, soon(func() bool { return d.get("/readyz").status == 503 }))
	require.Equal(t, 200, d.get("/healthz").status)
	for _, path := range []string{chat, "/api/show", "/tokenize", "/v1/messages/count_tokens"} {
		got := d.post(path, chatBody)
		require.Equal(t, 503, got.status, path)
		require.Equal(t, "draining", got.header.Get("X-Switchyard-Reason"))
		require.NotEmpty(t, got.header.Get("Retry-After"))
		require.NotEmpty(t, got.header.Get("retry-after-ms"))
		require.Equal(t, "close", got.header.Get("Connection"))
	}
	require.Equal(t, 200, d.get("/v1/models").status)
	io.WriteString(idle, request(chat, chatBody)) // on a connection from before
	require.Equal(t, 503, d.read(bufio.NewReader(idle), "POST").status)

	close(release)
	require.Equal(t, 200, d.read(bufio.NewReader(running), "POST").status)
	require.Equal(t, 200, d.read(bufio.NewReader(queued), "POST").status)
	require.NoError(t, <-down)
	require.Error(t, d.gw.Shutdown(context.Background()), "twice")
	totals := d.settled()
	require.EqualValues(t, 2, totals.Completed)
	require.EqualValues(t, 2, totals.Refused)
}

// TestDrainTimeoutCutsNobodyWithoutAWordR15: uploading, queued, running and
// streaming clients, and one of a helper path, are all told.
func TestDrainTimeoutCutsNobodyWithoutAWordR15(t *testing.T) {
	tr := newTroupe(t, func(k *call) {
		if strings.Contains(k.body, `"stream":true`) {
			k.streamHead("text/event-stream")
			k.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n")
		}
		k.untilGone()
	})
	one := seat{name: "a", engine: replica.EngineLlamaCpp, any: true, slots: 2}
	d := newDesk(t, tr, func(s *Settings) {
		s.Limits.DrainTimeout = 300 * time.Millisecond
	}, one)
	uploading, running, streaming, queued, helped := d.dial(), d.dial(), d.dial(), d.dial(), d.dial()
	io.WriteString(uploading, "POST "+chat+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	io.WriteString(running, request(chat, chatBody))
	require.True(t, soon(func() bool { return len(tr.calls()) == 1 }))
	io.WriteString(streaming, request(chat, `{"model":"m","stream":true,"messages":[]}`))
	stream := bufio.NewReader(streaming)
	resp, err := http.ReadResponse(stream, &http.Request{Method: "POST"})
	require.NoError(t, err)
	io.WriteString(queued, request(chat, chatBody))
	io.WriteString(helped, request("/tokenize", `{"content":"x"}`))
	require.True(t, soon(func() bool {
		return len(tr.calls()) == 3 && d.ctl.Snapshot(time.Now()).Totals.Queued == 2
	}))

	require.NoError(t, d.gw.Shutdown(context.Background()))
	for name, c := range map[string]io.Reader{"uploading": uploading, "running": running, "queued": queued, "helped": helped} {
		got := d.read(bufio.NewReader(c), "POST")
		require.Equal(t, 503, got.status, name)
		require.Equal(t, "draining", got.header.Get("X-Switchyard-Reason"), name)
		require.NotEmpty(t, got.header.Get("Retry-After"), name)
		require.Equal(t, "close", got.header.Get("Connection"), name)
	}
	body, err := io.ReadAll(resp.Body)
	require.Error(t, err, "no clean end")
	require.Contains(t, string(body), `data: {"error":{`)
	require.NotContains(t, string(body), "[DONE]")
	totals := d.settled()
	require.EqualValues(t, 3, totals.Refused)
	require.EqualValues(t, 1, totals.Failed)
}

// TestASecondSignalEndsTheDrainR15.
func TestASecondSignalEndsTheDrainR15(t *testing.T) {
	started, release := make(chan struct{}, 1), make(chan struct{})
	d := newDesk(t, newTroupe(t, slowChat(started, release)), nil, openAI("a", "m"))
	defer close(release)
	c := d.dial()
	io.WriteString(c, request(chat, chatBody))
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, d.gw.Shutdown(ctx))
	require.Equal(t, 503, d.read(bufio.NewReader(c), "POST").status)
}

// TestReloadDropsNothingR15: a request that runs on a replica that is removed
// ends well there; new ones see the new settings at once.
func TestReloadDropsNothingR15(t *testing.T) {
	started, release := make(chan struct{}, 1), make(chan struct{})
	tr := newTroupe(t, slowChat(started, release), chatAct)
	d := newDesk(t, tr, nil, openAI("a", "m"))
	c := d.dial()
	io.WriteString(c, request(chat, chatBody))
	<-started
	before := d.gw.replicaClient("a")
	require.NotNil(t, before)

	next, cfg := d.set, d.cfg
	at := tr.listen("b")
	u, err := url.Parse(at)
	require.NoError(t, err)
	next.Replicas = []Replica{{Name: "b", URL: u, APIKey: "token"}}
	next.Aliases = []Alias{{"chat", []string{"n"}}}
	next.Classes = []Class{{"now", time.Second}, {"later", time.Hour}}
	next.DefaultClass = "later"
	cfg.Classes = []admission.Class{{Name: "now", Deadline: time.Second}, {Name: "later", Deadline: time.Hour}}
	cfg.DefaultClass = "later"
	cfg.Replicas = []replica.Config{{Name: "b", URL: at, Engine: replica.EngineOpenAI, Slots: map[string]int{"*": 1}}}
	d.gw.Apply(next)
	d.ctl.Reconfigure(time.Now(), cfg)
	d.report(openAI("b", "n"))

	got := d.post(chat, `{"model":"chat","messages":[]}`)
	require.Equal(t, 200, got.status, got.body)
	require.Equal(t, "b", got.header.Get("X-Switchyard-Replica"))
	require.Equal(t, "later", got.header.Get("X-Switchyard-Class"))
	require.Equal(t, "Bearer token", tr.calls()[1].request.Header.Get("Authorization"))

	close(release)
	require.Equal(t, 200, d.read(bufio.NewReader(c), "POST").status)
	require.Same(t, before, d.gw.replicaClient("a"), "kept for what was granted before")
	b := d.gw.replicaClient("b")
	d.gw.Apply(next)
	require.Same(t, b, d.gw.replicaClient("b"), "an unchanged replica keeps its connections")
	require.Nil(t, d.gw.replicaClient("a"))
	require.Equal(t, Secret("token"), d.gw.replicaAuth("b"))
	require.Empty(t, d.gw.replicaAuth("a"))
}

// TestServerSettings: what the listener is told.
func TestServerSettings(t *testing.T) {
	s := NewServer(Settings{}, http.NotFoundHandler())
	require.Equal(t, 10*time.Second, s.ReadHeaderTimeout)
	require.Zero(t, s.ReadTimeout, "bodies have their own limit")
	require.Zero(t, s.WriteTimeout, "answers may stream for hours")
	require.True(t, s.Protocols.HTTP1())
	require.False(t, s.Protocols.HTTP2())
	require.False(t, s.Protocols.UnencryptedHTTP2())
}

// TestHTTP2ByALPN: over TLS a client may speak HTTP/2; nothing else changes.
func TestHTTP2ByALPN(t *testing.T) { overTLS(t, 2) }

// Over TLS nothing is written past the server.
func TestTLSWithHTTP1(t *testing.T) { overTLS(t, 1) }

func overTLS(t *testing.T, protocol int) {
	d := newDesk(t, newTroupe(t, func(k *call) {
		if !strings.Contains(k.body, `"stream":true`) {
			chatAct(k)
			return
		}
		k.streamHead("text/event-stream")
		for _, event := range append(faces[0].content, faces[0].terminal) {
			k.chunk(event)
			k.drained() // so that there are several reads
		}
		k.end()
	}), nil, openAI("a", "m"))
	ts := httptest.NewTLSServer(nil) // for its certificate and a client that trusts it
	defer ts.Close()
	client := ts.Client()
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = protocol == 2
	defer client.CloseIdleConnections()
	server := NewServer(Settings{TLS: &tls.Config{Certificates: ts.TLS.Certificates}}, d.gw)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go d.gw.Serve(server, l)
	for _, tc := range []struct {
		body     string
		encoding string
		want     int
		end      string
	}{
		{chatBody, "", 200, "}"},
		{"not JSON", "", 400, "}"},
		{strings.Repeat("x", 100_000), "gzip", 415, "}"},
		{strings.Replace(chatBody, "{", `{"stream":true,`, 1), "", 200, strings.Join(faces[0].content, "") + faces[0].terminal},
		{chatBody, "", 200, "}"},
	} {
		r, err := http.NewRequest("POST", "https://"+l.Addr().String()+chat, strings.NewReader(tc.body))
		require.NoError(t, err)
		r.Header.Set("Content-Encoding", tc.encoding)
		resp, err := client.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, tc.want, resp.StatusCode)
		require.True(t, strings.HasSuffix(string(body), tc.end), "%s", body)
		require.Equal(t, protocol, resp.ProtoMajor)
	}
}
