package telemetry

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"switchyard/admission"
)

// keptDecisions is how many of the last decisions /admin/decisions can show.
const keptDecisions = 2000

// Decisions remembers the last decisions, and writes each to a JSON Lines file
// where one is configured. Safe for concurrent use; Add never waits for the
// disk: what a slow disk cannot take is dropped, counted and logged.
type Decisions struct {
	mu struct {
		sync.Mutex
		ring []admission.Decision
		next int
	}
	lines   chan admission.Decision
	done    chan struct{}
	dropped atomic.Int64
	onEnd   atomic.Pointer[func(admission.Decision)]
}

// NewDecisions starts the log; file may be empty. Close flushes it.
func NewDecisions(file string) (*Decisions, error) {
	d := &Decisions{}
	if file == "" {
		return d, nil
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("opening the decision log: %w", err)
	}
	d.lines, d.done = make(chan admission.Decision, 4096), make(chan struct{})
	go d.write(f)
	return d, nil
}

// write is the only goroutine that touches the file. It flushes whenever it
// has caught up.
func (d *Decisions) write(f *os.File) {
	defer close(d.done)
	defer f.Close()
	w := bufio.NewWriterSize(f, 64<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for dec := range d.lines {
		err := enc.Encode(dec)
		if err == nil && len(d.lines) == 0 {
			err = w.Flush()
		}
		if err != nil {
			d.dropped.Add(1)
			slog.Warn("decision log not written", "file", f.Name(), "err", err)
			w.Reset(f)
		}
	}
	_ = w.Flush()
}

// Close flushes and closes the file. No Add may follow.
func (d *Decisions) Close() {
	if d.lines == nil {
		return
	}
	close(d.lines)
	<-d.done
	if n := d.dropped.Load(); n > 0 {
		slog.Warn("decisions dropped from the log", "count", n)
	}
}

// OnEnd sets a function that is called with each decision; it must not block.
func (d *Decisions) OnEnd(f func(admission.Decision)) { d.onEnd.Store(&f) }

// Add takes a decision in.
func (d *Decisions) Add(dec admission.Decision) {
	d.remember(&dec)
	if f := d.onEnd.Load(); f != nil {
		(*f)(dec)
	}
	if d.lines == nil {
		return
	}
	select {
	case d.lines <- dec:
	default:
		d.dropped.Add(1)
	}
}

func (d *Decisions) remember(dec *admission.Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &d.mu
	if len(m.ring) < keptDecisions {
		m.ring = append(m.ring, *dec)
		return
	}
	m.ring[m.next] = *dec
	m.next = (m.next + 1) % keptDecisions
}

// Last gives up to n decisions, newest first.
func (d *Decisions) Last(n int) []admission.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	size := len(d.mu.ring)
	out := make([]admission.Decision, 0, min(n, size))
	for i := range min(n, size) {
		out = append(out, *d.before(i))
	}
	return out
}

// before is the decision with n newer ones. The mutex is held.
func (d *Decisions) before(n int) *admission.Decision {
	size := len(d.mu.ring)
	return &d.mu.ring[(d.mu.next+2*size-1-n)%size]
}

// ByID finds the newest decision on a request.
func (d *Decisions) ByID(id string) (admission.Decision, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.mu.ring { // asked for seldom: an index would cost each request
		if dec := d.before(i); dec.ID == id {
			return *dec, true
		}
	}
	return admission.Decision{}, false
}
