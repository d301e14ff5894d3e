package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// liveProxy is a plain proxy over real sockets, as people put in front of
// inference servers: no queue, no limits, no retries. It flushes at each write.
type liveProxy struct {
	server  *http.Server
	base    string
	least   bool
	serving sync.WaitGroup
	mu      struct {
		sync.Mutex
		turn int
		open []int // requests under way at each replica
	}
	replicas []*httputil.ReverseProxy
}

// startProxy listens in front of the replicas of a scenario.
func startProxy(s *Scenario, urls []string, least bool) (*liveProxy, error) {
	p := &liveProxy{least: least}
	p.mu.open = make([]int, len(urls))
	transport := &http.Transport{MaxIdleConnsPerHost: 4096, IdleConnTimeout: 4 * time.Second, DisableCompression: true}
	for i, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("replica %s: %w", s.Replicas[i].Name, err)
		}
		name := s.Replicas[i].Name
		p.replicas = append(p.replicas, &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(u) },
			Transport:     transport,
			FlushInterval: -1,
			ErrorLog:      quiet,
			ModifyResponse: func(r *http.Response) error {
				r.Header.Set("X-Switchyard-Replica", name)
				r.Header.Set("X-Switchyard-Attempts", "1")
				return nil
			},
		})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for a proxy: %w", err)
	}
	p.base = "http://" + ln.Addr().String()
	p.server = &http.Server{Handler: p, ErrorLog: quiet, ReadHeaderTimeout: time.Minute}
	p.server.RegisterOnShutdown(transport.CloseIdleConnections)
	p.serving.Go(func() {
		if err := p.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // its listener is ours alone
		}
	})
	return p, nil
}

// ServeHTTP passes a request on at once. Its body is taken whole before, as
// usual: where the answer begins while package http still looks for the body's
// end, it would close it and with it the exchange.
func (p *liveProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	at := p.pick()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.open[at]--
	}()
	p.replicas[at].ServeHTTP(w, r)
}

// pick is the replica for the next request, and counts it there.
func (p *liveProxy) pick() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := pick(p.mu.turn, p.least, len(p.mu.open), func(i int) int { return p.mu.open[i] })
	p.mu.turn++
	p.mu.open[at]++
	return at
}

// pick is the rule of the plain proxies: in turn, or where the fewest are under
// way, in turn among equals.
func pick(turn int, least bool, n int, open func(int) int) int {
	at := turn % n
	if least {
		for i := range n {
			if k := (turn + i) % n; open(k) < open(at) {
				at = k
			}
		}
	}
	return at
}

func (p *liveProxy) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	p.serving.Wait()
}
