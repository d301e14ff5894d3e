package gateway

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
)

// head is what goes out before the first byte of an answer.
type head struct {
	assignment *admission.Assignment
	status     int
	header     http.Header // the replica's
	length     int64       // of the body; -1 unknown
	stream     bool
}

// begin sends the status and the headers of a replica's answer, with ours
// beside them; id and class are among w's headers already. After a heartbeat it
// is too late for that.
func (j *job) begin(h head) {
	if j.headSent {
		return
	}
	to := j.w.Header()
	for name, values := range h.header {
		switch {
		case name == "Vary":
			to[name] = append(to[name], values...)
		case !ours(name) && !(j.limited && quotaHeader(name)):
			to[name] = values
		}
	}
	if h.stream {
		to["X-Accel-Buffering"] = accelOff
	} else if h.length >= 0 {
		to["Content-Length"] = contentLength(h)
	}
	mark(to, "X-Switchyard-Replica", j.values[0:1:1], h.assignment.Replica)
	mark(to, "X-Switchyard-Attempts", j.values[1:2:2], strconv.Itoa(h.assignment.Attempt))
	mark(to, "X-Switchyard-Queue-Ms", j.values[2:3:3], strconv.FormatInt(h.assignment.Queued.Milliseconds(), 10))
	mark(to, "X-Switchyard-Affinity", j.values[3:4:4], h.assignment.Affinity.String())
	j.sendHead(h.status)
}

func (j *job) sendHead(status int) {
	j.headSent, j.record.Status = true, status
	j.w.WriteHeader(status)
}

// mark sets a header of ours; its value lies in place, of which there is one.
func mark(to http.Header, name string, place []string, value string) {
	place[0] = value
	to[name] = place
}

var accelOff = []string{"no"}

// ours reports whether a header of a replica's answer must not pass because the
// gateway answers for it: what it is called, how long it is, and who may read it.
func ours(name string) bool {
	switch name {
	case "X-Request-Id", "X-Switchyard-Class", "X-Switchyard-Replica", "X-Switchyard-Attempts",
		"X-Switchyard-Queue-Ms", "X-Switchyard-Affinity", "Content-Length":
		return true
	}
	return strings.HasPrefix(name, "Access-Control-")
}

// contentLength is the header's value: the replica's own where it gave one.
func contentLength(h head) []string {
	if v := h.header["Content-Length"]; len(v) == 1 {
		return v
	}
	return []string{strconv.FormatInt(h.length, 10)}
}

// ownLength is up to where net/http states the length of an answer by itself. A
// ninth header, with which its map needs twice the room, is mostly saved by that.
const ownLength = 2 << 10

// send ends the request with an answer that was held back whole.
func (j *job) send(a *answer) {
	if j.headSent {
		j.sendAsEvent(a)
		return
	}
	length := int64(len(a.body))
	if 0 < length && length <= ownLength && j.r.Method != http.MethodHead {
		length = -1
	}
	j.begin(head{assignment: a.assignment, status: a.status, header: a.header, length: length})
	if err := j.write(time.Now(), a.body); err != nil {
		j.cancelled()
		return
	}
	j.end(outcomeOfAnswer(a.status), "")
}

// outcomeOfAnswer: an answer of a replica's that is passed on completes the
// request, unless it says that the replica failed (R13).
func outcomeOfAnswer(status int) admission.Outcome {
	if status >= http.StatusInternalServerError {
		return admission.Failed
	}
	return admission.Completed
}

// refuse ends the request in the gateway's own words.
func (j *job) refuse(ref *admission.Refusal) {
	if j.headSent {
		d := denial{Refusal: *ref}
		j.fail(string(ref.Reason), d.message())
	} else {
		j.arm(time.Now())
		j.headSent = true
		j.record.Status = j.gw.refuse(j.w, j.ep.Format, j.id, *ref)
	}
	j.end(outcomeOf(ref.Reason), ref.Reason)
}

// fail ends a stream that has begun with an error event in the client's format
// and has the connection cut after it: an error is no clean end (R8).
func (j *job) fail(code, message string) {
	j.severed = true
	if j.write(time.Now(), dialect.ErrorEvent(j.ep.Format, code, message)) == nil {
		j.flush() // the connection is cut in any case
	}
}

// pieceSize is how much of an answer is written under one write deadline, so
// that a slow client is not taken for one that reads nothing.
const pieceSize = 256 << 10

// write hands bytes of the answer to the client's connection.
func (j *job) write(now time.Time, p []byte) error {
	for len(p) > 0 {
		j.arm(now)
		n, err := j.put(p[:min(len(p), pieceSize)])
		j.record.BytesOut += int64(n)
		if err != nil {
			return err
		}
		if p = p[n:]; len(p) > 0 {
			now = time.Now()
		}
	}
	return nil
}

