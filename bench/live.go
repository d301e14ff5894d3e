package bench

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	"switchyard/admission"
)

// quiet takes what servers say about clients who left.
var quiet = log.New(io.Discard, "", 0)

// headStart lies between everything being ready and the trial's start.
const headStart = 50 * time.Millisecond

// RunLive runs one trial of a scenario against a target over real sockets: the
// simulated replicas are servers in this process, the gateway is a process of
// its own, and clients are connections. Nothing of it is left when it returns.
func RunLive(ctx context.Context, s *Scenario, t Target, trial int, o LiveOptions) (*Trial, error) {
	return runLive(ctx, s, t, s.NewTraffic(trial), o)
}

func runLive(ctx context.Context, s *Scenario, t Target, from traffic, o LiveOptions) (*Trial, error) {
	if !t.Live() {
		return nil, fmt.Errorf("target %s: it knows the future, so it needs a virtual run", t.Name)
	}
	fleet, err := startFleet(s)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	defer fleet.close()
	var gateway *child
	base := t.URL
	switch t.Kind {
	case RoundRobin, LeastConnections:
		p, err := startProxy(s, fleet.urls, t.Kind == LeastConnections)
		if err != nil {
			return nil, err
		}
		defer p.close()
		base = p.base
	case Gateway:
		if gateway, err = startGateway(ctx, s, t, fleet.urls, o); err != nil {
			return nil, fmt.Errorf("scenario %s, target %s: %w", s.Name, t.Name, err)
		}
		defer gateway.close()
		base = gateway.base
	}
	l := newLoad(from, base)
	l.told, l.unordered = o.Progress, t.Without == "order"
	began := time.Now().Add(headStart)
	if err := fleet.begin(began); err != nil {
		return nil, err
	}
	if err := l.run(ctx, began); err != nil {
		return nil, fmt.Errorf("scenario %s, target %s: %w", s.Name, t.Name, err)
	}
	out := &Trial{Records: l.mu.records}
	if gateway != nil {
		state, err := gateway.settled(ctx)
		if err != nil {
			return nil, err
		}
		out.Violations = checkBooks(state, seen(out.Records))
	}
	fleet.rest(ctx)
	out.Replicas = fleet.records(ctx)
	out.Violations = append(out.Violations, checkFleet(t, out)...)
	return out, nil
}

// seen is what the gateway's books must say, by what its clients have seen.
func seen(records []Record) (t admission.Totals) {
	for i := range records {
		switch r := &records[i]; {
		case r.Error == ErrLeft:
			t.Cancelled++
		case r.Status == 502 || r.Status == 504 || r.Error != "":
			t.Failed++
		case r.Code != "" && r.Replica == "":
			t.Refused++
		case r.Status >= 500:
			t.Failed++
		default:
			t.Completed++
		}
	}
	return t
}
