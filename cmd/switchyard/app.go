package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/config"
	"switchyard/dashboard"
	"switchyard/gateway"
	"switchyard/replica"
	"switchyard/replica/gpu"
	"switchyard/replica/probe"
	"switchyard/telemetry"
)

// app is a running gateway with its admin side: New, start, stop.
type app struct {
	log        *slog.Logger
	instance   string
	read       func() (*config.Config, error) // reads the configuration again
	controller *admission.Controller
	gateway    *gateway.Gateway
	prober     *probe.Prober
	gpus       *gpu.Reader
	decisions  *telemetry.Decisions
	admin      *dashboard.Admin
	data, ops  *http.Server
	dataAddr   string
	opsAddr    string
	serverTLS  *tls.Config

	found func(name string, up bool, line string) // told what a replica's first probe found, and its first good one
	seen  sync.Map                                // by name: whether the good one has been told

	foundGPU func(name, line string) // told which GPU a replica runs on, and when that changes
	onGPU    sync.Map                // by name: what has been told

	reloading sync.Mutex
	site      *site // guarded by reloading

	background sync.WaitGroup
	end        context.CancelFunc
	failed     chan error
}

// newApp builds everything. wrap, if not nil, puts an observer of the caller's
// around the one that keeps metrics and logs.
func newApp(cfg *config.Config, log *slog.Logger, wrap func(gateway.Observer) gateway.Observer) (*app, error) {
	s, err := lookUp(cfg)
	if err != nil {
		return nil, err
	}
	a := &app{log: log, site: s, instance: newInstance(), failed: make(chan error, 2), found: func(string, bool, string) {}, foundGPU: func(string, string) {}}
	if cfg.TLS.Cert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.TLS.Cert, cfg.TLS.Key)
		if err != nil {
			return nil, usageError{fmt.Errorf("loading tls.cert and tls.key: %w", err)}
		}
		a.serverTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if a.decisions, err = telemetry.NewDecisions(cfg.Log.Decisions); err != nil {
		return nil, err
	}
	a.controller = admission.New(controllerConfig(cfg), time.Now())
	metrics := telemetry.NewMetrics(func() *admission.Snapshot { return a.controller.Snapshot(time.Now()) })
	var observer gateway.Observer = &telemetry.Observer{Metrics: metrics, Decisions: a.decisions, Log: log}
	if wrap != nil {
		observer = wrap(observer)
	}
	settings := s.settings(a.instance, a.serverTLS, log)
	a.gateway = gateway.New(settings, a.controller, observer)
	a.data = gateway.NewServer(settings, a.gateway)
	a.prober = probe.NewProber(probe.Options{
		Interval: cfg.Health.Interval, Timeout: cfg.Health.Timeout, Sink: a.observe, Working: a.controller.Works,
	})
	a.gateway.Settled = a.prober.Settled
	a.gpus = gpu.New(gpu.Options{Sink: a.observeGPU, Works: a.controller.Works, Tokens: a.controller.OutputTokens})
	a.admin = &dashboard.Admin{
		Controller: a.controller, Decisions: a.decisions, Registry: metrics.Registry,
		Token: s.secrets.Admin.Reveal(), Reload: a.reload, Ready: func() bool { return a.controller.Snapshot(time.Now()).Serving },
	}
	a.ops = dashboard.NewServer(a.admin.Handler())
	return a, nil
}

// newInstance names this process in Via.
func newInstance() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// start listens on both addresses and begins to probe. What ends unasked is
// reported on a.failed.
func (a *app) start() error {
	cfg := a.site.cfg
	data, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listening for clients (listen): %w", err)
	}
	ops, err := net.Listen("tcp", cfg.Admin.Listen)
	if err != nil {
		_ = data.Close()
		return fmt.Errorf("listening for the admin side (admin.listen): %w", err)
	}
	a.dataAddr, a.opsAddr = data.Addr().String(), ops.Addr().String()
	ctx, end := context.WithCancel(context.Background())
	a.end = end
	a.background.Go(func() { a.gateway.Run(ctx) })
	a.background.Go(func() { a.admin.Run(ctx) })
	a.background.Go(func() { a.serve(a.data, data, a.gateway.Serve) })
	a.background.Go(func() { a.serve(a.ops, ops, (*http.Server).Serve) })
	for _, t := range a.site.targets() {
		a.prober.Add(t)
	}
	a.gpus.Reconfigure(cfg.Health.Interval, cfg.Health.Timeout, a.site.gpus())
	return nil
}

