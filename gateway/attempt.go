package gateway

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
)

// attempt is one try of a job on one replica. Its parts follow the answer's
// way: request and head here, then whole for an answer that is held back until
// it is complete (holdback.go), or stream for one of events (relay.go). What it
// comes to is in result. While a stream is silent the frames of its goroutine
// are what it costs, so they are kept small.
type attempt struct {
	j        *job
	a        *admission.Assignment
	exchange *upstream.Exchange
	resp     *upstream.Response
	settings *Settings

	// What is waited for, and until when.
	awaits  awaited
	tokenBy time.Time     // the first token, once the request has been written
	endBy   time.Time     // the end
	moveAt  time.Time     // when to ask for a better replica; zero: never (any more)
	moveGap time.Duration // what lay between the last two such times

	sentAt      time.Time
	heard       time.Time // when bytes of the body came last
	alive       time.Time // when they last said more than that the server is there
	firstToken  time.Time
	held        *hold  // what is held back
	answer      answer // an answer held back whole
	answered    bool   // there is one: it was not relayed and did come
	committed   bool   // a byte of this answer has gone to the client
	whollyRead  bool   // the answer has ended
	undelivered bool   // the client did not take what was last sent to it
	broke       string // after the commit: why the stream broke, a metric label
	open        bool   // pieces of an event too large to hold back have gone out, but not its end
	streaming   bool   // it is an answer of events
	said        bool   // the replica itself has told the client of its failure, in the stream
	result      admission.AttemptResult
	finished    bool // the controller knows the result

	request upstream.Request
	extra   [10]string // its own headers, name and value in turn
}

// try makes one attempt and follows the controller's verdict: the job has ended
// then, or it is to wait for another grant.
func (j *job) try(a *admission.Assignment) {
	at := attempts.Get().(*attempt)
	at.j, at.a, at.settings = j, a, j.settings
	defer at.leave()
	if at.send() {
		at.receive()
	}
	at.conclude(at.finish())
}

// attempts that are over serve again: each is large, and soon over for most.
var attempts = sync.Pool{New: func() any { return new(attempt) }}

// conclude brings what the attempt came to before the client.
func (at *attempt) conclude(next admission.Next) {
	j, result := at.j, &at.result
	if result.Kind == admission.ResultStatus && at.answered {
		kept := at.answer
		j.kept = &kept
	}
	switch {
	case result.Kind == admission.ResultOK && at.answered:
		j.send(&at.answer)
	case result.Kind == admission.ResultOK:
		j.end(admission.Completed, "")
	case result.Kind == admission.ResultSlowClient:
		j.cancelled()
	case result.Kind == admission.ResultClientGone && (at.undelivered || j.left() || !j.wasCut()):
		j.cancelled()
	case at.committed:
		at.breakOff()
	case result.Kind == admission.ResultClientGone:
		j.refuse(stopping())
	case next.Action == admission.ActWait:
		// run waits again
	case next.Action == admission.ActPassOn && j.kept != nil:
		j.send(j.kept)
	case next.Refusal != nil:
		j.refuse(next.Refusal)
	default:
		j.refuse(failure(result.Kind))
	}
}

// send hands the request over to the replica; false: the attempt is over.
func (at *attempt) send() bool {
	j := at.j
	j.record.Replica, j.record.Attempts, j.record.Queued = at.a.Replica, at.a.Attempt, at.a.Queued
	at.sentAt = time.Now()
	client := j.gw.replicaClient(at.a.Replica)
	if client == nil {
		at.over(admission.ResultConnect, "the replica is no longer configured")
		at.result.NothingSent = true
		return false
	}
	at.ask()
	ctx, cancel := j.sending(len(at.request.Body))
	defer cancel()
	x, err := client.Start(ctx, &at.request, at.sentAt.Add(at.a.FirstTokenTimeout))
	if err != nil {
		at.lost(err)
		at.result.Running = false // there is nobody left to ask
		return false
	}
	at.exchange = x
	at.patience(time.Now())
	j.attach(x)
	j.gw.zombies.lives(at.a, at.width())
	return true
}

// patience sets until when the first token is waited for. A large request has
// been written by now: while its bytes still went, the replica could not answer,
// and that they went slowly is no sign of a hang (R7). The time to move is half
// of what remains of the deadline, from here as from the start.
func (at *attempt) patience(now time.Time) {
	at.tokenBy = now.Add(at.a.FirstTokenTimeout)
	if at.a.MoveAfter > 0 {
		at.moveGap = max(minMoveGap, at.a.MoveAfter-now.Sub(at.sentAt)/2)
		at.moveAt = now.Add(at.moveGap)
	}
}

// receive takes the answer, as far as it comes.
func (at *attempt) receive() {
	if !at.head() {
		return
	}
	at.result.Status = at.resp.Status
	switch {
	case at.resp.Status >= http.StatusMultipleChoices:
		at.refused()
	case streams(at.resp.Header):
		at.stream()
	default:
		at.whole()
	}
}

