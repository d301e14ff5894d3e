package upstream

import (
	"errors"
	"io"
	"time"
)

// drainRate is how many bytes a second are read and thrown away of an answer
// that nobody wants any more: far more than tokens come at, and little work.
const drainRate = 8 << 20

// Abort ends the exchange early in the way that also tells when the server has
// stopped: our sending side is shut down, what still comes is thrown away, and
// the connection is closed at its end, or when limit has passed. Then gone is
// called, once and from a goroutine of its own. eof says that the server ended
// the connection (or that it had nothing of this request in hand); it is false
// when limit passed without a sign of it.
func (e *Exchange) Abort(limit time.Duration, gone func(eof bool)) {
	if gone == nil {
		gone = func(bool) {}
	}
	if e.done || e.unsent() || e.over {
		idle := e.done || e.unsent()
		e.Close()
		go gone(idle)
		return
	}
	e.over = true
	c := e.detach()
	c.written()
	go func() {
		end := time.Now().Add(limit)
		c.nc.SetReadDeadline(end) // a connection that is closed shows when read
		c.closeWrite()
		eof := c.drain(end)
		c.close()
		if left := time.Until(end); !eof && left > 0 {
			// The network failed, which says nothing about the server's work.
			time.AfterFunc(left, func() { gone(false) })
			return
		}
		gone(eof)
	}()
}

// drain reads to the end and throws away, at a bounded rate.
func (c *conn) drain(end time.Time) (eof bool) {
	second, budget := time.Now(), drainRate
	for {
		c.r = c.w
		if err := c.fill(); err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isReset(err)
		}
		if budget -= c.w; budget <= 0 {
			time.Sleep(min(time.Until(second.Add(time.Second)), time.Until(end)))
			second, budget = time.Now(), drainRate
		}
	}
}
