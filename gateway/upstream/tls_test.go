package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTLSExchange(t *testing.T) {
	big := strings.Repeat("0123456789", 20_000)
	next := make(chan string)
	c := ollamaLike(t, true, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/head" {
			for i := range 50 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("v", 1000))
			}
		}
		if r.URL.Path != "/stream" {
			fmt.Fprintf(w, "%s", body)
			return
		}
		w.(http.Flusher).Flush()
		for text := range next {
			io.WriteString(w, text)
			w.(http.Flusher).Flush()
		}
	})
	for _, size := range []int{0, 1, smallSize, bufSize, len(big)} {
		require.Equal(t, big[:size], whole(t, c, post(big[:size])))
		require.Equal(t, 1, idle(c), "kept")
	}
	e, resp := ask(t, c, get("/head"))
	require.Len(t, resp.Header.Get("X-49"), 1000)
	require.Equal(t, int64(0), resp.ContentLength)
	e.Close()
	e, _ = ask(t, c, get("/stream"))
	_, err := e.Next(in(10 * time.Millisecond))
	require.Equal(t, os.ErrDeadlineExceeded, err, "resumable under TLS, too")
	require.Nil(t, e.conn.pooled, "waiting holds no large buffer")
	for _, text := range []string{"data: 1\n\n", "data: 2\n\n"} {
		next <- text
		p, err := e.Next(in(patience))
		require.NoError(t, err)
		require.Equal(t, text, string(p))
	}
	go e.Interrupt()
	_, err = e.Next(in(time.Hour))
	require.Equal(t, ErrInterrupted, err)
	e.Close()
	close(next)
}

func TestTLSConfig(t *testing.T) {
	given := &tls.Config{ServerName: "other", NextProtos: []string{"h2"}}
	c := New(Options{Base: &url.URL{Scheme: "https", Host: "gpu:1"}, TLS: given})
	require.Equal(t, "other", c.tls.ServerName)
	require.Equal(t, []string{"http/1.1"}, c.tls.NextProtos)
	require.Equal(t, []string{"h2"}, given.NextProtos, "the caller's is left alone")
	require.Equal(t, "gpu", New(Options{Base: &url.URL{Scheme: "https", Host: "gpu:1"}}).tls.ServerName)
}

func TestTLSFailures(t *testing.T) {
	c := ollamaLike(t, true, func(http.ResponseWriter, *http.Request) {})
	c.tls.RootCAs = nil // so that the certificate is not known
	_, err := c.Start(context.Background(), post("{}"), in(patience))
	var unknown *tls.CertificateVerificationError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, NothingSent, phaseOf(t, err))

	plain := newServer(t, answers(okAnswer)).client(t, Options{})
	https := New(Options{Base: &url.URL{Scheme: "https", Host: plain.addr}})
	_, err = https.Start(context.Background(), post("{}"), in(patience))
	require.Equal(t, NothingSent, phaseOf(t, err))
	require.ErrorContains(t, err, "connecting to "+plain.addr)
}

// A server that takes connections and says nothing: the dial timeout covers the
// handshake, and so does the deadline.
func TestTLSSilentHandshake(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) { p.rest() })
	o := Options{Base: &url.URL{Scheme: "https", Host: s.l.Addr().String()}, DialTimeout: 30 * time.Millisecond}
	for _, deadline := range []time.Time{{}, in(time.Hour)} {
		_, err := s.client(t, o).Start(context.Background(), post("{}"), deadline)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, NothingSent, phaseOf(t, err))
	}
	o.DialTimeout = 0
	_, err := s.client(t, o).Start(context.Background(), post("{}"), in(30*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// certificate makes one for 127.0.0.1, and what trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return s.TLS.Certificates[0], pool
}

func (e *Exchange) connecting() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.cancel != nil
}

// Sending again needs a new connection: Interrupt and the deadline reach that, too.
func TestSendingAgainIsBounded(t *testing.T) {
	cert, roots := certificate(t)
	hang := make(chan struct{})
	s := newServer(t, func(n int, p *peer) {
		if n == 1 || n == 3 {
			<-hang
			return
		}
		tc := tls.Server(p.Conn, &tls.Config{Certificates: []tls.Certificate{cert}})
		sp := newPeer(tc)
		sp.request()
		sp.say(okAnswer)
		sp.request()
		tc.Close()
	})
	t.Cleanup(func() { close(hang) })
	c := s.client(t, Options{Base: &url.URL{Scheme: "https", Host: s.l.Addr().String()}, TLS: &tls.Config{RootCAs: roots}})
	whole(t, c, post("{}")) // connection 0

	e := start(t, c, post("{}"))
	_, err := e.Head(in(50 * time.Millisecond)) // 0 is lost, 1 hangs
	require.Equal(t, os.ErrDeadlineExceeded, err)
	_, err = e.Head(in(patience)) // 2
	require.NoError(t, err)
	require.True(t, e.Resent())
	_, err = readAll(e)
	require.NoError(t, err)
	e.Close()

	e = start(t, c, post("{}"))
	go func() {
		for !e.connecting() {
			runtime.Gosched()
		}
		e.Interrupt()
	}()
	_, err = e.Head(time.Time{}) // 2 is lost, 3 hangs
	require.Equal(t, ErrInterrupted, err)
	_, err = e.Head(time.Time{})
	require.Equal(t, ErrInterrupted, err)
	require.True(t, abort(t, e, time.Minute).eof, "the server has nothing of it")
}
