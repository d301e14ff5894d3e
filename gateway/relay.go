package gateway

import (
	"io"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
)

// relay passes an answer of events on. Until the first content or the terminal
// event everything is held back, and the attempt can still be made elsewhere;
// from then on each whole event goes to the client as it comes, byte for byte.
// Only an event too large to keep goes in pieces; what is there of any other is
// dropped when the stream breaks in its middle.
type relay struct {
	*attempt
	resp     *upstream.Response
	events   *dialect.Stream
	terminal bool // a terminal event has come
	final    bool // and nothing more is due: in OpenAI's format, [DONE] has come
}

// stream takes an answer of events.
func (at *attempt) stream(resp *upstream.Response) admission.AttemptResult {
	j := at.j
	j.record.Stream = true
	r := relay{attempt: at, resp: resp}
	r.events = dialect.NewStream(j.ep.Format, j.ep, j.ask, first(resp.Header, "Content-Type"))
	for {
		p, err := at.next()
		if err == io.EOF {
			return r.end()
		}
		if err != nil {
			return r.failed()
		}
		r.events.Push(p)
		if !r.pass() {
			return r.failed()
		}
	}
}

// pass takes the whole events that have come, and flushes once if any of them
// went out. It is false when the attempt is over; at.result says how.
func (r *relay) pass() bool {
	out := r.j.record.BytesOut
	for {
		event, kind, ok := r.events.Next()
		if !ok {
			break
		}
		if !r.take(event, kind) {
			return false
		}
	}
	if r.events.Complete() {
		r.expect(tailTimeout)
		if r.over() {
			return true // the end goes out together with these events
		}
	}
	if r.j.record.BytesOut == out {
		return true
	}
	if err := r.j.rc.Flush(); err != nil {
		r.unread(err)
		return false
	}
	return true
}

// take holds an event back or passes it on.
func (r *relay) take(event []byte, kind dialect.EventKind) bool {
	switch kind {
	case dialect.EventError:
		return r.errorEvent(event)
	case dialect.EventContent, dialect.EventTerminal:
		r.tokenSeen(r.heard)
		r.flow()
	case dialect.EventProgress:
		r.tokenBy = later(r.tokenBy, r.heard.Add(r.a.FirstTokenTimeout))
	}
	if kind != dialect.EventComment { // a comment says that the server is there, not that it gets on
		r.alive = r.heard
	}
	if !r.committed {
		if !r.commits(kind) {
			if r.held == nil {
				r.hold(-1)
			}
			r.keep(event)
			return true
		}
		if !r.start() {
			return false
		}
	}
	if !r.put(event) {
		return false
	}
	if kind == dialect.EventTerminal {
		r.final = r.terminal || r.j.ep.Format != dialect.OpenAI
		r.terminal = true
	}
	return true
}

// commits reports whether an event is worth the commit: content and the end
// are, progress is to a client that asked for it, and so is more than we may
// hold back.
func (r *relay) commits(kind dialect.EventKind) bool {
	switch kind {
	case dialect.EventContent, dialect.EventTerminal:
		return true
	case dialect.EventProgress:
		return r.j.ask.ReturnProgress
	}
	return r.held != nil && int64(len(r.held.b)) > r.settings.RetryBuffer
}

// start is the commit: status, headers and what was held back.
func (r *relay) start() bool {
	r.j.begin(head{assignment: r.a, status: r.resp.Status, header: r.resp.Header, length: -1, stream: true})
	r.commit()
	r.remember(r.events.ID())
	if r.held == nil {
		return true
	}
	ok := r.put(r.held.b)
	r.drop()
	return ok
}

func (r *relay) put(p []byte) bool {
	if err := r.j.write(r.heard, p); err != nil {
		r.unread(err)
		return false
	}
	return true
}

// errorEvent takes the replica's own word for its failure. Before the commit
// the client does not see it and the attempt can be made elsewhere; after it
// the event is passed on, and nothing behind it: least of all a [DONE].
func (r *relay) errorEvent(event []byte) bool {
	if !r.committed {
		r.result = admission.AttemptResult{
			Kind: admission.ResultEmpty, Status: r.resp.Status, Running: true,
			Detail: "a success and then an error event before any content",
		}
		return false
	}
	if !r.put(event) {
		return false
	}
	r.j.rc.Flush() // the stream is over in any case
	r.result = admission.AttemptResult{
		Kind: admission.ResultBroken, Status: r.resp.Status, Running: true, Detail: "an error event in the middle of the answer",
	}
	r.broke, r.said = brokeError, true
	return false
}

// end is the clean end of the replica's answer: good after a terminal event,
// and a failure without one (R8).
func (r *relay) end() admission.AttemptResult {
	r.events.End()
	if !r.pass() {
		return r.failed()
	}
	if r.events.Complete() {
		return admission.AttemptResult{Kind: admission.ResultOK, Status: r.resp.Status, Usage: r.usage()}
	}
	r.result = admission.AttemptResult{Kind: admission.ResultEmpty, Detail: "a success that ended before any content"}
	if r.committed {
		r.result.Kind, r.broke = admission.ResultBroken, brokeEnd
		r.result.Detail = "the answer ended without its terminal event"
	}
	return r.failed()
}

// failed is the result of a stream that did not come to its clean end. Once the
// terminal event has gone out, a client that leaves has what it asked for, and
// a replica that does not end its answer is merely waited for (R1); how its
// connection ends matters no more once nothing else is due.
func (r *relay) failed() admission.AttemptResult {
	r.result.Usage, r.result.Status = r.usage(), r.resp.Status
	r.open = r.events.Open() && r.committed
	switch {
	case !r.terminal || !r.events.Complete():
	case r.final && r.result.Kind == admission.ResultBroken && !r.said,
		r.result.Kind == admission.ResultClientGone && !r.undelivered && r.j.left(),
		r.broke == brokeStall:
		r.result.Kind = admission.ResultOK
	}
	return r.result
}

func (r *relay) usage() admission.Usage {
	u := admission.Usage(r.events.Usage())
	u.OutputTokens = r.events.Tokens()
	return u
}

// over reports whether the replica's answer has ended, without waiting.
func (r *relay) over() bool {
	_, err := r.exchange.Next(longAgo)
	r.whollyRead = err == io.EOF
	return r.whollyRead
}

var longAgo = time.Unix(1, 0)

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
