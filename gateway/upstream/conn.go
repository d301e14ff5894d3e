package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"switchyard/gateway/socket"
)

const (
	// bufSize holds the head and body of most requests, and what a replica
	// usually sends at once. More is read in pieces and written beside the head.
	bufSize = 16 << 10
	// largeSize is for a replica that sends faster than it is read, since each
	// read costs a write to the client besides. A whole head fits, too.
	largeSize = maxHead
	// smallSize is what a TLS connection waits with: crypto/tls cannot say
	// "something is there" without a place to put it.
	smallSize = 2 << 10
)

var (
	buffers      = sync.Pool{New: func() any { return new([bufSize]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeSize]byte) }}
)

// conn is a connection and the bytes read from it that nobody has taken yet.
// One exchange at a time uses it.
type conn struct {
	nc  net.Conn
	tcp *net.TCPConn    // nc, or what lies under its TLS
	ctl syscall.RawConn // of tcp: for looking without reading
	raw syscall.RawConn // of tcp where it can be read and written directly: not under TLS

	// b[r:w] has been read and not taken. b is nil, or one of the pooled buffers,
	// or small (TLS), or a larger one for a long head.
	b      []byte
	r, w   int
	pooled *[bufSize]byte
	large  *[largeSize]byte
	small  []byte
	filled bool // the last read left no room: more is likely there

	// out is a request that fits a buffer, outBuf, and goes out with the first
	// wait for its answer; see ask.
	out    []byte
	outBuf *[bufSize]byte
	begun  bool      // a part of out was written
	broken bool      // the request could not be written to its end: no reuse
	sentAt time.Time // when the request was written; kept only for a used connection

	// The callbacks given to raw are made once, their results left in got.
	onRead  func(fd uintptr) bool
	onPut   func(fd uintptr) bool
	onPeek  func(fd uintptr)
	putting putting
	got     struct {
		n     int
		again bool
		err   error
	}

	armed     time.Time // the read deadline that is set; guarded by the exchange's mu
	used      bool      // has carried an exchange before
	idleUntil time.Time
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc}
	switch t := nc.(type) {
	case *net.TCPConn:
		c.tcp = t
	case *tls.Conn:
		c.tcp, _ = t.NetConn().(*net.TCPConn)
	}
	if c.tcp == nil || !socket.Direct {
		return c
	}
	c.ctl, _ = c.tcp.SyscallConn()
	if nc == net.Conn(c.tcp) {
		c.raw = c.ctl
	}
	c.onRead, c.onPut, c.onPeek = c.readReady, c.putReady, c.peek
	return c
}

// fill waits for bytes and adds them to the buffer. While it waits on plain
// TCP with nothing read before, it holds no buffer: the runtime calls readReady
// first and then each time the socket may be readable, and readReady borrows a
// buffer only for the read itself.
func (c *conn) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
		switch {
		case c.raw == nil:
			c.release()
			c.b = c.waitingBuffer()
		case c.filled && c.large == nil:
			c.release()
			c.large = largeBuffers.Get().(*[largeSize]byte)
			c.b = c.large[:]
		}
	}
	if c.raw == nil {
		n, err := c.nc.Read(c.b[c.w:])
		c.w += n
		c.filled = c.w == len(c.b)
		if n > 0 {
			return nil
		}
		return err
	}
	if err := c.raw.Read(c.onRead); err != nil {
		return err
	}
	if c.got.err != nil {
		return c.got.err
	}
	if c.got.n == 0 {
		return io.EOF
	}
	c.w += c.got.n
	c.filled = c.w == len(c.b)
	return nil
}

func (c *conn) readReady(fd uintptr) bool {
	if c.out != nil {
		if wait, done := c.ask(fd); wait || done {
			return done
		}
	}
	if c.b == nil {
		c.borrow()
	}
	c.got.n, c.got.again, c.got.err = socket.Read(fd, c.b[c.w:])
	if c.got.again && c.w == 0 {
		c.release()
		c.filled = false
	}
	return !c.got.again
}

