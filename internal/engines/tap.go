package engines

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Tap is a TCP relay in front of one server that listens in. It passes on every
// byte, half-close and reset as they come, so neither side behaves differently
// for it, and judges from outside what the server has in hand: a POST counts
// from before its head is passed on until the server has ended its answer. That
// the client has gone does not end it; the server's own end does.
type Tap struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		closed    bool
		conns     map[net.Conn]struct{}
		inHand    int
		maxInHand int
		exchanges []*Exchange
	}
}

// Exchange is one POST and its answer.
type Exchange struct {
	Path   string
	Header http.Header // of the request
	Status int
	Body   []byte // the answer's, without its framing
	Whole  bool   // the answer ended as its framing says
	// Began is when the request came, Left when its client closed its side
	// (zero: it did not), Ended when the server was through with it.
	Began, Left, Ended time.Time
}

// NewTap listens on a free port for what is meant for the server at target.
func NewTap(target string) (*Tap, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening in front of %s: %w", target, err)
	}
	t := &Tap{target: target, ln: ln}
	t.mu.conns = map[net.Conn]struct{}{}
	t.wg.Go(t.accept)
	return t, nil
}

// URL is where the tap listens.
func (t *Tap) URL() string { return "http://" + t.ln.Addr().String() }

// Close ends the tap and all connections through it.
func (t *Tap) Close() {
	_ = t.ln.Close()
	t.mu.Lock()
	t.mu.closed = true
	for c := range t.mu.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// InHand is how many requests the server has now, and the most it ever had.
func (t *Tap) InHand() (now, most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.inHand, t.mu.maxInHand
}

// Exchanges are copies of all so far, in the order they came.
func (t *Tap) Exchanges() []Exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Exchange, 0, len(t.mu.exchanges))
	for _, e := range t.mu.exchanges {
		c := *e
		c.Body = slices.Clone(e.Body)
		out = append(out, c)
	}
	return out
}

// Find gives the last exchange with that X-Request-ID.
func (t *Tap) Find(id string) (Exchange, bool) {
	for _, e := range slices.Backward(t.Exchanges()) {
		if e.Header.Get("X-Request-Id") == id {
			return e, true
		}
	}
	return Exchange{}, false
}

func (t *Tap) accept() {
	for {
		c, err := t.ln.Accept()
		if err != nil {
			return
		}
		t.wg.Go(func() { t.relay(c.(*net.TCPConn)) })
	}
}

// keep remembers a connection for Close.
func (t *Tap) keep(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		_ = c.Close()
		return false
	}
	t.mu.conns[c] = struct{}{}
	return true
}

func (t *Tap) drop(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.conns, c)
}

func (t *Tap) relay(client *net.TCPConn) {
	if !t.keep(client) {
		return
	}
	defer t.drop(client)
	conn, err := net.Dial("tcp", t.target)
	if err != nil {
		_ = client.SetLinger(0) // the nearest to a refused connection
		return
	}
	server := conn.(*net.TCPConn)
	if !t.keep(server) {
		return
	}
	defer t.drop(server)
	w := &wire{tap: t, client: client, server: server}
	var up sync.WaitGroup
	up.Go(w.requests)
	w.answers()
	_ = client.SetReadDeadline(time.Now()) // wakes the other direction
	up.Wait()
	w.ended(false) // a request that came only when the server had gone
}

// wire is one connection through the tap. Requests on it come one after the
// other, so there is at most one exchange open.
type wire struct {
	tap            *Tap
	client, server *net.TCPConn
	open           *Exchange // guarded by tap.mu, like method
	method         string    // of the last request
}

// requests passes on what the client sends.
func (w *wire) requests() {
	var m message
	buf := make([]byte, 32<<10)
	for {
		n, err := w.client.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			used, event := m.feed(p, false)
			p = p[used:]
			if event == headRead {
				w.began(&m)
			}
		}
		if n > 0 {
			if _, e := w.server.Write(buf[:n]); e != nil {
				_ = w.client.SetLinger(0) // this direction saw the reset first
				return
			}
		}
		if err != nil {
			w.left()
			_ = w.server.CloseWrite()
			return
		}
	}
}

// answers passes on what the server sends. When the client is gone it still
// reads to the end, since that is when the server is through.
func (w *wire) answers() {
	var m message
	gone := false
	buf := make([]byte, 32<<10)
	for {
		n, err := w.server.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			m.toHead = w.asked() == http.MethodHead
			used, event := m.feed(p, true)
			w.heard(&m, event)
			p = p[used:]
		}
		if n > 0 && !gone {
			_, e := w.client.Write(buf[:n])
			gone = e != nil
		}
		if err != nil {
			w.ended(m.untilClose && errors.Is(err, io.EOF))
			if errors.Is(err, syscall.ECONNRESET) {
				_ = w.client.SetLinger(0) // a reset is passed on as one
			}
			return
		}
	}
}

func (w *wire) began(m *message) {
	method, rest, _ := strings.Cut(m.start, " ")
	path, _, _ := strings.Cut(rest, " ")
	t := w.tap
	t.mu.Lock()
	defer t.mu.Unlock()
	w.method = method
	if method != http.MethodPost {
		return
	}
	w.open = &Exchange{Path: path, Header: m.header, Began: time.Now()}
	t.mu.exchanges = append(t.mu.exchanges, w.open)
	t.mu.inHand++
	t.mu.maxInHand = max(t.mu.maxInHand, t.mu.inHand)
}

func (w *wire) asked() string {
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	return w.method
}

func (w *wire) left() {
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	if w.open != nil {
		w.open.Left = time.Now()
	}
}

// heard takes in a piece of an answer, before it is passed on: whoever hears
// the end and sends the next request can not be counted twice.
func (w *wire) heard(m *message, e event) {
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	if w.open == nil {
		return
	}
	w.open.Status = m.status
	w.open.Body = append(w.open.Body, m.data...)
	if e == messageRead && m.status >= 200 {
		w.end(true)
	}
}

func (w *wire) ended(whole bool) {
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	if w.open != nil {
		w.end(whole)
	}
}

func (w *wire) end(whole bool) {
	w.open.Whole = whole
	w.open.Ended = time.Now()
	w.open = nil
	w.tap.mu.inHand--
}
