package gateway

import (
	"net/http"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

// hearsBeats reports whether the client can be sent heartbeats while it waits:
// comments exist only in SSE, and only a client that asked for a stream reads
// the answer as one.
func (j *job) hearsBeats() bool { return j.ask.Stream && j.ep.Format != dialect.Ollama }

// waitBeating is wait with a heartbeat at each interval. The first one sends
// status 200: what goes wrong later can only be told as an error event, which
// is why queue.heartbeat is off unless configured.
func (j *job) waitBeating() *admission.Assignment {
	ticker := time.NewTicker(j.settings.Heartbeat)
	defer ticker.Stop()
	for there := true; there; {
		select {
		case g := <-j.ticket.C():
			return j.granted(g)
		case <-j.r.Context().Done():
			there = false
		case <-j.gw.cutting():
			there = false
		case now := <-ticker.C:
			there = j.beat(now) == nil
		}
	}
	j.giveUp()
	return nil
}

// beat sends a comment of a single line. A blank line after it would end an
// event without data, which some clients choke on.
func (j *job) beat(now time.Time) error {
	if !j.headSent {
		h := j.w.Header()
		h["Content-Type"] = []string{"text/event-stream"}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = accelOff
		j.record.Stream = true
		j.sendHead(http.StatusOK)
	}
	if err := j.write(now, []byte(":\n")); err != nil {
		return err
	}
	return j.flush()
}

// sendAsEvent ends a stream that heartbeats had begun with an answer that is
// none: the replica's refusal, or a body that is not streamed.
func (j *job) sendAsEvent(a *answer) {
	if a.status < http.StatusMultipleChoices {
		j.refuse(&admission.Refusal{
			Reason:  admission.ReasonUpstreamFailed,
			Message: "the inference server gave no stream though one was asked for",
		})
		return
	}
	j.fail(string(admission.ReasonUpstreamFailed), "the inference server answered "+a.words())
	j.end(outcomeOfAnswer(a.status), "")
}

// maxWords bounds how much of a replica's error is quoted in an event.
const maxWords = 1 << 10

// words is an error answer in one line.
func (a *answer) words() string {
	text := string(a.body[:min(len(a.body), maxWords)])
	return http.StatusText(a.status) + ": " + text
}
