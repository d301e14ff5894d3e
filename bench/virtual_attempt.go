package bench

import (
	"time"

	"switchyard/admission"
	"switchyard/simserver/model"
)

// hold is an attempt's part in the gateway: what package gateway keeps for one,
// with the same waits.
type hold struct {
	grant   *admission.Assignment
	first   time.Time
	tokenBy time.Time
	moveAt  time.Time
	moveGap time.Duration

	grown   time.Time // when it was last seen to have more tokens
	tokens  int
	stalled bool

	zombie  bool
	since   time.Time // a zombie
	endedAt time.Time // when the engine closed a zombie's connection
}

// minMoveGap ends the halving of the times at which a silent attempt asks to move.
const minMoveGap = 250 * time.Millisecond

// begin makes one attempt.
func (g *gatewayFront) begin(j *journey, grant *admission.Assignment) {
	a := &attempt{j: j, on: g.w.server(grant.Replica)}
	a.hold.grant = grant
	a.alarm.who = lookUp{g, a}
	if rej := a.on.submit(a); rej != nil {
		g.rejected(a, rej)
		return
	}
	j.now = a
	now := g.w.now
	h := &a.hold
	h.tokenBy = now.Add(grant.FirstTokenTimeout)
	if grant.MoveAfter > 0 {
		h.moveGap = max(minMoveGap, grant.MoveAfter)
		h.moveAt = now.Add(h.moveGap)
	}
	g.plan(a)
}

// rejected ends an attempt that the engine did not take.
func (g *gatewayFront) rejected(a *attempt, rej *model.Rejection) {
	status := rejected(rej)
	if status == 0 {
		g.finish(a, admission.AttemptResult{Kind: admission.ResultConnect, NothingSent: rej.Kind == model.RejectDown})
		return
	}
	after := rej.RetryAfter // said in whole seconds
	if after > 0 {
		after = (after + time.Second - 1).Truncate(time.Second)
	}
	a.j.way.kept = &reply{a, status, after}
	g.finish(a, admission.AttemptResult{
		Kind: admission.ResultStatus, Status: status, RetryAfter: after, ContextTooLong: rej.Kind == model.RejectTooLong,
	})
}

// plan sets when to look up from waiting.
func (g *gatewayFront) plan(a *attempt) {
	h := &a.hold
	switch {
	case h.first.IsZero() && !h.moveAt.IsZero() && h.moveAt.Before(h.tokenBy):
		g.w.plan.set(&a.alarm, h.moveAt)
	case h.first.IsZero():
		g.w.plan.set(&a.alarm, h.tokenBy)
	case a.on.faulty: // only a fault makes an engine fall silent in an answer
		g.w.plan.set(&a.alarm, g.w.now.Add(g.times.Stall/8))
	default:
		g.w.plan.drop(&a.alarm)
	}
}

type lookUp struct {
	g *gatewayFront
	a *attempt
}

func (l lookUp) wake() {
	switch {
	case l.a.hold.zombie:
		l.g.unheard(l.a)
	case !l.a.hold.first.IsZero():
		l.g.listen(l.a)
	default:
		l.g.overdue(l.a)
	}
}

// overdue looks up from waiting for the first token.
func (g *gatewayFront) overdue(a *attempt) {
	h, now := &a.hold, g.w.now
	if !h.moveAt.IsZero() && !now.Before(h.moveAt) {
		if g.ctl.MayMove(now, h.grant) {
			g.finish(a, admission.AttemptResult{Kind: admission.ResultMoved, Running: true})
			return
		}
		if h.moveGap /= 2; h.moveGap < minMoveGap {
			h.moveAt = time.Time{}
		} else {
			h.moveAt = now.Add(h.moveGap)
		}
	}
	if !now.Before(h.tokenBy) {
		more := g.ctl.Overdue(now, h.grant)
		if more <= 0 {
			g.finish(a, admission.AttemptResult{Kind: admission.ResultNoToken, Running: true})
			return
		}
		h.tokenBy = now.Add(more)
	}
	g.plan(a)
}

