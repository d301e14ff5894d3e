package gateway

import (
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

const badRequest = admission.ReasonBadRequest

// visit is one request from its headers to the end of its answer.
type visit struct {
	g      *Gateway
	v      *view // the settings it came under
	w      http.ResponseWriter
	r      *http.Request
	conn   http.ResponseController
	ep     *dialect.Endpoint
	format dialect.Format
	id     string
	at     time.Time // end of the headers
	bodyAt time.Time // last byte of the body; zero: it has not been read
	size   int64     // of the body
	flight flight
	header http.Header // the answer's, while the request is parked

	begun    bool   // reading its body has begun
	unread   bool   // refused before its body was read whole
	key      *Key   // nil: anonymous
	byHeader string // the class its headers ask for
	class    string // the class it has, as far as known
	patience patience
	values   [2]string // backing of the header values we set
	only     [1]string // backing of candidates

	// Of an inference request.
	ticket *admission.Ticket
	job    *job // once its body has been read
	end    ending
}

// ServeHTTP takes one request on. The order of its checks is that of their
// cost, and nothing is read of a body before its headers have passed.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c := connOf(r); c != nil {
		if q := c.parked.Swap(nil); q != nil {
			q.resume(w, r)
			return
		}
	}
	q := &visit{
		g: g, v: g.view.Load(), w: w, r: r, conn: *http.NewResponseController(w),
		id: requestID(r.Header), at: time.Now(),
	}
	defer q.leave()
	h := w.Header()
	mark(h, "X-Request-Id", q.values[0:1:1], q.id)
	if g.draining.Load() != nil {
		h["Connection"] = []string{"close"}
	}
	if r.ContentLength != 0 {
		// Also for a body that nobody wants: the server reads on to its end.
		q.readBy(q.at.Add(q.v.Limits.ReadBodyTimeout))
		if first(r.Header, "Expect") != "" {
			q.writable() // for 100 Continue
		}
	}
	if q.v.cors(h, r) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ep, d := route(r)
	if ep == nil {
		q.format = formatOf(r.URL.Path)
		q.deny(d)
		return
	}
	q.ep, q.format = ep, ep.Format
	switch {
	case ep.Inference():
		q.infer(d)
	case d != nil:
		q.deny(d)
	default:
		q.serveOther()
	}
}

// leave is the last of a visit, or of its part before it was parked: nothing
// touches it here afterwards.
func (q *visit) leave() {
	if q.job != nil && q.job.parked {
		q.setAside()
		return
	}
	defer q.flight.end()
	q.linger()
}

// serveOther answers what takes no slot and is in no books.
func (q *visit) serveOther() {
	if q.ep.Kind == dialect.KindHealth {
		q.health()
		return
	}
	if d := q.credentials(); d != nil {
		q.deny(d)
		return
	}
	switch {
	case q.ep.Kind == dialect.KindList || q.ep.Path == "/api/version":
		q.list()
	case q.ep.Kind == dialect.KindStored:
		q.storedResponse()
	case q.ep.Kind == dialect.KindManage:
		q.manage()
	default:
		q.help()
	}
}

// ending is how a request ended, or is to end once its denial is sent.
type ending struct {
	outcome admission.Outcome
	reason  admission.Reason
	status  int
	denial  *denial // the answer still to be sent; nil: it was sent
	severed bool    // no proper end is possible: cut the connection
}

func endedBy(d *denial) ending {
	return ending{outcome: outcomeOf(d.Reason), reason: d.Reason, denial: d}
}

// deniedBy makes a denial of the gateway's own the request's end.
func (q *visit) deniedBy(d *denial) { q.end = endedBy(d) }

// infer takes an inference request from its headers to its end. It opens the
// books, and closes them exactly once whatever happens between (R13).
//
// Most requests spend most of their time waiting below guarded. What is on the
// stack there is memory that every one of them holds, so the steps before and
// after the wait are functions that have returned or are yet to be called.
func (q *visit) infer(d *denial) {
	if bad := q.credentials(); d == nil {
		d = bad
	}
	if bad := q.wishes(); d == nil {
		d = bad
	}
	if d == nil {
		d = q.g.stopping(q.at)
	}
	q.ticket = q.g.controller.Arrive(q.at, admission.Arrival{ID: q.id, Class: q.class, Key: q.keyName(), At: q.at})
	q.g.flights.begin(&q.flight)
	q.guarded(d)
	q.settle()
}

// settle is what follows the way: the books are closed, and where no proper end
// was possible the connection is cut. What was parked has not ended.
func (q *visit) settle() {
	if q.job != nil && q.job.parked {
		q.strip()
		return
	}
	q.close()
	if q.job != nil {
		q.job.hangUp()
	}
	if q.end.severed {
		panic(http.ErrAbortHandler)
	}
}

// guarded goes the request's way. A panic on it is an ending like others.
func (q *visit) guarded(d *denial) {
	defer q.caught()
	switch {
	case d != nil:
		q.deniedBy(d)
	case !q.readable(), !q.admitted():
	default:
		q.ride()
	}
}

// ride takes the accepted request through waiting, attempts and its answer.
func (q *visit) ride() {
	q.flight.onCut(q.job)
	q.end.outcome, q.end.reason = q.job.run()
	q.end.status = q.job.record.Status
}

