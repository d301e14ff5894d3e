package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/bench"
	"switchyard/config"
)

// benchCmd measures this gateway against others on the same traffic.
type benchCmd struct {
	Run    benchRunCmd    `cmd:"" help:"Run a scenario against each target in turn on identical traffic, and write raw logs."`
	Report benchReportCmd `cmd:"" help:"Compute tables and pictures from raw logs: report.md and report.html in DIR."`
	Verify benchVerifyCmd `cmd:"" help:"Compute the tables again, and exit with 1 if a published one differs."`
}

type benchRunCmd struct {
	Scenario string   `arg:"" help:"A scenario's file, or the name of a shipped one."`
	Out      string   `placeholder:"DIR" type:"path" help:"Where the raw logs go (default: bench-SCENARIO here). More targets may be added to those that are there."`
	Target   []string `placeholder:"NAME" sep:"none" help:"What to run against; may repeat (default: the scenario's): round-robin, least-connections, pinned (virtual), switchyard, switchyard-no-admission, -no-affinity, -no-slots or -no-order, switchyard-no-gpu and switchyard-oracle (both virtual), url:NAME=URL (another gateway in front of the same replicas)."`
	Trials   int      `placeholder:"N" help:"How often (default: the scenario's)."`
	Seed     *uint64  `placeholder:"N" help:"Seed of the traffic (default: the scenario's)."`
	Virtual  *bool    `negatable:"" help:"Under a made-up clock, without sockets: the same controller, the same model of the engines (default: the scenario's)."`
	Trace    string   `placeholder:"FILE" type:"path" help:"The trace that the scenario replays."`
}

// Help lists the shipped scenarios.
func (*benchRunCmd) Help() string {
	var b strings.Builder
	b.WriteString("Shipped scenarios:\n")
	for _, name := range bench.Shipped() {
		if s, err := bench.Load(name); err == nil {
			fmt.Fprintf(&b, "\n  %s\n%s", name, wrapped(s.Note))
		}
	}
	return b.String()
}

// wrapped sets a text in lines of a help page: as they are indented, they are
// printed as they stand.
func wrapped(text string) string {
	const indent, width = "      ", 76
	var b strings.Builder
	at := width
	for word := range strings.FieldsSeq(text) {
		if at+1+len(word) > width {
			b.WriteString("\n" + indent + word)
			at = len(indent) + len(word)
			continue
		}
		b.WriteString(" " + word)
		at += 1 + len(word)
	}
	return strings.TrimPrefix(b.String(), "\n") + "\n"
}

type benchReportCmd struct {
	Dir string `arg:"" type:"path" help:"A directory with raw logs, or one with such directories."`
}

type benchVerifyCmd struct {
	Dir       string   `arg:"" type:"path" help:"A directory with raw logs and report, or one with such directories."`
	Published []string `placeholder:"FILE" type:"path" sep:"none" help:"Also compare the marked tables in this Markdown file; may repeat."`
}

// Run writes the reports and shows the first table of each.
func (cmd *benchReportCmd) Run(c *console) error {
	tables, err := bench.Report(cmd.Dir)
	if err != nil {
		return err
	}
	for _, t := range tables {
		c.printf("%s\n%s\n", t.ID, t.Text())
	}
	c.printf("report.md and report.html are in %s\n", cmd.Dir)
	return nil
}

// Run compares, and names every difference.
func (cmd *benchVerifyCmd) Run(c *console) error {
	differences, err := bench.Verify(cmd.Dir, cmd.Published...)
	if err != nil {
		return err
	}
	for _, d := range differences {
		c.printf("%s\n", d)
	}
	if n := len(differences); n > 0 {
		times := fmt.Sprintf("%d times", n)
		if n == 1 {
			times = "1 time"
		}
		return fmt.Errorf("what is published differs from what the raw logs in %s give: %s", cmd.Dir, times)
	}
	c.printf("what is published agrees with the raw logs in %s\n", cmd.Dir)
	return nil
}

// benchRun is a scenario on its way through its targets.
type benchRun struct {
	*benchRunCmd
	scenario *bench.Scenario
	targets  []bench.Target
	virtual  bool
	trial    func(ctx context.Context, s *bench.Scenario, t bench.Target, trial int) (*bench.Trial, error)
	meta     bench.Meta
	show     *benchProgress
}

