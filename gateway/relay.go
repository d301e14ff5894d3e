package gateway

import (
	"bytes"
	"io"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

// relay passes an answer of events on. Until the first content or the terminal
// event everything is held back, and the attempt can still be made elsewhere;
// from then on each whole event goes to the client as it comes, byte for byte.
// Only an event too large to keep goes in pieces; what is there of any other is
// dropped when the stream breaks in its middle.
type relay struct {
	*attempt
	events   dialect.Stream
	run      []byte // events that came in one read and go out in one write
	ending   bool   // the terminal event is among them, or went before
	closing  bool   // and it is one after which nothing more is due: in OpenAI's format, only [DONE]
	terminal bool   // ending, and it has gone out
	final    bool   // closing, and it has gone out
}

// stream takes an answer of events.
func (at *attempt) stream() {
	j := at.j
	at.streaming = true
	r := relays.Get().(*relay)
	defer r.leave()
	r.attempt = at
	r.events.Reset(j.ep.Format, j.ep, j.ask, first(at.resp.Header, "Content-Type"))
	for {
		p, ok := at.next()
		if !ok {
			break
		}
		if r.events.Push(p); !r.pass(p) {
			break
		}
	}
	r.end()
}

// relays that are over serve again, as attempts do.
var relays = sync.Pool{New: func() any { return new(relay) }}

// leave keeps nothing of the answer but the memory that its events' shape took.
func (r *relay) leave() {
	r.events.Reset(dialect.OpenAI, nil, dialect.Ask{}, "")
	*r = relay{events: r.events}
	relays.Put(r)
}

// pass takes the whole events that have come with the read p, and flushes once
// if any of them went out. It is false when the attempt is over.
func (r *relay) pass(p []byte) bool {
	out, over := r.j.record.BytesOut, false
	r.j.cork()
	for !over {
		if r.committed {
			if run := r.events.Run(); run != nil {
				r.alive = r.heard
				over = !r.gather(p, run)
				continue
			}
		}
		event, kind, ok := r.events.Next()
		if !ok {
			break
		}
		over = !r.take(p, event, kind)
	}
	if !r.put(r.run) {
		return false
	}
	r.run = nil
	r.terminal, r.final = r.ending, r.closing
	if r.events.Complete() && !over {
		r.expect(tailTimeout)
		if r.ended() {
			return true // the end goes out together with these events
		}
	}
	if r.j.record.BytesOut == out {
		r.j.uncork()
		return !over
	}
	if err := r.j.flush(); err != nil {
		r.unread(err)
		return false
	}
	return !over
}

// take holds an event back or passes it on; false: the attempt is over.
func (r *relay) take(p, event []byte, kind dialect.EventKind) bool {
	switch kind {
	case dialect.EventError:
		return r.errorEvent(p, event)
	case dialect.EventTerminal:
		r.ending = true
		r.closing = r.closing || r.j.ep.Format != dialect.OpenAI || done(event)
		r.tokenSeen()
	case dialect.EventContent:
		r.tokenSeen()
	case dialect.EventProgress:
		r.tokenBy = later(r.tokenBy, r.heard.Add(r.a.FirstTokenTimeout))
	}
	if kind != dialect.EventComment { // a comment says that the server is there, not that it gets on
		r.alive = r.heard
	}
	if r.committed {
		return r.gather(p, event)
	}
	if r.commits(kind, len(event)) {
		return r.start() && r.gather(p, event)
	}
	if r.held == nil {
		r.hold(-1)
	}
	if r.keep(event) {
		return true
	}
	// Content that is still to come would have to follow what can be neither
	// held nor dropped, and a commit without content could not be taken back.
	r.over(admission.ResultEmpty, "more than retry.buffer and no content in it")
	r.result.Running = true
	return false
}

// done reports whether a terminal event is OpenAI's [DONE]: no other one has a
// line that is no JSON.
func done(event []byte) bool {
	for line := range bytes.FieldsFuncSeq(event, func(c rune) bool { return c == '\n' || c == '\r' }) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && string(bytes.TrimSpace(data)) == "[DONE]" {
			return true
		}
	}
	return false
}

