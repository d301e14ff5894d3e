package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"slices"
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
		return nil, fmt.Errorf("target %s: only a virtual run can have it", t.Name)
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
	case External:
		if err := untilServes(ctx, base); err != nil {
			return nil, fmt.Errorf("scenario %s, target %s: %w", s.Name, t.Name, err)
		}
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
	slices.SortStableFunc(out.Records, func(a, b Record) int { return cmp.Compare(a.ArrivalS, b.ArrivalS) })
	if gateway != nil {
		state, err := gateway.settled(ctx)
		if err != nil {
			return nil, err
		}
		out.Violations = checkBooks(state, parted(seen(out.Records), state.Totals))
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

// parted allows for clients who left in the moment in which their answer came:
// they may be in the gateway's books as something else.
func parted(own, books admission.Totals) admission.Totals {
	for _, pair := range [][2]*int64{
		{&own.Completed, &books.Completed}, {&own.Refused, &books.Refused}, {&own.Failed, &books.Failed},
	} {
		n := max(0, min(*pair[1]-*pair[0], own.Cancelled-books.Cancelled))
		*pair[0] += n
		own.Cancelled -= n
	}
	return own
}
