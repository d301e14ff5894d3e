//go:build unix

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/internal/engines"
)

const (
	nonsense = "nonsense" // the model that both replicas have
	onlyB    = "only-b"   // one that the second has

	engineSlots  = 2 // of each replica, for each model
	engineTime   = 8 * time.Minute
	engineGlance = 10 * time.Millisecond // how often a condition is looked at
)

// engineRig is the real program in front of two real servers.
type engineRig struct {
	t       *testing.T
	ctx     context.Context // ends before the test's time does
	servers map[string]*engines.Ollama
	taps    map[string]*engines.Tap // none where the gateway talks to the servers directly
	program string                  // the gateway's
	gateway *engines.Child
	clients string // URL of the data plane
	admin   string
	http    *http.Client
	slots   int // of each replica, for each model
}

// engineSetup is how the servers are set up.
type engineSetup struct {
	tapped  bool // a tap stands in front of each server
	slots   int
	context int // tokens, of each slot
	layers  int // of the model; 0: as many as the small one has
}

// newEngineRig starts servers as they are in most tests, and a gateway.
func newEngineRig(t *testing.T, tapped bool) *engineRig {
	t.Helper()
	r := startEngines(t, engineSetup{tapped: tapped, slots: engineSlots, context: 2048})
	r.serve("breaker: {cooldown: 1s}\nretry: {stall_timeout: 10s}\n")
	return r
}

// startEngines starts the servers, or skips the test where there is no Ollama.
func startEngines(t *testing.T, setup engineSetup) *engineRig {
	t.Helper()
	program, found, err := engines.FindOllama()
	require.NoError(t, err)
	if !found {
		t.Skip(engines.Missing)
	}
	t.Logf("Ollama %s, %s", engines.OllamaVersion(program), program)
	ctx, cancel := context.WithTimeout(t.Context(), engineTime)
	t.Cleanup(cancel)
	r := &engineRig{
		t: t, ctx: ctx, servers: map[string]*engines.Ollama{}, taps: map[string]*engines.Tap{},
		http:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		slots: setup.slots,
	}
	r.program = filepath.Join(t.TempDir(), "switchyard")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", r.program, ".").CombinedOutput()
	require.NoError(t, err, "building the gateway: %s", out)
	// A file for each model: Ollama runs two names of one file as one model.
	files := map[string]string{}
	for i, model := range []string{nonsense, onlyB} {
		files[model] = filepath.Join(t.TempDir(), model+".gguf")
		m := engines.Small(uint64(i + 1))
		m.Context, m.Layers = setup.context, cmp.Or(setup.layers, m.Layers)
		require.NoError(t, m.Write(files[model]))
	}
	for name, models := range map[string][]string{"a": {nonsense}, "b": {nonsense, onlyB}} {
		server := &engines.Ollama{Program: program, Dir: t.TempDir(), Parallel: setup.slots, Context: setup.context}
		r.servers[name] = server
		t.Cleanup(func() {
			server.Kill()
			r.show("Ollama "+name, server.Log())
		})
		require.NoError(t, server.Start(ctx))
		for _, model := range models {
			require.NoError(t, server.Create(ctx, model, files[model]))
		}
		if setup.tapped {
			tap, err := engines.NewTap(server.Addr)
			require.NoError(t, err)
			t.Cleanup(tap.Close)
			r.taps[name] = tap
		}
	}
	return r
}

// address is where the gateway finds a replica.
func (r *engineRig) address(name string) string {
	if tap := r.taps[name]; tap != nil {
		return tap.URL()
	}
	return r.servers[name].URL()
}

// serve starts the gateway, with more configuration, and waits until both
// replicas are found.
func (r *engineRig) serve(more string) {
	t := r.t
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf(`listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
replicas:
  - {name: a, url: %q, slots: %d}
  - {name: b, url: %q, slots: %d}
log: {format: json}
%s`, r.address("a"), r.slots, r.address("b"), r.slots, more)
	file := filepath.Join(dir, "switchyard.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	gateway, err := engines.Command{Path: r.program, Args: []string{"serve", "-c", file}, Dir: dir}.Start()
	require.NoError(t, err)
	r.gateway = gateway
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := gateway.Terminate(ctx)
		r.show("gateway", gateway.Log.String())
		require.NoError(t, err)
	})
	serving := r.logged("serving", nil)
	r.clients, r.admin = serving["clients"].(string), strings.TrimSuffix(serving["admin"].(string), "/")
	for _, name := range []string{"a", "b"} {
		r.found(name)
	}
}

