package upstream

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// numbered answers each request with its connection's number, as keep says.
func numbered(keep string) func(int, *peer) {
	return func(n int, p *peer) {
		for {
			if r, _ := p.request(); r == nil {
				return
			}
			fmt.Fprintf(p, "HTTP/1.1 200 OK\r\n%sContent-Length: 1\r\n\r\n%d", keep, n)
		}
	}
}

func TestConnectionIsReused(t *testing.T) {
	c := newServer(t, numbered("")).client(t, Options{})
	for range 3 {
		require.Equal(t, "0", whole(t, c, post("{}")))
	}
}

// The connection used last is taken first, so that the others can age.
func TestPoolIsLIFO(t *testing.T) {
	c := newServer(t, numbered("")).client(t, Options{})
	e0, _ := ask(t, c, post("{}"))
	e1, _ := ask(t, c, post("{}"))
	for _, e := range []*Exchange{e1, e0} {
		_, err := readAll(e)
		require.NoError(t, err)
		e.Close()
	}
	require.Equal(t, "0", whole(t, c, post("{}")))
	require.Equal(t, 2, idle(c))
}

func TestPoolKeepsTheNewest(t *testing.T) {
	c := newServer(t, numbered("")).client(t, Options{MaxIdle: 1})
	e0, _ := ask(t, c, post("{}"))
	e1, _ := ask(t, c, post("{}"))
	for _, e := range []*Exchange{e0, e1} {
		_, err := readAll(e)
		require.NoError(t, err)
		e.Close()
		require.Equal(t, 1, idle(c))
	}
	require.Equal(t, "1", whole(t, c, post("{}")))
}

// PAINS 19: what the server says about its patience counts, a second less.
func TestKeepAliveLimits(t *testing.T) {
	for keep, limit := range map[string]time.Duration{
		"":                                         defaultIdleTimeout,
		"Keep-Alive: timeout=5, max=100\r\n":       defaultIdleTimeout,
		"Keep-Alive: timeout=3\r\n":                2 * time.Second,
		"Keep-Alive: timeout=1\r\n":                0,
		"Keep-Alive: timeout=30, max=1\r\n":        0,
		"Connection: close\r\n":                    0,
		"Connection: keep-alive, close\r\n":        0,
		"Connection: keep-alive\r\nX-Y: close\r\n": defaultIdleTimeout,
	} {
		c := newServer(t, numbered(keep)).client(t, Options{})
		before := time.Now()
		whole(t, c, post("{}"))
		if limit == 0 {
			require.Zero(t, idle(c), keep)
			continue
		}
		conn := c.pool.pop()
		require.NotNil(t, conn, keep)
		require.WithinRange(t, conn.idleUntil, before.Add(limit), time.Now().Add(limit), keep)
		conn.close()
	}
}

// Unused connections are closed when their time is over, all of them, by one
// timer; the server sees the end.
func TestIdleConnectionsAgeOut(t *testing.T) {
	ended := make(chan int, 3)
	s := newServer(t, func(n int, p *peer) { numbered("")(n, p); ended <- n })
	c := s.client(t, Options{IdleTimeout: 30 * time.Millisecond})
	e0, _ := ask(t, c, post("{}"))
	e1, _ := ask(t, c, post("{}"))
	for _, e := range []*Exchange{e0, e1} {
		_, err := readAll(e)
		require.NoError(t, err)
		e.Close()
	}
	require.Equal(t, 1, <-ended+<-ended)
	require.Zero(t, idle(c))
	require.Equal(t, "2", whole(t, c, post("{}")))
}

// Those whose server is less patient go first.
func TestIdleConnectionsAgeOutOneByOne(t *testing.T) {
	ended := make(chan int, 2)
	s := newServer(t, func(n int, p *peer) { numbered("")(n, p); ended <- n })
	c := s.client(t, Options{IdleTimeout: 60 * time.Millisecond})
	e0, _ := ask(t, c, post("{}"))
	e1, _ := ask(t, c, post("{}"))
	for i, e := range []*Exchange{e0, e1} {
		conn := e.detach()
		c.pool.put(conn, []time.Duration{10 * time.Millisecond, time.Hour}[i])
	}
	require.Equal(t, 0, <-ended)
	require.Equal(t, 1, <-ended)
}