func (a *app) serve(s *http.Server, l net.Listener, serve func(*http.Server, net.Listener) error) {
	err := serve(s, l)
	if !errors.Is(err, http.ErrServerClosed) {
		a.failed <- fmt.Errorf("serving on %s: %w", l.Addr(), err)
	}
}

// observe takes a probe's findings in, and tells once a replica what was found,
// before that once that nothing was.
func (a *app) observe(name string, f replica.Facts) {
	a.gateway.Observe(time.Now(), name, f)
	if was, told := a.seen.Load(name); told && (was == true || !f.Up) {
		return
	}
	a.seen.Store(name, f.Up)
	a.found(name, f.Up, probe.Describe(f, a.slots(name)))
}

// observeGPU takes a reading of a replica's GPUs in, and tells which they are
// whenever that has changed.
func (a *app) observeGPU(name string, f replica.GPUFacts) {
	a.controller.ReportGPU(time.Now(), name, f)
	line := gpu.Describe(f)
	if was, _ := a.onGPU.Swap(name, line); was != line {
		a.foundGPU(name, line)
	}
}

// slots is what the configuration says of a replica's slots.
func (a *app) slots(name string) map[string]int {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	for _, r := range a.site.cfg.Replicas {
		if r.Name == name {
			return r.Slots
		}
	}
	return nil
}

// reload reads the configuration again and applies it whole, or not at all (R15).
func (a *app) reload() error {
	if a.read == nil {
		return errors.New("reloading: this gateway was started without a configuration file")
	}
	fresh, err := a.read()
	if err != nil {
		return err
	}
	a.reloading.Lock()
	next, diff := config.Reload(a.site.cfg, fresh)
	s, err := lookUp(next)
	if err != nil {
		a.reloading.Unlock()
		return err
	}
	a.site = s
	a.reloading.Unlock()
	// The data plane first, so that a replica which the controller grants has
	// its client.
	a.gateway.Apply(s.settings(a.instance, a.serverTLS, a.log))
	a.controller.Reconfigure(time.Now(), controllerConfig(next))
	a.prober.Reconfigure(next.Health.Interval, next.Health.Timeout, s.targets())
	a.gpus.Reconfigure(next.Health.Interval, next.Health.Timeout, s.gpus())
	for _, name := range diff.Replicas.Removed {
		a.seen.Delete(name)
		a.onGPU.Delete(name)
	}
	a.log.Info("configuration applied", "changes", diff.String())
	if len(diff.Restart) > 0 {
		a.log.Warn("changed settings that only a restart applies", "keys", strings.Join(diff.Restart, ", "))
	}
	return nil
}

// lastBytes is how long the last answers may take to leave after their requests
// have ended.
const lastBytes = 500 * time.Millisecond

// stop drains the data plane and ends everything (R15).
func (a *app) stop() error {
	err := a.gateway.Shutdown(context.Background())
	a.admin.Close()
	// No request is left. What a server still waits for is connections that
	// have sent nothing, a balancer's: those may be cut.
	brief, cancel := context.WithTimeout(context.Background(), lastBytes)
	defer cancel()
	for _, s := range []*http.Server{a.data, a.ops} {
		if s.Shutdown(brief) != nil {
			_ = s.Close()
		}
	}
	a.prober.Close()
	a.gpus.Close()
	a.end()
	a.background.Wait()
	a.gateway.Close()
	a.decisions.Close()
	return err
}
