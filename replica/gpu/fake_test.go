package gpu

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// fakeLibrary is NVML as tests wish it.
type fakeLibrary struct {
	all    []*fakeCard
	events chan event
	closed bool
}

func newFakeLibrary(n int) *fakeLibrary {
	l := &fakeLibrary{events: make(chan event)}
	for i := range n {
		l.all = append(l.all, &fakeCard{index: i, gpu: replica.GPU{
			ID: fmt.Sprint(i), UUID: fmt.Sprintf("GPU-%d", i), Name: "Card", Utilization: new(0.5), EnergyJ: new(0.0),
		}})
	}
	return l
}

func (l *fakeLibrary) cards() (out []card) {
	for _, c := range l.all {
		out = append(out, c)
	}
	return out
}

func (l *fakeLibrary) byUUID(uuid string) (card, error) {
	for _, c := range l.all {
		if c.gpu.UUID == uuid {
			return c, nil
		}
	}
	return nil, errors.New("no such GPU")
}

func (l *fakeLibrary) wait(d time.Duration) (event, error) {
	select {
	case e := <-l.events:
		return e, nil
	case <-time.After(d):
		return event{}, errNoEvent
	}
}

func (l *fakeLibrary) close() { l.closed = true }

type fakeCard struct {
	index int
	mu    sync.Mutex
	gpu   replica.GPU
	err   error
	pids  []int
	hang  chan struct{} // read waits for its close
}

func (c *fakeCard) id() string { return c.gpu.ID }

func (c *fakeCard) read() (replica.GPU, error) {
	c.mu.Lock()
	hang := c.hang
	c.mu.Unlock()
	if hang != nil {
		<-hang
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gpu
	if c.err != nil {
		g.Err = c.err.Error()
	}
	return g, c.err
}

func (c *fakeCard) processes() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pids
}

func (c *fakeCard) set(f func(c *fakeCard)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

// rig is a Reader with a fake library and a /proc of its own.
type rig struct {
	t      *testing.T
	reader *Reader

	mu     sync.Mutex
	lib    *fakeLibrary
	opens  int
	err    error // of the next opening
	last   map[string]replica.GPUFacts
	faults []string
	tokens int64
	works  bool
}

func newRig(t *testing.T, cards int) *rig {
	r := &rig{t: t, lib: newFakeLibrary(cards), last: map[string]replica.GPUFacts{}}
	r.reader = New(Options{
		Interval: 2 * time.Second, Timeout: time.Second,
		Sink: func(name string, f replica.GPUFacts) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.last[name] = f
			if f.Fault != "" {
				r.faults = append(r.faults, name+": "+f.Fault)
			}
		},
		Works:  func(string) bool { r.mu.Lock(); defer r.mu.Unlock(); return r.works },
		Tokens: func(string) int64 { r.mu.Lock(); defer r.mu.Unlock(); return r.tokens },
	})
	r.reader.proc = host{proc: t.TempDir()}
	r.reader.open = func() (library, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.opens++
		if r.err != nil {
			return nil, r.err
		}
		return r.lib, nil
	}
	return r
}

func (r *rig) start(targets ...Target) { r.reader.Reconfigure(2*time.Second, time.Second, targets) }

// edit changes what the reader's goroutines see.
func (r *rig) edit(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *rig) facts(name string) replica.GPUFacts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[name]
}

func (r *rig) says(name string) string { return Describe(r.facts(name)) }

func target(name, address string, mode Mode, id string) Target {
	u, _ := url.Parse(address)
	return Target{Name: name, URL: u, Mode: mode, ID: id}
}

// process puts a process into the rig's /proc; it listens on port unless 0.
func (r *rig) process(pid, parent int, name string, port int) {
	r.t.Helper()
	root := r.reader.proc.proc
	dir := filepath.Join(root, fmt.Sprint(pid))
	require.NoError(r.t, os.MkdirAll(filepath.Join(dir, "fd"), 0o700))
	require.NoError(r.t, os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o600))
	require.NoError(r.t, os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (%s) S %d 1 1", pid, name, parent), 0o600))
	if port == 0 {
		return
	}
	require.NoError(r.t, os.Symlink("/dev/null", filepath.Join(dir, "fd", "0")))
	require.NoError(r.t, os.Symlink(fmt.Sprintf("socket:[%d]", 9000+pid), filepath.Join(dir, "fd", "3")))
	require.NoError(r.t, os.MkdirAll(filepath.Join(root, "net"), 0o700))
	f, err := os.OpenFile(filepath.Join(root, "net", "tcp6"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(r.t, err)
	defer f.Close()
	_, err = fmt.Fprintf(f, "   0: 00000000000000000000000000000000:%04X 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 %d 1 0 100 0 0 10 0\n", port, 9000+pid)
	require.NoError(r.t, err)
}

func (r *rig) kill(pid int) {
	require.NoError(r.t, os.RemoveAll(filepath.Join(r.reader.proc.proc, fmt.Sprint(pid))))
}
