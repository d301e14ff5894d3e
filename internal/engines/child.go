//go:build unix

package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is a process in a process group of its own, so that whatever it starts
// ends with it: when it is told to, and also when the test itself dies. Its
// output is kept, and can be waited for line by line.
type Child struct {
	Log   *Log
	cmd   *exec.Cmd
	guard *exec.Cmd
	alive *os.File // the guard's pipe
	done  chan struct{}
	kill  sync.Once
}

// Command says what a Child runs; Env is added to an otherwise nearly empty
// environment.
type Command struct {
	Path string
	Args []string
	Dir  string
	Env  []string
}

// Start starts the process.
func (c Command) Start() (*Child, error) {
	child := &Child{Log: newLog(), done: make(chan struct{})}
	child.cmd = exec.Command(c.Path, c.Args...)
	child.cmd.Dir = c.Dir
	child.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.Dir}, c.Env...)
	child.cmd.Stdout = child.Log
	child.cmd.Stderr = child.Log
	child.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child.cmd.WaitDelay = 5 * time.Second // a grandchild that keeps the pipe open
	if err := child.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s %s: %w", c.Path, strings.Join(c.Args, " "), err)
	}
	err := child.startGuard() // before the process is waited for, since its group ends with that
	go func() {
		_ = child.cmd.Wait() // how it ended is in ProcessState and in the log
		child.Log.close()
		close(child.done)
	}()
	if err != nil {
		child.Kill()
		return nil, fmt.Errorf("guarding %s: %w", c.Path, err)
	}
	return child, nil
}

// startGuard adds a shell to the group that reads from a pipe only this process
// holds, and ends the group when that closes: a test that panics or is
// interrupted leaves nothing behind.
func (c *Child) startGuard() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }()
	c.alive = write
	c.guard = exec.Command("/bin/sh", "-c", "read _; kill -KILL 0")
	c.guard.Stdin = read
	c.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: c.Pid()}
	if err := c.guard.Start(); err != nil {
		c.guard = nil
		return errors.Join(err, write.Close())
	}
	return nil
}

// Done is closed when the process has ended and its output was read.
func (c *Child) Done() <-chan struct{} { return c.done }

// Pid is the process, and its group.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Kill ends the process and all that it started with SIGKILL, and waits.
// It may be called twice.
func (c *Child) Kill() {
	c.kill.Do(func() {
		_ = syscall.Kill(-c.Pid(), syscall.SIGKILL) // ESRCH: all gone already
		<-c.done
		if c.guard != nil {
			_ = c.guard.Wait() // it was killed, too
			_ = c.alive.Close()
		}
	})
}

// Terminate asks the process alone to end, and kills the group if it has not
// by the time the context ends.
func (c *Child) Terminate(ctx context.Context) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending SIGTERM to %s: %w", c.cmd.Path, err)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.Kill()
		return fmt.Errorf("waiting for %s to end after SIGTERM: %w", c.cmd.Path, ctx.Err())
	}
	c.Kill() // what it may have left behind
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %s", c.cmd.Path, c.cmd.ProcessState)
	}
	return nil
}

// Log collects output, and lets one wait for a line.
type Log struct {
	mu struct {
		sync.Mutex
		buf    bytes.Buffer
		closed bool
		grown  chan struct{} // closed and replaced when there is more
	}
}

func newLog() *Log {
	l := &Log{}
	l.mu.grown = make(chan struct{})
	return l
}

// Write appends.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.buf.Write(p)
	l.tell()
	return len(p), nil
}

func (l *Log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = true
	l.tell()
}

func (l *Log) tell() {
	close(l.mu.grown)
	l.mu.grown = make(chan struct{})
}

// String is all output so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.buf.String()
}

// Await gives the first whole line that matches, waiting for it until the
// context or the process ends.
func (l *Log) Await(ctx context.Context, match func(line string) bool) (string, error) {
	for {
		l.mu.Lock()
		text, closed, grown := l.mu.buf.String(), l.mu.closed, l.mu.grown
		l.mu.Unlock()
		for line := range strings.Lines(text) {
			if strings.HasSuffix(line, "\n") && match(line) {
				return strings.TrimSuffix(line, "\n"), nil
			}
		}
		if closed {
			return "", errors.New("waiting for a line of output: the process ended without it")
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for a line of output: %w", ctx.Err())
		}
	}
}
