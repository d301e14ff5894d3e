package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
	"switchyard/replica"
)

// Bounds of what takes no slot.
const (
	atOnce     = 32               // such requests one replica gets at a time
	gateWait   = time.Second      // how long one more waits for its turn
	helperTime = 30 * time.Second // for a helper's whole answer
)

// gates bound how many slot-free requests each replica works on.
type gates struct {
	mu struct {
		sync.Mutex
		byName map[string]chan struct{}
	}
}

// enter takes a place at the replica, waiting for one a little. The place must
// be given back by leave.
func (gs *gates) enter(ctx context.Context, name string) (leave func(), ok bool) {
	gs.mu.Lock()
	if gs.mu.byName == nil {
		gs.mu.byName = map[string]chan struct{}{}
	}
	gate := gs.mu.byName[name]
	if gate == nil {
		gate = make(chan struct{}, atOnce)
		gs.mu.byName[name] = gate
	}
	gs.mu.Unlock()
	leave = func() { <-gate }
	select {
	case gate <- struct{}{}:
		return leave, true
	default:
	}
	timer := time.NewTimer(gateWait)
	defer timer.Stop()
	select {
	case gate <- struct{}{}:
		return leave, true
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, false
}

// help passes a request on that needs no slot: /api/show, /tokenize and such.
func (q *visit) help() {
	q.apart(func(body []byte) *denial {
		ask, err := dialect.Parse(q.ep, body)
		if err != nil {
			return unreadable(err)
		}
		if d := q.mayAsk(ask.Model); d != nil {
			return d
		}
		name, model, d := q.helper(ask.Model)
		if d != nil {
			return d
		}
		if model != ask.Model {
			body = dialect.ReplaceModel(body, ask, model)
		}
		return q.forward(name, body, helperTime)
	})
}

// manage passes Ollama's model management on, where it is allowed. It may
// stream for hours.
func (q *visit) manage() {
	if !q.v.Limits.OllamaAdmin {
		q.deny(deny(admission.ReasonForbidden, "model management is not allowed here (limits.ollama_admin)"))
		return
	}
	q.apart(func(body []byte) *denial {
		model := ""
		if ask, err := dialect.Parse(q.ep, body); err == nil {
			model = ask.Model
		}
		if d := q.mayAsk(model); model != "" && d != nil {
			return d
		}
		name, _, d := q.helper(model)
		if d != nil { // a model that is not there yet: anywhere
			name, _, d = q.helper("")
		}
		if d != nil {
			return d
		}
		return q.forward(name, body, 0)
	})
}

// storedResponse passes /v1/responses/{id} on to the replica that gave the id.
func (q *visit) storedResponse() {
	rest := strings.TrimPrefix(q.r.URL.EscapedPath(), "/v1/responses/")
	id, _, deeper := strings.Cut(rest, "/")
	q.apart(func(body []byte) *denial {
		name, ok := q.g.stored.find(id, q.keyName())
		if !ok {
			return deny(admission.ReasonNotFound, "no response %q is known here: it was never given, or is forgotten", clipped(id))
		}
		if q.r.Method == http.MethodDelete && !deeper {
			defer q.g.stored.forget(id)
		}
		return q.forward(name, body, 0)
	})
}

// apart runs a request that is in no books: it is waited for when the gateway
// stops, its body is read, and a denial answered.
func (q *visit) apart(way func(body []byte) *denial) {
	if d := q.g.stopping(q.at); d != nil {
		q.deny(d)
		return
	}
	q.g.flights.begin(&q.flight)
	forwardable(q.r.Header)
	body, free, err := q.body()
	if err != nil {
		e := q.bodyFailed(err)
		if e.severed {
			panic(http.ErrAbortHandler)
		}
		q.deny(e.denial)
		return
	}
	if free != nil {
		defer free()
	}
	if d := way(body); d != nil {
		q.deny(d)
	}
}

// helper finds a replica for a path that takes no slot, and the name it knows
// the model by.
func (q *visit) helper(model string) (name, sent string, d *denial) {
	engines := q.g.enginesOf(q.ep)
	now := time.Now()
	names := q.v.candidates(model, q.format)
	if len(names) == 0 {
		names = []string{""}
	}
	for _, m := range names {
		if name, _, ok := q.g.controller.Helper(now, m, engines); ok {
			return name, m, nil
		}
	}
	return "", "", q.nobody(model, names, engines)
}

// nobody says why no replica could help: nobody has the model, or whoever has
// it is out.
func (q *visit) nobody(public string, names []string, engines []replica.Engine) *denial {
	known, any := public == "", false
	var there []string
	for _, m := range q.g.controller.ListModels(q.at) {
		if !slices.Contains(engines, m.Engine) {
			continue
		}
		any = true
		known = known || slices.ContainsFunc(names, func(n string) bool { return goesBy(m, n) })
		if q.key.mayUse(m.Name) && !slices.Contains(there, m.Name) {
			there = append(there, m.Name)
		}
	}
	if known || !any {
		return deny(admission.ReasonNoReplica, "every replica that could serve this request is out")
	}
	d := deny(admission.ReasonModelNotFound, "there is no model %q here", clipped(public))
	d.Models = there
	return d
}

// forward passes the request on to the replica and its answer back as it
// comes. A nil denial says that an answer was begun. limit 0: as long as it
// takes, with no silence longer than stall_timeout.
func (q *visit) forward(name string, body []byte, limit time.Duration) *denial {
	leave, ok := q.g.gates.enter(q.r.Context(), name)
	if !ok {
		d := deny(admission.ReasonQueueFull, "the replica has %d requests of this kind in hand already", atOnce)
		d.RetryAfter = gateWait
		return d
	}
	defer leave()
	ctx, cancel := q.cuttable()
	defer cancel()
	x, answer, err := q.exchange(ctx, parcel{name, body, q.until(limit)})
	if err != nil {
		return q.undelivered(name, err)
	}
	defer x.Close()
	stop := context.AfterFunc(ctx, x.Interrupt)
	defer stop()
	q.relayHead(name, answer)
	for {
		piece, err := x.Next(q.until(limit))
		if err == io.EOF {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
		if _, err := q.w.Write(piece); err != nil {
			return nil
		}
		if answer.ContentLength < 0 {
			q.conn.Flush()
		}
	}
}

// until is the deadline of the next step.
func (q *visit) until(limit time.Duration) time.Time {
	if limit > 0 {
		return q.at.Add(limit)
	}
	return time.Now().Add(q.v.StallTimeout)
}

// cuttable is the request's context, which also ends when the time to drain does.
func (q *visit) cuttable() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(q.r.Context())
	q.flight.onCut(cancel)
	return ctx, cancel
}

// parcel is a request's body on its way to one replica.
type parcel struct {
	replica string
	body    []byte
	by      time.Time // when the answer's head is due
}

// exchange sends the request and waits for the answer's head.
func (q *visit) exchange(ctx context.Context, p parcel) (*upstream.Exchange, *upstream.Response, error) {
	client := q.g.replicaClient(p.replica)
	if client == nil {
		return nil, nil, errors.New("the replica is not configured any more")
	}
	extra := []string{"Via", q.g.viaHeader(q.r.Header), "X-Request-Id", q.id}
	if key := q.g.replicaAuth(p.replica); key != "" {
		extra = append(extra, "Authorization", "Bearer "+string(key))
	}
	x, err := client.Start(ctx, &upstream.Request{
		Method: q.r.Method, Target: q.r.URL.RequestURI(), Header: q.r.Header, Extra: extra, Body: p.body,
	}, p.by)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, x.Interrupt)
	defer stop()
	answer, err := x.Head(p.by)
	if err != nil {
		x.Close()
		return nil, nil, err
	}
	return x, answer, nil
}

// undelivered is the denial of a request that a replica gave no answer to.
func (q *visit) undelivered(name string, err error) *denial {
	if d := q.g.stopping(time.Now()); d != nil && q.g.wasCut() {
		return d
	}
	q.g.log().Warn("a replica did not answer a helper path", "replica", name, "path", q.ep.Path, "error", err)
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return deny(admission.ReasonUpstreamTimeout, "replica %s did not answer in time", name)
	}
	return deny(admission.ReasonUpstreamFailed, "replica %s gave no answer", name)
}

// relayHead passes the answer's status and headers on.
func (q *visit) relayHead(name string, answer *upstream.Response) {
	h := q.w.Header()
	for key, values := range answer.Header {
		if !strings.HasPrefix(key, "Access-Control-") && key != "X-Request-Id" && key != "Date" {
			h[key] = values
		}
	}
	h["X-Switchyard-Replica"] = []string{name}
	q.w.WriteHeader(answer.Status)
}
