package probe

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// A process that is not there is told from one that does not answer.
func TestGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u := address(t, "http://"+l.Addr().String())
	require.NoError(t, l.Close())
	got := round(t, probing(t, u, replica.EngineLlamaCpp))
	require.False(t, got.Up)
	require.True(t, got.Gone)
	require.Contains(t, got.Err, "nothing listens at "+u.Host)
	require.Equal(t, -1, got.InHand)

	// A reset counts as gone, a closing without an answer does not.
	for _, reset := range []bool{true, false} {
		s := accepting(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1024))
			if reset {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			_ = c.Close()
		})
		got = round(t, probing(t, address(t, "http://"+s), replica.EngineLlamaCpp))
		require.False(t, got.Up)
		require.Equal(t, reset, got.Gone, got.Err)
	}

	unknown := New(Target{URL: address(t, "http://nowhere:1"), Engine: replica.EngineLlamaCpp},
		func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}}
		})
	got = round(t, unknown)
	require.False(t, got.Up)
	require.False(t, got.Gone)
	require.Contains(t, got.Err, "the name nowhere cannot be resolved")
}

// accepting runs what happens to each connection, and returns the address.
func accepting(t *testing.T, each func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			each(c)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// PAINS 27: a replica that accepts and says nothing costs its timeout.
func TestHang(t *testing.T) {
	for _, e := range []replica.Engine{replica.EngineAuto, replica.EngineLlamaCpp, replica.EngineOllama, replica.EngineVLLM, replica.EngineOpenAI} {
		f := newFake(t, "", nil)
		f.otherwise = reply{hang: true}
		p := probing(t, f.serve(), e)
		got := p.Round(t.Context(), 50*time.Millisecond, true)
		require.False(t, got.Up)
		require.False(t, got.Gone)
		require.Contains(t, got.Err, "no answer to GET ")
		require.Less(t, got.Took, 5*time.Second)
	}
}

// The end of the caller's context ends a round at once.
func TestRoundIsCancelled(t *testing.T) {
	f := newFake(t, "", nil)
	f.otherwise = reply{hang: true}
	asked := make(chan struct{}, 1)
	f.hook = func(string) { asked <- struct{}{} }
	p := probing(t, f.serve(), replica.EngineAuto)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	require.Less(t, p.Round(ctx, patient, true).Took, patient)
	require.Len(t, f.took(), 1)
}

func TestTLS(t *testing.T) {
	f := aLlama(t)
	s := httptest.NewUnstartedServer(f)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())

	p := New(Target{URL: address(t, s.URL), Engine: replica.EngineAuto, Roots: roots}, nil)
	t.Cleanup(p.Close)
	got := round(t, p)
	require.True(t, got.Up, got.Err)
	require.Equal(t, 2, got.Slots)
	require.Equal(t, 1, f.requests()[0].ProtoMajor)

	got = round(t, probing(t, address(t, s.URL), replica.EngineAuto))
	require.False(t, got.Up)
	require.False(t, got.Gone)
	require.Contains(t, got.Err, "name the authority in ca_file")

	plain := aLlama(t).serve()
	plain.Scheme = "https"
	got = round(t, probing(t, plain, replica.EngineAuto))
	require.False(t, got.Up)
	require.Contains(t, got.Err, "does not speak TLS, write http:// in url")
}

// A path in the URL is a prefix of every path asked for. PAINS 34: Host is the
// replica's own, and there is no Origin.
func TestPrefixAndHost(t *testing.T) {
	f := aLlama(t)
	f.prefix = "/llama"
	for _, suffix := range []string{"/llama", "/llama/"} {
		u := f.serve().JoinPath(suffix)
		p := probing(t, u, replica.EngineAuto)
		got := round(t, p)
		require.Equal(t, 2, got.Slots, got.Err)
		require.NotEmpty(t, f.requests())
		for _, r := range f.requests()[len(f.requests())-4:] {
			require.Equal(t, u.Host, r.Host)
			require.Contains(t, r.URL.Path, "/llama/")
			require.NotContains(t, r.URL.Path, "//")
			require.Empty(t, r.Header.Get("Origin"))
			require.Empty(t, r.Header.Get("Authorization"))
			require.Empty(t, r.Header.Get("Accept-Encoding"))
		}
	}
}

// No proxy, no redirects; connections are kept, for less than the 5 s after
// which llama.cpp closes them.
func TestTransport(t *testing.T) {
	c := newClient(Target{URL: address(t, "http://x")}, nil)
	tr := c.http.Transport.(*http.Transport)
	require.Nil(t, tr.Proxy)
	require.Less(t, tr.IdleConnTimeout, 5*time.Second)
	require.NotZero(t, tr.MaxResponseHeaderBytes)

	f := aLlama(t)
	s := httptest.NewUnstartedServer(f)
	opened := make(chan struct{}, 100)
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			opened <- struct{}{}
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	p := probing(t, address(t, s.URL), replica.EngineAuto)
	for range 20 {
		require.True(t, round(t, p).Up)
	}
	require.Len(t, opened, 1)
}

// An answer without end is cut off.
func TestBoundedAnswer(t *testing.T) {
	junk := bytes.Repeat([]byte(`{"id":"x"},`), 100_000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(junk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	got := round(t, probing(t, address(t, s.URL), replica.EngineOpenAI))
	require.False(t, got.Up)
	require.Contains(t, got.Err, "longer than 4 MiB")
}

// A key never prints.
func TestSecret(t *testing.T) {
	target := Target{Name: "a", URL: address(t, "http://x"), Key: "sekret"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		require.NotContains(t, fmt.Sprintf(format, target), "sekret", format)
		require.NotContains(t, fmt.Sprintf(format, target.Key), "sekret", format)
	}
	p := New(Target{Name: "a", URL: address(t, "http://user:hidden@127.0.0.1:1"), Engine: replica.EngineAuto, Key: "sekret"}, nil)
	got := round(t, p)
	require.NotContains(t, got.Err, "sekret")
	require.NotContains(t, got.Err, "hidden")
}