// One that is too old is not used even if the timer has not come round to it.
func TestTooOldIsNotUsed(t *testing.T) {
	c := newServer(t, numbered("")).client(t, Options{})
	whole(t, c, post("{}"))
	require.Nil(t, c.pool.get(time.Now().Add(defaultIdleTimeout)))
	require.Equal(t, "1", whole(t, c, post("{}")))
}

// untilNoticed waits until the client's side of its one unused connection
// shows that something happened to it.
func untilNoticed(t *testing.T, c *Client) {
	t.Helper()
	conn := c.pool.pop()
	require.NotNil(t, conn)
	for until := in(patience); conn.quiet(); runtime.Gosched() {
		require.True(t, time.Now().Before(until), "nothing happened to the connection")
	}
	c.pool.put(conn, math.MaxInt64)
}

// PAINS 19: a connection that the server has closed, or written to, while it was
// unused is noticed before anything is written to it.
func TestClosedWhileUnused(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"closed":       func(p *peer) { p.Close() },
		"half-closed":  func(p *peer) { p.Conn.(*net.TCPConn).CloseWrite() },
		"reset":        func(p *peer) { p.reset() },
		"unasked word": func(p *peer) { p.say("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			answered := make(chan struct{})
			s := newServer(t, func(n int, p *peer) {
				p.request()
				p.say(okAnswer)
				if n > 0 {
					return
				}
				<-answered
				end(p)
				p.rest()
			})
			c := s.client(t, Options{})
			whole(t, c, post("{}"))
			close(answered)
			untilNoticed(t, c)
			e, _ := ask(t, c, post("{}"))
			require.False(t, e.Resent(), "nothing had to be sent twice")
			e.Close()
		})
	}
}

// racer closes its first connection when the second request on it has come:
// what a server does that closes it as unused in that very moment looks like
// this. The connections after it answer.
func racer(end func(p *peer), requests *atomic.Int32) func(int, *peer) {
	return func(n int, p *peer) {
		p.request()
		requests.Add(1)
		p.say(okAnswer)
		if n == 0 {
			end(p)
			return
		}
		p.rest()
	}
}

// PAINS 19: lost in that moment, the request is sent again at once and nobody
// hears of it.
func TestLostWhileUnusedIsSentAgain(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"end":   func(p *peer) { p.request() },
		"reset": func(p *peer) { p.r.Peek(1); p.reset() },
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{10, 100_000} {
				var requests atomic.Int32
				c := newServer(t, racer(end, &requests)).client(t, Options{})
				whole(t, c, post("{}"))
				e, resp := ask(t, c, post(string(make([]byte, size))))
				require.Equal(t, 200, resp.Status)
				require.True(t, e.Resent())
				body, err := readAll(e)
				require.NoError(t, err)
				require.Equal(t, "ok", body)
				e.Close()
				require.EqualValues(t, 2, requests.Load())
				require.Equal(t, 1, idle(c), "the new connection is kept like any other")
			}
		})
	}
}

// The end of a connection after a while is the server's failure over this
// request, not the closing of an unused connection.
func TestLostLateIsNotSentAgain(t *testing.T) {
	var requests atomic.Int32
	die := make(chan struct{})
	c := newServer(t, racer(func(p *peer) { p.request(); <-die }, &requests)).client(t, Options{})
	whole(t, c, post("{}"))
	e := sent(t, c, post("{}"))
	e.conn.sentAt = e.conn.sentAt.Add(-atOnce)
	close(die)
	_, err := e.Head(in(patience))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, Sent, phaseOf(t, err))
	require.False(t, e.Resent())
	e.Close()
	require.EqualValues(t, 1, requests.Load())
}

// Nor is it sent again once a byte of an answer came, or on a new connection.
func TestLostWithAByteIsNotSentAgain(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) {
		p.request()
		p.say(okAnswer)
		p.request()
		p.say("H")
	})
	c := s.client(t, Options{})
	whole(t, c, post("{}"))
	e := start(t, c, post("{}"))
	_, err := e.Head(in(patience))
	require.Equal(t, Answered, phaseOf(t, err))
	require.False(t, e.Resent())
	e.Close()

	s = newServer(t, func(_ int, p *peer) { p.request() })
	e = start(t, s.client(t, Options{}), post("{}"))
	_, err = e.Head(in(patience))
	require.Equal(t, Sent, phaseOf(t, err))
	require.False(t, e.Resent())
	e.Close()
}

