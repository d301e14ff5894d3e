package gateway

import (
	"bufio"
	"context"
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

// patience bounds every wait of a test for something that should happen soon.
const patienceInTests = time.Minute

// troupe is a set of scripted replicas on real sockets that share one script:
// the first attempt, wherever it goes, is answered by the first act, and so on;
// the last act is repeated.
type troupe struct {
	t    *testing.T
	acts []act
	wg   sync.WaitGroup

	// via is what the Via of a request must hold to be one of ours. Ports are
	// used again, and whoever else tests on this machine may still be calling
	// one that was his.
	via string

	listeners []net.Listener

	// reads, if set, stands between a connection and what is read from it.
	reads func(net.Conn) io.Reader

	mu struct {
		sync.Mutex
		calls  []*call
		conns  map[net.Conn]struct{}
		closed bool
	}
}

// act answers one request. When it returns, the connection serves the next
// request if the act said how its answer ends, else it is closed.
type act func(*call)

// call is one request as a replica got it, and the connection to answer on.
type call struct {
	t       *testing.T
	replica string
	conn    net.Conn
	request *http.Request
	body    string
	fresh   bool          // the first request of its connection
	done    chan struct{} // closed when the act has returned
	keep    bool          // the answer was framed: the connection may serve on
}

func newTroupe(t *testing.T, acts ...act) *troupe {
	tr := &troupe{t: t, acts: acts}
	tr.mu.conns = map[net.Conn]struct{}{}
	t.Cleanup(tr.close)
	return tr
}

// listen starts one replica and returns its URL.
func (tr *troupe) listen(name string) string {
	// Packets as on a network: with loopback's of 64 KiB a reader that is slow
	// closes its window with each, and opens it seconds later on a busy machine.
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1400) })
	}}
	l, err := small.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(tr.t, err)
	tr.listeners = append(tr.listeners, l)
	tr.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if tr.track(c) {
				tr.wg.Go(func() { tr.serve(name, c) })
			}
		}
	})
	return "http://" + l.Addr().String()
}

func (tr *troupe) track(c net.Conn) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.mu.closed {
		c.Close()
		return false
	}
	tr.mu.conns[c] = struct{}{}
	return true
}

func (tr *troupe) serve(name string, c net.Conn) {
	defer func() {
		c.Close()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		delete(tr.mu.conns, c)
	}()
	var from io.Reader = c
	if tr.reads != nil {
		from = tr.reads(c)
	}
	br := bufio.NewReader(from)
	for fresh := true; ; fresh = false {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if !strings.Contains(r.Header.Get("Via"), tr.via) {
			return
		}
		k := &call{t: tr.t, replica: name, conn: c, request: r, body: string(body), fresh: fresh, done: make(chan struct{})}
		tr.next(k)(k)
		close(k.done)
		if !k.keep {
			return
		}
	}
}

func (tr *troupe) next(k *call) act {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.mu.calls = append(tr.mu.calls, k)
	return tr.acts[min(len(tr.mu.calls), len(tr.acts))-1]
}

// calls are the requests so far.
func (tr *troupe) calls() []*call {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return append([]*call(nil), tr.mu.calls...)
}

// close ends all connections; acts that wait on theirs return.
func (tr *troupe) close() {
	for _, l := range tr.listeners {
		l.Close()
	}
	tr.mu.Lock()
	tr.mu.closed = true
	for c := range tr.mu.conns {
		c.Close()
	}
	tr.mu.Unlock()
}

// raw writes bytes as they are.
func (k *call) raw(s string) { io.WriteString(k.conn, s) }

// head writes a status line and headers, given as "Name: value" lines.
func (k *call) head(status int, headers ...string) {
	k.raw(fmt.Sprintf("HTTP/1.1 %d %s\r\n%s\r\n\r\n", status, http.StatusText(status), strings.Join(headers, "\r\n")))
}

// whole writes a whole answer with Content-Length.
func (k *call) whole(status int, contentType, body string, headers ...string) {
	headers = append([]string{"Content-Type: " + contentType, "Content-Length: " + strconv.Itoa(len(body))}, headers...)
	k.head(status, headers...)
	k.raw(body)
	k.keep = true
}

// streamHead begins a chunked answer.
func (k *call) streamHead(contentType string, headers ...string) {
	k.head(200, append([]string{"Content-Type: " + contentType, "Transfer-Encoding: chunked"}, headers...)...)
}

// chunk writes one chunk; an empty one would be the last.
func (k *call) chunk(s string) {
	if s != "" {
		k.raw(strconv.FormatInt(int64(len(s)), 16) + "\r\n" + s + "\r\n")
	}
}

// end writes the last chunk.
func (k *call) end() {
	k.raw("0\r\n\r\n")
	k.keep = true
}

// reset ends the connection with a RST.
func (k *call) reset() {
	k.conn.(*net.TCPConn).SetLinger(0)
	k.conn.Close()
}

// untilGone waits until the other side has ended the connection, as a server
// does that notices its client's departure.
func (k *call) untilGone() {
	k.conn.SetReadDeadline(time.Now().Add(patienceInTests))
	io.Copy(io.Discard, k.conn)
}

// drained waits until what was written has left for the other side, so that a
// reset that follows does not overtake it.
func (k *call) drained() { k.wait(30 * time.Millisecond) }

// wait lets time pass: d, or less when the other side ends the connection,
// which makes it false.
func (k *call) wait(d time.Duration) bool {
	k.conn.SetReadDeadline(time.Now().Add(d))
	_, err := k.conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// pretend is a connection that only collects what is written.
type pretend struct{ io.Writer }

func (pretend) Read([]byte) (int, error)         { return 0, io.EOF }
func (pretend) Close() error                     { return nil }
func (pretend) LocalAddr() net.Addr              { return nil }
func (pretend) RemoteAddr() net.Addr             { return nil }
func (pretend) SetDeadline(time.Time) error      { return nil }
func (pretend) SetReadDeadline(time.Time) error  { return nil }
func (pretend) SetWriteDeadline(time.Time) error { return nil }