// errStale: the server has closed the unused connection, or said something
// nobody asked for. errUnfinished: the socket did not take the whole request.
var (
	errStale      = errors.New("the unused connection is no longer open")
	errUnfinished = errors.New("the request is not wholly written")
)

// ask looks whether the connection is quiet and writes the request; then there
// is to wait for the answer, or something is done (left in got), or neither:
// bytes are there to be read.
//
// The usual order, write and then try to read, has a system call for nothing:
// the answer is never there yet. Here the look does both its work and that of
// telling a closed connection. Nothing can be missed by waiting without trying
// to read first, because the runtime has begun to note what arrives before it
// called (it forgets what came before), the look comes after that, and it saw
// nothing.
func (c *conn) ask(fd uintptr) (wait, done bool) {
	said, quiet, _ := socket.Peek(fd)
	if c.used && !c.begun {
		if !quiet {
			c.got.err = errStale
			return false, true
		}
		c.sentAt = time.Now()
	}
	n, again, err := socket.Write(fd, c.out)
	switch {
	case n == len(c.out):
		c.written()
		return quiet, false
	case said > 0: // an answer before the request: it is worth more than our failure
		c.written()
		c.broken = true
		return false, false
	case err != nil && !again:
		c.got.err = err
		return false, true
	}
	c.begun = c.begun || n > 0
	c.out, c.got.err = c.out[n:], errUnfinished
	return false, true
}

// written gives the request's buffer back.
func (c *conn) written() {
	if c.outBuf != nil {
		buffers.Put(c.outBuf)
	}
	c.out, c.outBuf, c.begun = nil, nil, false
}

func (c *conn) waitingBuffer() []byte {
	if c.filled {
		c.borrow()
		return c.b
	}
	if c.small == nil {
		c.small = make([]byte, smallSize)
	}
	return c.small
}

func (c *conn) borrow() {
	c.pooled = buffers.Get().(*[bufSize]byte)
	c.b = c.pooled[:]
}

// release gives the buffer back; what was in it is gone.
func (c *conn) release() {
	if c.pooled != nil {
		buffers.Put(c.pooled)
		c.pooled = nil
	}
	if c.large != nil {
		largeBuffers.Put(c.large)
		c.large = nil
	}
	c.b, c.r, c.w = nil, 0, 0
}

// room makes place behind b[r:w] for at least one more byte, up to limit bytes
// that wait to be taken; false: that many wait already.
func (c *conn) room(limit int) bool {
	if c.w < len(c.b) || c.b == nil {
		return true
	}
	if c.w-c.r >= limit {
		return false
	}
	if c.r > 0 {
		c.w = copy(c.b, c.b[c.r:c.w])
		c.r = 0
		return true
	}
	old, pooled := c.b, c.pooled
	if len(old) < bufSize { // small
		c.borrow()
	} else {
		c.b, c.pooled = make([]byte, limit), nil
	}
	copy(c.b, old)
	if pooled != nil {
		buffers.Put(pooled)
	}
	return true
}

// quiet says whether an unused connection is still open and has nothing to say.
// Anything readable disqualifies it: an end, a reset, or bytes nobody asked for.
func (c *conn) quiet() bool {
	if c.ctl == nil {
		return true
	}
	return c.ctl.Control(c.onPeek) == nil && c.got.again
}

// answering says whether bytes wait to be read, without waiting for them.
func (c *conn) answering() bool {
	return c.raw != nil && c.raw.Control(c.onPeek) == nil && c.got.n > 0
}

func (c *conn) peek(fd uintptr) { c.got.n, c.got.again, c.got.err = socket.Peek(fd) }

// pace bounds a write: all of it by deadline, or, if stall is set, each wait for
// the server to accept a byte.
type pace struct {
	deadline time.Time
	stall    time.Duration
}

