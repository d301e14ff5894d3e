// Package upstream is the lean HTTP/1.1 client the gateway speaks to its
// replicas with. One Client per replica keeps that replica's idle connections;
// one Exchange is one request and its answer, driven by the goroutine that
// needs it. It owns no goroutine in the normal path, holds no buffer while an
// answer is silent, and says with every error how far the request had got.
// It never follows redirects, adds no headers of its own beyond the framing,
// never compresses, keeps no cookies and uses no proxy.
package upstream

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"strings"
	"time"
)

const (
	defaultDialTimeout = 5 * time.Second
	// llama.cpp closes an idle connection after 5 s, uvicorn too. Whoever keeps
	// one longer writes into connections that are just being closed.
	defaultIdleTimeout = 3500 * time.Millisecond
	defaultMaxIdle     = 256
)

// Options says how to reach one replica. Zero values take the defaults.
type Options struct {
	Base        *url.URL      // http or https; its path is put before every target
	TLS         *tls.Config   // for https; the protocol is always HTTP/1.1
	DialTimeout time.Duration // resolving, connecting and the TLS handshake together; 5 s
	IdleTimeout time.Duration // how long an unused connection is kept; 3.5 s
	MaxIdle     int           // unused connections kept at most; 256
}

// Client sends requests to one replica. It is safe for concurrent use.
type Client struct {
	host        string // the replica's own Host header
	addr        string // host and port to connect to
	prefix      string // path before every target
	tls         *tls.Config
	dialTimeout time.Duration
	pool        pool
}

// New makes a client; it connects to nothing yet.
func New(o Options) *Client {
	port := o.Base.Port()
	if port == "" {
		port = "80"
		if o.Base.Scheme == "https" {
			port = "443"
		}
	}
	c := &Client{
		host:        hostHeader(o.Base),
		addr:        net.JoinHostPort(o.Base.Hostname(), port),
		prefix:      strings.TrimRight(o.Base.EscapedPath(), "/"),
		dialTimeout: o.DialTimeout,
	}
	if c.dialTimeout <= 0 {
		c.dialTimeout = defaultDialTimeout
	}
	c.pool.idleTimeout, c.pool.max = o.IdleTimeout, o.MaxIdle
	if c.pool.idleTimeout <= 0 {
		c.pool.idleTimeout = defaultIdleTimeout
	}
	if c.pool.max <= 0 {
		c.pool.max = defaultMaxIdle
	}
	if o.Base.Scheme == "https" {
		c.tls = tlsConfig(o.TLS, o.Base.Hostname())
	}
	return c
}

// hostHeader is the replica's own host and port, less an IPv6 zone, which means
// something on this host only.
func hostHeader(u *url.URL) string {
	before, after, ok := strings.Cut(u.Host, "%")
	if !ok {
		return u.Host
	}
	return before + after[strings.IndexByte(after, ']'):]
}

func tlsConfig(given *tls.Config, host string) *tls.Config {
	cfg := &tls.Config{}
	if given != nil {
		cfg = given.Clone()
	}
	cfg.NextProtos = []string{"http/1.1"}
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	if cfg.ClientSessionCache == nil {
		cfg.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return cfg
}

// Close closes the unused connections and keeps none from now on. Exchanges
// that still run go on to their end, so a client can be replaced at any time.
func (c *Client) Close() { c.pool.close() }

// readBuffer is what the kernel may keep of an answer, in bytes, or as much of it
// as the system allows. It counts the memory that segments take, some 4 KiB each,
// and a server that sends token by token has one for each: the default is full
// after thirty. With this Linux joins those that wait (TcpExtTCPRcvCoalesce), and
// a token without pause costs a fifth less of the gateway's CPU time.
const readBuffer = 1 << 20

// dial makes a new connection; ctx, deadline and the dial timeout bound it.
func (c *Client) dial(ctx context.Context, deadline time.Time) (*conn, error) {
	limit := time.Now().Add(c.dialTimeout)
	if !deadline.IsZero() && deadline.Before(limit) {
		limit = deadline
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	if t, ok := nc.(*net.TCPConn); ok {
		t.SetReadBuffer(readBuffer) // without it answers only cost more
	}
	if c.tls == nil {
		return newConn(nc), nil
	}
	tc := tls.Client(nc, c.tls)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return newConn(tc), nil
}
