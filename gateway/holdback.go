package gateway

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

// answer is a replica's answer that has been read whole and not been passed on.
type answer struct {
	assignment *admission.Assignment
	status     int
	header     http.Header
	body       []byte
}

// streams reports whether an answer is one of events: what its Content-Type
// says, whatever the request asked for. A stream that comes compressed although
// identity was asked for cannot be looked into and passes like any other answer.
func streams(h http.Header) bool {
	return dialect.IsStream(first(h, "Content-Type")) && identity(h)
}

func identity(h http.Header) bool {
	enc := first(h, "Content-Encoding")
	return enc == "" || strings.EqualFold(enc, "identity")
}

// mediaType is the answer's Content-Type without its parameters, in lower case.
func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(first(h, "Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// first is the first value of a header whose name is given in canonical form.
func first(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// whole takes an answer that is not streamed: it is held back until it has
// ended, so that one cut in the middle can still be had from another replica.
// What is too big to hold is passed on as it comes.
func (at *attempt) whole() {
	at.hold(at.resp.ContentLength)
	for {
		p, ok := at.next()
		if !ok {
			break
		}
		at.alive = at.heard
		at.flow()
		if at.keep(p) {
			continue
		}
		if at.j.headSent { // by heartbeats: the client reads events
			at.over(admission.ResultEmpty, "no stream though one was asked for")
			at.result.Running = true
			return
		}
		at.through()
		return
	}
	if at.whollyRead {
		at.judge()
	}
}

// judge looks at a whole answer with a good status: is it one?
func (at *attempt) judge() {
	body := at.held.b
	if readable(at.resp.Header) {
		said := dialect.ReadAnswer(at.j.ep.Format, at.j.ep, body)
		if said.Broken {
			at.over(admission.ResultEmpty, "a success whose body is no answer")
			return
		}
		at.result.Usage = admission.Usage(said.Usage)
		at.remember(said.ID)
	} else if len(body) == 0 {
		at.over(admission.ResultEmpty, "a success with an empty body")
		return
	}
	at.over(admission.ResultOK, "")
	at.reply(body)
}

// reply says that there is an answer to be passed on whole.
func (at *attempt) reply(body []byte) {
	at.answer = answer{assignment: at.a, status: at.resp.Status, header: at.resp.Header, body: body}
	at.answered = true
}

// readable reports whether an answer is JSON to look into.
func readable(h http.Header) bool {
	return mediaType(h) == "application/json" && identity(h)
}

// remember notes which replica gave a response that the Responses API may be
// asked for later.
func (at *attempt) remember(id string) {
	if at.j.ep.Format == dialect.Responses && id != "" {
		at.j.remember(id, at.a.Replica)
	}
}

// through passes an answer on that is too big to be held back. Its length was
// announced or it is chunked, so the client sees when it is cut.
func (at *attempt) through() {
	j := at.j
	j.begin(head{assignment: at.a, status: at.resp.Status, header: at.resp.Header, length: at.resp.ContentLength})
	at.commit()
	err := j.write(at.heard, at.held.b)
	at.drop()
	for err == nil {
		p, ok := at.next()
		if !ok {
			if at.whollyRead {
				at.over(admission.ResultOK, "")
			}
			return
		}
		at.alive = at.heard
		err = j.write(at.heard, p)
	}
	at.unread(err)
}

// refused takes an answer that is no success. Its body is kept, since it may
// have to be passed on; one that does not come, or is too big to keep, leaves
// only its status.
func (at *attempt) refused() {
	at.result.RetryAfter = retryAfter(at.resp.Header, time.Now())
	at.expect(errorBodyTimeout)
	var body []byte
	for {
		p, ok := at.next()
		if !ok {
			break
		}
		if body = append(body, p...); int64(len(body)) > at.settings.RetryBuffer {
			at.over(admission.ResultStatus, "its error is larger than retry.buffer")
			at.result.Running = true
			return
		}
	}
	switch {
	case at.whollyRead:
		at.over(admission.ResultStatus, "")
		at.reply(body)
		at.result.ContextTooLong = dialect.ContextTooLong(at.resp.Status, body)
	case at.result.Kind != admission.ResultClientGone:
		at.over(admission.ResultStatus, "its error did not come whole: "+at.result.Detail)
	}
}

// hold is a buffer for what is held back of an answer.
type hold struct{ b []byte }

var holds = sync.Pool{New: func() any { return &hold{make([]byte, 0, 4<<10)} }}

// maxPooledHold is the size up to which buffers are used again; larger ones are
// left to the garbage collector.
const maxPooledHold = 256 << 10

// hold takes a buffer for an answer of the announced length, -1 for unknown.
func (at *attempt) hold(length int64) {
	at.held = holds.Get().(*hold)
	at.held.b = at.held.b[:0]
	if length > 0 && length <= at.settings.RetryBuffer {
		at.held.b = slices.Grow(at.held.b, int(length))
	}
}

// keep adds to what is held back; false: it is more than may be.
func (at *attempt) keep(p []byte) bool {
	at.held.b = append(at.held.b, p...)
	return int64(len(at.held.b)) <= at.settings.RetryBuffer
}

// drop gives the buffer back.
func (at *attempt) drop() {
	if at.held != nil && cap(at.held.b) <= maxPooledHold {
		holds.Put(at.held)
	}
	at.held = nil
}
