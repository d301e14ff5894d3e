package upstream

import (
	"context"
	"io"
	"os"
	"sync"
	"time"
)

// Exchange is one request and its answer. One goroutine drives it: Head, Next
// and then Close or Abort; only Interrupt may be called from elsewhere.
type Exchange struct {
	client *Client
	method string
	req    *Request // until the first byte of the answer: it may have to be sent again
	resent bool

	scan    headScan
	interim int
	head    head  // the answer's; while its status is below 200, not there yet
	left    int64 // of a body of stated length
	chunks  chunked
	done    bool  // the body has been read to its end
	over    bool  // Close or Abort was called
	err     error // what ended the exchange

	// conn is the connection in use; nil while there is none. Only the driving
	// goroutine sets it, under mu, and so may read it without.
	conn *conn

	// mu guards what Interrupt and the driving goroutine meet over: conn (see
	// there), its armed deadline, and these.
	mu struct {
		sync.Mutex
		interrupted bool
		cancel      context.CancelFunc // of a connecting under way in Head
	}
}

const (
	opConnect = "connecting to"
	opSend    = "sending a request to"
	opHead    = "waiting for the answer of"
	opBody    = "reading the answer of"
)

func (e *Exchange) attach(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn = c
}

// detach takes the connection away, so that a late Interrupt cannot hit
// whatever it is used for next.
func (e *Exchange) detach() *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.conn
	e.conn = nil
	return c
}

// Resent says whether the request was sent a second time because the unused
// connection that it went out on first had been closed by the server.
func (e *Exchange) Resent() bool { return e.resent }

// Head waits for the answer's head. If it returns os.ErrDeadlineExceeded the
// exchange goes on as before and Head may be called again.
func (e *Exchange) Head(deadline time.Time) (*Response, error) {
	for !e.answered() {
		if e.err != nil {
			return nil, e.err
		}
		if err := e.advance(deadline); err != nil {
			return nil, err
		}
	}
	return &e.head.Response, nil
}

// answered says whether the answer's head is there.
func (e *Exchange) answered() bool { return e.head.Status >= 200 }

// advance goes one step towards the head: it connects again, parses what is
// there, or waits for more.
func (e *Exchange) advance(deadline time.Time) error {
	if e.over {
		return e.fail(opHead, ErrClosed)
	}
	if e.conn == nil {
		return e.interruptibly(deadline, e.connect)
	}
	if c := e.conn; c.r < c.w {
		if ok, err := e.parse(c); ok || err != nil {
			return err
		}
		if !c.room(maxHead) {
			return e.fail(opHead, errHeadTooLong)
		}
	}
	err := e.await(deadline)
	switch {
	case err == nil:
		e.req = nil
		return nil
	case err == os.ErrDeadlineExceeded || err == ErrInterrupted:
		return err
	case err == errStale:
		e.detach().close()
		return nil
	case err == errUnfinished:
		return e.interruptibly(deadline, e.finish)
	case e.lostIdle(err):
		e.resent = true
		e.detach().close()
		return nil
	case e.conn.out != nil:
		return e.fail(opSend, err)
	}
	return e.fail(opHead, cutShort(err))
}

// parse takes a head off the bytes that are there; ok: it did, if only an
// interim one.
func (e *Exchange) parse(c *conn) (ok bool, err error) {
	n, err := e.scan.end(c.b[c.r:c.w])
	if err != nil {
		return false, e.fail(opHead, err)
	}
	if n == 0 {
		return false, nil
	}
	if err := e.head.parse(c.b[c.r:c.r+n], e.scan.n, e.method); err != nil {
		e.head.Status = 0
		return false, e.fail(opHead, err)
	}
	c.r += n
	e.scan = headScan{}
	if !e.answered() {
		if e.interim++; e.interim > maxInterim {
			return false, e.fail(opHead, errTooManyInterim)
		}
		return true, nil
	}
	e.left = e.head.ContentLength
	e.done = e.head.framing == noBody || e.head.framing == byLength && e.left == 0
	return true, nil
}

// Next waits for the next bytes of the body, framing taken off. They are valid
// until the next call of any method. io.EOF is a clean end; after
// os.ErrDeadlineExceeded the exchange goes on as before. While nothing comes,
// no buffer is held (a small one under TLS).
func (e *Exchange) Next(deadline time.Time) ([]byte, error) {
	for {
		switch {
		case e.done:
			return nil, io.EOF
		case e.err != nil:
			return nil, e.err
		case e.over:
			return nil, e.fail(opBody, ErrClosed)
		case !e.answered():
			return nil, &Error{Sent, opBody, e.client.addr, errNoHead}
		}
		if c := e.conn; c.r < c.w {
			if p := e.take(c); len(p) > 0 {
				return p, nil
			}
			continue
		}
		err := e.await(deadline)
		switch {
		case err == nil:
		case err == os.ErrDeadlineExceeded || err == ErrInterrupted:
			return nil, err
		case err == io.EOF && e.head.framing == byClose:
			e.done = true
		default:
			return nil, e.fail(opBody, cutShort(err))
		}
	}
}

// take gives the body bytes among those read, and notes its end or an error.
func (e *Exchange) take(c *conn) (p []byte) {
	p = c.b[c.r:c.w:c.w]
	switch e.head.framing {
	case byLength:
		p = p[:min(int64(len(p)), e.left)]
		e.left -= int64(len(p))
		e.done = e.left == 0
		c.r += len(p)
	case byChunks:
		data, n, err := e.chunks.decode(p)
		c.r += n
		if e.done = e.chunks.state == chunkedDone; err != nil {
			e.fail(opBody, err)
		}
		p = data
	default:
		c.r = c.w
	}
	return p
}

func (e *Exchange) fail(op string, err error) error {
	phase := Answered
	switch {
	case e.unsent():
		phase = NothingSent
	case e.req != nil:
		phase = Sent
	}
	e.err = &Error{phase, op, e.client.addr, err}
	return e.err
}

// unsent says whether the request still lies ready, or has lost its connection
// before anything came of it.
func (e *Exchange) unsent() bool {
	return e.req != nil && !e.over && (e.conn == nil || e.conn.out != nil && !e.conn.begun)
}

// Done says whether the answer has been read to its end: the next Next gives
// io.EOF at once.
func (e *Exchange) Done() bool { return e.done }

// Close ends the exchange. The connection is kept for another request if the
// answer was read to its end and the server keeps it, too.
func (e *Exchange) Close() {
	e.over = true
	c := e.detach()
	if c == nil {
		return
	}
	keep := e.done && e.err == nil && !c.broken && e.head.reuse && c.r == c.w
	if !keep {
		c.close()
		return
	}
	c.release()
	c.used = true
	e.client.pool.put(c, e.head.idle)
}
