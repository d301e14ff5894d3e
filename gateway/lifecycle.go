package gateway

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"switchyard/admission"
)

const (
	idleTimeout = 2 * time.Minute // of a client's connection between requests
	headerBytes = 64 << 10        // most that a request's headers may take
	lastWords   = 5 * time.Second // for error answers at the end of drain_timeout
)

// NewServer returns the HTTP server for the data plane. It has no timeout for
// whole requests and answers: bodies have read_body_timeout, answers may
// stream for hours, and a client that does not read has write_timeout. With
// Settings.TLS, serve it with ServeTLS(listener, "", "").
func NewServer(s Settings, h http.Handler) *http.Server {
	s = s.withDefaults()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(s.TLS != nil) // by ALPN only, never in the clear
	return &http.Server{
		Handler:           h,
		TLSConfig:         s.TLS,
		Protocols:         protocols,
		ReadHeaderTimeout: s.Limits.ReadHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          serverLog(s.Log),
		ConnContext:       withConn,
	}
}

// Shutdown drains the gateway (R15). New requests are refused from now on;
// what is queued or running may end within drain_timeout, or until ctx ends.
// What is left then is cut short, each with a proper error to its client. The
// listener should stay open until Shutdown returns.
func (g *Gateway) Shutdown(ctx context.Context) error {
	now, limit := time.Now(), g.settings().Limits.DrainTimeout
	until := now.Add(limit)
	if !g.draining.CompareAndSwap(nil, &until) {
		return errors.New("stopping the gateway: it is stopping already")
	}
	g.controller.Stop(now, limit)
	drained := g.flights.drained()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	close(g.cut)
	g.log().Warn("cutting short what is still under way", "requests", g.flights.cutShort())
	timer.Reset(lastWords)
	select {
	case <-drained:
		return nil
	case <-timer.C:
		return fmt.Errorf("stopping the gateway: %d requests had not ended %s after their time to drain", g.flights.count(), lastWords)
	}
}

// stopping is non-nil once the gateway drains.
func (g *Gateway) stopping(now time.Time) *denial {
	until := g.draining.Load()
	if until == nil {
		return nil
	}
	return &denial{Refusal: admission.Refusal{Reason: admission.ReasonDraining, RetryAfter: max(time.Second, until.Sub(now))}}
}

// cutting returns a channel that closes when the time to drain is over. Who is
// waiting for anything on a request's behalf then owes its client a proper
// error, answered with the refusal of stopping.
func (g *Gateway) cutting() <-chan struct{} { return g.cut }

// wasCut reports whether the time to drain is over.
func (g *Gateway) wasCut() bool {
	select {
	case <-g.cut:
		return true
	default:
		return false
	}
}

// flights is the set of requests under way that a shutdown waits for.
type flights struct {
	mu struct {
		sync.Mutex
		live map[*flight]struct{}
		cut  bool          // the time to drain is over
		idle chan struct{} // closed when live is empty; nil until someone waits
	}
}

// flight is one request under way. Its fields are guarded by its flights' mutex.
type flight struct {
	of   *flights
	step step // what it is at; nil: nothing that has to be cut short
}

// step is what a request is at while the time to drain may run out.
type step interface {
	cutShort() // ends it, at once and from any goroutine; it must not block
}

// begin registers a request.
func (fs *flights) begin(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.of = fs
	if fs.mu.live == nil {
		fs.mu.live = map[*flight]struct{}{}
	}
	fs.mu.live[f] = struct{}{}
}

// onCut says what is to be cut short when the time to drain is over; if it is
// over already, that happens at once.
func (f *flight) onCut(s step) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.step = s
	if f.of.mu.cut && s != nil {
		s.cutShort()
	}
}

// end takes the request out again. A flight that never began may end, too.
func (f *flight) end() {
	fs := f.of
	if fs == nil {
		return
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.mu.live, f)
	if len(fs.mu.live) == 0 && fs.mu.idle != nil {
		close(fs.mu.idle)
		fs.mu.idle = nil
	}
}

// cutShort interrupts everything under way and says how much that is.
func (fs *flights) cutShort() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.mu.cut = true
	for f := range fs.mu.live {
		if f.step != nil {
			f.step.cutShort()
		}
	}
	return len(fs.mu.live)
}

// drained returns a channel that closes when nothing is under way.
func (fs *flights) drained() <-chan struct{} {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.idle != nil {
		return fs.mu.idle
	}
	idle := make(chan struct{})
	if len(fs.mu.live) == 0 {
		close(idle)
		return idle
	}
	fs.mu.idle = idle
	return idle
}

func (fs *flights) count() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.mu.live)
}

// serverLog takes what net/http's server has to say, mostly about clients that
// break off a TLS handshake: worth seeing only when looking for it.
func serverLog(l *slog.Logger) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelDebug)
}
