package gateway

import (
	"errors"
	"io"
	"os"
	"time"

	"switchyard/admission"
)

// awaited is what an attempt waits for, which decides how long.
type awaited uint8

const (
	awaitToken awaited = iota // the first content: the first-token timeout, and the move
	awaitMore                 // the next bytes: stall_timeout
	awaitEnd                  // what must follow soon: the body of an error, the end after the terminal event
)

const (
	errorBodyTimeout = 5 * time.Second // for the body of an error answer
	tailTimeout      = 5 * time.Second // from the terminal event to the answer's end
)

// head waits for the answer's status and headers; false: the attempt is over.
func (at *attempt) head() bool {
	for {
		resp, err := at.exchange.Head(at.until())
		if err == nil {
			at.resp = resp
			return true
		}
		if at.fails(err) {
			return false
		}
	}
}

// next gives the next bytes of the answer; they are good until it is called
// again. Without any, the answer has ended well, which whollyRead says, or the
// attempt is over.
func (at *attempt) next() (p []byte, ok bool) {
	for {
		p, err := at.exchange.Next(at.until())
		if err == nil {
			at.heard = time.Now()
			return p, true
		}
		if err == io.EOF {
			at.whollyRead = true
			return nil, false
		}
		if at.fails(err) {
			return nil, false
		}
	}
}

// fails reports whether the attempt is over by an error of its exchange.
func (at *attempt) fails(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return at.timeUp()
	}
	at.lost(err)
	return true
}

// until is when to look up from waiting.
func (at *attempt) until() time.Time {
	switch {
	case at.awaits == awaitMore:
		return at.alive.Add(at.settings.StallTimeout)
	case at.awaits == awaitEnd:
		return at.endBy
	case !at.moveAt.IsZero() && at.moveAt.Before(at.tokenBy):
		return at.moveAt
	}
	return at.tokenBy
}

// flow says that content has begun: from now on only silence ends the attempt.
func (at *attempt) flow() {
	if at.awaits == awaitToken {
		at.awaits = awaitMore
	}
}

// expect says that the end must come within d.
func (at *attempt) expect(d time.Duration) {
	if at.awaits != awaitEnd {
		at.awaits, at.endBy = awaitEnd, time.Now().Add(d)
	}
}

// timeUp looks up: it reports whether the attempt is over.
func (at *attempt) timeUp() bool {
	now := time.Now()
	if at.awaits == awaitToken {
		return at.overdue(now)
	}
	silence := now.Sub(later(at.sentAt, at.alive)).Round(time.Millisecond)
	at.silent("silent for " + silence.String() + " in the middle of its answer")
	return true
}

// silent ends the attempt on a replica that says nothing more. It may still be
// at work.
func (at *attempt) silent(detail string) {
	at.over(admission.ResultNoToken, detail)
	if at.committed {
		at.result.Kind, at.broke = admission.ResultBroken, brokeStall
	}
	at.result.Running = true
}

// minMoveGap ends the halving of the times at which a silent attempt asks to
// move.
const minMoveGap = 250 * time.Millisecond

// overdue looks up from waiting for the first token: may the attempt move to
// another replica, has its time passed without a sign of progress?
func (at *attempt) overdue(now time.Time) bool {
	ctl := at.j.gw.controller
	if !at.moveAt.IsZero() && !now.Before(at.moveAt) {
		if !at.committed && ctl.MayMove(now, at.a) {
			at.over(admission.ResultMoved, "silent for half of its time while another replica is free")
			at.result.Running = true
			return true
		}
		// Ask again at half of what then remains: a slot may have come free.
		if at.moveGap /= 2; at.moveGap < minMoveGap {
			at.moveAt = time.Time{}
		} else {
			at.moveAt = now.Add(at.moveGap)
		}
	}
	if now.Before(at.tokenBy) {
		return false
	}
	if more := ctl.Overdue(now, at.a); more > 0 {
		at.tokenBy = now.Add(more)
		return false
	}
	at.silent("no first token in " + now.Sub(at.sentAt).Round(time.Millisecond).String())
	return true
}

// tokenSeen notes the first content of the answer.
func (at *attempt) tokenSeen() {
	if !at.firstToken.IsZero() {
		return
	}
	at.firstToken = at.heard
	at.flow()
	j := at.j
	j.record.FirstToken = at.heard.Sub(j.headersAt)
	j.gw.controller.FirstToken(at.heard, at.a)
	j.gw.observer.FirstToken(j.ask.Model, j.class, j.record.FirstToken)
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
