package upstream

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 10 * time.Second

func in(d time.Duration) time.Time { return time.Now().Add(d) }

// server is a hand-written one: each connection it accepts is given to serve
// with its number, and closed when serve returns.
type server struct {
	l   net.Listener
	wg  sync.WaitGroup
	mu  sync.Mutex
	all []net.Conn
}

func newServer(t testing.TB, serve func(n int, p *peer)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, l, serve)
}

func serveOn(t testing.TB, l net.Listener, serve func(n int, p *peer)) *server {
	s := &server{l: l}
	s.wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.all = append(s.all, c)
			s.mu.Unlock()
			s.wg.Go(func() {
				defer c.Close()
				serve(n, newPeer(c))
			})
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	s.l.Close()
	s.mu.Lock()
	for _, c := range s.all {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *server) client(t testing.TB, o Options) *Client {
	if o.Base == nil {
		o.Base = &url.URL{Scheme: "http", Host: s.l.Addr().String()}
	}
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// answers serves every connection with these, one a request, over and over.
func answers(list ...string) func(int, *peer) {
	return func(_ int, p *peer) {
		for i := 0; ; i++ {
			if _, body := p.request(); body == nil {
				return
			}
			p.say(list[i%len(list)])
		}
	}
}

// peer is the server's side of a connection.
type peer struct {
	net.Conn
	r *bufio.Reader
}

func newPeer(c net.Conn) *peer { return &peer{Conn: c, r: bufio.NewReader(c)} }

// request reads a whole request; its body is nil at the end of the connection.
func (p *peer) request() (*http.Request, []byte) {
	r, err := http.ReadRequest(p.r)
	if err != nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, nil
	}
	return r, append(make([]byte, 0, len(body)+1), body...)
}

func (p *peer) say(s string) { io.WriteString(p.Conn, s) }

// rest waits for the end of the client's side.
func (p *peer) rest() { io.Copy(io.Discard, p.r) }

// reset closes the connection with a reset.
func (p *peer) reset() {
	p.Conn.(*net.TCPConn).SetLinger(0)
	p.Close()
}

func start(t testing.TB, c *Client, r *Request) *Exchange {
	t.Helper()
	e, err := c.Start(context.Background(), r, in(patience))
	require.NoError(t, err)
	return e
}

// sent starts an exchange and waits until its request is written.
func sent(t testing.TB, c *Client, r *Request) *Exchange {
	t.Helper()
	e := start(t, c, r)
	for e.unsent() {
		if _, err := e.Head(in(5 * time.Millisecond)); err != nil {
			require.Equal(t, os.ErrDeadlineExceeded, err)
		}
	}
	return e
}

// ask starts an exchange and waits for its head.
func ask(t testing.TB, c *Client, r *Request) (*Exchange, *Response) {
	t.Helper()
	e := start(t, c, r)
	resp, err := e.Head(in(patience))
	require.NoError(t, err)
	return e, resp
}

// readAll reads a body to its end; the error is nil for a clean one.
func readAll(e *Exchange) (string, error) {
	var b bytes.Buffer
	for {
		p, err := e.Next(in(patience))
		b.Write(p)
		if err == io.EOF {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), err
		}
	}
}

// whole asks and reads everything, and gives the connection back.
func whole(t testing.TB, c *Client, r *Request) string {
	t.Helper()
	e, _ := ask(t, c, r)
	body, err := readAll(e)
	require.NoError(t, err)
	e.Close()
	return body
}

func idle(c *Client) int {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return len(c.pool.mu.idle)
}

func get(target string) *Request { return &Request{Method: "GET", Target: target} }

func post(body string) *Request {
	return &Request{Method: "POST", Target: "/v1/chat/completions", Body: []byte(body)}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func phaseOf(t testing.TB, err error) Phase {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Phase
}
