package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dashboard/history"
)

const (
	// beatEvery is the pace of the live stream; requests' ends are gathered up
	// to it.
	beatEvery = time.Second
	// idleBeats is every how many beats the charts are fed while nobody watches.
	idleBeats = 2
	// maxEnds bounds the ends that viewers are told of at a beat, the newest; a
	// busy gateway has more than anyone can read.
	maxEnds = 200
	// maxPageEnds is likewise for the page, which shows fewer.
	maxPageEnds = 60
	// maxBehind is how many beats a viewer may be behind before it is cut off;
	// it connects again and has the state as it is then.
	maxBehind = 8
)

// feed makes the live stream: one beat a second, written once for all viewers.
// Nobody waits for a slow one.
type feed struct {
	done chan struct{}
	once sync.Once

	// beating is held while a beat is made, and while a viewer joins between
	// two. It guards last. mu is taken inside it, for moments: ends of requests
	// are told under mu.
	beating sync.Mutex
	last    *frame // what the viewers know; nil while there are none
	beats   int

	mu struct {
		sync.Mutex
		history *history.History
		viewers map[*viewer]struct{}
		ends    []admission.Decision
		missed  int // ends beyond maxEnds since the last beat
	}
}

// viewer is one open stream.
type viewer struct {
	beats chan []byte // closed when it is too slow
	page  bool        // it is told what has changed; else the whole state each time
}

func (f *feed) init() {
	f.done = make(chan struct{})
	f.mu.history = history.New()
	f.mu.viewers = map[*viewer]struct{}{}
}

func (f *feed) close() { f.once.Do(func() { close(f.done) }) }

// ended takes a request's end in.
func (f *feed) ended(d admission.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.history.Ended(&d)
	if len(f.mu.viewers) == 0 {
		return
	}
	if len(f.mu.ends) == maxEnds {
		f.mu.ends = append(f.mu.ends[:0], f.mu.ends[1:]...)
		f.mu.missed++
	}
	f.mu.ends = append(f.mu.ends, d)
}

func (f *feed) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.viewers) > 0
}

// Run feeds the charts and the live streams until ctx ends.
func (a *Admin) Run(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		a.beat(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beat is one second of the stream.
func (a *Admin) beat(now time.Time) {
	f := &a.feed
	f.beating.Lock()
	defer f.beating.Unlock()
	f.beats++
	if !f.watched() {
		f.last = nil
		if f.beats%idleBeats == 1 {
			f.sample(a.Controller.Snapshot(now))
		}
		return
	}
	s := a.Controller.Watch(now)
	b := f.sample(s)
	b.now = newFrame(view{s, b.glance})
	f.tell(&b)
	f.last = b.now
}

// beat is what happened since the one before.
type beat struct {
	state   *admission.Snapshot
	now     *frame
	glance  history.Glance
	closed  []history.Series
	ends    []admission.Decision
	missed  int
	viewers []*viewer
}

// sample feeds the charts, and takes what there is to tell.
func (f *feed) sample(s *admission.Snapshot) beat {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := beat{state: s, closed: f.mu.history.Sample(s), ends: f.mu.ends, missed: f.mu.missed}
	b.glance = f.mu.history.Glance()
	f.mu.ends, f.mu.missed = nil, 0
	for v := range f.mu.viewers {
		b.viewers = append(b.viewers, v)
	}
	return b
}

// tell hands a beat to the viewers.
func (f *feed) tell(b *beat) {
	var page, whole []byte
	for _, v := range b.viewers {
		if v.page && page == nil {
			page = f.pageBeat(b)
		}
		if !v.page && whole == nil {
			whole = wholeBeat(b.state, b.ends)
		}
		said := whole
		if v.page {
			said = page
		}
		select {
		case v.beats <- said:
		default:
			f.leave(v)
			close(v.beats)
		}
	}
}

// join adds a viewer and gives its first event: the state.
func (a *Admin) join(now time.Time, page bool) (v *viewer, first []byte) {
	f := &a.feed
	f.beating.Lock()
	defer f.beating.Unlock()
	v = &viewer{beats: make(chan []byte, maxBehind), page: page}
	var b bytes.Buffer
	if page {
		if f.last == nil {
			f.mu.Lock()
			g := f.mu.history.Glance()
			f.mu.Unlock()
			f.last = newFrame(view{a.Controller.Watch(now), g})
		}
		b.WriteString("event: state\ndata: ")
		f.last.whole(&b)
		b.WriteString("\n\n")
	} else {
		event(&b, "state", a.Controller.Watch(now))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.viewers[v] = struct{}{}
	return v, b.Bytes()
}

func (f *feed) leave(v *viewer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mu.viewers, v)
}

// series gives a chart's past.
func (f *feed) series(s history.Span) history.Series {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.history.Series(s)
}

// pageBeat is what the page is told: what has changed, chart points, and ends
// without what it asks for itself when someone looks closer.
func (f *feed) pageBeat(b *beat) []byte {
	var out bytes.Buffer
	out.WriteString("event: delta\ndata: ")
	b.now.delta(&out, f.last)
	out.WriteString("\n\n")
	for _, s := range b.closed {
		event(&out, "point", s)
	}
	if len(b.ends) > 0 {
		shown := b.ends[max(0, len(b.ends)-maxPageEnds):]
		brief := make([]admission.Decision, len(shown))
		for i, d := range shown {
			d.Candidates = nil
			brief[i] = d
		}
		event(&out, "ends", ends{Shown: brief, Missed: b.missed + len(b.ends) - len(shown)})
	}
	return out.Bytes()
}

type ends struct {
	Shown  []admission.Decision `json:"shown"` // oldest first
	Missed int                  `json:"missed"`
}

// wholeBeat is what other readers of /admin/events are told.
func wholeBeat(s *admission.Snapshot, ends []admission.Decision) []byte {
	var out bytes.Buffer
	event(&out, "state", s)
	for i := range ends {
		event(&out, "request", &ends[i])
	}
	return out.Bytes()
}

// event writes an SSE event.
func event(b *bytes.Buffer, name string, v any) {
	fmt.Fprintf(b, "event: %s\ndata: %s\n\n", name, written(v))
}
