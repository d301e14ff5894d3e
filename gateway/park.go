package gateway

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// Most of what a waiting request holds is the server's: the stack that its
// headers were parsed on, buffers, a second goroutine that listens for the
// client's departure. So those that wait behind parkBehind others are parked:
// their connection is taken from the server, what is kept is the request, and
// when something has been decided the connection goes back to the server, which
// reads from it a request of ours first, that leads to the one parked.
//
// The answer is written by the server then, like any other. It is not done under
// TLS: there the connection itself is larger than all of that.
const parkBehind = 256

// Serve runs the data plane's server on l until the server is stopped, and
// returns why it ended.
func (g *Gateway) Serve(s *http.Server, l net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(Listener(l), "", "")
	}
	back := &returns{addr: l.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
	g.back.Store(back)
	var again sync.WaitGroup
	defer again.Wait()
	defer back.Close()
	again.Go(func() { s.Serve(back) }) // ends as the other does
	return s.Serve(Listener(l))
}

// returns is a listener for connections that come back to the server.
type returns struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *returns) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *returns) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *returns) Addr() net.Addr { return l.addr }

// give hands a connection to the server; false: it has stopped.
func (l *returns) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		return false
	}
}

// parks reports whether the request should rather wait parked, n being how many
// wait with it that are not.
func (j *job) parks(n int64) bool {
	return n > j.gw.parkBehind && !j.headSent && j.conn != nil && j.r.TLS == nil && j.gw.back.Load() != nil
}

// park takes the request's connection from the server and lets go of all that
// is the server's. The goroutine has to return to the server after it.
func (j *job) park() {
	_, rw, err := j.rc.Hijack()
	if err != nil { // it is the connection that has failed
		j.cancelled()
		return
	}
	next, _ := rw.Reader.Peek(rw.Reader.Buffered()) // of the client's next request, should it not wait for an answer
	j.conn.ahead = append([]byte(nil), next...)
	slim := j.r.WithContext(context.Background())
	slim.Body = http.NoBody
	j.r, j.w, j.rc, j.writeBy = slim, nil, http.ResponseController{}, time.Time{}
	j.parked = true
}

// wait waits on for a request that was parked, and brings it back.
func (q *visit) wait() {
	c := q.job.conn
	if !q.job.waitParked() && q.g.back.Load().give(c.leadingTo(q)) {
		return
	}
	c.parked.Store(nil)
	c.Conn.Close() // its failure changes nothing
	q.abandon()
}

// waitParked waits for a decision, which goes to granted, or the time to drain
// to be over; or, which it reports, for the client to leave.
func (j *job) waitParked() (gone bool) {
	left := make(chan bool, 1)
	go j.conn.watch(left)
	for waits := true; waits; {
		select {
		case j.grant = <-j.ticket.C():
			waits = false
		case <-j.gw.cutting():
			waits = false
		case gone = <-left:
			left, waits = nil, !gone
		}
	}
	if left != nil {
		j.conn.Conn.SetReadDeadline(time.Unix(1, 0))
		gone = <-left
	}
	j.conn.Conn.SetReadDeadline(time.Time{})
	return gone
}

// watch listens for the client's departure, as the server does: a byte that
// comes instead is of the next request, and ends it.
func (c *clientConn) watch(left chan<- bool) {
	var one [1]byte
	if len(c.ahead) > 0 {
		left <- false
		return
	}
	n, err := c.Read(one[:])
	c.ahead = append(c.ahead, one[:n]...)
	e, ok := errors.AsType[net.Error](err)
	left <- err != nil && !(ok && e.Timeout())
}

// leadingTo makes c begin with a request that leads to q and asks for an answer
// in q's manner.
func (c *clientConn) leadingTo(q *visit) *clientConn {
	head := "POST / HTTP/1.1\r\nHost: parked\r\n"
	switch {
	case q.r.ProtoMinor == 0 && q.r.Close:
		head = "POST / HTTP/1.0\r\n"
	case q.r.ProtoMinor == 0:
		head = "POST / HTTP/1.0\r\nConnection: keep-alive\r\n"
	case q.r.Close:
		head += "Connection: close\r\n"
	}
	c.ahead = append([]byte(head+"\r\n"), c.ahead...)
	c.parked.Store(q)
	return c
}

// resume goes on with a request that was parked, on the server's new terms.
func (q *visit) resume(w http.ResponseWriter, r *http.Request) {
	q.w, q.r, q.conn = w, q.r.WithContext(r.Context()), *http.NewResponseController(w)
	j := q.job
	j.w, j.r, j.rc, j.parked = w, q.r, q.conn, false
	defer q.leave()
	maps.Copy(w.Header(), q.header)
	if q.header = nil; q.g.draining.Load() != nil {
		w.Header()["Connection"] = []string{"close"}
	}
	q.onward()
	q.settle()
}

// onward is guarded for a request that was accepted before.
func (q *visit) onward() {
	defer q.caught()
	q.ride()
}

// abandon ends a parked request whose client has left, or cannot be answered.
func (q *visit) abandon() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	q.resume(nobody{}, q.r.WithContext(ctx))
}

// nobody is who is answered when the client has left.
type nobody struct{}

func (nobody) Header() http.Header       { return http.Header{} }
func (nobody) Write([]byte) (int, error) { return 0, net.ErrClosed }
func (nobody) WriteHeader(int)           {}
