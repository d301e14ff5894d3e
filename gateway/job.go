package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
)

// job is one accepted request on its way: it waits for a slot, goes through
// attempts, and carries the answer to the client. It runs on the goroutine of
// the request's handler; only cutShort comes from elsewhere.
//
// The intake fills the first block and calls run once; afterwards it closes the
// books with what run returned, reads record for its log, and calls hangUp.
type job struct {
	gw        *Gateway
	w         http.ResponseWriter
	r         *http.Request
	ep        *dialect.Endpoint
	ask       dialect.Ask
	body      []byte
	freeBody  func() // gives body back; nil: nothing to give. Called once, when no attempt can need it
	ticket    *admission.Ticket
	id        string
	class     string
	key       string
	limited   bool // its key has limits per minute, which its answer tells
	headersAt time.Time
	deadline  time.Time // the client's own; zero where it stated none

	record  travel // what the way found out
	outcome admission.Outcome
	reason  admission.Reason

	rc       http.ResponseController
	conn     *clientConn // nil: its writes cannot be held together
	settings *Settings
	writeBy  time.Time // write deadline now set on the client's connection
	headSent bool      // a status has been sent: an error can only be an event
	chunking bool      // the answer's chunks go to conn past the server; see chunks
	parked   bool      // it waits without the server: see park
	restless bool      // its client does not wait for the answer with its next request: it is not parked
	severed  bool      // the connection must be cut, not ended
	kept     *answer   // the last answer of a replica that may have to be passed on
	renamed  []byte    // body with the model's name that the replica knows
	renameTo string
	values   [4]string // backing of the header values we set

	// under is what is under way at a replica, for cutShort.
	under struct {
		sync.Mutex
		exchange *upstream.Exchange
		cancel   context.CancelFunc // of the sending of a large body
	}
}

// travel is what a job found out for the access log.
type travel struct {
	Status     int
	Stream     bool
	BytesOut   int64
	Replica    string // the last one tried
	Attempts   int
	Queued     time.Duration
	FirstToken time.Duration // from the end of the headers; zero: none was seen
	Usage      admission.Usage

	Affinity     admission.Affinity
	CachedTokens int // prompt tokens expected in the replica's cache, in the tokens of Usage
}

// run brings the request to its end and says which end it was. It never closes
// the books itself.
func (j *job) run() (admission.Outcome, admission.Reason) {
	j.rc = *http.NewResponseController(j.w)
	j.conn = connOf(j.r)
	j.settings = j.gw.settings()
	forwardable(j.r.Header)
	// All of the body has been read. Unless it is closed the server looks for
	// more of it before each answer, in deep frames.
	j.r.Body.Close()
	unwatch := context.AfterFunc(j.r.Context(), j.cutShort)
	defer unwatch()
	defer j.rest()
	for j.outcome == admission.OutcomeNone && !j.parked {
		if a := j.wait(); a != nil {
			j.try(a)
		}
	}
	return j.outcome, j.reason
}

// rest gives up what the job needs no more when it has ended.
func (j *job) rest() {
	if !j.parked {
		j.release()
	}
}

// end notes how the request ended.
func (j *job) end(o admission.Outcome, r admission.Reason) { j.outcome, j.reason = o, r }

// wait waits for a grant; without one, the job has ended. A grant that comes in
// the moment in which the client leaves is taken back by Controller.Leave.
func (j *job) wait() *admission.Assignment {
	select {
	case g := <-j.ticket.C():
		return j.granted(g)
	default:
	}
	if j.settings.Heartbeat > 0 && j.hearsBeats() {
		return j.waitBeating()
	}
	n := j.gw.waiting.Add(1)
	defer j.gw.waiting.Add(-1)
	if j.parks(n) {
		j.park()
		return nil
	}
	select {
	case g := <-j.ticket.C():
		return j.granted(g)
	case <-j.r.Context().Done():
	case <-j.gw.cutting():
	}
	j.giveUp()
	return nil
}

// granted takes what the ticket's channel gave: an attempt to make, or the end.
func (j *job) granted(g admission.Grant) *admission.Assignment {
	switch ref := g.Refusal; {
	case ref == nil:
		return g.Assignment
	case ref.PassOn && j.kept != nil:
		j.send(j.kept)
	default:
		j.refuse(ref)
	}
	return nil
}

// giveUp ends the waiting of a job that nobody waits for any more, or that the
// gateway's end has overtaken.
func (j *job) giveUp() {
	j.gw.controller.Leave(time.Now(), j.ticket)
	if !j.left() && j.wasCut() {
		j.refuse(stopping())
		return
	}
	j.cancelled()
}

// cancelled ends a request whose client is not there any more, or does not
// read. Should it still be there, a cut connection is no answer.
func (j *job) cancelled() {
	j.severed = true
	j.end(admission.Cancelled, "")
}

// left reports whether the client has left.
func (j *job) left() bool { return j.r.Context().Err() != nil }

// wasCut reports whether the gateway's time to drain is over.
func (j *job) wasCut() bool { return j.gw.wasCut() }

// cutShort ends what is under way at a replica. It is called, on other
// goroutines, when the client has left and when the time to drain is over.
func (j *job) cutShort() {
	j.under.Lock()
	defer j.under.Unlock()
	if j.under.exchange != nil {
		j.under.exchange.Interrupt()
	}
	if j.under.cancel != nil {
		j.under.cancel()
	}
}

// attach makes x the exchange under way; nil for none. Once it is detached, no
// interruption can reach it, nor whoever uses its connection next.
func (j *job) attach(x *upstream.Exchange) {
	j.under.Lock()
	defer j.under.Unlock()
	j.under.exchange = x
	if x != nil && (j.left() || j.wasCut()) {
		x.Interrupt()
	}
}

// largeBody is a body that may not fit the socket's buffer: sending it may have
// to wait for the replica.
const largeBody = 64 << 10

// sending is the context that the sending of a request is bound to. The client's
// departure ends it; for a body that may take a while, so does cutShort.
func (j *job) sending(size int) (context.Context, context.CancelFunc) {
	ctx := j.r.Context()
	if size < largeBody {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	j.under.Lock()
	defer j.under.Unlock()
	j.under.cancel = cancel
	if j.wasCut() {
		cancel()
	}
	return ctx, cancel
}

// release gives the request's body back as soon as no attempt can need it.
func (j *job) release() {
	j.body, j.renamed = nil, nil
	if j.freeBody != nil {
		j.freeBody()
		j.freeBody = nil
	}
}

// hangUp cuts the connection where the answer could not be ended properly: the
// client must not take a broken answer for a whole one (R8). The books are
// closed by then.
func (j *job) hangUp() {
	if j.severed {
		panic(http.ErrAbortHandler)
	}
}
