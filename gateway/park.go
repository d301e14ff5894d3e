package gateway

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
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
	return n > j.gw.parkBehind && !j.headSent && !j.restless && j.conn != nil && j.r.TLS == nil && j.gw.back.Load() != nil
}

// park takes the request's connection from the server. The goroutine has to
// return to the server after it.
func (j *job) park() {
	_, rw, err := j.rc.Hijack()
	if err != nil { // it is the connection that has failed
		j.cancelled()
		return
	}
	next, _ := rw.Reader.Peek(rw.Reader.Buffered())
	j.conn.ahead = append([]byte(nil), next...)
	j.parked = true
}

// strip lets go of what is the server's.
func (q *visit) strip() {
	j := q.job
	slim := j.r.WithContext(context.Background())
	slim.Body = http.NoBody
	j.r, j.w, j.rc, j.writeBy = slim, nil, http.ResponseController{}, time.Time{}
	q.header, q.w, q.r, q.conn = q.w.Header(), nil, slim, http.ResponseController{}
}

// setAside leaves the request to a goroutine that has hardly a stack: nothing
// but the wait may be called there before it.
func (q *visit) setAside() {
	c := q.job.conn
	q.g.controller.Notify(q.ticket, c.cutShort)
	q.flight.onCut(c)
	go q.wait()
}

func (q *visit) wait() {
	if q.job.conn.watch() {
		q.back()
	} else {
		q.drop()
	}
}

// back gives the connection back to the server, to be answered on.
func (q *visit) back() {
	c := q.job.conn
	q.unwatched()
	c.Conn.SetReadDeadline(time.Time{})
	q.job.restless = len(c.ahead) > 0
	if !q.g.back.Load().give(c.leadingTo(q)) {
		c.parked.Store(nil)
		q.drop()
	}
}

func (q *visit) unwatched() {
	q.g.controller.Notify(q.ticket, nil)
	q.flight.onCut(nil)
}

// drop ends a request whose client has left, or can no longer be answered.
func (q *visit) drop() {
	q.unwatched()
	q.job.conn.Conn.Close() // its failure changes nothing
	q.abandon()
}

// watch waits until the read deadline passes, or for the client to leave: it is
// false then. A client that sends its next request meanwhile cannot be watched.
func (c *clientConn) watch() (stays bool) {
	if len(c.ahead) > 0 {
		return true
	}
	n, err := c.Conn.Read(c.one[:])
	if n > 0 {
		c.ahead = append(c.ahead, c.one[0])
		return true
	}
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// cutShort ends the watch.
func (c *clientConn) cutShort() { c.Conn.SetReadDeadline(longAgo) } // fails only on a closed connection

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

// abandon takes a parked request to its end with nobody there to answer.
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
