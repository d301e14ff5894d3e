package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"switchyard/admission"
)

// stateEvery is the pace of state events; requests' ends come as they happen,
// gathered up to that pace.
const stateEvery = time.Second

// maxEnds bounds the ends that one viewer is told of a second; a busy gateway
// has more than anyone can read.
const maxEnds = 200

// feed passes the ends of requests on to the viewers of /admin/events. A slow
// viewer misses some; nobody waits for it.
type feed struct {
	done chan struct{}
	once sync.Once
	mu   struct {
		sync.Mutex
		viewers map[chan admission.Decision]struct{}
	}
}

func (f *feed) init() {
	f.done = make(chan struct{})
	f.mu.viewers = map[chan admission.Decision]struct{}{}
}

func (f *feed) close() { f.once.Do(func() { close(f.done) }) }

func (f *feed) ended(d admission.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.mu.viewers {
		select {
		case ch <- d:
		default:
		}
	}
}

func (f *feed) watch() (ch chan admission.Decision, leave func()) {
	ch = make(chan admission.Decision, maxEnds)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.viewers[ch] = struct{}{}
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.mu.viewers, ch)
	}
}

// events streams the state once a second and each request's end: SSE events
// named state and request.
func (a *Admin) events(w http.ResponseWriter, r *http.Request) {
	ends, leave := a.feed.watch()
	defer leave()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	rc := http.NewResponseController(w)
	send := func(name string, v any) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data)
		return err
	}
	tick := time.NewTicker(stateEvery)
	defer tick.Stop()
	for {
		err := send("state", a.Controller.Snapshot(time.Now()))
		for range len(ends) {
			if err == nil {
				err = send("request", <-ends)
			}
		}
		if err == nil {
			err = rc.Flush()
		}
		if err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-a.feed.done:
			return
		case <-tick.C:
		}
	}
}
