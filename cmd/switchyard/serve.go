package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"switchyard/config"
)

// serveCmd runs the gateway.
type serveCmd struct {
	File        string   `short:"c" name:"config" env:"SWITCHYARD_CONFIG" placeholder:"FILE" help:"The configuration file."`
	Listen      string   `placeholder:"ADDR" help:"Address for clients (wins over the file; default 127.0.0.1:8700)."`
	AdminListen string   `placeholder:"ADDR" help:"Address of dashboard, metrics and admin API (default 127.0.0.1:8701)."`
	Replica     []string `sep:"none" placeholder:"URL" help:"An inference server, as URL or NAME=URL, with options after commas (engine=, slots=, …). May repeat."`
}

// Run serves until the context ends, then drains.
func (cmd *serveCmd) Run(ctx context.Context, c *console) error {
	read := cmd.hash() // before it is read: a change meanwhile must not go unseen
	cfg, err := cmd.read()
	if err != nil {
		return err
	}
	if len(cfg.Replicas) == 0 {
		return usageError{fmt.Errorf("there is no replica to serve from: give --replica URL, or a configuration with replicas (-c FILE)")}
	}
	log := newLogger(cfg, c)
	a, err := newApp(cfg, log, nil)
	if err != nil {
		return err
	}
	if cmd.File != "" {
		a.read = cmd.read
	}
	a.found = func(name string, up bool, line string) {
		if up {
			log.Info("replica found", "replica", name, "found", line)
		} else {
			log.Warn("replica does not answer", "replica", name, "why", line)
		}
	}
	a.foundGPU = func(name, line string) { log.Info("replica's GPU", "replica", name, "found", line) }
	if err := a.start(); err != nil {
		return err
	}
	for _, line := range cfg.Warnings() {
		log.Warn(line)
	}
	log.Info("serving", "clients", "http"+suffix(a.serverTLS != nil)+"://"+a.dataAddr, "admin", "http://"+a.opsAddr+"/", "replicas", len(cfg.Replicas), "version", controllerConfig(cfg).Version)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup) // not before it has drained: unheeded, the signal would end it
	err = cmd.wait(ctx, a, read, hup)
	log.Info("stopping", "drain_timeout", a.site.cfg.Limits.DrainTimeout.String())
	defer a.secondSignal()()
	if stopErr := a.stop(); err == nil {
		err = stopErr
	}
	return err
}

// secondSignal says in the log, until told to stop, that a signal ends the
// program before it has drained, and lets it do so.
func (a *app) secondSignal() (stop func()) {
	again, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-again:
			signal.Reset(os.Interrupt, syscall.SIGTERM) // a third one ends it, whatever holds this up
			totals := a.controller.Snapshot(time.Now()).Totals
			a.log.Warn("a second signal: ending at once", "signal", s.String(), "running", totals.Running, "queued", totals.Queued)
			if self, err := os.FindProcess(os.Getpid()); err != nil || self.Signal(s) != nil {
				os.Exit(exitFail)
			}
		case <-done:
		}
	}()
	return func() {
		signal.Stop(again)
		close(done)
	}
}

func suffix(tls bool) string {
	if tls {
		return "s"
	}
	return ""
}

// read gives the configuration of file and flags.
func (cmd *serveCmd) read() (*config.Config, error) {
	cfg := config.Default()
	if cmd.File != "" {
		var err error
		if cfg, err = config.Load(cmd.File); err != nil {
			return nil, err
		}
	}
	return cfg.With(config.Flags{Listen: cmd.Listen, AdminListen: cmd.AdminListen, Replicas: cmd.Replica})
}

// fileCheck is how often the configuration file is compared with what was
// loaded: its content, since editors and mounted volumes replace files in ways
// that notification services miss.
const fileCheck = 2 * time.Second

// wait reloads on SIGHUP and when the file is not the last one any more, until
// the context ends or a listener fails.
func (cmd *serveCmd) wait(ctx context.Context, a *app, last [32]byte, hup <-chan os.Signal) error {
	tick := time.NewTicker(fileCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-a.failed:
			return err
		case <-hup:
		case <-tick.C:
			if cmd.File == "" || cmd.hash() == last {
				continue
			}
		}
		last = cmd.hash()
		if err := a.reload(); err != nil {
			a.log.Error("configuration not applied, the old one stays", "err", err)
		}
	}
}

func (cmd *serveCmd) hash() [32]byte {
	data, _ := os.ReadFile(cmd.File) // a file that is missing for a moment has its own hash
	return sha256.Sum256(data)
}

// newLogger writes to standard error as log.level and log.format say.
func newLogger(cfg *config.Config, c *console) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // its words were checked
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(c.Err, opts))
	}
	return slog.New(slog.NewTextHandler(c.Err, opts))
}
