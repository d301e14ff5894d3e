package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cuts limits how much each read of the connection may take: after the last
// of them, everything.
func cuts(c *conn, sizes ...int) {
	c.onRead = func(fd uintptr) bool {
		if len(sizes) == 0 {
			return c.readReady(fd)
		}
		if c.b == nil {
			c.borrow()
		}
		all := c.b
		c.b = c.b[:min(len(c.b), c.w+sizes[0])]
		ok := c.readReady(fd)
		if c.b != nil {
			c.b = all
		}
		if ok {
			sizes = sizes[1:]
		}
		return ok
	}
}

func ones(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

var wholeAnswers = map[string]struct {
	text, method, body string
	status             int
	closes, kept       bool // the server closes behind it; we keep the connection
}{
	"length":        {okAnswer, "POST", "ok", 200, false, true},
	"empty":         {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "POST", "", 200, false, true},
	"chunked":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nA: b\r\n\r\n", "POST", "abcde", 200, false, true},
	"empty chunked": {"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST", "", 500, false, true},
	"to the end":    {"HTTP/1.1 200 OK\r\nX: y\r\n\r\nto the end", "POST", "to the end", 200, true, false},
	"1.0":           {"HTTP/1.0 200 OK\r\n\r\nold", "POST", "old", 200, true, false},
	"HEAD":          {"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", "HEAD", "", 200, false, true},
	"204":           {"HTTP/1.1 204 No Content\r\n\r\n", "POST", "", 204, false, true},
	"304":           {"HTTP/1.1 304 Not Modified\r\n\r\n", "GET", "", 304, false, true},
	"interim":       {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okAnswer, "POST", "ok", 200, false, true},
	"close":         {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", "POST", "ok", 200, true, false},
	"more behind":   {okAnswer + "HTTP/1.1 200", "POST", "ok", 200, false, false},
	"behind chunks": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n\r\n", "POST", "a", 200, false, false},
}

func serveText(text string, closes bool) func(int, *peer) {
	return func(_ int, p *peer) {
		for {
			if r, _ := p.request(); r == nil {
				return
			}
			p.say(text)
			if closes {
				return
			}
		}
	}
}

// Every framing, with the answer cut in two at each byte boundary, and cut
// into single bytes. PAINS 11: nothing depends on read boundaries.
func TestAnswersAtEveryCut(t *testing.T) {
	for name, a := range wholeAnswers {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, serveText(a.text, a.closes))
			c := s.client(t, Options{})
			check := func(sizes ...int) {
				e := start(t, c, &Request{Method: a.method, Target: "/"})
				cuts(e.conn, sizes...)
				resp, err := e.Head(in(patience))
				require.NoError(t, err)
				require.Equal(t, a.status, resp.Status)
				body, err := readAll(e)
				require.NoError(t, err)
				require.Equal(t, a.body, body)
				e.Close()
				c.Close() // each cut starts from a new connection
				c.pool.mu.closed = false
			}
			for i := range len(a.text) {
				check(i + 1)
			}
			check(ones(len(a.text))...)
			// Whole, and whether the connection is kept.
			e, _ := ask(t, c, &Request{Method: a.method, Target: "/"})
			_, err := readAll(e)
			require.NoError(t, err)
			e.Close()
			require.Equal(t, a.kept, idle(c) == 1)
		})
	}
}