// until is the deadline of what is written next.
func (p pace) until() time.Time {
	if p.stall > 0 {
		return time.Now().Add(p.stall)
	}
	return p.deadline
}

// How much is written at once at most: under one deadline where the socket cannot
// be written directly, or else in one system call, which the scheduler does not
// know of.
const (
	pieceSize  = 64 << 10
	directSize = 256 << 10
)

// A body of hugeBody or more is written through a send buffer of boundedBuffer:
// otherwise the kernel takes megabytes ahead of a slow server, and what counts
// from when the request is written would count them as read.
const (
	hugeBody      = 1 << 20
	boundedBuffer = 256 << 10
)

// write sends head and then body, waiting where it must: as long as p allows,
// and no longer than ctx. What the socket takes at once needs no deadline.
func (c *conn) write(ctx context.Context, p pace, head, body []byte) (int, error) {
	if c.tcp != nil && len(body) >= hugeBody {
		_ = c.tcp.SetWriteBuffer(boundedBuffer) // without it timeouts are only less exact
	}
	done := 0
	if c.raw != nil {
		n, err := c.put(head, body, false)
		if err != nil || n == len(head)+len(body) {
			return n, err
		}
		done, head, body = n, head[min(n, len(head)):], body[max(0, n-len(head)):]
	}
	if err := c.nc.SetWriteDeadline(p.until()); err != nil {
		return done, err
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		c.nc.SetWriteDeadline(time.Unix(1, 0)) // an error means it is closed: nothing to cut
	})
	n, err := c.writeRest(ctx, p, head, body)
	if !stop() {
		<-cut // else it could cut the next exchange's write
		if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.Cause(ctx)
		}
	}
	if failed := c.nc.SetWriteDeadline(time.Time{}); err == nil { // after an expired one a write may go on
		err = failed
	}
	return done + n, err
}

// writeRest writes all. Where p says so the deadline is moved whenever the server
// has taken something.
func (c *conn) writeRest(ctx context.Context, p pace, head, body []byte) (total int, err error) {
	for {
		n, err := c.put(head, body, true)
		head, body = head[min(n, len(head)):], body[max(0, n-len(head)):]
		if total += n; err != nil || len(head)+len(body) == 0 {
			return total, err
		}
		if p.stall == 0 {
			continue
		}
		if err := c.nc.SetWriteDeadline(p.until()); err != nil {
			return total, err
		}
		if ctx.Err() != nil { // its cut may have come before the deadline was moved
			return total, context.Cause(ctx)
		}
	}
}

// put writes some of head and body, and if it is to wait at least a byte.
func (c *conn) put(head, body []byte, wait bool) (n int, err error) {
	if c.raw == nil {
		if len(head) == 0 {
			head = body[:min(len(body), pieceSize)]
		}
		return c.nc.Write(head)
	}
	c.putting = putting{head, body[:min(len(body), directSize)], wait}
	err = c.raw.Write(c.onPut)
	c.putting = putting{}
	if err == nil && !c.got.again {
		n, err = c.got.n, c.got.err
	}
	return n, err
}

// putting is a put under way.
type putting struct {
	head, body []byte
	wait       bool
}

func (c *conn) putReady(fd uintptr) bool {
	p := &c.putting
	if len(p.head) > 0 {
		c.got.n, c.got.again, c.got.err = socket.WriteBoth(fd, p.head, p.body)
	} else {
		c.got.n, c.got.again, c.got.err = socket.Write(fd, p.body)
	}
	return !c.got.again || !p.wait
}

// closeWrite ends our sending side and leaves the other open.
func (c *conn) closeWrite() {
	if t, ok := c.nc.(*tls.Conn); ok {
		t.CloseWrite() // the close_notify; a failure shows when reading
	}
	if c.tcp != nil {
		c.tcp.CloseWrite()
	}
}

func (c *conn) close() {
	c.release()
	c.written()
	c.nc.Close()
}
