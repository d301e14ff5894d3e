package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/simserver"
)

// child is the gateway as a process of its own, for what signals do.
type child struct {
	*rig // its fleet, client and addresses; there is no app
	cmd  *exec.Cmd
	file string
	log  *lines
	gone chan struct{} // closed when it has ended
}

// binary builds the program.
func binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the binary")
	}
	bin := filepath.Join(t.TempDir(), "switchyard")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// startChild runs the gateway on a configuration file with these replicas of
// the fleet, and waits until it is ready.
func startChild(t testing.TB, bin string, fleet simserver.Fleet, names ...string) *child {
	t.Helper()
	c := &child{
		rig: &rig{t: t, fleet: fleet, client: newClient()}, file: filepath.Join(t.TempDir(), "switchyard.yaml"),
		log: &lines{}, gone: make(chan struct{}),
	}
	c.write(names...)
	c.cmd = exec.Command(bin, "serve", "-c", c.file)
	c.cmd.Stderr = c.log
	require.NoError(t, c.cmd.Start())
	go func() {
		_ = c.cmd.Wait()
		close(c.gone)
	}()
	t.Cleanup(func() {
		c.client.CloseIdleConnections()
		_ = c.cmd.Process.Kill()
		<-c.gone
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", c.log.text())
		}
	})
	serving := regexp.MustCompile(`msg=serving clients=(\S+) admin=(\S+)/ `)
	eventually(t, "the gateway to serve", func() bool { return serving.MatchString(c.log.text()) })
	m := serving.FindStringSubmatch(c.log.text())
	c.base, c.admin = m[1], m[2]
	eventually(t, "the gateway to be ready", func() bool { return c.status("/readyz") == http.StatusOK })
	return c
}

// configuration is the file's text with these replicas.
func (c *child) configuration(names ...string) string {
	var b strings.Builder
	b.WriteString("listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nhealth: {interval: 200ms}\nlimits: {drain_timeout: 4s}\nreplicas:\n")
	for _, s := range c.fleet {
		for _, n := range names {
			if s.Name() == n {
				fmt.Fprintf(&b, "  - {name: %s, url: %q, engine: llamacpp}\n", n, s.URL())
			}
		}
	}
	return b.String()
}

// write replaces the file in one step, as editors and mounts do.
func (c *child) write(names ...string) { c.writeText(c.configuration(names...)) }

func (c *child) writeText(text string) {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(c.file+".new", []byte(text), 0o600))
	require.NoError(c.t, os.Rename(c.file+".new", c.file))
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(s))
}

// untilReplicas waits until the gateway serves from exactly these replicas.
func (c *child) untilReplicas(names ...string) {
	c.t.Helper()
	want := strings.Join(names, " ")
	eventually(c.t, "the replicas to be "+want, func() bool {
		var got []string
		for _, r := range c.snapshot().Replicas {
			if r.Up && r.ModelsRead {
				got = append(got, r.Name)
			} else {
				got = append(got, r.Name+" (down)")
			}
		}
		return strings.Join(got, " ") == want
	})
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
