package admission

import (
	"sync"
	"time"

	"switchyard/replica"
)

// Controller is the one owner of shared state: queue, ledgers, breakers,
// books. All methods are safe for concurrent use and none blocks; each takes
// the time of the event it reports. The controller's mutex is the only lock,
// and everything below it is the pure core.
type Controller struct {
	mu struct {
		sync.Mutex
		core
	}
	wake chan struct{}
}

// New makes a controller. Replicas serve once a probe has reported them up.
func New(cfg Config, now time.Time) *Controller {
	c := &Controller{wake: make(chan struct{}, 1)}
	c.mu.init(cfg, now)
	return c
}

// Arrive opens the books for a request whose headers have been read. The
// holder must call End exactly once, whatever happens.
func (c *Controller) Arrive(now time.Time, a Arrival) *Ticket {
	t := newTicket(a)
	c.arrive(now, t, a.Class)
	return t
}

func (c *Controller) arrive(now time.Time, t *Ticket, class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.arrive(now, t, class)
}

// Admit promises or refuses (R4). After nil the holder waits on t.C(); after a
// refusal it answers the client and calls End.
func (c *Controller) Admit(now time.Time, t *Ticket, ask Ask) *Refusal {
	t.bring()
	ref := c.admit(now, t, ask)
	if ref != nil {
		ref.phrase()
	}
	return ref
}

func (c *Controller) admit(now time.Time, t *Ticket, ask Ask) *Refusal {
	c.mu.Lock()
	defer c.unlock()
	c.mu.supplies.store(&t.supplies)
	ref := c.mu.admit(now, t, ask)
	if t.tab != nil {
		t.tab.quota = c.mu.quota(now, t.tab.of)
	}
	if ref != nil {
		t.record.retryAfterS = ref.RetryAfter.Seconds()
	}
	return ref
}

// Leave takes a waiting ticket out because its client has left. A grant that
// raced is taken back and its slot returned. End must follow.
func (c *Controller) Leave(now time.Time, t *Ticket) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.leave(now, t)
}

// Notify has f called once when t.C has something to receive, at once if it has:
// for a holder that waits for other things than channels. f must neither block
// nor call the controller. After Notify with nil the one before is not called.
func (c *Controller) Notify(t *Ticket, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.wake = f; f != nil && len(t.c) > 0 {
		t.wake = nil
		f()
	}
}

// FirstToken reports the first content of an attempt's answer.
func (c *Controller) FirstToken(now time.Time, a *Assignment) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.judge(now, a.ticket)
	c.mu.filled(now, a)
	a.lease.prompted()
	c.mu.came(now, a)
}

// Overdue is asked when FirstTokenTimeout has passed without a token. A
// positive answer is how much longer to wait, since the replica is seen to
// make progress; 0 says that it hangs.
func (c *Controller) Overdue(now time.Time, a *Assignment) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.overdue(a)
}

// MayMove reports whether a silent attempt had better be given up because
// another replica has a free slot for it now (R7).
func (c *Controller) MayMove(now time.Time, a *Assignment) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.mayMove(now, a)
}

// Finish ends an attempt, exactly once, and says what comes next.
func (c *Controller) Finish(now time.Time, a *Assignment, r AttemptResult) Next {
	c.mu.Lock()
	defer c.unlock()
	return c.mu.finish(now, a, r)
}

// Released returns the slot of an attempt that was finished with Running: the
// replica has stopped working on it, or, if not responsive, it gave no sign
// until the time for one ran out.
func (c *Controller) Released(now time.Time, a *Assignment, responsive bool) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.released(now, a, responsive)
}

// End closes the books on a request, exactly once, and returns its record.
func (c *Controller) End(now time.Time, t *Ticket, o Outcome, r Reason) Decision {
	c.mu.Lock()
	defer c.unlock()
	return c.mu.end(now, t, o, r)
}

// Tick does what is due by now: turns away what can no longer be in time, and
// sends work where a hold-off or a cool-down has ended. It returns when it
// wants to be called next; zero: nothing is planned.
func (c *Controller) Tick(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.tick(now)
}

// Granted moves the tickets that were sent a grant since it was last called to
// the end of buf. So a caller that drives many requests from one goroutine, as
// the bench does, need not look at every channel. Nothing is kept before the
// first call.
func (c *Controller) Granted(buf []*Ticket) []*Ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.noteGrants = true
	buf = append(buf, c.mu.granted...)
	clear(c.mu.granted)
	c.mu.granted = c.mu.granted[:0]
	return buf
}

// Wake receives when Tick should be called earlier than it last asked for.
func (c *Controller) Wake() <-chan struct{} { return c.wake }

// Report takes a probe's findings in.
func (c *Controller) Report(now time.Time, name string, f replica.Facts) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.report(now, name, f)
}

// ReportGPU takes a reading of a replica's GPUs in (R16).
func (c *Controller) ReportGPU(now time.Time, name string, f replica.GPUFacts) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.reportGPU(now, name, f)
}

// Reconfigure applies a checked configuration without dropping a request.
func (c *Controller) Reconfigure(now time.Time, cfg Config) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.reconfigure(now, cfg)
}

// DrainReplica stops sending new work to a replica, or resumes it. It is
// false when there is no such replica.
func (c *Controller) DrainReplica(now time.Time, name string, on bool) bool {
	c.mu.Lock()
	defer c.unlock()
	return c.mu.drainReplica(now, name, on)
}

// Stop refuses new requests from now on and turns away the queued ones that
// cannot start within timeout (R15).
func (c *Controller) Stop(now time.Time, timeout time.Duration) {
	c.mu.Lock()
	defer c.unlock()
	c.mu.stop(now, timeout)
}

// Idle reports whether no request is queued or running.
func (c *Controller) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.totals.Queued == 0 && c.mu.totals.Running == 0
}

// Snapshot copies the state at now.
func (c *Controller) Snapshot(now time.Time) *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.snapshot(now)
}

// unlock asks for an earlier Tick where one is due before the planned one.
func (c *Controller) unlock() {
	early := c.mu.early()
	c.mu.Unlock()
	if early {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}
