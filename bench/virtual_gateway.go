package bench

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"switchyard/admission"
	"switchyard/replica"
	"switchyard/simserver/model"
)

// gatewayFront is the gateway in a virtual run: the same controller as in the
// real one, driven as package gateway drives it, without its sockets.
type gatewayFront struct {
	w         *world
	ctl       *admission.Controller
	cfg       admission.Config
	times     gatewayTimes
	keys      map[string]KeySpec
	tick      alarm
	tickets   map[*admission.Ticket]*journey
	granted   []*admission.Ticket
	zombies   int
	unordered bool
	blind     bool // to GPUs: their readings, and what an engine says of them
	audit     audit
	judge     *oracle // nil: the controller alone decides
}

// way is a journey's part in the gateway.
type way struct {
	ticket *admission.Ticket
	kept   *reply // the last answer of a replica that may have to be passed on
	due    alarm  // the oracle's
}

// reply is a replica's own answer that is no success.
type reply struct {
	a      *attempt
	status int
	after  time.Duration
}

// anyEngine serves chat in OpenAI's form, the only path that the bench uses.
var anyEngine = []replica.Engine{replica.EngineOllama, replica.EngineLlamaCpp, replica.EngineVLLM, replica.EngineOpenAI}

func newGatewayFront(w *world, cfg admission.Config, times gatewayTimes) *gatewayFront {
	g := &gatewayFront{w: w, cfg: cfg, times: times, tickets: map[*admission.Ticket]*journey{}}
	g.ctl = admission.New(cfg, w.now)
	g.ctl.Granted(nil)
	g.tick.who = ticking{g}
	return g
}

type ticking struct{ g *gatewayFront }

// wake is the controller's clock: it is told the time when it wants to be.
func (t ticking) wake() {
	g := t.g
	g.ctl.TakeEvents()
	if next := g.ctl.Tick(g.w.now); next.IsZero() {
		g.w.plan.drop(&g.tick)
	} else {
		g.w.plan.set(&g.tick, next)
	}
}

// settle hands out what the controller has granted.
func (g *gatewayFront) settle() bool {
	did := false
	select {
	case <-g.ctl.Wake():
		ticking{g}.wake()
		did = true
	default:
	}
	g.granted = g.ctl.Granted(g.granted[:0])
	for _, t := range g.granted {
		did = true
		j := g.tickets[t]
		select {
		case grant := <-t.C():
			g.take(j, grant)
		default: // its client left in this moment: Leave has taken it back
		}
	}
	return did
}

func (g *gatewayFront) arrive(j *journey) {
	r, now := j.r, g.w.now
	class := g.class(r)
	j.way.ticket = g.ctl.Arrive(now, admission.Arrival{ID: requestID(r), Class: class, Key: keyName(r), At: now})
	g.tickets[j.way.ticket] = j
	if j.prompt == nil {
		j.prompt = chain(nil, r.Prompt...)
	}
	if !g.mayAsk(r) {
		g.refuse(j, &admission.Refusal{Reason: admission.ReasonForbidden})
		return
	}
	if ref := g.ctl.Admit(now, j.way.ticket, g.ask(j, class)); ref != nil {
		g.refuse(j, ref)
		return
	}
	g.judge.accepted(j)
}

// mayAsk reports whether the request's key may use its model.
func (g *gatewayFront) mayAsk(r *Request) bool {
	allowed := g.keys[r.Key].Models
	return len(allowed) == 0 || slices.Contains(allowed, "*") || slices.Contains(allowed, r.Model)
}

// class is the one that the gateway gives a request: as stated or as its key
// says, never above what the key may.
func (g *gatewayFront) class(r *Request) string {
	key := g.keys[r.Key]
	name := r.Class
	if g.unordered {
		name = ""
	}
	if name == "" {
		name = key.Class
	}
	at := g.place(name)
	if key.MaxClass != "" {
		at = max(at, g.place(key.MaxClass))
	}
	return g.cfg.Classes[at].Name
}

// place is a class's place in the configuration, or the default class's.
func (g *gatewayFront) place(name string) int {
	at := 0
	for i := range g.cfg.Classes {
		switch g.cfg.Classes[i].Name {
		case name:
			return i
		case g.cfg.DefaultClass:
			at = i
		}
	}
	return at
}

func keyName(r *Request) string {
	if r.Key == "" {
		return "anonymous"
	}
	return r.Key
}

