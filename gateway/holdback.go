package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
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
func (at *attempt) whole(resp *upstream.Response) admission.AttemptResult {
	at.hold(resp.ContentLength)
	for {
		p, err := at.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return at.result
		}
		at.alive = at.heard
		at.flow()
		if !at.keep(p) {
			return at.through(resp)
		}
	}
	result := admission.AttemptResult{Kind: admission.ResultOK, Status: resp.Status}
	if readable(resp.Header) {
		said := dialect.ReadAnswer(at.j.ep.Format, at.j.ep, at.held.b)
		if said.Broken {
			return admission.AttemptResult{Kind: admission.ResultEmpty, Status: resp.Status, Detail: "a success whose body is no answer"}
		}
		result.Usage = admission.Usage(said.Usage)
		at.remember(said.ID)
	} else if len(at.held.b) == 0 {
		return admission.AttemptResult{Kind: admission.ResultEmpty, Status: resp.Status, Detail: "a success with an empty body"}
	}
	at.answer = answer{assignment: at.a, status: resp.Status, header: resp.Header, body: at.held.b}
	at.answered = true
	return result
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
func (at *attempt) through(resp *upstream.Response) admission.AttemptResult {
	j := at.j
	j.begin(head{assignment: at.a, status: resp.Status, header: resp.Header, length: resp.ContentLength})
	at.commit()
	err := j.write(at.heard, at.held.b)
	at.drop()
	for err == nil {
		var p []byte
		if p, err = at.next(); err == io.EOF {
			return admission.AttemptResult{Kind: admission.ResultOK, Status: resp.Status}
		} else if err != nil {
			return at.result
		}
		at.alive = at.heard
		err = j.write(at.heard, p)
	}
	return at.unread(err)
}

// refused takes an answer that is no success. Its body is kept, since it may
// have to be passed on; one that does not come, or is too big to keep, leaves
// only its status.
func (at *attempt) refused(resp *upstream.Response) admission.AttemptResult {
	result := admission.AttemptResult{
		Kind:       admission.ResultStatus,
		Status:     resp.Status,
		RetryAfter: retryAfter(resp.Header, time.Now()),
	}
	at.expect(errorBodyTimeout)
	var body []byte
	for {
		p, err := at.next()
		if err == io.EOF {
			at.answer = answer{assignment: at.a, status: resp.Status, header: resp.Header, body: body}
			at.answered = true
			result.ContextTooLong = dialect.ContextTooLong(resp.Status, body)
			return result
		}
		if err != nil {
			if at.result.Kind == admission.ResultClientGone {
				return at.result
			}
			result.Running, result.Detail = at.result.Running, "its error did not come whole: "+at.result.Detail
			return result
		}
		if body = append(body, p...); int64(len(body)) > at.settings.RetryBuffer {
			result.Running, result.Detail = true, "its error is larger than retry.buffer"
			return result
		}
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
