package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/bench"
)

const benchScenario = `
name: tiny
seed: 3
trials: 2
virtual: true
replicas: [{name: a, engine: vllm, slots: 2, output_tokens: "fixed:20"}]
classes: [{name: standard, deadline: 2s}]
traffic: [{kind: poisson, rate: 20, requests: 30, prompt_tokens: "fixed:100"}]
gateway: {queue: {max_requests: 100}}
targets: [round-robin, switchyard, switchyard-oracle]
`

func benchFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// The shipped scenarios make configurations that the gateway takes.
func TestShippedScenariosFitTheGateway(t *testing.T) {
	for _, name := range bench.Shipped() {
		s, err := bench.Load(name)
		require.NoError(t, err, name)
		require.NoError(t, s.CheckGateway(wireBench), name)
		require.NotEmpty(t, s.Targets)
	}
	help := command(t, "bench", "run", "--help")
	require.Equal(t, exitWell, help.code)
	for _, name := range bench.Shipped() {
		require.Contains(t, help.out, "\n    "+name+"\n")
	}
}

// From a scenario to tables, and back again from the raw logs.
func TestBenchRunReportVerify(t *testing.T) {
	scenario, dir := benchFile(t, benchScenario), filepath.Join(t.TempDir(), "out")
	got := command(t, "bench", "run", scenario, "--out", dir)
	require.Equal(t, exitWell, got.code, got.err)
	require.Empty(t, got.err)
	require.Contains(t, got.out, "[6/6] switchyard-oracle, trial 2: 30 requests: ")
	require.NotContains(t, got.out, "\x1b", "plain lines when it is no terminal")
	for _, name := range []string{"scenario.yaml", "meta.json", "report.md", "report.html", "raw-switchyard-1.jsonl.gz", "raw-switchyard-2.jsonl.gz", "raw-round-robin-1.jsonl.gz"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	meta, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	require.NoError(t, err)
	require.Contains(t, string(meta), `"switchyard bench run tiny.yaml --trials 2 --seed 3 --target round-robin --target switchyard --target switchyard-oracle"`)
	require.NotContains(t, string(meta), filepath.Dir(scenario), "no paths of the machine")

	require.Equal(t, exitWell, command(t, "bench", "verify", dir).code)
	report := filepath.Join(dir, "report.md")
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(report, bytes.Replace(text, []byte("| 30 |"), []byte("| 31 |"), 1), 0o600))
	got = command(t, "bench", "verify", dir)
	require.Equal(t, exitFail, got.code)
	require.Contains(t, got.out, `tiny/summary: round-robin, sent: published "31", the raw logs give "30"`)
	require.Contains(t, got.err, "differs from what the raw logs in "+dir+" give: 1 time\n")
	got = command(t, "bench", "report", dir)
	require.Equal(t, exitWell, got.code, got.err)
	require.Contains(t, got.out, "tiny/summary\ntarget ")
	require.Equal(t, exitWell, command(t, "bench", "verify", dir, "--published", report).code)
}

// A run of one target more is added to those that are there, and a second run
// of the same target replaces the first whole.
func TestBenchRunsAreAdded(t *testing.T) {
	scenario, dir := benchFile(t, benchScenario), filepath.Join(t.TempDir(), "out")
	require.Equal(t, exitWell, command(t, "bench", "run", scenario, "--out", dir, "--target", "round-robin", "--trials", "3").code)
	require.Equal(t, exitWell, command(t, "bench", "run", scenario, "--out", dir, "--target", "switchyard", "--trials", "3").code)
	got := command(t, "bench", "run", scenario, "--out", dir, "--target", "round-robin", "--trials", "1")
	require.Equal(t, exitWell, got.code, got.err)
	var names []string
	files, err := filepath.Glob(filepath.Join(dir, "raw-*"))
	require.NoError(t, err)
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	require.Equal(t, []string{"raw-round-robin-1.jsonl.gz", "raw-switchyard-1.jsonl.gz", "raw-switchyard-2.jsonl.gz", "raw-switchyard-3.jsonl.gz"}, names)
	got = command(t, "bench", "run", scenario, "--out", dir, "--seed", "4")
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.err, "another scenario, or of another seed")
}