// ask is what the gateway would read in the request's body.
func (g *gatewayFront) ask(j *journey, class string) admission.Ask {
	r, messages := j.r, 0
	for _, p := range r.Prompt {
		if p.Role != RoleSame {
			messages++
		}
	}
	text := max(1, r.PromptTokens-messages*messageTokens)
	deadline, stated := g.cfg.Classes[g.place(class)].Deadline, r.Stated && !g.unordered
	if stated {
		deadline = r.Deadline
	}
	parts := make([]admission.Part, len(j.prompt))
	for i, p := range j.prompt {
		parts[i] = admission.Part{Hash: p.Hash, Tokens: p.Tokens}
	}
	return admission.Ask{
		Class: class, Models: []string{r.Model}, Public: r.Model, Path: chatPath, Engines: anyEngine, Width: 1,
		Bytes: int64(bytesPerToken*text + bodyBytes + messageBytes*messages), BodyHash: blend(hashOf(j.prompt), xxhash.Sum64String(r.Key)),
		Try: tryOf(r), PromptTokens: text, Chain: parts, MaxTokens: r.MaxTokens, Stream: r.Stream,
		Deadline: g.w.now.Add(deadline), ClientDeadline: stated,
	}
}

// tryOf is what the SDK says in X-Stainless-Retry-Count.
func tryOf(r *Request) admission.Try {
	if r.SDK && r.Retry > 0 {
		return admission.TryAgain
	}
	return admission.TryUnsaid
}

// take follows a grant.
func (g *gatewayFront) take(j *journey, grant admission.Grant) {
	switch ref := grant.Refusal; {
	case ref == nil && g.judge.refuses(j, grant.Assignment):
		g.ctl.Finish(g.w.now, grant.Assignment, admission.AttemptResult{Kind: admission.ResultClientGone, NothingSent: true})
		g.refuse(j, tooLate)
	case ref == nil:
		g.begin(j, grant.Assignment)
	case ref.PassOn && j.way.kept != nil:
		g.passOn(j)
	default:
		g.refuse(j, ref)
	}
}

// leave ends a request whose client's patience is over.
func (g *gatewayFront) leave(j *journey) {
	if a := j.now; a != nil {
		g.finish(a, admission.AttemptResult{Kind: admission.ResultClientGone, Running: true})
		return
	}
	g.ctl.Leave(g.w.now, j.way.ticket)
	g.end(j, admission.Cancelled, "")
	j.end(0, "", ErrLeft)
}

// refuse answers in the gateway's own words.
func (g *gatewayFront) refuse(j *journey, ref *admission.Refusal) {
	status := statusOf(ref.Reason)
	outcome := admission.Refused
	if status == 502 || status == 504 {
		outcome = admission.Failed
	}
	wait := ref.RetryAfter
	if wait <= 0 && (status == 429 || status == 503) {
		wait = time.Second
	}
	if wait > 0 {
		wait = (wait + time.Millisecond - 1).Truncate(time.Millisecond)
		s := wait.Seconds()
		j.rec.RetryAfterS = &s
	}
	j.rec.NoRetry = ref.NoRetry || wait > time.Minute
	g.end(j, outcome, ref.Reason)
	j.end(status, string(ref.Reason), "")
}

// passOn answers with what a replica has said.
func (g *gatewayFront) passOn(j *journey) {
	k := j.way.kept
	j.rec.Replica, j.rec.Attempts = k.a.on.name, k.a.hold.grant.Attempt
	outcome := admission.Completed
	if k.status >= 500 {
		outcome = admission.Failed
	}
	if k.after > 0 {
		s := k.after.Seconds()
		j.rec.RetryAfterS = &s
	}
	g.end(j, outcome, "")
	j.end(k.status, "", "")
}

// end closes the books on a request.
func (g *gatewayFront) end(j *journey, o admission.Outcome, reason admission.Reason) {
	g.w.plan.drop(&j.way.due)
	g.ctl.End(g.w.now, j.way.ticket, o, reason)
	g.audit.ended(o)
	delete(g.tickets, j.way.ticket)
	g.audit.look(g.ctl, g.w.now)
}

func (g *gatewayFront) idle() bool { return g.zombies == 0 }

func (g *gatewayFront) violations() []string {
	return g.audit.close(g.ctl.Snapshot(g.w.now))
}

// statusOf is the status that goes with a code of the gateway's.
func statusOf(r admission.Reason) int {
	switch r {
	case admission.ReasonModelNotFound, admission.ReasonNotFound:
		return 404
	case admission.ReasonBadRequest:
		return 400
	case admission.ReasonForbidden:
		return 403
	case admission.ReasonUpstreamFailed:
		return 502
	case admission.ReasonUpstreamTimeout:
		return 504
	case admission.ReasonNoReplica, admission.ReasonDraining:
		return 503
	}
	return 429
}

// The shape of a request as the bench sends it.
const (
	chatPath      = "/v1/chat/completions"
	bytesPerToken = 4
	bodyBytes     = 120 // of a body beside its messages
	messageBytes  = 30  // of a message beside its text
)

// rejected is what a client of the engine itself sees of a rejection: a status,
// or 0 for a connection that is refused or reset.
func rejected(rej *model.Rejection) int {
	switch rej.Kind {
	case model.RejectDown, model.RejectReset:
		return 0
	case model.RejectModel:
		return 404
	case model.RejectQueueFull, model.RejectLoading:
		return 503
	case model.RejectTooLong:
		return 400
	}
	return rej.Status
}
