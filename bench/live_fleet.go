package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"switchyard/simserver"
)

// liveFleet is the replicas of a live run: simulated ones in this process, and
// real ones where they are.
type liveFleet struct {
	scenario *Scenario
	servers  simserver.Fleet
	urls     []string // of all, in the scenario's order
	timers   []*time.Timer
}

// startFleet starts the simulated replicas. Their faults begin with begin.
func startFleet(s *Scenario) (*liveFleet, error) {
	f := &liveFleet{scenario: s, urls: make([]string, len(s.Replicas))}
	var all []simserver.Options
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if f.urls[i] = r.URL; r.URL == "" {
			o := r.Options()
			o.Faults = nil
			all = append(all, o)
		}
	}
	var err error
	if f.servers, err = simserver.StartFleet(all); err != nil {
		return nil, err
	}
	next := 0
	for i := range f.urls {
		if f.urls[i] == "" {
			f.urls[i] = f.servers[next].URL()
			next++
		}
	}
	return f, nil
}

// begin is the moment that the faults' times count from.
func (f *liveFleet) begin(began time.Time) error {
	next := 0
	for i := range f.scenario.Replicas {
		r := &f.scenario.Replicas[i]
		if r.URL != "" {
			continue
		}
		server, o := f.servers[next], r.Options()
		next++
		for _, fault := range o.Faults {
			if _, err := fault.Fault.Check(); err != nil {
				return fmt.Errorf("replica %s: %w", o.Name, err)
			}
			at := fault.At
			if o.TimeScale > 0 {
				at = time.Duration(float64(at) / o.TimeScale)
			}
			f.timers = append(f.timers, time.AfterFunc(time.Until(began.Add(at)), func() { _ = server.SetFault(fault.Fault) }))
		}
	}
	return nil
}

// records gives what each replica has counted, also a real one that is a
// simulator elsewhere.
func (f *liveFleet) records(ctx context.Context) (out []ReplicaRecord) {
	next := 0
	for i := range f.scenario.Replicas {
		r := &f.scenario.Replicas[i]
		if r.URL == "" {
			out = append(out, ReplicaRecord{Replica: r.Name, Stats: f.servers[next].Stats()})
			next++
			continue
		}
		var st simserver.Stats
		if getJSON(ctx, r.URL+"/sim/stats", &st) == nil && st.Slots > 0 {
			out = append(out, ReplicaRecord{Replica: r.Name, Stats: st})
		}
	}
	return out
}

// rest waits until the simulated replicas have nothing in hand any more: for
// work of clients who left.
func (f *liveFleet) rest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		busy := 0
		for _, s := range f.servers {
			busy += s.Stats().InHand
		}
		if busy == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (f *liveFleet) close() {
	for _, t := range f.timers {
		t.Stop()
	}
	f.servers.Close()
}

// plain is for questions that are asked now and then: it keeps no connection.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// getJSON reads a JSON document.
func getJSON(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := plain.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// untilServes waits until a foreign gateway passes on the list of models: its
// replicas have only just been started.
func untilServes(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var list any
		err := getJSON(ctx, base+"/v1/models", &list)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for it to pass on GET /v1/models: %w", err)
		}
	}
}
