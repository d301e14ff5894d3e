package upstream

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// atOnce bounds how long after the end of a request a lost connection may
// still be the server's closing of an unused one; see lostIdle.
const atOnce = 250 * time.Millisecond

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

// Start gets the request on its way, over an unused connection where there is
// one; ctx and deadline (zero: none) bound just that. A request that is small
// enough never has to wait to be written: the first Head writes it, in one with
// the wait for its answer.
func (c *Client) Start(ctx context.Context, r *Request, deadline time.Time) (*Exchange, error) {
	if err := r.check(); err != nil {
		return nil, &Error{NothingSent, "making a request for", c.addr, err}
	}
	e := &Exchange{client: c, method: r.Method, req: r}
	if err := e.connect(ctx, deadline); err != nil {
		return nil, err
	}
	return e, nil
}

const (
	opConnect = "connecting to"
	opSend    = "sending a request to"
	opHead    = "waiting for the answer of"
	opBody    = "reading the answer of"
)

// connect gets hold of a connection and sends the request, or lays it ready.
func (e *Exchange) connect(ctx context.Context, deadline time.Time) error {
	for {
		c, err := e.connection(ctx, deadline)
		if err != nil {
			return &Error{NothingSent, opConnect, e.client.addr, err}
		}
		n, err := e.send(ctx, deadline, c)
		if err == nil {
			e.attach(c)
			return nil
		}
		c.close()
		switch {
		case err == errStale:
			continue
		case c.used && isReset(err):
			// The server had closed the unused connection: it cannot have the
			// whole request, and so has not begun with it.
			e.resent = true
			continue
		}
		phase := Sent
		if n == 0 {
			phase = NothingSent
		}
		return &Error{phase, opSend, e.client.addr, err}
	}
}

// connection takes an unused one, or makes one. What is sent again is sent over
// a new one.
func (e *Exchange) connection(ctx context.Context, deadline time.Time) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !e.resent {
		if c := e.client.pool.get(time.Now()); c != nil {
			return c, nil
		}
	}
	return e.client.dial(ctx, deadline)
}

// send lays a request that fits one buffer ready in c, and writes any other.
func (e *Exchange) send(ctx context.Context, deadline time.Time, c *conn) (int, error) {
	buf := buffers.Get().(*[bufSize]byte)
	head := e.req.appendHead(buf[:0], e.client)
	body := e.req.Body
	if len(head)+len(body) <= len(buf) {
		head, body = append(head, body...), nil
		if c.raw != nil {
			c.out, c.outBuf = head, buf
			return 0, nil
		}
	}
	defer buffers.Put(buf)
	if c.used && !c.quiet() {
		return 0, errStale
	}
	n, err := c.write(ctx, deadline, head, body)
	c.sentAt = time.Now()
	// A server may answer, and close, before it has read the request: too large
	// a body, say. Its answer is worth more than our broken pipe.
	if err != nil && isReset(err) && c.answering() {
		c.broken, err = true, nil
	}
	return n, err
}

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
		return e.uninterrupted(deadline, e.connect)
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
		return e.uninterrupted(deadline, e.finish)
	case e.lostIdle(err):
		e.resent = true
		e.detach().close()
		return nil
	case e.conn.out != nil:
		return e.fail(opSend, err)
	}
	return e.fail(opHead, cutShort(err))
}

// lostIdle says whether err means that the server closed this connection as an
// unused one while the request was on its way, and so has not begun with it.
//
// What is seen is the same as when a server dies over the request: an end or a
// reset where an answer should begin. Two things tell them apart well enough.
// The closing of an unused connection only ever meets a connection that has
// been used before, and it shows within a round trip of the request, while a
// server that dies over a request has read and begun it first. If the guess is
// wrong after all, the request is sent once more, to a new connection, and its
// failure there is reported: no request is sent three times, and no server that
// is down goes unnoticed.
func (e *Exchange) lostIdle(err error) bool {
	return e.conn.used && e.req != nil && !e.resent &&
		(errors.Is(err, io.EOF) || isReset(err)) && time.Since(e.conn.sentAt) < atOnce
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// uninterrupted does what may have to wait for something else than the answer.
// Interrupt cuts it short; so does the deadline, and the next Head goes on.
func (e *Exchange) uninterrupted(deadline time.Time, do func(context.Context, time.Time) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !e.cancelWith(cancel) {
		return ErrInterrupted
	}
	err := do(ctx, deadline)
	if !e.cancelWith(nil) {
		return ErrInterrupted // the connection, if there is one, is Abort's to end
	}
	if err == nil {
		return nil
	}
	if !deadline.IsZero() && !time.Now().Before(deadline) {
		return os.ErrDeadlineExceeded
	}
	e.err = err
	return err
}

// finish writes the rest of a request that the socket did not take whole.
func (e *Exchange) finish(ctx context.Context, deadline time.Time) error {
	c := e.conn
	n, err := c.write(ctx, deadline, c.out, nil)
	c.out, c.begun = c.out[n:], c.begun || n > 0
	if err != nil {
		return &Error{Sent, opSend, e.client.addr, err}
	}
	c.written()
	return nil
}

// cancelWith tells Interrupt what to call; false: it has been already.
func (e *Exchange) cancelWith(f context.CancelFunc) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.cancel = f
	return !e.mu.interrupted
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