// listen looks whether an answer that has begun still grows.
func (g *gatewayFront) listen(a *attempt) {
	h := &a.hold
	a.on.pump()
	if n := a.work.Generated(); n > h.tokens {
		h.tokens, h.grown = n, g.w.now
	}
	if g.w.now.Sub(h.grown) >= g.times.Stall {
		h.stalled = true
		g.finish(a, admission.AttemptResult{Kind: admission.ResultBroken, Running: true})
		return
	}
	g.plan(a)
}

// happened follows an engine's event.
func (g *gatewayFront) happened(a *attempt, first bool) {
	h := &a.hold
	switch {
	case h.zombie:
		g.stirred(a)
	case a.over, first && !a.j.r.Stream: // an answer that is not streamed comes whole
	case first:
		h.first, h.grown, h.tokens = g.w.now, g.w.now, 1
		a.j.token()
		g.ctl.FirstToken(g.w.now, h.grant)
		g.plan(a)
	case a.work.End != model.Running:
		g.finish(a, g.result(a))
	}
}

// result is what an ended answer comes to.
func (g *gatewayFront) result(a *attempt) admission.AttemptResult {
	broken := admission.AttemptResult{Kind: admission.ResultConnect}
	switch {
	case a.begun:
		broken.Kind = admission.ResultBroken
	case a.headed():
		broken.Kind = admission.ResultEmpty
	}
	switch a.work.End {
	case model.EndDone:
		return admission.AttemptResult{Kind: admission.ResultOK, Status: 200, Usage: usage(a)}
	case model.EndDied: // its server lives on and says so, while it can
		if !a.begun {
			a.j.way.kept = &reply{a: a, status: 500}
			return admission.AttemptResult{Kind: admission.ResultStatus, Status: 500}
		}
	case model.EndEmpty:
		return admission.AttemptResult{Kind: admission.ResultEmpty, Status: 200}
	}
	return broken
}

// usage is what the answer says, in OpenAI's form: llama.cpp tells times, Ollama
// nothing of its cache.
func usage(a *attempt) admission.Usage {
	t := &a.work.Tasks[0]
	u := admission.Usage{PromptTokens: t.Prompt, OutputTokens: t.Decoded, CachedTokens: a.cached(), CacheSaid: a.on.cfg.Kind != model.Ollama}
	if a.on.cfg.Kind == model.LlamaCpp {
		u.Prompt, u.Decode = t.First.Sub(t.Started), t.Ended.Sub(t.First)
	}
	return u
}

// finish reports an attempt's result and follows the controller's verdict.
func (g *gatewayFront) finish(a *attempt, r admission.AttemptResult) {
	j, h := a.j, &a.hold
	a.over, j.now = true, nil
	g.w.plan.drop(&a.alarm)
	r.FirstTokenAt, r.Committed = h.first, !h.first.IsZero()
	next := g.ctl.Finish(g.w.now, h.grant, r)
	if r.Running {
		g.bury(a)
	}
	if r.Committed || r.Kind == admission.ResultOK {
		j.rec.Replica, j.rec.Attempts = a.on.name, h.grant.Attempt
	}
	switch {
	case r.Kind == admission.ResultOK:
		j.whole(a)
		g.end(j, admission.Completed, "")
		j.end(200, "", "")
	case r.Kind == admission.ResultClientGone:
		g.end(j, admission.Cancelled, "")
		j.end(0, "", ErrLeft)
	case r.Committed:
		g.brokeOff(a)
	case next.Action == admission.ActWait:
	case next.Action == admission.ActPassOn && j.way.kept != nil:
		g.passOn(j)
	case next.Refusal != nil:
		g.refuse(j, next.Refusal)
	default:
		g.refuse(j, &admission.Refusal{Reason: admission.ReasonUpstreamFailed})
	}
}

// brokeOff ends a stream that broke after the commit point by an error event.
func (g *gatewayFront) brokeOff(a *attempt) {
	reason := admission.ReasonUpstreamFailed
	if a.hold.stalled {
		reason = admission.ReasonUpstreamTimeout
	}
	a.j.rec.OutputTokens = a.work.Generated()
	g.end(a.j, admission.Failed, reason)
	a.j.end(200, string(reason), "the stream broke off with an error event")
}