// Run runs the scenario.
func (cmd *benchRunCmd) Run(ctx context.Context, c *console) error {
	r, err := cmd.prepare(c)
	if err != nil {
		return err
	}
	return r.run(ctx, c)
}

// run runs all trials, writes the logs and the report, and fails if a rule was
// broken.
func (r *benchRun) run(ctx context.Context, c *console) error {
	if err := r.begin(); err != nil {
		return err
	}
	broken, err := r.all(ctx, c)
	if err != nil {
		return err
	}
	tables, err := bench.Report(r.Out)
	if err != nil {
		return err
	}
	c.printf("\n%s\n", tables[0].Text())
	c.printf("raw logs, report.md and report.html are in %s\n", r.Out)
	if broken != nil {
		return fmt.Errorf("rules were broken:\n  %s", strings.Join(broken, "\n  "))
	}
	return nil
}

// begin makes the directory and removes what is there of the targets that are
// run again.
func (r *benchRun) begin() error {
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return fmt.Errorf("making the directory for the raw logs: %w", err)
	}
	if err := bench.WriteScenario(r.Out, r.scenario); err != nil {
		return usageError{err}
	}
	for _, t := range r.targets {
		if err := r.meta.Forget(r.Out, t.Name); err != nil {
			return err
		}
	}
	return nil
}

// all runs every trial of every target at every load, and gives the rules that
// were broken. Trials come before targets, so that a machine that changes
// meanwhile changes for all of them.
func (r *benchRun) all(ctx context.Context, c *console) (broken []string, err error) {
	points := r.scenario.Points()
	r.show = newBenchProgress(c, len(points)*r.scenario.Trials*len(r.targets))
	defer r.show.stop()
	for _, point := range points {
		for trial := 1; trial <= r.scenario.Trials; trial++ {
			for _, t := range r.targets {
				wrong, err := r.one(ctx, point, t, trial)
				if err != nil {
					return nil, err
				}
				broken = append(broken, wrong...)
			}
		}
	}
	return broken, nil
}

// prepare reads everything that can be wrong before anything is run.
func (cmd *benchRunCmd) prepare(c *console) (*benchRun, error) {
	s, err := bench.Load(cmd.Scenario)
	if err != nil {
		return nil, err
	}
	if cmd.Seed != nil {
		s.Seed = *cmd.Seed
	}
	if cmd.Trials < 0 || cmd.Trials > 1000 {
		return nil, usageError{fmt.Errorf("--trials %d: want 1 to 1000", cmd.Trials)}
	}
	if cmd.Trials > 0 {
		s.Trials = cmd.Trials
	}
	if err := s.ReadTraces(cmd.Trace); err != nil {
		return nil, usageError{err}
	}
	if err := cmd.checkGateway(s); err != nil {
		return nil, err
	}
	r := &benchRun{benchRunCmd: cmd, scenario: s, virtual: s.Virtual}
	if cmd.Virtual != nil {
		r.virtual = *cmd.Virtual
	}
	if err := r.chooseTargets(c); err != nil {
		return nil, usageError{err}
	}
	if cmd.Out == "" {
		cmd.Out = "bench-" + s.Name
	}
	if err := r.chooseRunner(); err != nil {
		return nil, err
	}
	if r.meta, err = bench.ReadMeta(cmd.Out); err != nil {
		return nil, err
	}
	r.describe()
	return r, nil
}

// checkGateway tells what is wrong with the scenario's part of the gateway's
// configuration by the scenario's own lines.
func (cmd *benchRunCmd) checkGateway(s *bench.Scenario) error {
	err := s.CheckGateway(wireBench)
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for i, one := range list {
		if p, ok := errors.AsType[*config.Problem](one); ok {
			own := &bench.Problem{File: cmd.Scenario, Line: s.GatewayLine(p.Key), Key: p.Key, Msg: p.Msg}
			if own.Line > 0 {
				own.Key = "gateway." + p.Key
			}
			list[i] = own
		}
	}
	return errors.Join(list...)
}

