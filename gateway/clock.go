package gateway

import (
	"context"
	"time"
)

// Run drives the controller's clock until ctx ends: it calls Tick when the
// controller planned it, or when it asks for it earlier, and passes on what
// has changed among the replicas.
func (g *Gateway) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-g.controller.Wake():
		}
		for _, e := range g.controller.TakeEvents() {
			g.observer.ReplicaChanged(e)
		}
		now := time.Now()
		if next := g.controller.Tick(now); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(next.Sub(now))
		}
	}
}
