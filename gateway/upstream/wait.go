package upstream

import (
	"errors"
	"os"
	"time"
)

// past is a deadline that makes a waiting read return at once.
var past = time.Unix(1, 0)

// await waits until bytes have been read, no longer than deadline.
//
// The socket's read deadline is a runtime timer, and moving it costs. A
// stream's deadline moves forward with each event, so it is left where it is
// while it is not later than what is asked for: a wake-up that comes too early
// sets it anew. A stream pays for one such wake-up per stall timeout instead of
// one change per event.
//
// Interrupt and this goroutine race over that deadline, and both take mu. The
// flag is looked at and the deadline set in one piece (arm); Interrupt raises
// the flag and moves the deadline into the past in one piece. So whichever is
// first, no deadline set here outlives an Interrupt, and a read that begins
// between the two returns at once. (Setting a deadline is no I/O: it may be done
// under the lock.)
func (e *Exchange) await(deadline time.Time) error {
	anew := false
	for {
		if err := e.arm(deadline, anew); err != nil {
			return err
		}
		err := e.conn.fill()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if e.isInterrupted() {
			return ErrInterrupted
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			return os.ErrDeadlineExceeded
		}
		anew = true
	}
}

// arm sees to it that the read deadline is not later than deadline.
func (e *Exchange) arm(deadline time.Time, anew bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.interrupted {
		return ErrInterrupted
	}
	c := e.conn
	early := deadline.IsZero() || !c.armed.IsZero() && !c.armed.After(deadline)
	if early && !anew {
		return nil
	}
	c.armed = deadline
	return c.nc.SetReadDeadline(deadline)
}

func (e *Exchange) isInterrupted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.interrupted
}

// Interrupt makes a Head or Next that waits, and every later one that would
// have to wait, return ErrInterrupted. It may be called from any goroutine, at
// any time and repeatedly; once the exchange is over it does nothing.
func (e *Exchange) Interrupt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.interrupted = true
	if e.mu.cancel != nil {
		e.mu.cancel()
	}
	if c := e.conn; c != nil {
		c.armed = past
		c.nc.SetReadDeadline(past) // fails only on a closed connection
	}
}