// chooseTargets takes those of the command line, else those of the scenario
// that this kind of run can have.
func (r *benchRun) chooseTargets(c *console) error {
	asked := len(r.Target) > 0
	if asked {
		r.scenario.Targets = slices.Compact(r.Target)
	}
	kept := r.scenario.Targets[:0:0]
	for _, name := range r.scenario.Targets {
		t, err := bench.ParseTarget(name)
		if err != nil {
			return err
		}
		fits, kind := t.Live(), "live"
		if r.virtual {
			fits, kind = t.Virtual(), "virtual"
		}
		switch {
		case fits:
			r.targets, kept = append(r.targets, t), append(kept, name)
		case asked:
			return fmt.Errorf("target %s: not in a %s run: want the other kind (--virtual, --no-virtual), or no such target", name, kind)
		default:
			c.printf("%s: not in a %s run, left out\n", name, kind)
		}
	}
	r.scenario.Targets = kept
	if len(r.targets) == 0 {
		return errors.New("no target is left: want some by --target")
	}
	return nil
}

// chooseRunner takes the virtual or the live runner.
func (r *benchRun) chooseRunner() error {
	progress := func(done, total int) { r.show.update(done, total) }
	if r.virtual {
		r.trial = func(ctx context.Context, s *bench.Scenario, t bench.Target, trial int) (*bench.Trial, error) {
			return bench.RunVirtual(ctx, s, t, trial, bench.VirtualOptions{Wire: wireBench, Progress: progress})
		}
		return nil
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program, which live runs start again as the gateway: %w", err)
	}
	r.trial = func(ctx context.Context, s *bench.Scenario, t bench.Target, trial int) (*bench.Trial, error) {
		return bench.RunLive(ctx, s, t, trial, bench.LiveOptions{Binary: binary, Progress: progress})
	}
	return nil
}

// kind is how it is run.
func (r *benchRun) kind() string {
	if r.virtual {
		return "virtual"
	}
	return "live"
}

// describe notes how the logs come to be: without this machine's paths.
func (r *benchRun) describe() {
	commit, _ := built()
	name := r.scenario.Name
	if !slices.Contains(bench.Shipped(), r.Scenario) {
		name = filepath.Base(r.Scenario)
	}
	line := []string{"switchyard bench run", name}
	if r.virtual != r.scenario.Virtual {
		line = append(line, map[bool]string{true: "--virtual", false: "--no-virtual"}[r.virtual])
	}
	line = append(line, fmt.Sprintf("--trials %d --seed %d", r.scenario.Trials, r.scenario.Seed))
	for _, t := range r.scenario.Targets {
		line = append(line, "--target "+t)
	}
	if r.Trace != "" {
		line = append(line, "--trace "+filepath.Base(r.Trace))
	}
	m := &r.meta
	m.Scenario, m.Seed = r.scenario.Name, r.scenario.Seed
	m.Version, m.Go, m.Platform, m.CPUs = commit, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH, runtime.GOMAXPROCS(0)
	if command := strings.Join(line, " "); !slices.Contains(m.Commands, command) {
		m.Commands = append(m.Commands, command)
	}
}

// one runs one trial of one target and writes its log. It gives the rules that
// were broken.
func (r *benchRun) one(ctx context.Context, s *bench.Scenario, t bench.Target, trial int) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("stopped; what was run before is in %s: %w", r.Out, err)
	}
	note := bench.RunMeta{Target: t.Name, Load: s.Load, Trial: trial, Runner: r.kind()}
	r.show.begin(note.Name())
	began := time.Now()
	got, err := r.trial(ctx, s, t, trial)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", note.Name(), err)
	}
	note.Requests, note.WallS, note.Violations = len(got.Records), time.Since(began).Round(time.Millisecond).Seconds(), got.Violations
	if err := bench.WriteTrial(r.Out, s, t.Name, trial, got); err != nil {
		return nil, err
	}
	r.meta.Done(note)
	if err := r.meta.Write(r.Out); err != nil {
		return nil, err
	}
	r.show.done(note.Name(), got.Summary())
	var broken []string
	for _, v := range got.Violations {
		broken = append(broken, note.Name()+": "+v)
	}
	return broken, nil
}

// wireBench turns a configuration of the gateway's into the controller's.
func wireBench(yaml []byte) (admission.Config, error) {
	cfg, err := config.Parse("gateway", yaml)
	if err != nil {
		return admission.Config{}, err
	}
	return controllerConfig(cfg), nil
}