// leave gives back what the attempt has borrowed: the buffer of what was held
// back, and, should a fault have kept it from being finished, its slot.
func (at *attempt) leave() {
	if !at.finished {
		at.over(admission.ResultClientGone, "a fault of the gateway")
		at.result.Running = true
		at.finish()
	}
	at.drop()
	*at = attempt{}
	attempts.Put(at)
}

// over says what the attempt has come to, and why in words for logs.
func (at *attempt) over(kind admission.ResultKind, detail string) {
	at.result.Kind, at.result.Detail = kind, detail
}

// finish gives the connection back and reports the result. A connection that
// can serve again is back in its pool before the freed slot can be granted;
// one whose replica may still be working is held as a zombie (R1).
func (at *attempt) finish() admission.Next {
	j, result := at.j, &at.result
	at.finished = true
	j.attach(nil)
	result.Committed = at.committed
	result.FirstTokenAt = at.firstToken
	result.Running = result.Running && at.exchange != nil
	if at.exchange != nil {
		j.gw.zombies.lives(at.a, -at.width())
		if !result.Running {
			at.exchange.Close()
		}
	}
	next := j.gw.controller.Finish(time.Now(), at.a, *result)
	if result.Running {
		j.gw.bury(at.a, at.exchange, at.width())
	}
	j.record.Usage = result.Usage
	j.record.Affinity, j.record.CachedTokens = at.a.Affinity, at.expected()
	j.gw.observer.AttemptEnded(at.a.Replica, next.Result)
	if next.Action == admission.ActWait {
		j.gw.observer.Retried(next.Retry)
	}
	return next
}

// expected is how many of the prompt tokens that the answer reports were expected
// from the replica's cache.
func (at *attempt) expected() int {
	n, said, estimated := at.a.CachedTokens, at.result.Usage.PromptTokens, at.j.ask.PromptTokens
	if said > 0 && estimated > 0 {
		n = int(float64(n) * float64(said) / float64(estimated))
	}
	return n
}

// width is how many slots the attempt fills there.
func (at *attempt) width() int { return max(1, at.j.ask.Width) }

// ask makes the request that goes to the replica: the client's own bytes but
// for an alias's model and a slot that is asked for.
func (at *attempt) ask() {
	j := at.j
	body := j.body
	if m := at.a.Model; m != "" && m != j.ask.Model && j.ask.ModelStart >= 0 {
		if j.renamed == nil || j.renameTo != m {
			j.renamed, j.renameTo = dialect.ReplaceModel(j.body, j.ask, m), m
		}
		body = j.renamed
	}
	if at.a.Pinned {
		body = dialect.PinSlot(j.ep, body, j.ask, at.a.Slot)
	}
	extra := append(at.extra[:0], "Via", j.gw.viaHeader(j.r.Header), "X-Request-Id", j.id, "Accept-Encoding", "identity")
	if !j.deadline.IsZero() {
		left := max(time.Millisecond, j.deadline.Sub(at.sentAt).Round(time.Millisecond))
		extra = append(extra, "X-Switchyard-Deadline", left.String())
	}
	if key := j.gw.replicaAuth(at.a.Replica); key != "" {
		extra = append(extra, "Authorization", "Bearer "+string(key))
	}
	at.request = upstream.Request{
		Method: j.r.Method, Target: j.r.URL.RequestURI(), Header: j.r.Header, Extra: extra, Body: body,
		Stall: at.settings.StallTimeout,
	}
}

// lost ends the attempt by an error of its exchange: the request could not be
// handed over, or its answer not read to the end. Who has left, or been cut
// short, is nobody's fault.
func (at *attempt) lost(err error) {
	at.over(admission.ResultConnect, err.Error())
	at.result.Running = !closed(err)
	phase := upstream.Answered
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		phase = e.Phase
	}
	switch {
	case at.j.left() || at.j.wasCut():
		at.over(admission.ResultClientGone, at.gone())
		at.broke = brokeStopping
	case at.committed:
		at.result.Kind, at.broke = admission.ResultBroken, brokeReset
		if !closed(err) {
			at.broke = brokeMalformed
		}
	case phase == upstream.Answered:
		at.result.Kind = admission.ResultEmpty
	}
	at.result.NothingSent = phase == upstream.NothingSent
}

// gone says, for logs, why nobody waits for the answer any more.
func (at *attempt) gone() string {
	if !at.j.left() {
		return "the time to drain ran out"
	}
	return "the client left"
}

// closed reports whether err says that the replica has ended the connection:
// it does no more work for it then.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

// retryAfter reads how long a busy replica wants to be left alone; 0: unsaid.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseInt(strings.TrimSpace(h.Get("Retry-After-Ms")), 10, 32); err == nil && ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseInt(v, 10, 32); err == nil {
		return max(0, time.Duration(s)*time.Second)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// failure is the answer to a request whose last attempt failed, where the
// controller gave none.
func failure(kind admission.ResultKind) *admission.Refusal {
	if kind == admission.ResultNoToken {
		return &admission.Refusal{Reason: admission.ReasonUpstreamTimeout}
	}
	return &admission.Refusal{Reason: admission.ReasonUpstreamFailed}
}

// stopping is the answer to a request that the gateway's end overtook.
func stopping() *admission.Refusal { return &admission.Refusal{Reason: admission.ReasonDraining} }