// gather adds an event to those that go out together. They lie side by side in
// the read p, but for one that an earlier read had begun: that one goes alone,
// since its bytes are not kept beyond the next event.
func (r *relay) gather(p, event []byte) bool {
	if n := len(r.run); n > 0 && n+len(event) <= cap(r.run) && &r.run[:n+1][n] == &event[0] {
		r.run = r.run[:n+len(event)]
		return true
	}
	if !r.put(r.run) {
		return false
	}
	if r.run = nil; !within(p, event) {
		return r.put(event)
	}
	r.run = event
	return true
}

// within reports whether part lies in p.
func within(p, part []byte) bool {
	at := cap(p) - cap(part)
	return at >= 0 && at < len(p) && &p[at] == &part[0]
}

// commits reports whether an event is worth the commit: content and the end
// are, progress is to a client that asked for it. An event that is too large to
// be held back whole is taken for content before its end has shown what it is.
func (r *relay) commits(kind dialect.EventKind, size int) bool {
	switch kind {
	case dialect.EventContent, dialect.EventTerminal:
		return true
	case dialect.EventProgress:
		return r.j.ask.ReturnProgress
	case dialect.EventPart:
		if r.held != nil {
			size += len(r.held.b)
		}
		return int64(size) > r.settings.RetryBuffer
	}
	return false
}

// start is the commit: status, headers and what was held back.
func (r *relay) start() bool {
	r.j.begin(head{assignment: r.a, status: r.resp.Status, header: r.resp.Header, length: -1, stream: true})
	r.commit()
	r.j.record.Stream = true
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
func (r *relay) errorEvent(p, event []byte) bool {
	if !r.committed {
		r.over(admission.ResultEmpty, "a success and then an error event before any content")
		r.result.Running = true
		return false
	}
	if r.gather(p, event) {
		r.over(admission.ResultBroken, "an error event in the middle of the answer")
		r.result.Running = true
		r.broke, r.said = brokeError, true
	}
	return false
}

// end says what the stream came to. A clean end is good after a terminal event,
// and a failure without one (R8). Once the terminal event has gone out, a client
// that leaves has what it asked for, and a replica that does not end its answer
// is merely waited for (R1); how its connection ends matters no more when
// nothing else is due.
func (r *relay) end() {
	if r.whollyRead {
		r.cleanEnd()
	} else {
		r.open = r.events.Open()
	}
	r.result.Usage = r.usage()
	switch {
	case !r.terminal || !r.events.Complete():
	case r.final && !r.said && !r.undelivered,
		r.result.Kind == admission.ResultClientGone && !r.undelivered && r.j.left(),
		r.broke == brokeStall:
		r.result.Kind = admission.ResultOK
	}
}

// cleanEnd judges an answer that ended well by HTTP. What is left of it without
// the end of its line or event is passed on only if it makes the answer whole;
// else it is an unfinished event and dropped.
func (r *relay) cleanEnd() {
	r.open = r.events.Open()
	r.events.End()
	event, kind, ok := r.events.Next()
	if ok && r.events.Complete() {
		r.open = false
		if !r.take(nil, event, kind) || !r.pass(nil) {
			return
		}
	}
	switch {
	case r.events.Complete():
		r.over(admission.ResultOK, "")
	case r.committed:
		r.over(admission.ResultBroken, "the answer ended without its terminal event")
		r.broke = brokeEnd
	default:
		r.over(admission.ResultEmpty, "a success that ended before any content")
	}
}

func (r *relay) usage() admission.Usage {
	u := admission.Usage(r.events.Usage())
	u.OutputTokens = r.events.Tokens()
	return u
}

// ended reports whether the replica's answer has ended, without waiting.
func (r *relay) ended() bool {
	_, err := r.exchange.Next(longAgo)
	r.whollyRead = err == io.EOF
	return r.whollyRead
}

var longAgo = time.Unix(1, 0)