// A server that dies over the request, quickly and on a used connection, gets
// it once more; then it is reported.
func TestSentAgainOnlyOnce(t *testing.T) {
	var requests atomic.Int32
	s := newServer(t, func(n int, p *peer) {
		p.request()
		requests.Add(1)
		if n > 0 {
			return
		}
		p.say(okAnswer)
		p.request()
		requests.Add(1)
	})
	c := s.client(t, Options{})
	whole(t, c, post("{}"))
	e := start(t, c, post("{}"))
	_, err := e.Head(in(patience))
	require.Equal(t, Sent, phaseOf(t, err))
	require.True(t, e.Resent())
	e.Close()
	require.EqualValues(t, 3, requests.Load())
}

// A server that is gone altogether: the failure is that nothing could be sent.
func TestLostAndGone(t *testing.T) {
	var s *server
	s = newServer(t, func(_ int, p *peer) {
		p.request()
		p.say(okAnswer)
		p.request()
		s.l.Close()
	})
	c := s.client(t, Options{})
	whole(t, c, post("{}"))
	e := start(t, c, post("{}"))
	_, err := e.Head(in(patience))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, NothingSent, phaseOf(t, err))
	_, again := e.Head(in(patience))
	require.Equal(t, err, again)
	called := make(chan bool)
	e.Abort(time.Minute, func(eof bool) { called <- eof })
	<-called
}

// A write that fails on a used connection is repeated within Start.
func TestWriteToAClosedConnectionIsRepeated(t *testing.T) {
	closed := make(chan struct{})
	s := newServer(t, func(n int, p *peer) {
		p.request()
		p.say(okAnswer)
		if n == 0 {
			<-closed
			p.reset()
			closed <- struct{}{}
			return
		}
		p.rest()
	})
	c := s.client(t, Options{})
	whole(t, c, post("{}"))
	closed <- struct{}{}
	<-closed
	untilNoticed(t, c)
	conn := c.pool.pop()
	conn.onPeek = func(uintptr) { conn.got.n, conn.got.again = 0, true } // it closes right after the look
	c.pool.put(conn, math.MaxInt64)
	e, err := c.Start(context.Background(), post(string(make([]byte, bufSize))), in(patience))
	require.NoError(t, err)
	require.True(t, e.Resent())
	_, err = e.Head(in(patience))
	require.NoError(t, err)
	e.Close()
}

// PAINS 19, the race itself: a server that closes unused connections at the
// moment requests come. No request may fail.
func TestReuseRace(t *testing.T) {
	s := newServer(t, func(_ int, p *peer) {
		for {
			if r, _ := p.request(); r == nil {
				return
			}
			p.say(okAnswer)
			p.SetReadDeadline(in(2 * time.Millisecond))
			if _, err := p.r.Peek(1); err != nil {
				return
			}
			p.SetReadDeadline(time.Time{})
		}
	})
	c := s.client(t, Options{})
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	resent := 0
	for range 300 {
		e, _ := ask(t, c, post("{}"))
		if e.Resent() {
			resent++
		}
		_, err := readAll(e)
		require.NoError(t, err)
		e.Close()
		<-tick.C
	}
	t.Logf("%d of 300 requests met a closing connection", resent)
}

func TestConcurrentUse(t *testing.T) {
	c := newServer(t, answers(okAnswer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")).
		client(t, Options{MaxIdle: 4, IdleTimeout: 5 * time.Millisecond})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				e, err := c.Start(context.Background(), post("{}"), in(patience))
				if err != nil {
					t.Error(err)
					return
				}
				go e.Interrupt()
				_, err = e.Head(in(patience))
				if err == nil {
					_, err = readAll(e)
				}
				if err != nil && err != ErrInterrupted {
					t.Error(err)
				}
				e.Close()
			}
		})
	}
	wg.Wait()
}