// A server that goes away too early, at every byte and in both ways: it is an
// error with the right phase, and never a clean end.
func TestEarlyEndAtEveryByte(t *testing.T) {
	for name, a := range wholeAnswers {
		if a.closes || strings.Contains(name, "behind") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(_ int, p *peer) {
				r, _ := p.request()
				n, _ := strconv.Atoi(r.URL.Query().Get("n"))
				p.say(a.text[:n])
				if r.URL.Query().Has("reset") {
					p.reset()
				}
			})
			c := s.client(t, Options{})
			for n := range len(a.text) {
				for _, how := range []string{"", "&reset"} {
					e := start(t, c, &Request{Method: a.method, Target: fmt.Sprintf("/?n=%d%s", n, how)})
					_, err := e.Head(in(patience))
					if err == nil {
						_, err = readAll(e)
					}
					require.NotErrorIs(t, err, io.EOF)
					if how == "" {
						require.ErrorIs(t, err, io.ErrUnexpectedEOF, "after %d bytes", n)
					} else {
						require.ErrorIs(t, err, syscall.ECONNRESET, "after %d bytes", n)
					}
					want := Answered
					if n == 0 {
						want = Sent
					}
					require.Equal(t, want, phaseOf(t, err))
					require.ErrorContains(t, err, "the answer of "+c.addr)
					_, again := e.Next(in(patience))
					require.Equal(t, err, again, "the error stays")
					e.Close()
					require.Zero(t, idle(c))
				}
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	for name, c := range map[string]struct{ text, err, body string }{
		"not HTTP":            {"220 smtp ready\r\n", "the answer begins with", ""},
		"bad head":            {"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "malformed header line", ""},
		"conflict":            {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both", ""},
		"head without end":    {"HTTP/1.1 200 OK\r\n" + strings.Repeat("Aaaaaaaaa: b\r\n", 500) + strings.Repeat("x", maxHead), "more than 65536 bytes", ""},
		"chunk in the middle": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", "malformed chunked", "abc"},
		"interim for ever":    {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", maxInterim+1), "interim", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(_ int, p *peer) { p.request(); p.say(c.text); p.rest() })
			cl := s.client(t, Options{})
			e := start(t, cl, post("{}"))
			_, err := e.Head(in(patience))
			body := ""
			if err == nil {
				body, err = readAll(e)
			}
			require.ErrorContains(t, err, c.err)
			require.Equal(t, Answered, phaseOf(t, err))
			require.Equal(t, c.body, body)
			e.Close()
			require.Zero(t, idle(cl))
		})
	}
}

// Heads and bodies larger than a buffer, and small ones behind each other.
func TestLargeAnswers(t *testing.T) {
	var head strings.Builder
	for i := range 60 {
		fmt.Fprintf(&head, "X-%d: %s\r\n", i, strings.Repeat("v", 1000))
	}
	big := strings.Repeat("0123456789", 100_000)
	interim := strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: "+strings.Repeat("v", 5000)+"\r\n\r\n", 3)
	s := newServer(t, answers(
		interim+"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n"+head.String()+"\r\n"+big,
		fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", head.String(), len(big), big),
	))
	c := s.client(t, Options{})
	for range 4 {
		require.Equal(t, big, whole(t, c, post("{}")))
		require.Equal(t, 1, idle(c))
	}
}

// Requests of every size arrive whole: in one piece, in two, and larger than
// the socket takes at once.
func TestLargeRequests(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) {
		for {
			_, body := p.request()
			if body == nil {
				return
			}
			fmt.Fprintf(p, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08x", crc32.ChecksumIEEE(body))
		}
	})
	c := s.client(t, Options{})
	for _, n := range []int{0, 1, bufSize - 200, bufSize - 60, bufSize, bufSize + 1, 1 << 20, 8 << 20} {
		body := bytes.Repeat([]byte("0123456789abcde"), n/15+1)[:n]
		require.Equal(t, fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)), whole(t, c, post(string(body))), "%d bytes", n)
		require.Equal(t, 1, idle(c))
	}
}

// PAINS 11, R8: an event is given as soon as it has come, and what comes
// together is given together.
func TestStreamEventsAsTheyCome(t *testing.T) {
	next := make(chan string)
	s := newServer(t, func(_ int, p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for text := range next {
			p.say(text)
		}
	})
	e, _ := ask(t, s.client(t, Options{}), post("{}"))
	for _, c := range []struct{ send, want string }{
		{"4\r\none\n\r\n", "one\n"},
		{"4\r\ntwo\n\r\n6\r\nthree\n\r\n", "two\nthree\n"},
		{"5\r\nfo", "fo"},
		{"ur\n\r\n0\r\n\r\n", "ur\n"},
	} {
		next <- c.send
		p, err := e.Next(in(patience))
		require.NoError(t, err)
		require.Equal(t, c.want, string(p))
		require.Equal(t, strings.HasSuffix(c.send, "0\r\n\r\n"), e.Done())
	}
	_, err := e.Next(time.Time{})
	require.Equal(t, io.EOF, err)
	close(next)
}

func TestPhasesHaveNames(t *testing.T) {
	require.Equal(t, "nothing sent, sent, answered, unknown", fmt.Sprintf("%v, %v, %v, %v", NothingSent, Sent, Answered, Phase(9)))
}

func TestNothingSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	base := "http://" + l.Addr().String()

	_, err = clientFor(t, base).Start(context.Background(), post("{}"), in(patience))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, NothingSent, phaseOf(t, err))
	require.ErrorContains(t, err, "connecting to "+l.Addr().String())

	_, err = clientFor(t, "http://no-such-host.invalid:1").Start(context.Background(), post("{}"), in(patience))
	var dns *net.DNSError
	require.ErrorAs(t, err, &dns)
	require.Equal(t, NothingSent, phaseOf(t, err))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = clientFor(t, base).Start(ctx, post("{}"), in(patience))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, NothingSent, phaseOf(t, err))

	_, err = clientFor(t, base).Start(context.Background(), post("{}"), in(-time.Second))
	require.Error(t, err)
	require.Equal(t, NothingSent, phaseOf(t, err))
}

