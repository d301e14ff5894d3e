package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/config"
	"switchyard/gateway"
	"switchyard/simserver"
)

// demoCmd shows the whole thing with no GPU: three simulated replicas of
// different engines, the gateway, more traffic than they can serve, and a
// replica that crashes and comes back.
type demoCmd struct {
	Listen      string        `default:"127.0.0.1:8700" placeholder:"ADDR" help:"Address for clients."`
	AdminListen string        `default:"127.0.0.1:8701" placeholder:"ADDR" help:"Address of dashboard, metrics and admin API."`
	For         time.Duration `placeholder:"DURATION" help:"End by itself after that time, with a summary."`
	Rate        float64       `default:"6" placeholder:"R" help:"Requests per second; the replicas can serve about 4."`
}

// The demo's replicas: eight slots that serve about four requests a second.
func demoReplicas() []simserver.Options {
	common := simserver.Options{
		Models: []string{"demo"}, Prefill: 1500, OutputTokens: "lognormal:70,0.5", Notice: 300 * time.Millisecond,
	}
	llama, ollama, vllm := common, common, common
	llama.Name, llama.Engine, llama.Slots, llama.Decode, llama.Seed = "llama", "llamacpp", 2, 50, 1
	ollama.Name, ollama.Engine, ollama.Slots, ollama.Decode, ollama.Seed = "ollama", "ollama", 2, 40, 2
	ollama.LoadTime = time.Second
	vllm.Name, vllm.Engine, vllm.Slots, vllm.Decode, vllm.Seed = "vllm", "vllm", 4, 45, 3
	return []simserver.Options{llama, ollama, vllm}
}

// When the replica named llama crashes, and for how long it is gone.
const (
	crashFirst = 8 * time.Second
	crashEvery = 30 * time.Second
	crashFor   = 5 * time.Second
)

// Run plays the demo until its time is over or the context ends.
func (cmd *demoCmd) Run(ctx context.Context, c *console) error {
	if cmd.For < 0 {
		return usageError{fmt.Errorf("--for %v: want a duration above 0, such as 30s, or nothing to go on until interrupted", cmd.For)}
	}
	if cmd.Rate <= 0 || cmd.Rate > 1000 {
		return usageError{fmt.Errorf("--rate %v: want requests per second above 0, up to 1000", cmd.Rate)}
	}
	fleet, err := simserver.StartFleet(demoReplicas())
	if err != nil {
		return fmt.Errorf("starting the simulated replicas: %w", err)
	}
	defer fleet.Close()
	cfg, err := cmd.config(fleet)
	if err != nil {
		return err
	}
	show := newDemoShow(c)
	quiet := slog.New(slog.NewTextHandler(c.Err, &slog.HandlerOptions{Level: slog.LevelError}))
	a, err := newApp(cfg, quiet, show.wrap)
	if err != nil {
		return err
	}
	found := make(chan struct{}, len(fleet))
	a.found = func(name string, up bool, line string) {
		show.line("%s: found %s", name, line)
		if up {
			found <- struct{}{}
		}
	}
	if err := a.start(); err != nil {
		return err
	}
	for range fleet {
		<-found
	}
	cmd.introduce(c, a)
	err = cmd.play(ctx, a, fleet, show)
	if stopErr := a.stop(); err == nil {
		err = stopErr
	}
	return errors.Join(err, show.summary(a.controller.Snapshot(time.Now()), fleet))
}

// config is the demo's configuration: deadlines short enough to see refusals.
func (cmd *demoCmd) config(fleet simserver.Fleet) (*config.Config, error) {
	cfg := config.Default()
	cfg.Classes = []config.Class{
		{Name: "interactive", Deadline: 3 * time.Second},
		{Name: "standard", Deadline: 6 * time.Second, MinShare: 0.05},
		{Name: "batch", Deadline: 12 * time.Second, MinShare: 0.05},
	}
	cfg.Limits.DrainTimeout = 15 * time.Second
	flags := config.Flags{Listen: cmd.Listen, AdminListen: cmd.AdminListen}
	for _, s := range fleet {
		flags.Replicas = append(flags.Replicas, fmt.Sprintf("%s=%s,slots=%d", s.Name(), s.URL(), s.Slots()))
	}
	return cfg.With(flags)
}

func (cmd *demoCmd) introduce(c *console, a *app) {
	base, admin := "http://"+a.dataAddr, "http://"+a.opsAddr
	c.printf("\nThe gateway serves on %s, its dashboard on %s/\n", base, admin)
	c.printf("Traffic: %.1f requests a second; the three replicas can serve about 4. Try meanwhile:\n\n", cmd.Rate)
	c.printf("  curl -N %s/v1/chat/completions -d '{\"model\":\"demo\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n", base)
	c.printf("  curl -i -H 'X-Switchyard-Deadline: 100ms' %s/api/chat -d '{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n", base)
	c.printf("  curl -s %s/admin/decisions?limit=3\n\n", admin)
}

// play runs the traffic and the crashes.
func (cmd *demoCmd) play(ctx context.Context, a *app, fleet simserver.Fleet, show *demoShow) error {
	if cmd.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cmd.For)
		defer cancel()
	}
	load := newDemoLoad("http://"+a.dataAddr, cmd.Rate)
	defer load.wait()
	defer load.client.CloseIdleConnections()
	show.start()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	crash := time.NewTimer(crashFirst)
	defer crash.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			show.line("no more traffic; what is under way may end")
			return nil
		case err := <-a.failed:
			return err
		case <-next.C:
			next.Reset(load.send())
		case <-second.C:
			show.second(a.controller.Snapshot(time.Now()))
		case <-crash.C:
			show.line("llama: its process crashes now, with what it was doing; back in %s", crashFor)
			if err := fleet[0].SetFault(simserver.Fault{Kind: "crash", For: crashFor}); err != nil {
				return fmt.Errorf("crashing a replica: %w", err)
			}
			crash.Reset(crashEvery)
		}
	}
}

// wrap puts the demo's own observer around the gateway's.
func (d *demoShow) wrap(o gateway.Observer) gateway.Observer {
	d.Observer = o
	return d
}

// RequestEnded takes note of what the summary tells.
func (d *demoShow) RequestEnded(r gateway.Record) {
	d.Observer.RequestEnded(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.FirstToken > 0 {
		d.mu.first = append(d.mu.first, r.FirstToken)
	}
	if r.Outcome == admission.Refused {
		d.mu.refusal = fmt.Sprintf("%s, come back in %.0f s", r.Class, max(1, r.Decision.RetryAfterS))
	}
	if r.Outcome == admission.Failed {
		d.mu.failure = fmt.Sprintf("%s, status %d", r.Reason, r.Status)
		if r.Status == http.StatusOK {
			d.mu.failure = "its stream broke in the middle and ended in an error event"
		}
	}
}

// Retried counts retries.
func (d *demoShow) Retried(reason string) {
	d.Observer.Retried(reason)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.retried++
}

// ReplicaChanged tells of breakers and outages as they happen.
func (d *demoShow) ReplicaChanged(e admission.Event) {
	why := ""
	if e.Detail != "" {
		why = " (" + e.Detail + ")"
	}
	d.line("%s: %s%s", e.Replica, strings.ToLower(string(e.What)), why)
}
