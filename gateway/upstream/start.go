package upstream

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// atOnce bounds how long after the end of a request a lost connection may
// still be the server's closing of an unused one; see lostIdle.
const atOnce = 250 * time.Millisecond

// Start gets the request on its way, over an unused connection where there is
// one; ctx and deadline (zero: none) bound just that. A request that is small
// enough never has to wait to be written: the first Head writes it, in one with
// the wait for its answer. The writing of any other is bounded by r.Stall, if set,
// in place of deadline.
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
	n, err := c.write(ctx, pace{deadline, e.req.Stall}, head, body)
	c.sentAt = time.Now()
	// A server may answer, and close, before it has read the request: too large
	// a body, say. Its answer is worth more than our broken pipe.
	if err != nil && isReset(err) && c.answering() {
		c.broken, err = true, nil
	}
	return n, err
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

// interruptibly does what may have to wait for something else than the answer.
// Interrupt cuts it short; so does the deadline, and the next Head goes on.
func (e *Exchange) interruptibly(deadline time.Time, do func(context.Context, time.Time) error) error {
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
	n, err := c.write(ctx, pace{deadline: deadline}, c.out, nil)
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