func (j *job) put(p []byte) (int, error) {
	if j.chunking {
		return j.conn.chunk(p)
	}
	return j.w.Write(p)
}

// cork lets what is written from now on leave in one piece: with flush, or else
// with the end of the answer, which the server writes.
func (j *job) cork() {
	if j.conn != nil {
		j.conn.corked = true
	}
}

// flush lets what has been written leave.
func (j *job) flush() error {
	if !j.chunking {
		if err := j.rc.Flush(); err != nil {
			return err
		}
		j.chunking = j.chunks()
	}
	return j.uncork()
}

// chunks reports whether the server sends an answer in chunks whose head has
// left. From then on there is no need for it until the answer ends: it has
// nothing of the answer any more, and adds nothing to it but the last chunk.
func (j *job) chunks() bool {
	h := j.w.Header()
	return j.conn != nil && j.r.TLS == nil && j.r.ProtoAtLeast(1, 1) && j.r.Method != http.MethodHead &&
		j.record.Status == http.StatusOK && h["Content-Length"] == nil && h["Transfer-Encoding"] == nil
}

func (j *job) uncork() error {
	if j.conn == nil {
		return nil
	}
	return j.conn.uncork()
}

// arm sees to it that a write may take write_timeout from now, and a quarter
// more: the deadline is moved only when less is left.
func (j *job) arm(now time.Time) {
	limit := j.settings.Limits.WriteTimeout
	if j.writeBy.Sub(now) >= limit {
		return
	}
	j.writeBy = now.Add(limit + limit/4)
	j.rc.SetWriteDeadline(j.writeBy) // unsupported only where there is no connection to guard
}

// unread ends an attempt whose answer the client does not take.
func (at *attempt) unread(err error) {
	at.undelivered = true
	at.over(admission.ResultClientGone, "the client left")
	if errors.Is(err, os.ErrDeadlineExceeded) {
		at.over(admission.ResultSlowClient, "the client read nothing for "+at.settings.Limits.WriteTimeout.String())
	}
	at.result.Running = !at.whollyRead
}

// commit notes that the client has a byte of this answer: nothing is tried
// again from here on, and the request's body is not needed any more (R7).
func (at *attempt) commit() {
	at.committed = true
	at.request = upstream.Request{}
	at.j.release()
}

// breakOff ends an answer that broke after the commit point: a stream with an
// error event, unless the replica has sent one itself; anything else is cut.
func (at *attempt) breakOff() {
	j := at.j
	j.severed = true
	reason, message := admission.ReasonUpstreamFailed, "the inference server failed in the middle of its answer"
	switch at.broke {
	case brokeStall:
		reason, message = admission.ReasonUpstreamTimeout, "the inference server fell silent in the middle of its answer"
	case brokeStopping:
		reason, message = admission.ReasonDraining, "the gateway stopped in the middle of the answer"
	}
	j.gw.observer.StreamBroken(at.a.Replica, at.broke)
	if at.streaming && !at.said {
		if at.open {
			j.write(time.Now(), []byte("\n\n"))
		}
		j.fail(string(reason), message)
	}
	j.end(admission.Failed, reason)
}

// Why an answer broke after the commit point: labels of
// switchyard_streams_broken_total.
const (
	brokeReset     = "reset"     // the connection ended where more was due
	brokeEnd       = "end"       // a clean end without the terminal event
	brokeError     = "error"     // the replica said so in the stream
	brokeStall     = "stall"     // silent for stall_timeout
	brokeMalformed = "malformed" // not the framing it announced
	brokeStopping  = "stopping"  // the gateway's time to drain ran out
)

// forwardable takes out of a request's headers what is not for the replica: the
// client's credentials, what is said to this gateway, and what would make the
// replica answer in a way that cannot be relayed well. What belongs to the
// connection is package upstream's to drop.
func forwardable(h http.Header) {
	for name := range h {
		switch name {
		case "Authorization", "X-Api-Key", "Api-Key", "Cookie",
			"Origin",            // the gateway decides who may ask; Ollama refuses foreign origins
			"X-Conversation-Id", // llama.cpp would go on for a client that has left
			"Accept-Encoding":   // events must be seen to be relayed: identity is asked for
			delete(h, name)
		default:
			if strings.HasPrefix(name, "X-Switchyard-") {
				delete(h, name)
			}
		}
	}
}

// viaHeader is the Via of a request to a replica: the client's and ours.
func (g *Gateway) viaHeader(h http.Header) string {
	own := g.view.Load().viaLine
	if before := h["Via"]; len(before) > 0 {
		return strings.Join(before, ", ") + ", " + own
	}
	return own
}
