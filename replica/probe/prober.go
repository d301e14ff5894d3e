package probe

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"switchyard/replica"
)

const (
	// llamaGap is the shortest silence between two rounds to a llama.cpp that
	// answers. It notices a departed client only after a second without the
	// result of any task, and each answer of /slots is one.
	llamaGap = 2 * time.Second
	// nudgeGap is the same for the others.
	nudgeGap = 250 * time.Millisecond
	// settledGap is the same where nobody who left is still unnoticed: it gives
	// the engine a moment to free the slot.
	settledGap = 50 * time.Millisecond
)

// Options is what a Prober needs besides its targets.
type Options struct {
	Interval time.Duration // between the beginnings of two rounds
	Timeout  time.Duration // of one request
	// Sink takes each round's findings, one at a time per replica, from that
	// replica's goroutine. It must not block for long, nor call the Prober's
	// Add, Remove, Reconfigure or Close.
	Sink func(name string, f replica.Facts)
	// Working reports whether the gateway has work there (zombies too). While
	// it has none, an idle llama.cpp that may want to sleep is not disturbed.
	// nil: always.
	Working func(name string) bool
	Dial    DialFunc // nil: the standard dialer
}

// Prober probes a fleet: one goroutine per replica, the first round at once.
// All its methods may be called from any goroutine.
type Prober struct {
	opts Options
	ctx  context.Context
	stop context.CancelFunc

	change sync.Mutex // held through Add, Remove, Reconfigure and Close
	mu     struct {
		sync.Mutex
		workers           map[string]*worker
		interval, timeout time.Duration
	}
}

// NewProber returns a Prober without targets.
func NewProber(o Options) *Prober {
	p := &Prober{opts: o}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.mu.workers = map[string]*worker{}
	p.mu.interval, p.mu.timeout = o.Interval, o.Timeout
	return p
}

// Add begins to probe a replica. One of the same name is replaced, unless
// nothing about it changed.
func (p *Prober) Add(t Target) {
	p.change.Lock()
	defer p.change.Unlock()
	p.add(t)
}

func (p *Prober) add(t Target) {
	if old := p.worker(t.Name); old != nil {
		if old.target.equal(t) {
			return
		}
		p.remove(t.Name)
	}
	if p.ctx.Err() != nil {
		return
	}
	w := newWorker(p, t)
	p.mu.Lock()
	p.mu.workers[t.Name] = w
	p.mu.Unlock()
	go w.run()
}

// Remove stops probing a replica. When it returns, no more findings come.
func (p *Prober) Remove(name string) {
	p.change.Lock()
	defer p.change.Unlock()
	p.remove(name)
}

func (p *Prober) remove(name string) {
	w := p.worker(name)
	if w == nil {
		return
	}
	p.mu.Lock()
	delete(p.mu.workers, name)
	p.mu.Unlock()
	w.stop()
	<-w.done
}

// Reconfigure changes the pace and makes the targets the only ones. Replicas
// about which nothing changed are not disturbed, and keep what is remembered
// of them.
func (p *Prober) Reconfigure(interval, timeout time.Duration, targets []Target) {
	p.change.Lock()
	defer p.change.Unlock()
	keep := make(map[string]bool, len(targets))
	for _, t := range targets {
		keep[t.Name] = true
	}
	p.mu.Lock()
	repace := interval < p.mu.interval
	p.mu.interval, p.mu.timeout = interval, timeout
	var gone []string
	for name, w := range p.mu.workers {
		switch {
		case !keep[name]:
			gone = append(gone, name)
		case repace:
			w.poke(false) // it may be waiting for the end of a long interval
		}
	}
	p.mu.Unlock()
	for _, name := range gone {
		p.remove(name)
	}
	for _, t := range targets {
		p.add(t)
	}
}

// Close stops all probing and waits for its end.
func (p *Prober) Close() {
	p.stop()
	p.change.Lock()
	defer p.change.Unlock()
	p.mu.Lock()
	names := make([]string, 0, len(p.mu.workers))
	for name := range p.mu.workers {
		names = append(names, name)
	}
	p.mu.Unlock()
	for _, name := range names {
		p.remove(name)
	}
}

// Settled asks for a round at once: the replica has closed the connections of
// all who left, so a question cannot keep it from noticing anyone, and what it
// answers frees their slots.
func (p *Prober) Settled(name string) {
	if w := p.worker(name); w != nil {
		w.mu.Lock()
		w.mu.settled = true
		w.mu.Unlock()
		w.poke(true)
	}
}

func (p *Prober) worker(name string) *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.workers[name]
}

// worker is the goroutine that probes one replica.
type worker struct {
	prober *Prober
	target Target
	probe  *Probe
	ctx    context.Context
	stop   context.CancelFunc
	done   chan struct{}
	nudged chan struct{} // has room for one

	mu struct {
		sync.Mutex
		settled bool // the next round need not wait for the engine's sake
		look    bool // the next round must find out what the replica is doing
	}
}

func newWorker(p *Prober, t Target) *worker {
	w := &worker{
		prober: p, target: t, probe: New(t, p.opts.Dial),
		done: make(chan struct{}), nudged: make(chan struct{}, 1),
	}
	w.ctx, w.stop = context.WithCancel(p.ctx)
	return w
}

// poke ends the pause before the next round as soon as the engine can bear
// it.
func (w *worker) poke(look bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.look = w.mu.look || look
	select {
	case w.nudged <- struct{}{}:
	default:
	}
}

func (w *worker) run() {
	defer close(w.done)
	defer w.stop()
	defer w.probe.Close()
	for {
		look := w.begin()
		interval, timeout := w.prober.pace()
		f := w.probe.Round(w.ctx, timeout, look)
		if w.ctx.Err() != nil {
			return
		}
		w.prober.opts.Sink(w.target.Name, f)
		if !w.pause(f, interval) {
			return
		}
	}
}

// begin takes what has been asked of the round that begins now.
func (w *worker) begin() (look bool) {
	w.mu.Lock()
	look = w.mu.look
	w.mu.look, w.mu.settled = false, false
	select {
	case <-w.nudged: // this round is the answer
	default:
	}
	w.mu.Unlock()
	working := w.prober.opts.Working
	return look || working == nil || working(w.target.Name)
}

func (p *Prober) pace() (interval, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.interval, p.mu.timeout
}

// pause waits for the next round: an interval after the beginning of the last
// one, with a little jitter so that a fleet is not asked in step; earlier when
// nudged. A llama.cpp that answers gets its silence in any case, another one
// that took long a part of it. It reports false when probing is to end.
func (w *worker) pause(last replica.Facts, interval time.Duration) bool {
	ended := last.At.Add(last.Took)
	earliest := ended.Add(min(nudgeGap, interval))
	if last.Engine == replica.EngineLlamaCpp && last.Up {
		earliest = ended.Add(llamaGap)
	}
	due := last.At.Add(interval + rand.N(interval/10+1))
	if due.Before(earliest) {
		due = earliest
	}
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.nudged:
			w.mu.Lock()
			if w.mu.settled {
				earliest = time.Now().Add(settledGap)
			}
			w.mu.Unlock()
			timer.Reset(time.Until(earliest))
		}
	}
}
