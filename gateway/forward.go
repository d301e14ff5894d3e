package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/gateway/upstream"
)

// Bounds of what takes no slot.
const (
	atOnce   = 32          // such requests one replica gets at a time
	gateWait = time.Second // how long one more waits for its turn
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
		q.writable()
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
	q.flight.onCut(cancelling(cancel))
	return ctx, cancel
}

// cancelling is the step of a request that a context ends.
type cancelling context.CancelFunc

func (c cancelling) cutShort() { c() }

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
	if q.r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there to be told
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
	q.writable()
	q.w.WriteHeader(answer.Status)
}