// A server that takes no more bytes: the write ends with ctx or the deadline.
func TestWriteIsBounded(t *testing.T) {
	got := make(chan struct{}, 2)
	done := make(chan struct{})
	s := newServer(t, func(_ int, p *peer) {
		p.r.Peek(1)
		got <- struct{}{}
		<-done
	})
	t.Cleanup(func() { close(done) })
	c := s.client(t, Options{})
	huge := &Request{Method: "POST", Target: "/", Body: make([]byte, 64<<20)}

	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-got; cancel() }()
	_, err := c.Start(ctx, huge, in(patience))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, Sent, phaseOf(t, err))
	require.ErrorContains(t, err, "sending a request to")

	_, err = c.Start(context.Background(), huge, in(100*time.Millisecond))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, Sent, phaseOf(t, err))
}

// R7: as long as a server takes bytes, however slowly, a request that says so is
// written on beyond the deadline; one that takes none is given up.
func TestSlowWritesGoOnR7(t *testing.T) {
	// Where the reader is starved, too, the kernel asks after a closed window only
	// every few seconds: taken for a stall is what is longer.
	const deadline, stall, patient = 1500 * time.Millisecond, 2 * time.Second, time.Minute
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			done := make(chan struct{})
			stop := make(chan struct{}, 1)
			slow := func(_ int, p *peer) {
				p.r = bufio.NewReaderSize(&throttled{Conn: p.Conn}, 64<<10)
				select {
				case <-stop:
					p.r.Peek(1)
					<-done
				default:
					_, body := p.request()
					fmt.Fprintf(p, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n%08x", crc32.ChecksumIEEE(body))
				}
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			o := Options{Base: &url.URL{Scheme: "http", Host: l.Addr().String()}}
			if secure {
				ts := httptest.NewTLSServer(nil)
				defer ts.Close()
				l = tls.NewListener(l, &tls.Config{Certificates: ts.TLS.Certificates})
				o.Base.Scheme, o.TLS = "https", &tls.Config{RootCAs: x509.NewCertPool()}
				o.TLS.RootCAs.AddCert(ts.Certificate())
			}
			s := serveOn(t, l, slow)
			t.Cleanup(func() { close(done) })
			c := s.client(t, o)
			r := &Request{Method: "POST", Target: "/", Body: bytes.Repeat([]byte("0123456789abcdef"), 3<<19), Stall: patient}

			began := time.Now()
			x, err := c.Start(context.Background(), r, in(deadline))
			require.NoError(t, err)
			require.Greater(t, time.Since(began), deadline, "slow enough to prove something")
			_, err = x.Head(in(patient)) // the kernel still holds half a second of it
			require.NoError(t, err)
			p, err := x.Next(in(patience))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%08x", crc32.ChecksumIEEE(r.Body)), string(p))
			x.Close()

			r.Stall = stall
			stop <- struct{}{}
			_, err = c.Start(context.Background(), r, time.Time{})
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Equal(t, Sent, phaseOf(t, err))

			stop <- struct{}{}
			ctx, cancel := context.WithTimeout(context.Background(), stall/20)
			defer cancel()
			_, err = c.Start(ctx, r, in(patience))
			require.ErrorIs(t, err, context.DeadlineExceeded, "the context ends a slow write, too")
		})
	}
}

// throttled reads an eighth of a megabyte in 20 ms, no more.
type throttled struct {
	net.Conn
	n int
}

func (c *throttled) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 64<<10)])
	if c.n += n; c.n >= 128<<10 {
		c.n = 0
		<-time.After(20 * time.Millisecond)
	}
	return n, err
}

// A small request that the socket takes in pieces, at each wait for its answer
// or at once, arrives whole.
func TestSmallRequestInPieces(t *testing.T) {
	c := newServer(t, func(_ int, p *peer) {
		for {
			r, body := p.request()
			if r == nil {
				return
			}
			fmt.Fprintf(p, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	}).client(t, Options{})
	for _, how := range []string{"head", "finish"} {
		e := start(t, c, post("hello"))
		require.True(t, e.unsent())
		conn := e.conn
		n, err := conn.nc.Write(conn.out[:20])
		require.NoError(t, err)
		conn.out, conn.begun = conn.out[n:], true
		require.False(t, e.unsent())
		if how == "finish" {
			require.NoError(t, e.interruptibly(in(patience), e.finish))
			require.Nil(t, conn.outBuf)
		}
		_, err = e.Head(in(patience))
		require.NoError(t, err)
		body, err := readAll(e)
		require.NoError(t, err)
		require.Equal(t, "hello", body)
		e.Close()
	}
}

// A socket that takes only a part of the request laid ready: the rest follows
// when there is room, and a deadline or Interrupt meanwhile is heard.
func TestRequestWaitsForRoom(t *testing.T) {
	read := make(chan struct{}, 1)
	s := newServer(t, func(_ int, p *peer) {
		<-read
		if r, body := p.request(); r != nil {
			fmt.Fprintf(p, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08x", crc32.ChecksumIEEE(body))
		}
	})
	c := s.client(t, Options{})
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	begin := func() *Exchange {
		e := start(t, c, post("{}"))
		// one more than any socket takes; such a one is not laid ready in earnest
		e.conn.out = append(post(string(body)).appendHead(nil, c), body...)
		for range 2 {
			_, err := e.Head(in(50 * time.Millisecond))
			require.Equal(t, os.ErrDeadlineExceeded, err)
		}
		require.False(t, e.unsent(), "a part of it is there")
		return e
	}
	e := begin()
	read <- struct{}{}
	_, err := e.Head(in(patience))
	require.NoError(t, err)
	got, err := readAll(e)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)), got)
	e.Close()

	e = begin()
	go e.Interrupt()
	_, err = e.Head(time.Time{})
	require.Equal(t, ErrInterrupted, err)
	require.False(t, abort(t, e, 20*time.Millisecond).eof)
	read <- struct{}{}
}