// found is what the gateway said it found of a replica.
func (r *engineRig) found(name string) string {
	r.t.Helper()
	said := r.logged("replica found", map[string]string{"replica": name})
	return said["found"].(string)
}

// logged waits for a line of the gateway's log.
func (r *engineRig) logged(msg string, with map[string]string) map[string]any {
	r.t.Helper()
	var got map[string]any
	_, err := r.gateway.Log.Await(r.ctx, func(line string) bool {
		got = nil
		if json.Unmarshal([]byte(line), &got) != nil || got["msg"] != msg {
			return false
		}
		for k, v := range with {
			if got[k] != v {
				return false
			}
		}
		return true
	})
	require.NoError(r.t, err, "the gateway did not log %q %v: %s", msg, with, r.gateway.Log)
	return got
}

// show prints the end of a log when the test has failed.
func (r *engineRig) show(whose, log string) {
	if !r.t.Failed() {
		return
	}
	lines := slices.DeleteFunc(strings.Split(log, "\n"), func(l string) bool {
		return strings.Contains(l, `| GET      "`) // the probes
	})
	r.t.Logf("--- the end of the log of %s:\n%s", whose, strings.Join(lines[max(0, len(lines)-60):], "\n"))
}

// timeline reports what the gateway said of its replicas since then.
func (r *engineRig) timeline(since time.Time) {
	r.t.Helper()
	for line := range strings.Lines(r.gateway.Log.String()) {
		var said struct {
			Time              time.Time
			Msg, Replica, Why string
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Replica != "" && said.Time.After(since) && said.Msg != "request" {
			r.t.Logf("%8v  %s %s %s", said.Time.Sub(since).Round(time.Millisecond), said.Msg, said.Replica, said.Why)
		}
	}
}

// until waits for a condition.
func (r *engineRig) until(what string, ask func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Minute)
	defer cancel()
	err := engines.Poll(ctx, engineGlance, func() (bool, error) { return ask(), nil })
	require.NoError(r.t, err, "waiting until %s; the state: %+v", what, r.state())
}

// engineState is what these tests read of /admin/state.
type engineState struct {
	Totals   struct{ Arrived, Completed, Refused, Failed, Cancelled, Queued, Running int }
	Replicas []engineReplica
}

type engineReplica struct {
	Name    string
	Engine  string
	Up      bool
	Slots   struct{ Total, Free, Busy, Zombie, Foreign int }
	Breaker struct {
		State  string
		Reason string
	}
	Models []struct {
		Name     string
		Resident bool
	}
}

func (s engineState) replica(name string) engineReplica {
	for _, r := range s.Replicas {
		if r.Name == name {
			return r
		}
	}
	return engineReplica{}
}

// balanced says whether the books balance (R13).
func (s engineState) balanced() bool {
	t := s.Totals
	return t.Arrived == t.Completed+t.Refused+t.Failed+t.Cancelled+t.Queued+t.Running
}

func (r *engineRig) state() engineState {
	r.t.Helper()
	s, err := r.look()
	require.NoError(r.t, err)
	return s
}

// look is state for goroutines, which must not end the test.
func (r *engineRig) look() (s engineState, err error) {
	return s, r.fetch(r.admin+"/admin/state", &s)
}

func (r *engineRig) json(url string, into any) {
	r.t.Helper()
	require.NoError(r.t, r.fetch(url, into))
}

func (r *engineRig) fetch(url string, into any) error {
	status, body, err := r.get(url)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w: %s", url, err, body)
	}
	return nil
}

func (r *engineRig) get(url string) (status int, body []byte, err error) {
	// Still allowed when the test's time is up, for what a failure reports.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}
