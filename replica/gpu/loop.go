package gpu

import (
	"context"
	"fmt"
	"time"

	"switchyard/replica"
)

// source is where the readings of some replicas come from. read is not called
// again before it has returned, and close not before that either.
type source interface {
	// read asks once. The facts are those of the targets, in their order.
	read(ctx context.Context) []replica.GPUFacts
	close()
}

// loop is the goroutine that reads one source.
type loop struct {
	targets []Target
	source  source
	every   time.Duration
	sink    func(name string, f replica.GPUFacts)
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

func newLoop(r *Reader, key string, targets []Target) *loop {
	l := &loop{targets: targets, every: r.opts.Interval, sink: r.opts.Sink, done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if key == "nvml" {
		l.source = newNVMLSource(l.ctx, r, targets)
	} else {
		l.source = newExporterSource(r, targets)
	}
	go l.run()
	return l
}

// end stops the loop; when it returns, no more readings come of it.
func (l *loop) end() {
	l.cancel()
	<-l.done
}

// patience is how long a reading may take before the driver is said to hang,
// and grace how long an end waits for the one under way.
const (
	patience = 10 * time.Second
	grace    = time.Second
)

func (l *loop) run() {
	defer close(l.done)
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		answer := make(chan []replica.GPUFacts, 1)
		go func() { answer <- l.source.read(l.ctx) }()
		if !l.hear(answer) {
			return
		}
		select {
		case <-l.ctx.Done():
			l.source.close()
			return
		case <-tick.C:
		}
	}
}

// hear waits for a reading and hands it on. It reports false when the loop has
// ended meanwhile.
func (l *loop) hear(answer <-chan []replica.GPUFacts) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case facts := <-answer:
			for i, f := range facts {
				l.sink(l.targets[i].Name, f)
			}
			return true
		case <-late.C:
			for _, t := range l.targets {
				l.sink(t.Name, none(fmt.Sprintf("no answer from %s for %v: a driver that hangs does this", sourceOf(t), patience)))
			}
		case <-l.ctx.Done():
			select {
			case <-answer:
				l.source.close()
			case <-time.After(grace): // it keeps its goroutine and what it uses
			}
			return false
		}
	}
}
