// Package gateway is the data plane: it takes requests in, brings each to the
// replica the controller chose and its answer back to the client. It waits,
// reads and writes, but decides nothing about order, forecasts or replicas:
// that is package admission's.
//
// A request is one goroutine, its handler, and goes two halves of a way. The
// intake (intake.go and what it calls) reads headers and body, finds out who
// asks for what and by when, opens the books with Controller.Arrive and closes
// them with Controller.End, exactly once. Between the two, job.run takes an
// accepted request through waiting, attempts and the relay of the answer.
package gateway

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"switchyard/admission"
	"switchyard/gateway/upstream"
)

// Gateway is the handler of the data plane.
type Gateway struct {
	controller *admission.Controller
	observer   Observer
	view       atomic.Pointer[view]

	// Settled, if set before serving, is told that a replica whose word decides
	// about zombies has noticed all who left: a probe now would free their slots.
	Settled func(replica string)

	flights   flights                   // what is under way, for draining
	draining  atomic.Pointer[time.Time] // when draining ends; nil: the gateway serves
	cut       chan struct{}             // closed when the time to drain is over
	uploading atomic.Int64              // bytes held by bodies that are still coming
	stored    *stored                   // which replica gave which response id
	gates     gates                     // how many slot-free requests each replica has
	engines   sync.Map                  // *dialect.Endpoint → []replica.Engine
	zombies   zombies                   // attempts that ended before their replica did

	waiting    atomic.Int64            // requests that wait and are not parked
	parkBehind int64                   // so many of those at most
	back       atomic.Pointer[returns] // for those that were parked; nil: nobody is
}

// Observer is told what happens, for metrics and logs. Its methods must not
// block; they are called from the goroutine of the request.
type Observer interface {
	// RequestEnded reports every inference request's end, once.
	RequestEnded(Record)
	// Refused reports how long a refusal on arrival took, from the last byte
	// of the body (or of the headers, where the body was not needed) until the
	// answer was written. Requests turned away from the queue are not reported
	// here; RequestEnded has them all.
	Refused(class, reason string, took time.Duration)
	AttemptEnded(replica, result string)
	Retried(reason string)
	StreamBroken(replica, reason string)
	// FirstToken reports the time from the end of the headers to the first
	// token.
	FirstToken(model, class string, d time.Duration)
	// ReplicaChanged reports a replica that came, went, or changed its breaker.
	ReplicaChanged(admission.Event)
}

// Record is an inference request's entry in the access log.
type Record struct {
	Time   time.Time // end of its headers
	ID     string
	Method string
	Path   string
	Class  string
	Key    string
	Model  string // as the client gave it

	Outcome  admission.Outcome
	Reason   admission.Reason // empty where the outcome says it all
	Decision admission.Decision
	Took     time.Duration // from the end of the headers to the end of the answer
	BytesIn  int64         // of the body

	travel // what the way found out; zero where it did not come to that
}

// New returns a gateway over the controller. Start its clock with Run.
func New(s Settings, c *admission.Controller, o Observer) *Gateway {
	g := &Gateway{controller: c, observer: o, stored: newStored(maxStored), cut: make(chan struct{}), parkBehind: parkBehind}
	g.view.Store(newView(s, nil))
	return g
}

// Apply replaces the settings. Requests under way keep what they began with.
// Apply new settings here before telling the controller of new replicas, so
// that a replica it grants has its client.
func (g *Gateway) Apply(s Settings) {
	old := g.view.Load()
	fresh := newView(s, old)
	g.view.Store(fresh)
	old.closeUnused(fresh)
}

// replicaClient returns the client that talks to the replica; nil if no such
// replica is or lately was configured.
func (g *Gateway) replicaClient(name string) *upstream.Client {
	if l := g.view.Load().link(name); l != nil {
		return l.client
	}
	return nil
}

// replicaAuth returns the replica's API key for its Authorization header;
// empty where none is configured.
func (g *Gateway) replicaAuth(name string) Secret {
	if l := g.view.Load().link(name); l != nil {
		return l.key
	}
	return ""
}

// settings are the ones in force now.
func (g *Gateway) settings() *Settings { return &g.view.Load().Settings }

// log is the logger in force now. Prompts and keys never go there.
func (g *Gateway) log() *slog.Logger { return g.view.Load().Log }
