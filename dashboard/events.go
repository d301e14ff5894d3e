package dashboard

import (
	"net/http"
	"strconv"
	"time"

	"switchyard/dashboard/history"
)

// acceptWithin is how long a viewer may take to accept a beat.
const acceptWithin = 10 * time.Second

// events streams what happens, once a second, as SSE: the whole state and an
// event for each request's end; with ?changes what has changed in the state,
// the charts' new points, and the ends gathered up, as the page reads them.
func (a *Admin) events(w http.ResponseWriter, r *http.Request) {
	v, said := a.join(time.Now(), r.URL.Query().Has("changes"))
	defer a.feed.leave(v)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	rc := http.NewResponseController(w)
	for ok := true; ok; {
		_ = rc.SetWriteDeadline(time.Now().Add(acceptWithin)) // not every writer has one
		if _, err := w.Write(said); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-a.feed.done:
			return
		case said, ok = <-v.beats:
		}
	}
}

// history gives the past of the charts.
func (a *Admin) history(w http.ResponseWriter, r *http.Request) {
	span, ok := history.ParseSpan(r.FormValue("span"))
	if !ok {
		writeJSON(w, http.StatusBadRequest, failure{"span is " + strconv.Quote(r.FormValue("span")) + ": want 15m or 6h"})
		return
	}
	writeJSON(w, http.StatusOK, a.feed.series(span))
}
