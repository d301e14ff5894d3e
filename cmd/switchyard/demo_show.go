package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/gateway"
	"switchyard/simserver"
)

// demoShow prints what happens in plain lines, and the summary.
type demoShow struct {
	gateway.Observer
	c  *console
	mu struct {
		sync.Mutex
		began            time.Time
		first            []time.Duration // times to first token
		retried          int
		refusal, failure string // the latest since the last line
	}
	last admission.Totals
}

func newDemoShow(c *console) *demoShow {
	d := &demoShow{c: c}
	d.start()
	return d
}

// start is the moment that the times of the lines count from.
func (d *demoShow) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.began = time.Now()
}

// line may be called by several goroutines at a time.
func (d *demoShow) line(format string, args ...any) {
	d.mu.Lock()
	age := time.Since(d.mu.began)
	d.mu.Unlock()
	d.c.printf("%6.1fs  %s\n", age.Seconds(), fmt.Sprintf(format, args...))
}

// second sums up the last second.
func (d *demoShow) second(s *admission.Snapshot) {
	t := s.Totals
	d.mu.Lock()
	retried, refusal, failure := d.mu.retried, d.mu.refusal, d.mu.failure
	d.mu.retried, d.mu.refusal, d.mu.failure = 0, "", ""
	d.mu.Unlock()
	text := fmt.Sprintf("served %d, refused %d", t.Completed-d.last.Completed, t.Refused-d.last.Refused)
	if refusal != "" {
		text += " (" + refusal + ")"
	}
	if n := t.Failed - d.last.Failed; n > 0 {
		text += fmt.Sprintf(", failed %d (%s)", n, failure)
	}
	if retried > 0 {
		text += fmt.Sprintf(", retried %d", retried)
	}
	d.last = t
	d.line("%s; %d running, %d waiting", text, t.Running, t.Queued)
}

// summary prints the books, times and slots. It is an error when the books do
// not balance or a replica was given more than its slots.
func (d *demoShow) summary(s *admission.Snapshot, fleet simserver.Fleet) error {
	t := s.Totals
	d.c.printf("\nBooks: arrived %d = completed %d + refused %d + failed %d + cancelled %d + queued %d + running %d\n",
		t.Arrived, t.Completed, t.Refused, t.Failed, t.Cancelled, t.Queued, t.Running)
	d.c.printf("Promises: %d kept, %d broken\n", s.Promises.Kept, s.Promises.Broken)
	d.mu.Lock()
	first := slices.Sorted(slices.Values(d.mu.first))
	d.mu.Unlock()
	if n := len(first); n > 0 {
		at := func(q float64) time.Duration { return first[min(n-1, int(q*float64(n)))].Round(time.Millisecond) }
		d.c.printf("Time to first token: p50 %s, p90 %s, p99 %s\n", at(.5), at(.9), at(.99))
	}
	var wrong []error
	if !t.Balanced() {
		wrong = append(wrong, errors.New("the books do not balance"))
	}
	for _, r := range fleet {
		st := r.Stats()
		d.c.printf("%-8s slots %d, max_in_hand %d, served %d, tokens %d (wasted %d)\n",
			r.Name(), r.Slots(), st.MaxInHand, st.Completed, st.TokensGenerated, st.TokensWasted)
		if st.MaxInHand > r.Slots() {
			wrong = append(wrong, fmt.Errorf("%s had %d in hand with %d slots", r.Name(), st.MaxInHand, r.Slots()))
		}
	}
	return errors.Join(wrong...)
}
