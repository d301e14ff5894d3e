package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type ending struct {
	eof  bool
	took time.Duration
}

// abort aborts and waits until it is told that the server is gone.
func abort(t testing.TB, e *Exchange, limit time.Duration) ending {
	t.Helper()
	begin, told := time.Now(), make(chan bool, 2)
	e.Abort(limit, func(eof bool) { told <- eof })
	select {
	case eof := <-told:
		require.Empty(t, told, "told once")
		return ending{eof, time.Since(begin)}
	case <-time.After(limit + patience):
		require.Fail(t, "never told")
	}
	return ending{}
}

func ollamaLike(t *testing.T, tls bool, h http.HandlerFunc) *Client {
	s := httptest.NewUnstartedServer(h)
	o := Options{}
	if tls {
		s.StartTLS()
		o.TLS = s.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	var err error
	o.Base, err = url.Parse(s.URL)
	require.NoError(t, err)
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// R1, R10, PAINS 13: a Go server (Ollama) learns at once that the client left,
// and the end is told when its handler has returned, not before.
func TestAbortGoServer(t *testing.T) {
	for _, tls := range []bool{false, true} {
		for _, when := range []string{"before the head", "in the stream"} {
			t.Run(when, func(t *testing.T) {
				begun, left, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
				returned := make(chan time.Time, 1)
				c := ollamaLike(t, tls, func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					if when == "in the stream" {
						io.WriteString(w, "data: 1\n\n")
						w.(http.Flusher).Flush()
					}
					close(begun)
					<-r.Context().Done()
					close(left)
					<-finish
					io.WriteString(w, "data: last words\n\n")
					returned <- time.Now()
				})
				e := sent(t, c, post("{}"))
				<-begun
				if when == "in the stream" {
					_, err := e.Head(in(patience))
					require.NoError(t, err)
					_, err = e.Next(in(patience))
					require.NoError(t, err)
				}
				go e.Interrupt()
				for {
					_, err := e.Head(in(patience))
					if err == nil {
						_, err = e.Next(in(patience))
					}
					if err != nil {
						require.Equal(t, ErrInterrupted, err)
						break
					}
				}
				gone := make(chan bool, 1)
				e.Abort(time.Minute, func(eof bool) { gone <- eof })
				<-left
				require.Empty(t, gone, "the handler has not returned")
				close(finish)
				require.True(t, <-gone)
				require.True(t, time.Now().After(<-returned))
				require.Zero(t, idle(c))
			})
		}
	}
}

// A server that neither answers nor ends: told at the limit, not earlier.
func TestAbortSilentServer(t *testing.T) {
	done := make(chan struct{})
	s := newServer(t, func(_ int, p *peer) { <-done })
	t.Cleanup(func() { close(done) })
	e := sent(t, s.client(t, Options{}), post("{}"))
	got := abort(t, e, 50*time.Millisecond)
	require.False(t, got.eof)
	require.GreaterOrEqual(t, got.took, 50*time.Millisecond)
}

// A server that talks on for ever is listened to for the limit only, and at a
// bounded rate.
func TestAbortTalkativeServer(t *testing.T) {
	written := make(chan int, 1)
	s := newServer(t, func(_ int, p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\n\r\n")
		block, sum := []byte(strings.Repeat("x", 1<<20)), 0
		for {
			n, err := p.Write(block)
			if sum += n; err != nil {
				written <- sum
				return
			}
		}
	})
	e, _ := ask(t, s.client(t, Options{}), post("{}"))
	got := abort(t, e, 300*time.Millisecond)
	require.False(t, got.eof)
	// what the sockets hold comes on top
	require.Less(t, <-written, drainRate+(32<<20))
}

// A server that was reset, that ended in the middle, or whose answer could not
// be understood: its end is still seen.
func TestAbortAfterFailures(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"ended":     func(*peer) {},
		"reset":     func(p *peer) { p.reset() },
		"malformed": func(p *peer) { p.say("bad\r\n"); p.rest() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(_ int, p *peer) { p.request(); end(p) })
			e := start(t, s.client(t, Options{}), post("{}"))
			_, err := e.Head(in(patience))
			require.Error(t, err)
			require.True(t, abort(t, e, time.Minute).eof)
		})
	}
}

// A whole answer leaves nothing to abort: the connection is kept.
func TestAbortOfAFinishedOne(t *testing.T) {
	c := newServer(t, answers(okAnswer)).client(t, Options{})
	e, _ := ask(t, c, post("{}"))
	_, err := readAll(e)
	require.NoError(t, err)
	require.True(t, abort(t, e, time.Minute).eof)
	require.Equal(t, 1, idle(c))
}

// A request that was never written leaves nothing, either.
func TestAbortOfAnUnsentOne(t *testing.T) {
	got := make(chan bool, 1)
	s := newServer(t, func(_ int, p *peer) { r, _ := p.request(); got <- r != nil })
	e := start(t, s.client(t, Options{}), post("{}"))
	e.Interrupt()
	_, err := e.Head(in(patience))
	require.Equal(t, ErrInterrupted, err)
	require.True(t, abort(t, e, time.Minute).eof)
	require.False(t, <-got)
}

// After Close nothing is known of the server any more.
func TestAbortAfterClose(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) { p.rest() })
	e := sent(t, s.client(t, Options{}), post("{}"))
	e.Close()
	require.False(t, abort(t, e, time.Minute).eof)
	e.Abort(0, nil)
}

// Replacing a client (a reload) does not cut what is being drained: R1 needs it.
func TestAbortOutlivesTheClient(t *testing.T) {
	finish := make(chan struct{})
	s := newServer(t, func(_ int, p *peer) { p.request(); <-finish })
	c := s.client(t, Options{})
	e := sent(t, c, post("{}"))
	gone := make(chan bool, 1)
	e.Abort(time.Minute, func(eof bool) { gone <- eof })
	c.Close()
	require.Empty(t, gone)
	close(finish)
	require.True(t, <-gone)
}
