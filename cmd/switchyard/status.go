package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"switchyard/admission"
)

// statusCmd shows a gateway's state in the terminal.
type statusCmd struct {
	Admin string `default:"http://127.0.0.1:8701" placeholder:"URL" help:"The gateway's admin address, as URL or HOST:PORT."`
	Token string `env:"SWITCHYARD_ADMIN_TOKEN" placeholder:"TOKEN" help:"The admin token, where the gateway asks for one; SWITCHYARD_ADMIN_TOKEN keeps it out of the process list."`
	Watch bool   `help:"Show it again every second until interrupted."`
}

// Run prints the state once, or until the context ends.
func (cmd *statusCmd) Run(ctx context.Context, c *console) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		s, err := cmd.fetch(ctx)
		if err != nil {
			if cmd.Watch && ctx.Err() != nil {
				return nil
			}
			return err
		}
		if cmd.Watch {
			c.printf("\x1b[H\x1b[2J")
		}
		printStatus(c.Out, s)
		if !cmd.Watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (cmd *statusCmd) fetch(ctx context.Context) (*admission.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	url := strings.TrimSuffix(cmd.Admin, "/") + "/admin/state"
	if !strings.Contains(url, "://") { // as serve takes it
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, usageError{fmt.Errorf("--admin %s: %w", cmd.Admin, err)}
	}
	if cmd.Token != "" {
		req.Header.Set("Authorization", "Bearer "+cmd.Token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the gateway for its state: %w (is it running, and is %s its admin address?)", err, cmd.Admin)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("reading the state from %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	s := &admission.Snapshot{}
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("%s does not answer like a gateway's admin side: %w", url, err)
	}
	return s, nil
}

// printStatus writes a snapshot as tables.
func printStatus(w io.Writer, s *admission.Snapshot) {
	state := "serving"
	switch {
	case s.Draining:
		state = "stopping"
	case !s.Serving:
		state = "not serving: no replica can be used"
	}
	t := s.Totals
	fmt.Fprintf(w, "%s, up %s, version %s\n", state, (time.Duration(s.UptimeS) * time.Second).String(), cmp.Or(s.Version, "unknown"))
	fmt.Fprintf(w, "arrived %d = completed %d + refused %d + failed %d + cancelled %d + queued %d + running %d; promises kept %d, broken %d\n\n",
		t.Arrived, t.Completed, t.Refused, t.Failed, t.Cancelled, t.Queued, t.Running, s.Promises.Kept, s.Promises.Broken)
	tw := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "REPLICA\tENGINE\tSTATE\tSLOTS\tBUSY\tZOMBIE\tFOREIGN\tPROMPT TOK/S\tDECODE TOK/S\tMODELS")
	for _, r := range s.Replicas {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%s\n", r.Name, r.Engine, replicaState(r),
			r.Slots.Total, r.Slots.Busy, r.Slots.Zombie, r.Slots.Foreign, r.PromptTokensPerS, r.DecodeTokensPerS, modelNames(r))
	}
	fmt.Fprintln(tw, "\nCLASS\tQUEUED\tRUNNING\tA NEWCOMER WAITS\tKEPT\tBROKEN")
	for _, c := range s.Classes {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.1fs\t%d\t%d\n", c.Name, c.Queued, c.Running, c.ForecastWaitS, c.Kept, c.Broken)
	}
	_ = tw.Flush()
}

// replicaState says in a word or a sentence how a replica is.
func replicaState(r admission.ReplicaState) string {
	switch {
	case !r.Up:
		return "down: " + cmp.Or(r.Err, "not probed yet")
	case r.Draining:
		return "draining"
	case r.Loading:
		return "loading its model"
	case r.Breaker.State == "open":
		return fmt.Sprintf("left alone (%s), trial in %.1fs", r.Breaker.Reason, r.Breaker.NextTrialS)
	case r.Breaker.State == "half-open":
		return fmt.Sprintf("on trial with %.0f%% of its slots", 100*r.Breaker.Allowance)
	case r.HeldOffS > 0:
		return fmt.Sprintf("held off for %.1fs", r.HeldOffS)
	case r.Misconfigured != "":
		return "up, but " + r.Misconfigured
	case r.Slow != "":
		return "up, but slow: " + r.Slow
	}
	return "up"
}

// modelNames lists a replica's models, resident ones marked.
func modelNames(r admission.ReplicaState) string {
	const most = 4
	var names []string
	for i, m := range r.Models {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(r.Models)-most))
			break
		}
		name := m.Name
		if !m.Resident {
			name += " (not loaded)"
		}
		names = append(names, name)
	}
	if r.AnyModel {
		names = append(names, "(any name)")
	}
	return strings.Join(names, ", ")
}