func TestBenchUsage(t *testing.T) {
	scenario := benchFile(t, benchScenario)
	out := filepath.Join(t.TempDir(), "out")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no scenario":   {[]string{"run"}, "scenario"},
		"unknown":       {[]string{"run", "nope"}, "want a path, or one of azure"},
		"bad target":    {[]string{"run", scenario, "--target", "nginx"}, `target "nginx": want round-robin`},
		"live only":     {[]string{"run", scenario, "--target", "url:x=http://127.0.0.1:1"}, "not in a virtual run"},
		"virtual only":  {[]string{"run", scenario, "--no-virtual", "--target", "switchyard-oracle"}, "not in a live run"},
		"trials":        {[]string{"run", scenario, "--trials", "1001"}, "want 1 to 1000"},
		"no trace":      {[]string{"run", "azure"}, "by --trace"},
		"wrong trace":   {[]string{"run", "azure", "--trace", scenario}, "reading the trace"},
		"wrong gateway": {[]string{"run", benchFile(t, strings.Replace(benchScenario, "max_requests", "max_request", 1))}, "tiny.yaml:9: gateway.queue.max_request: unknown key: the nearest known key is max_requests"},
		"wrong key":     {[]string{"run", benchFile(t, strings.Replace(benchScenario, "rate:", "rats:", 1))}, "tiny.yaml:8: traffic[0].rats: unknown key: the nearest known key is rate"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"bench"}, c.args...)
			if len(c.args) > 1 {
				args = append(args, "--out", out)
			}
			got := command(t, args...)
			require.Equal(t, exitUsage, got.code, got.err)
			require.Contains(t, got.err, c.want)
			require.NoDirExists(t, out, "nothing is begun")
		})
	}
	for _, args := range [][]string{{"report", t.TempDir()}, {"verify", t.TempDir()}, {"verify", filepath.Join(out, "none")}} {
		require.Equal(t, exitFail, command(t, append([]string{"bench"}, args...)...).code)
	}
}

// A broken rule makes the run fail and is named, in the report, too.
func TestBrokenRulesFailTheRun(t *testing.T) {
	var out bytes.Buffer
	c := &console{Out: &out}
	cmd := &benchRunCmd{Scenario: benchFile(t, benchScenario), Out: t.TempDir()}
	r, err := cmd.prepare(c)
	require.NoError(t, err)
	honest := r.trial
	r.trial = func(ctx context.Context, s *bench.Scenario, target bench.Target, trial int) (*bench.Trial, error) {
		got, err := honest(ctx, s, target, trial)
		if target.Name == "switchyard" && trial == 2 {
			got.Violations = append(got.Violations, "R1: a has had 3 requests in hand on 2 slots")
		}
		return got, err
	}
	err = r.run(t.Context(), c)
	require.EqualError(t, err, "rules were broken:\n  switchyard, trial 2: R1: a has had 3 requests in hand on 2 slots")
	require.Equal(t, exitFail, (&console{Err: &bytes.Buffer{}}).finish(err))
	text, err := os.ReadFile(filepath.Join(cmd.Out, "report.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "## Broken rules\n\n- switchyard, trial 2: R1: a has had 3 requests in hand on 2 slots\n")
}

// A run that is stopped, or that cannot go on, says so.
func TestBenchRunThatCannotGoOn(t *testing.T) {
	cmd := &benchRunCmd{Scenario: benchFile(t, benchScenario), Out: t.TempDir()}
	c := &console{Out: &bytes.Buffer{}}
	r, err := cmd.prepare(c)
	require.NoError(t, err)
	r.trial = func(context.Context, *bench.Scenario, bench.Target, int) (*bench.Trial, error) {
		return nil, errors.New("starting replica a: no such thing")
	}
	require.EqualError(t, r.run(t.Context(), c), "round-robin, trial 1: starting replica a: no such thing")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	cmd = &benchRunCmd{Scenario: benchFile(t, benchScenario), Out: t.TempDir()}
	require.ErrorIs(t, cmd.Run(ctx, c), context.Canceled)
}

func TestBenchProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newBenchProgress(&console{Out: &out}, 4)
		p.begin("a, trial 1")
		p.update(1, 100)
		require.Empty(t, out.String(), "no news yet")
		time.Sleep(eachNews)
		p.update(50, 100)
		require.Equal(t, "[1/4] a, trial 1: 50 of 100 requests, 30s, all of it in about 3m30s\n", out.String())
		out.Reset()
		time.Sleep(eachNews)
		p.done("a, trial 1", "100 requests: fine")
		require.Equal(t, "[1/4] a, trial 1: 100 requests: fine, in 1m0s\n", out.String())

		out.Reset()
		p.terminal = true
		p.begin("b, trial 1")
		time.Sleep(eachLine)
		p.update(1, 0)
		require.Equal(t, "\r\x1b[K[2/4] b, trial 1\r\x1b[K[2/4] b, trial 1: 1 of 0 requests, 100ms, all of it in about 1m0s", out.String())
	})
	for d, want := range map[time.Duration]string{12*time.Millisecond + 345*time.Microsecond: "12ms", 1234 * time.Millisecond: "1.2s", 83400 * time.Millisecond: "1m23s"} {
		require.Equal(t, want, clock(d))
	}
}
