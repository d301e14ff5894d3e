package upstream

import (
	"sync"
	"time"
)

// pool keeps a replica's unused connections. The one used last is taken first,
// so that after a burst the others age out. One timer serves them all: nothing
// waits on an unused connection, and whether the server has closed it is looked
// at when it is used.
type pool struct {
	idleTimeout time.Duration
	max         int

	mu struct {
		sync.Mutex
		idle   []*conn // by the time they were put back
		timer  *time.Timer
		armed  bool
		closed bool
	}
}

// get takes a connection that is not too old; nil: there is none.
func (p *pool) get(now time.Time) *conn {
	for {
		c := p.pop()
		if c == nil {
			return nil
		}
		if now.Before(c.idleUntil) {
			return c
		}
		c.close()
	}
}

func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.mu.idle)
	if n == 0 {
		return nil
	}
	c := p.mu.idle[n-1]
	p.mu.idle[n-1] = nil
	p.mu.idle = p.mu.idle[:n-1]
	return c
}

// put keeps c for the next request, for the pool's idle timeout or for limit,
// whichever is shorter. A full pool gives up its oldest connection.
func (p *pool) put(c *conn, limit time.Duration) {
	keep := min(p.idleTimeout, limit)
	c.idleUntil = time.Now().Add(keep)
	if old := p.push(c, keep); old != nil {
		old.close()
	}
}

// push returns the connection there is no room for.
func (p *pool) push(c *conn, keep time.Duration) (old *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return c
	}
	if len(p.mu.idle) >= p.max {
		old = p.mu.idle[0]
		p.mu.idle = append(p.mu.idle[:0], p.mu.idle[1:]...)
	}
	p.mu.idle = append(p.mu.idle, c)
	if !p.mu.armed {
		p.mu.armed = true
		if p.mu.timer == nil {
			p.mu.timer = time.AfterFunc(keep, p.reap)
		} else {
			p.mu.timer.Reset(keep)
		}
	}
	return old
}

// reap closes what has been unused for too long, and runs again when the next
// one is due.
func (p *pool) reap() {
	for _, c := range p.expired(time.Now()) {
		c.close()
	}
}

func (p *pool) expired(now time.Time) (out []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next time.Time
	kept := p.mu.idle[:0]
	for _, c := range p.mu.idle {
		if !now.Before(c.idleUntil) {
			out = append(out, c)
			continue
		}
		kept = append(kept, c)
		if next.IsZero() || c.idleUntil.Before(next) {
			next = c.idleUntil
		}
	}
	clear(p.mu.idle[len(kept):])
	p.mu.idle = kept
	p.mu.armed = len(kept) > 0 && !p.mu.closed
	if p.mu.armed {
		p.mu.timer.Reset(next.Sub(now))
	}
	return out
}

func (p *pool) close() {
	p.mu.Lock()
	idle := p.mu.idle
	p.mu.idle, p.mu.closed = nil, true
	if p.mu.timer != nil {
		p.mu.timer.Stop()
	}
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}
