package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"switchyard/gateway/socket"
)

// Listener makes of l's connections ones that cost the gateway less: their
// system calls are made directly, and what net/http writes in pieces leaves in
// one. A chunk is three pieces to it, the last one a line end, each a system
// call here and a wake-up at the client. Without it all works as well.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newClientConn(nc), nil
}

// clientConn is a client's connection. While it is corked, what is written to
// it gathers and leaves in one piece. At most one goroutine reads and one
// writes at a time, as the server has it: the handler's and, when that has
// returned, the server's own. Over HTTP/2, where it is not so, nobody corks.
type clientConn struct {
	net.Conn
	raw     syscall.RawConn // nil: there is no direct way
	onRead  func(fd uintptr) bool
	onWrite func(fd uintptr) bool
	in, out transfer

	corked bool
	held   *[corkSize]byte // nil: nothing
	n      int             // bytes in held
	err    error           // why what was held could not be written

	one    [1]byte
	ahead  []byte                // what is read before the socket; see park
	parked atomic.Pointer[visit] // what the request that leads there is for
}

// transfer is a read or a write under way: the callbacks given to raw are made
// once.
type transfer struct {
	p   []byte
	n   int
	err error
}

func newClientConn(nc net.Conn) *clientConn {
	c := &clientConn{Conn: nc}
	if t, ok := nc.(*net.TCPConn); ok && socket.Direct {
		c.raw, _ = t.SyscallConn() // never fails on a connection that was just accepted
		c.onRead, c.onWrite = c.readReady, c.writeReady
	}
	return c
}

func (c *clientConn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
			c.ahead = nil
		}
		return n, nil
	}
	if c.raw == nil || len(p) == 0 {
		return c.Conn.Read(p)
	}
	c.in = transfer{p: p}
	err := c.raw.Read(c.onRead)
	n, failed := c.in.n, c.in.err
	c.in = transfer{}
	switch {
	case err != nil:
		return 0, c.because("read", err)
	case failed != nil:
		return 0, c.because("read", os.NewSyscallError("read", failed))
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *clientConn) readReady(fd uintptr) bool {
	n, again, err := socket.Read(fd, c.in.p)
	c.in.n, c.in.err = n, err
	return !again
}

func (c *clientConn) Write(p []byte) (int, error) {
	switch {
	case c.err != nil:
		return 0, c.err
	case !c.corked:
		return c.send(p)
	case c.n+len(p) > corkSize:
		if err := c.flush(); err != nil {
			return 0, err
		}
		if len(p) > corkSize {
			return c.send(p)
		}
	}
	c.borrow()
	c.n += copy(c.held[c.n:], p)
	return len(p), nil
}

// chunk writes p as the server would that has begun a chunked answer, for a
// fraction of what it spends on it. Nothing of the answer may be left in the
// server, and nothing but the connection lie below it.
func (c *clientConn) chunk(p []byte) (n int, err error) {
	for n < len(p) && c.err == nil {
		piece := p[n:min(len(p), n+corkSize-chunkFrame)]
		if c.n+len(piece)+chunkFrame > corkSize && c.flush() != nil {
			break
		}
		c.borrow()
		b := append(strconv.AppendInt(c.held[:c.n], int64(len(piece)), 16), "\r\n"...)
		c.n = len(append(append(b, piece...), "\r\n"...))
		n += len(piece)
	}
	if !c.corked {
		c.flush()
	}
	return n, c.err
}

// chunkFrame has room for a chunk's size and two line ends.
const chunkFrame = 20

func (c *clientConn) borrow() {
	if c.held == nil {
		c.held = corkBuffers.Get().(*[corkSize]byte)
	}
}

// send writes all of p.
func (c *clientConn) send(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.Conn.Write(p)
	}
	c.out = transfer{p: p}
	err := c.raw.Write(c.onWrite)
	n, failed := c.out.n, c.out.err
	c.out = transfer{}
	switch {
	case err != nil:
		return n, c.because("write", err)
	case failed != nil:
		return n, c.because("write", os.NewSyscallError("write", failed))
	}
	return n, nil
}

func (c *clientConn) writeReady(fd uintptr) bool {
	o := &c.out
	for o.n < len(o.p) {
		n, again, err := socket.Write(fd, o.p[o.n:])
		if again {
			return false
		}
		if o.err = err; err != nil {
			return true
		}
		o.n += n
	}
	return true
}

// because gives an error the form that the net package would.
func (c *clientConn) because(op string, err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// corkSize has room for what one read from a replica gives, framed again.
const corkSize = 68 << 10

var corkBuffers = sync.Pool{New: func() any { return new([corkSize]byte) }}

// flush writes what is held. Once that has failed, so does each later write.
func (c *clientConn) flush() error {
	if c.held != nil {
		_, c.err = c.send(c.held[:c.n])
		corkBuffers.Put(c.held)
		c.held, c.n = nil, 0
	}
	return c.err
}

func (c *clientConn) uncork() error {
	c.corked = false
	return c.flush()
}

// SetWriteDeadline with none is what the server does when it has written the
// end of an answer, whichever way it goes on: what is held leaves now, still
// under the deadline it was written under.
func (c *clientConn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && c.uncork() != nil {
		c.Conn.Close() // an answer without its end must not pass for a whole one
	}
	return c.Conn.SetWriteDeadline(t)
}

// Close ends the connection, and the request parked on it if the server closes
// it before it has come to that.
func (c *clientConn) Close() error {
	if q := c.parked.Swap(nil); q != nil {
		go q.abandon()
	}
	return c.Conn.Close()
}

// CloseWrite is for the server, which closes gently where it can.
func (c *clientConn) CloseWrite() error {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return errors.ErrUnsupported
}

type clientConnKey struct{}

// withConn puts a connection into the context of its requests. Under TLS it is
// the one below.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	if c, ok := c.(*clientConn); ok {
		return context.WithValue(ctx, clientConnKey{}, c)
	}
	return ctx
}

// connOf is the connection of a request if it may be corked, else nil.
func connOf(r *http.Request) *clientConn {
	if r.ProtoMajor != 1 {
		return nil
	}
	c, _ := r.Context().Value(clientConnKey{}).(*clientConn)
	return c
}
