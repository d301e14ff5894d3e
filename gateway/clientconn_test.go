package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tapped is a listener whose connections note each write, below clientConn. It
// hides that they are TCP, so that none is made directly.
type tapped struct {
	net.Listener
	mu     sync.Mutex
	writes []string
}

type tappedConn struct {
	net.Conn
	by *tapped
}

func (l *tapped) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tappedConn{c, l}, nil
}

func (c *tappedConn) Write(p []byte) (int, error) {
	c.by.mu.Lock()
	c.by.writes = append(c.by.writes, string(p))
	c.by.mu.Unlock()
	return c.Conn.Write(p)
}

// serving runs the data plane's server on l with the handler.
func serving(t *testing.T, wrap func(net.Listener) net.Listener, h http.HandlerFunc) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := NewServer(Settings{}, h)
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(wrap(l)) })
	t.Cleanup(func() { s.Close(); wg.Wait() })
	return l.Addr().String()
}

func ask(t *testing.T, addr string, headers ...string) (net.Conn, *http.Response) {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patienceInTests))
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: h\r\n%s\r\n", strings.Join(append(headers, ""), "\r\n"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	return c, resp
}

// What is written while corked leaves in one piece when it is flushed, and the
// rest with the answer's end, whether or not the connection is kept.
func TestCorkedWritesLeaveTogether(t *testing.T) {
	big := strings.Repeat("x", 30<<10)
	for _, connection := range []string{"Connection: keep-alive", "Connection: close"} {
		t.Run(connection, func(t *testing.T) {
			tap := &tapped{}
			addr := serving(t, func(l net.Listener) net.Listener { tap.Listener = l; return Listener(tap) }, func(w http.ResponseWriter, r *http.Request) {
				j := &job{w: w, r: r, rc: *http.NewResponseController(w), conn: connOf(r)}
				for range 2 {
					j.cork()
					io.WriteString(w, big)
					require.NoError(t, j.flush())
				}
				j.cork()
				io.WriteString(w, "the end")
			})
			_, resp := ask(t, addr, connection)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, big+big+"the end", string(body))
			tap.mu.Lock()
			defer tap.mu.Unlock()
			require.Len(t, tap.writes, 3)
			require.True(t, strings.HasSuffix(tap.writes[0], "x\r\n"))
			require.Equal(t, "7\r\nthe end\r\n0\r\n\r\n", tap.writes[2])
		})
	}
}

// Once an answer's head has left, its chunks go past the server, which adds the
// last one; where it sends none they do not. The client reads the same.
func TestChunksGoPastTheServer(t *testing.T) {
	var parts []string
	for _, n := range []int{1, 9, 1 << 10, corkSize - chunkFrame, corkSize, 3*corkSize + 5, 15, 16} {
		parts = append(parts, strings.Repeat("0123456789abcdef", n/16+1)[:n])
	}
	for name, c := range map[string]struct {
		request, header string
		past            bool
	}{
		"chunked":                   {request: "GET / HTTP/1.1\r\nHost: h\r\n\r\n", past: true},
		"and closed":                {request: "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", past: true},
		"until the connection ends": {request: "GET / HTTP/1.0\r\n\r\n"},
		"of stated length":          {request: "GET / HTTP/1.1\r\nHost: h\r\n\r\n", header: "Content-Length"},
		"HEAD":                      {request: "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			whole := strings.Join(parts, "")
			past := make(chan bool, 1)
			addr := serving(t, Listener, func(w http.ResponseWriter, r *http.Request) {
				j := &job{w: w, r: r, rc: *http.NewResponseController(w), conn: connOf(r), settings: &Settings{Limits: Limits{WriteTimeout: time.Minute}}}
				if c.header != "" {
					w.Header().Set(c.header, strconv.Itoa(len(whole)))
				}
				j.sendHead(http.StatusOK)
				for i, part := range parts {
					if i%3 > 0 { // a heartbeat, say, is written without a cork
						j.cork()
					}
					require.NoError(t, j.write(time.Now(), []byte(part)))
					if i%2 == 0 {
						require.NoError(t, j.flush())
					}
				}
				past <- j.chunking
			})
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patienceInTests))
			io.WriteString(conn, c.request)
			method, _, _ := strings.Cut(c.request, " ")
			resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			if method == http.MethodHead {
				whole = ""
			}
			require.Equal(t, whole, string(got))
			require.Equal(t, c.past, <-past)
		})
	}
}

// More than a cork holds goes out in order, and nothing is lost or said twice.
func TestCorkOverflows(t *testing.T) {
	want := strings.Repeat("0123456789abcdef", 3*corkSize/16)
	addr := serving(t, Listener, func(w http.ResponseWriter, r *http.Request) {
		j := &job{w: w, r: r, rc: *http.NewResponseController(w), conn: connOf(r)}
		j.cork()
		io.WriteString(w, want[:100])
		io.WriteString(w, want[100:corkSize])
		io.WriteString(w, want[corkSize:])
		require.NoError(t, j.flush())
	})
	_, resp := ask(t, addr)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, want, string(body))
}

// A client that does not read what was held fails the flush by the deadline,
// and every write after it: nothing can follow an answer that has a hole.
func TestCorkedWriteFails(t *testing.T) {
	failed := make(chan error, 2)
	addr := serving(t, Listener, func(w http.ResponseWriter, r *http.Request) {
		j := &job{w: w, r: r, rc: *http.NewResponseController(w), conn: connOf(r)}
		w.WriteHeader(http.StatusOK)
		j.flush()
		j.rc.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		var err error
		for err == nil {
			j.cork()
			if _, err = w.Write(make([]byte, corkSize/2)); err == nil {
				err = j.flush()
			}
		}
		failed <- err
		_, err = j.conn.Write([]byte("more"))
		failed <- err
	})
	ask(t, addr)
	for range 2 {
		require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
	}
}

// The direct calls end as the net package's do: the server tells a client's
// departure, its own deadline and a fault apart by the errors' form.
func TestClientConnErrors(t *testing.T) {
	pair := func(t *testing.T) (*clientConn, *net.TCPConn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		there, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		here, err := Listener(l).Accept()
		require.NoError(t, err)
		t.Cleanup(func() { here.Close(); there.Close() })
		return here.(*clientConn), there.(*net.TCPConn)
	}
	form := func(t *testing.T, op string, err error) {
		e, ok := errors.AsType[*net.OpError](err)
		require.True(t, ok, "%T %v", err, err)
		require.Equal(t, op, e.Op)
	}
	buf := make([]byte, 10)

	t.Run("end", func(t *testing.T) {
		here, there := pair(t)
		there.Write([]byte("last"))
		there.CloseWrite()
		n, err := here.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "last", string(buf[:n]))
		_, err = here.Read(buf)
		require.Equal(t, io.EOF, err)
	})
	t.Run("deadline", func(t *testing.T) {
		here, _ := pair(t)
		here.SetReadDeadline(time.Unix(1, 0))
		_, err := here.Read(buf)
		form(t, "read", err)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		e, _ := errors.AsType[net.Error](err)
		require.True(t, e.Timeout())
	})
	t.Run("reset", func(t *testing.T) {
		here, there := pair(t)
		there.SetLinger(0)
		there.Close()
		_, err := here.Read(buf)
		form(t, "read", err)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		for err = nil; err == nil; {
			_, err = here.Write(buf)
		}
		form(t, "write", err)
	})
	t.Run("closed", func(t *testing.T) {
		here, _ := pair(t)
		here.Close()
		_, err := here.Read(buf)
		form(t, "read", err)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = here.Write(buf)
		form(t, "write", err)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
