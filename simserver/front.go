package simserver

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"switchyard/simserver/model"
)

// front is the listener and the connections of a replica: it follows the
// faults that concern them.
type front struct {
	s      *Server
	addr   string
	server *http.Server

	mu struct {
		sync.Mutex
		ln     net.Listener // nil: closed
		conns  map[net.Conn]*conn
		closed bool
		retry  *time.Timer
	}
	serving sync.WaitGroup // Serve loops and handlers
}

const reopenPause = 20 * time.Millisecond // when another socket has our port

// connKey is the context key of a connection.
type connKey struct{}

// conn is what is known of a client's connection.
type conn struct {
	tcp     *net.TCPConn
	seen    int  // requests; only its own handlers touch it
	control bool // it carries /sim/ requests and outlives a crash; under front.mu
}

// open listens.
func (f *front) open(s *Server, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", addr, err)
	}
	f.s, f.mu.ln, f.addr = s, ln, ln.Addr().String()
	f.mu.conns = make(map[net.Conn]*conn)
	f.server = f.newServer()
	return nil
}

// serve begins to answer on the open listener.
func (f *front) serve() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serveLocked()
}

func (f *front) serveLocked() {
	f.server.SetKeepAlivesEnabled(true)
	server, ln := f.server, f.mu.ln
	f.serving.Go(func() { _ = server.Serve(ln) }) // it ends when the listener is closed
}

func (f *front) newServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(f.handle),
		IdleTimeout:       f.s.face.idleTimeout(),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			tcp, _ := c.(*net.TCPConn)
			cn := &conn{tcp: tcp}
			f.mu.Lock()
			f.mu.conns[c] = cn
			f.mu.Unlock()
			return context.WithValue(ctx, connKey{}, cn)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateHijacked {
				f.mu.Lock()
				delete(f.mu.conns, c)
				f.mu.Unlock()
			}
		},
	}
}

// handle passes a request to the face, and is counted while it lasts.
func (f *front) handle(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	if f.mu.closed {
		f.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	f.serving.Add(1)
	f.mu.Unlock()
	defer f.serving.Done()
	f.s.route(w, r)
}

// follow brings listener and connections in line with the active fault.
func (f *front) follow() {
	f.s.share.Lock()
	kind := f.s.fault
	f.s.share.Unlock()

	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.mu.closed:
	case kind == model.FaultCrash:
		f.stopListening()
		f.killLocked()
	case kind == model.FaultRefuse:
		f.stopListening()
		f.server.SetKeepAlivesEnabled(false) // idle connections end, busy ones after their answer
	case f.mu.ln == nil:
		f.reopen()
	}
}

func (f *front) stopListening() {
	if f.mu.ln != nil {
		_ = f.mu.ln.Close()
		f.mu.ln = nil
	}
}

// reopen listens where it did before; should the port be taken it tries again
// in a moment.
func (f *front) reopen() {
	ln, err := net.Listen("tcp", f.addr)
	if err != nil {
		f.mu.retry = time.AfterFunc(reopenPause, f.follow)
		return
	}
	f.mu.ln = ln
	f.serveLocked()
}

// killLocked ends all connections, as the system does for a killed process: it
// resets those on which something was not read yet.
func (f *front) killLocked() {
	for c, cn := range f.mu.conns {
		if !cn.control {
			_ = c.Close()
		}
	}
}

// markControl lets a connection outlive the crash that it asks for.
func (f *front) markControl(r *http.Request) {
	if cn := connOf(r); cn != nil {
		f.mu.Lock()
		cn.control = true
		f.mu.Unlock()
	}
}

// close ends everything and waits for it.
func (f *front) close() {
	f.mu.Lock()
	f.mu.closed = true
	if f.mu.retry != nil {
		f.mu.retry.Stop()
	}
	f.stopListening()
	f.mu.Unlock()
	_ = f.server.Close() // not under the lock: a connection that just came wants it
	f.serving.Wait()
}

func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// closeConn ends a request with its connection, as when the process is gone.
func closeConn(r *http.Request) {
	if c := connOf(r); c != nil && c.tcp != nil {
		_ = c.tcp.Close()
	}
	panic(http.ErrAbortHandler)
}

// resetConn ends a request by resetting its connection.
func resetConn(r *http.Request) {
	if c := connOf(r); c != nil && c.tcp != nil {
		_ = c.tcp.SetLinger(0)
	}
	closeConn(r)
}
