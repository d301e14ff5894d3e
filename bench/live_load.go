package bench

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// load sends a trial's requests over real sockets, each at its own time whatever
// has become of those before it.
type load struct {
	base   string
	client *http.Client
	began  time.Time
	told   func(done, total int)

	unordered bool // clients say nothing of class and deadline

	changed chan struct{} // has room for one: what comes next may have changed
	under   sync.WaitGroup
	mu      struct {
		sync.Mutex
		traffic traffic
		records []Record
		answers map[string][]string // of each conversation so far
		done    int
	}
}

// lead is how long before its time a request is made ready, so that the making of
// its text is no part of what is measured.
const lead = 20 * time.Millisecond

func newLoad(t traffic, base string) *load {
	l := &load{base: base, changed: make(chan struct{}, 1)}
	l.mu.traffic = t
	l.mu.answers = map[string][]string{}
	l.client = &http.Client{Transport: &http.Transport{
		// As many connections as requests are under way, kept for the next ones.
		MaxIdleConnsPerHost: 4096, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
	}}
	return l
}

// run sends everything and waits for its end.
func (l *load) run(ctx context.Context, began time.Time) error {
	l.began = began
	defer l.client.CloseIdleConnections()
	defer l.under.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait, over := l.due(ctx)
		if over {
			break
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-l.changed:
		case <-ctx.Done():
		}
	}
	l.under.Wait()
	return ctx.Err()
}

// due sends what is due, and says how long until the next; over: there is
// nothing more to come.
func (l *load) due(ctx context.Context) (wait time.Duration, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		at, ok := l.mu.traffic.Peek()
		if !ok {
			return time.Hour, l.mu.traffic.Open() == 0
		}
		if wait = time.Until(l.began.Add(at)) - lead; wait > 0 {
			return wait, false
		}
		l.send(ctx, l.mu.traffic.Next())
	}
}

// send starts one request; the lock is held.
func (l *load) send(ctx context.Context, r *Request) {
	c := &caller{r: r, rec: r.New(), began: l.began, keep: r.Session != "", mute: l.unordered}
	place := len(l.mu.records)
	l.mu.records = append(l.mu.records, c.rec)
	answers := l.mu.answers[r.Session]
	l.under.Go(func() {
		b := body(r, answers)
		if l.until(ctx, r.At) {
			c.call(ctx, l.client, l.base, b)
		}
		l.ended(c, place)
	})
}

// until sleeps until a moment of the trial; false: it is over before.
func (l *load) until(ctx context.Context, at time.Duration) bool {
	timer := time.NewTimer(time.Until(l.began.Add(at)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *load) ended(c *caller, place int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.records[place] = c.rec
	if c.keep && c.rec.Status/100 == 2 && c.rec.Error == "" {
		l.keep(c)
	}
	l.mu.traffic.Ended(c.r, &c.rec)
	l.mu.done++
	if l.told != nil {
		l.told(l.mu.done, max(l.mu.traffic.Total(), len(l.mu.records)))
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// keep remembers what a turn was answered, for the next one to repeat. Where a
// turn before it had no answer, the next ones repeat what it would have been.
func (l *load) keep(c *caller) {
	if had := l.mu.answers[c.r.Session]; len(had) == c.r.Turn-1 {
		l.mu.answers[c.r.Session] = append(had, c.text.String())
	}
}