// A server that hangs up on a new connection without reading, before the
// request or over it: a failure before any answer, and nothing is sent again.
func TestServerThatHangsUp(t *testing.T) {
	connected, hungUp := make(chan struct{}), make(chan struct{})
	c := newServer(t, func(n int, p *peer) {
		<-connected
		if n%2 == 0 {
			p.reset()
			hungUp <- struct{}{}
		}
	}).client(t, Options{})
	for n := range 20 {
		e := start(t, c, post("{}"))
		connected <- struct{}{}
		if n%2 == 0 {
			<-hungUp
		}
		_, err := e.Head(in(patience))
		require.False(t, e.Resent())
		if n%2 == 0 {
			require.Equal(t, NothingSent, phaseOf(t, err))
			require.ErrorContains(t, err, "sending a request to "+c.addr)
		} else {
			require.NotEqual(t, Answered, phaseOf(t, err))
		}
		e.Close()
	}
}

// One that first says why is heard, though the request cannot be written any more.
func TestServerThatRefusesAndHangsUp(t *testing.T) {
	connected, hungUp := make(chan struct{}), make(chan struct{})
	c := newServer(t, func(_ int, p *peer) {
		<-connected
		p.say("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
		p.reset()
		close(hungUp)
	}).client(t, Options{})
	e := start(t, c, post("{}"))
	close(connected)
	<-hungUp
	resp, err := e.Head(in(patience))
	require.NoError(t, err)
	require.Equal(t, 503, resp.Status)
	body, err := readAll(e)
	require.NoError(t, err)
	require.Equal(t, "busy", body)
	e.Close()
	require.Zero(t, idle(c))
}

// A server that speaks first on a new connection is heard.
func TestServerThatSpeaksFirst(t *testing.T) {
	c := newServer(t, func(_ int, p *peer) { p.say("SSH-2.0-x\r\n"); p.rest() }).client(t, Options{})
	for range 20 {
		e := start(t, c, post("{}"))
		_, err := e.Head(in(patience))
		require.ErrorContains(t, err, "the answer begins with")
		e.Close()
	}
}

// A server that answers before it has read the request, and hangs up: its
// answer counts, the connection does not.
func TestAnswerBeforeTheRequestIsRead(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) {
		p.r.Peek(1)
		p.say("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
	})
	c := s.client(t, Options{})
	e, resp := ask(t, c, &Request{Method: "POST", Target: "/", Body: make([]byte, 16<<20)})
	require.Equal(t, 413, resp.Status)
	body, err := readAll(e)
	require.NoError(t, err)
	require.Equal(t, "big", body)
	e.Close()
	require.Zero(t, idle(c))
}

func TestUseAfterTheEnd(t *testing.T) {
	s := newServer(t, answers(okAnswer))
	c := s.client(t, Options{})

	e := start(t, c, post("{}"))
	_, err := e.Next(in(patience))
	require.ErrorIs(t, err, errNoHead)
	e.Close()
	_, err = e.Head(in(patience))
	require.ErrorIs(t, err, ErrClosed)

	e, _ = ask(t, c, post("{}"))
	e.Close() // the body was not read: the connection is gone
	e.Close()
	e.Interrupt()
	require.Zero(t, idle(c))
	_, err = e.Next(in(patience))
	require.ErrorIs(t, err, ErrClosed)

	whole(t, c, post("{}"))
	require.Equal(t, 1, idle(c))
	c.Close()
	require.Zero(t, idle(c))
	require.Equal(t, "ok", whole(t, c, post("{}")), "a closed client still serves, for requests under way")
	require.Zero(t, idle(c))
}
