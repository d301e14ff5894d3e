// Command switchyard is the inference admission gateway: one binary whose
// subcommands each live in a file of their own. It wires packages together and
// decides nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/alecthomas/kong"

	"switchyard/bench"
	"switchyard/config"
)

// cli is the command line. A command is one line here and one file: a struct
// with its flags and a method Run, which may ask for a context.Context (ended
// by the first SIGINT or SIGTERM) and a *console.
type cli struct {
	Serve   serveCmd   `cmd:"" help:"Run the gateway."`
	Demo    demoCmd    `cmd:"" help:"The whole thing with no GPU: simulated replicas, the gateway, traffic, the dashboard."`
	Status  statusCmd  `cmd:"" help:"Show a gateway's state as tables."`
	Sim     simCmd     `cmd:"" help:"Run simulated replicas: no GPU, no model."`
	Bench   benchCmd   `cmd:"" help:"Measure: scenarios against this gateway and others on the same traffic, with raw logs and reports."`
	Check   checkCmd   `cmd:"" help:"Check a configuration file: all mistakes at once, each with its line."`
	Key     keyCmd     `cmd:"" help:"Make API keys."`
	Version versionCmd `cmd:"" help:"Print version, commit and Go version."`
}

// The exit codes of every command.
const (
	exitWell  = 0
	exitFail  = 1 // it ran and failed
	exitUsage = 2 // usage or configuration
)

// console is where a command writes. printf may be called by several
// goroutines at a time.
type console struct {
	Out io.Writer
	Err io.Writer
	mu  sync.Mutex // guards Out
}

// printf writes to standard output. An output that is gone is nothing a
// command could do anything about.
func (c *console) printf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.Out, format, args...)
}

// errorf writes to standard error.
func (c *console) errorf(format string, args ...any) { _, _ = fmt.Fprintf(c.Err, format, args...) }

// usageError is a mistake in how the program was called.
type usageError struct{ error }

func main() {
	leaveGarbage()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], &console{Out: os.Stdout, Err: os.Stderr}))
}

// helped is what the parser's wish to exit is carried out with: after --help
// nothing else must run.
type helped struct{}

// run executes a command line and gives the exit code.
func run(ctx context.Context, args []string, c *console) (code int) {
	parser, err := kong.New(&cli{},
		kong.Name("switchyard"),
		kong.Description("An inference admission gateway: it owns the queue in front of LLM servers, and says at once whether an answer can start in time."),
		kong.Writers(c.Out, c.Err),
		kong.Exit(func(int) { panic(helped{}) }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(c),
	)
	if err != nil {
		c.errorf("switchyard: the command line is built wrong: %v\n", err)
		return exitFail
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case helped:
			code = exitWell
		default:
			panic(r)
		}
	}()
	command, err := parser.Parse(args)
	if err != nil {
		c.errorf("switchyard: %v\nswitchyard --help, or --help after a command, says what there is.\n", err)
		return exitUsage
	}
	return c.finish(command.Run())
}

// finish reports how a command ended.
func (c *console) finish(err error) int {
	if err == nil {
		return exitWell
	}
	_, inConfig := errors.AsType[*config.Problem](err)
	_, inScenario := errors.AsType[*bench.Problem](err)
	if inConfig || inScenario {
		c.errorf("%v\n", err) // lines of FILE:LINE: key: …, as they are
		return exitUsage
	}
	c.errorf("switchyard: %v\n", err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFail
}
