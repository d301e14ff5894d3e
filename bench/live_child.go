package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"switchyard/admission"
)

// child is the gateway as a process of its own. It ends when it is told to, and
// on Linux also when this process dies.
type child struct {
	base, admin string
	cmd         *exec.Cmd
	dir         string
	ended       chan struct{}
	err         error // how it ended; after ended
	last        lastLines
}

// How long the gateway may take to start, and to end before it is killed.
const (
	startPatience = 30 * time.Second
	stopPatience  = 20 * time.Second
)

// startGateway runs the program as a gateway in front of the replicas and waits
// until it has found them all.
func startGateway(ctx context.Context, s *Scenario, t Target, urls []string, o LiveOptions) (*child, error) {
	file, err := gatewayConfig(s, t, gatewaySite{replicas: urls, listen: "127.0.0.1:0", admin: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	c := &child{ended: make(chan struct{})}
	if c.dir, err = os.MkdirTemp("", "switchyard-bench-"); err != nil {
		return nil, err
	}
	path := filepath.Join(c.dir, "gateway.yaml")
	if err = os.WriteFile(path, file, 0o600); err != nil {
		c.close()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := c.start(ctx, o.Binary, "serve", "-c", path); err != nil {
		c.close()
		return nil, fmt.Errorf("starting the gateway: %w", err)
	}
	if err := c.untilFound(ctx, len(urls)); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// start begins the process and waits for its addresses.
func (c *child) start(ctx context.Context, binary string, args ...string) error {
	c.cmd = exec.Command(binary, args...)
	c.cmd.Env = append(os.Environ(), "SWITCHYARD_CONFIG=")
	dieWithParent(c.cmd)
	out, err := c.cmd.StderrPipe()
	if err != nil {
		return err
	}
	c.cmd.Stdout = io.Discard
	began, addresses := make(chan error, 1), make(chan [2]string, 1)
	go func() {
		// The kernel ties a child's life to the thread that started it, so that
		// thread has to last as long.
		runtime.LockOSThread()
		defer close(c.ended)
		err := c.cmd.Start()
		began <- err
		if err != nil {
			c.cmd = nil
			return
		}
		c.read(out, addresses)
		c.err = c.cmd.Wait()
	}()
	if err := <-began; err != nil {
		return err
	}
	select {
	case a := <-addresses:
		c.base, c.admin = a[0], a[1]
		return nil
	case <-c.ended:
		return fmt.Errorf("it ended at once: %w; its last words: %s", orExit(c.err), c.last.text())
	case <-ctx.Done():
		return fmt.Errorf("it did not say where it serves: %w; its last words: %s", ctx.Err(), c.last.text())
	}
}

func orExit(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// read takes the log until it ends; one line of it tells the addresses.
func (c *child) read(from io.Reader, addresses chan<- [2]string) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var said struct{ Msg, Clients, Admin string }
		if json.Unmarshal(lines.Bytes(), &said) == nil && said.Msg == "serving" {
			addresses <- [2]string{said.Clients, strings.TrimSuffix(said.Admin, "/")}
			continue
		}
		c.last.add(lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, from) // a line too long to keep
}

// untilFound waits until the gateway has reached every replica.
func (c *child) untilFound(ctx context.Context, n int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		up := 0
		if s, err := c.state(ctx); err == nil {
			for _, r := range s.Replicas {
				if r.Up && (r.ModelsRead || r.AnyModel) {
					up++
				}
			}
		}
		if up == n {
			return nil
		}
		select {
		case <-tick.C:
		case <-c.ended:
			return fmt.Errorf("the gateway ended: %w; its last words: %s", orExit(c.err), c.last.text())
		case <-ctx.Done():
			return fmt.Errorf("waiting for the gateway to find its replicas: %d of %d are up: %w", up, n, ctx.Err())
		}
	}
}

// state is what the gateway says of itself.
func (c *child) state(ctx context.Context) (*admission.Snapshot, error) {
	s := &admission.Snapshot{}
	return s, getJSON(ctx, c.admin+"/admin/state", s)
}

// settled is the state once nothing is under way any more: an answer's end is at
// the client a moment before it is in the books, and zombies take their time.
func (c *child) settled(ctx context.Context) (*admission.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := c.state(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the gateway's books: %w", err)
		}
		held := s.Totals.Queued + s.Totals.Running
		for _, r := range s.Replicas {
			held += int64(r.Slots.Busy + r.Slots.Zombie)
		}
		if held == 0 {
			return s, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, nil // the check of the books says what is wrong
		}
	}
}

// close ends the process and removes its files.
func (c *child) close() {
	defer os.RemoveAll(c.dir)
	if c.cmd == nil || c.cmd.Process == nil {
		return
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(stopPatience, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	<-c.ended
}

// lastLines are the last lines of a log, for errors.
type lastLines struct{ lines [][]byte }

func (l *lastLines) add(line []byte) {
	if len(l.lines) == 5 {
		l.lines = l.lines[1:]
	}
	l.lines = append(l.lines, bytes.Clone(line))
}

func (l *lastLines) text() string { return string(bytes.Join(l.lines, []byte("; "))) }