// caught turns a panic into an ending, so that the books stay true and the
// client hears of it where it can.
func (q *visit) caught() {
	p := recover()
	if p == nil {
		return
	}
	q.end = ending{outcome: admission.Failed, reason: reasonInternal, severed: true}
	if p == http.ErrAbortHandler {
		return
	}
	if q.job == nil || !q.job.headSent {
		q.deniedBy(&denial{Refusal: admission.Refusal{Reason: reasonInternal}})
	}
	q.g.log().Error("a request made the gateway panic", "id", q.id, "path", q.ep.Path,
		"panic", panicWord(p), "stack", string(debug.Stack()))
}

// close closes the books, sends the denial if the request ended in one, and
// reports.
func (q *visit) close() {
	e := &q.end
	decision := q.g.controller.End(time.Now(), q.ticket, e.outcome, e.reason)
	if e.denial != nil {
		q.tellQuota()
		e.status = q.deny(e.denial)
		from := q.bodyAt
		if from.IsZero() {
			from = q.at
		}
		q.g.observer.Refused(q.class, string(e.reason), time.Since(from))
	}
	record := Record{
		Time: q.at, ID: q.id, Method: q.r.Method, Path: q.r.URL.Path, Class: q.class, Key: q.keyName(),
		Outcome: e.outcome, Reason: e.reason, Decision: decision, Took: time.Since(q.at), BytesIn: q.size,
	}
	if j := q.job; j != nil {
		j.release()
		record.Model, record.travel = j.ask.Model, j.record
	}
	record.Status = e.status
	q.g.observer.RequestEnded(record)
}

// panicWord says what a panic was about. Only the runtime's own words are
// certain to hold nothing of a prompt.
func panicWord(p any) string {
	if err, ok := p.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("%T", p)
}

// readable reads and parses the body. Where it is false, end says why.
func (q *visit) readable() bool {
	body, free, err := q.body()
	if err != nil {
		q.end = q.bodyFailed(err)
		return false
	}
	j := new(job)
	j.gw, j.w, j.r, j.ep, j.ticket = q.g, q.w, q.r, q.ep, q.ticket
	j.id, j.key, j.headersAt = q.id, q.keyName(), q.at
	j.limited = q.ticket.Quota() != (admission.Quota{})
	j.body, j.freeBody = body, free
	q.job = j
	if j.ask, err = dialect.Parse(q.ep, body); err != nil {
		q.deniedBy(unreadable(err))
		return false
	}
	q.class = q.v.class(q.byHeader, j.ask.ServiceTier, q.key)
	mark(q.w.Header(), "X-Switchyard-Class", q.values[1:2:2], q.class)
	j.class = q.class
	return true
}

// admitted asks for admission. Where it is false, end says why: a refusal, or
// that the request needed no slot.
func (q *visit) admitted() bool {
	ask, d := q.askFor(q.job)
	switch {
	case d != nil:
		q.deniedBy(d)
		return false
	case q.job.ask.Unload:
		q.unload(q.job, ask.Models)
		return false
	}
	ref := q.g.controller.Admit(time.Now(), q.ticket, ask)
	if ref == nil {
		q.tellQuota()
		return true
	}
	d = &denial{Refusal: *ref}
	if d.Reason == admission.ReasonModelNotFound {
		d = q.unknownModel(q.job.ask.Model)
	}
	q.deniedBy(d)
	return false
}

// askFor is what the controller is to know about the request.
func (q *visit) askFor(j *job) (admission.Ask, *denial) {
	names := q.candidates(j.ask.Model)
	if d := q.mayAsk(j.ask.Model); d != nil {
		return admission.Ask{}, d
	}
	due, stated := q.v.due(q.at, q.patience, q.class)
	if stated {
		j.deadline = due
	}
	ask := admission.Ask{
		Class: q.class, Models: names, Public: j.ask.Model,
		Path: q.ep.Path, Engines: q.g.enginesOf(q.ep),
		Width: max(1, j.ask.Width), Bytes: q.size, BodyHash: hashOf(q.keyName(), j.ask.Sum), Try: tryOf(q.r.Header),
		PromptTokens: j.ask.PromptTokens, MaxTokens: j.ask.MaxTokens, Stream: j.ask.Stream,
		NoOutput: q.ep.Kind == dialect.KindEmbed || q.ep.Kind == dialect.KindRerank,
		Deadline: due, ClientDeadline: stated, Once: j.ask.Store,
	}
	ask.Chain, ask.Hint = q.chain(&j.ask)
	j.ask.Chain = nil // it is kept once while the request waits
	if prev := j.ask.PreviousResponse; prev != "" {
		pin, ok := q.g.stored.find(prev, q.keyName())
		if !ok {
			return ask, deny(admission.ReasonNotFound, "no response %q is known here: it was never given, or is forgotten", clipped(prev)).about("previous_response_id")
		}
		ask.Pin = pin
	}
	return ask, nil
}

// deny answers with the gateway's own word.
func (q *visit) deny(d *denial) int {
	if q.bodyAt.IsZero() && q.r.ContentLength != 0 && q.r.ProtoMajor == 1 && !q.skipBody() {
		// Unasked, the server would wait for the body before it answers, and
		// take what it did not wait for as the next request.
		q.unread = true
		q.conn.EnableFullDuplex()
		q.w.Header()["Connection"] = []string{"close"}
	}
	q.writable()
	status := q.g.deny(q.w, q.format, q.id, d)
	q.conn.Flush()
	return status
}
