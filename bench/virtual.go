package bench

import (
	"context"
	"fmt"
)

// RunVirtual runs one trial, counted from 1, of a scenario against a target
// under a made-up clock. The same scenario, target and trial give the same
// records, byte for byte.
func RunVirtual(ctx context.Context, s *Scenario, t Target, trial int, o VirtualOptions) (*Trial, error) {
	if t.Kind == Pinned {
		o.rehearsal = s.NewTraffic(trial)
	}
	return runVirtual(ctx, s, t, s.NewTraffic(trial), o)
}

func runVirtual(ctx context.Context, s *Scenario, t Target, from traffic, o VirtualOptions) (*Trial, error) {
	if !t.Virtual() {
		return nil, fmt.Errorf("target %s: it is no part of this program, so it cannot be run under a made-up clock: want a live run", t.Name)
	}
	w := newWorld(ctx, from, s.Seed)
	w.told = o.Progress
	if err := w.addServers(s); err != nil {
		return nil, err
	}
	var err error
	switch t.Kind {
	case RoundRobin, LeastConnections:
		w.front = newProxyFront(w, t.Kind == LeastConnections)
	case Pinned:
		w.front, err = newPinnedFront(w, o.rehearsal)
	default:
		w.front, err = wiredGateway(w, s, t, o)
	}
	if err == nil {
		err = w.run()
	}
	if err != nil {
		return nil, fmt.Errorf("scenario %s, target %s: %w", s.Name, t.Name, err)
	}
	for _, sv := range w.fleet {
		w.trial.Replicas = append(w.trial.Replicas, sv.record())
	}
	w.trial.Violations = append(w.front.violations(), checkFleet(t, w.trial)...)
	return w.trial, nil
}

// wiredGateway is the gateway with the scenario's configuration.
func wiredGateway(w *world, s *Scenario, t Target, o VirtualOptions) (*gatewayFront, error) {
	file, err := gatewayConfig(s, t, gatewaySite{replicas: s.nowhere()})
	if err != nil {
		return nil, err
	}
	cfg, err := o.Wire(file)
	if err != nil {
		return nil, fmt.Errorf("the gateway's configuration: %w", err)
	}
	if t.Kind == Oracle {
		cfg = asOracle(cfg)
	}
	times, err := s.gatewayTimes()
	if err != nil {
		return nil, err
	}
	g := newGatewayFront(w, cfg, times)
	g.unordered, g.blind = t.Without == "order", t.Without == "gpu"
	g.keys = map[string]KeySpec{}
	for _, k := range s.Keys.List {
		g.keys[k.Name] = k
	}
	if t.Kind == Oracle {
		g.judge = &oracle{g}
	}
	for _, sv := range w.fleet {
		g.watch(sv)
	}
	return g, nil
}
