// Package probe finds out what replicas are and how they are: it asks each
// one, round after round, over HTTP, and hands what it learned on as
// replica.Facts. It decides nothing: who gets work, what a failed round means
// and when a breaker opens is the controller's business.
//
// Its promises to the servers it asks:
//
//   - A probe takes no slot and costs the engine next to nothing: a round is
//     one or two GET requests; model lists are read every tenth round and
//     after an outage.
//   - llama.cpp is asked no faster than every two seconds, because each answer
//     of its /slots restarts the second of silence it needs to notice that a
//     client has left.
//   - A sleeping llama.cpp is not woken, and one that would like to sleep is
//     let: see drowsy.
//   - A hung replica costs its own goroutine its own timeout, nothing else.
//
// Probe asks one replica; Prober runs one Probe per replica.
package probe

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"switchyard/replica"
)

// listEvery rounds a model list is read again.
const listEvery = 10

// Secret is a replica's API key. It never prints; convert it to use it.
type Secret string

// String hides the key from every kind of formatting.
func (Secret) String() string { return "[secret]" }

// GoString hides the key from %#v.
func (Secret) GoString() string { return "[secret]" }

// Target is a replica to be probed.
type Target struct {
	Name   string
	URL    *url.URL       // http or https; its path, if any, is a prefix
	Engine replica.Engine // EngineAuto: to be found out
	Key    Secret         // bearer token; empty: none
	Roots  *x509.CertPool // authorities for https; nil: the system's
}

func (t Target) equal(o Target) bool {
	return t.Name == o.Name && t.URL.String() == o.URL.String() &&
		t.Engine == o.Engine && t.Key == o.Key && t.Roots.Equal(o.Roots)
}

// Probe asks one replica, and remembers between rounds what need not be asked
// again. It is for one goroutine at a time.
type Probe struct {
	target  Target
	http    *client
	settled bool          // the engine has been recognised (or checked) since the last contact
	engine  asker         // nil until then
	last    replica.Facts // of the last good round: what a silent replica is still known by
}

// asker is what a probe knows of one kind of engine. It owns what it remembers.
type asker interface {
	// ask does a round. look says that the gateway has work there or waits for
	// an answer, so what the replica is doing must be found out now.
	ask(ctx context.Context, look bool) (replica.Facts, error)
	// forget drops what may be different when the replica answers again: it
	// may be another process then.
	forget()
}

// New returns a probe of the target. dial may be nil.
func New(t Target, dial DialFunc) *Probe {
	p := &Probe{target: t, http: newClient(t, dial)}
	p.last = blank(t.Engine)
	if t.Engine == "" {
		p.last.Engine = replica.EngineAuto
	}
	return p
}

// Close drops its connections.
func (p *Probe) Close() { p.http.close() }

// Round asks the replica once, giving it timeout for each request. With look
// it finds out what the replica is doing even where that is otherwise left
// out to let it sleep. What a round hands out is never changed afterwards.
func (p *Probe) Round(ctx context.Context, timeout time.Duration, look bool) replica.Facts {
	began := time.Now()
	p.http.timeout = timeout
	f, err := p.round(ctx, look)
	if err != nil {
		f = p.failed(err)
	} else {
		p.last = f
	}
	f.At, f.Took = began, time.Since(began)
	return f
}

func (p *Probe) round(ctx context.Context, look bool) (replica.Facts, error) {
	if !p.settled {
		if err := p.settle(ctx); err != nil {
			return replica.Facts{}, err
		}
	}
	return p.engine.ask(ctx, look)
}

// failed makes the facts of a round without a usable answer. Engine, models
// and slots stay as last known: an outage does not make a model unknown.
func (p *Probe) failed(err error) replica.Facts {
	p.settled = false
	if p.engine != nil {
		p.engine.forget()
	}
	f := p.last
	f.Up, f.Gone, f.Err = false, isGone(err), err.Error()
	f.Note, f.Loading, f.Sleeping = "", false, false
	f.InHand, f.Waiting, f.Progress = -1, -1, -1
	return f
}

// settle recognises the engine on first contact and after an outage, or checks
// that a configured one is not plainly another.
func (p *Probe) settle(ctx context.Context) error {
	engine := p.target.Engine
	switch engine {
	case replica.EngineOpenAI: // anything that speaks the format will do
	case replica.EngineAuto, "":
		found, err := identify(ctx, p.http)
		if err != nil {
			return err
		}
		if found.engine == replica.EngineAuto {
			return fmt.Errorf("%s does not look like an inference server: %s; is the url right?", p.http.base.Redacted(), found.saw)
		}
		engine = found.engine
	default:
		found, err := identify(ctx, p.http)
		if err != nil {
			return err
		}
		if found.certain && found.engine != engine {
			return fmt.Errorf("configured as engine: %s, but it is %s (%s); write engine: %s, or auto",
				engine, found.engine, found.saw, found.engine)
		}
	}
	if p.engine == nil || p.last.Engine != engine {
		p.engine = newAsker(engine, p.http)
		p.last = blank(engine)
	}
	p.settled = true
	return nil
}

func newAsker(e replica.Engine, c *client) asker {
	switch e {
	case replica.EngineLlamaCpp:
		return &llama{http: c}
	case replica.EngineOllama:
		return &ollama{http: c}
	case replica.EngineVLLM:
		return &vllm{http: c}
	default:
		return &openAI{http: c}
	}
}

// blank is the facts of a replica of which nothing is known.
func blank(e replica.Engine) replica.Facts {
	return replica.Facts{Engine: e, InHand: -1, Waiting: -1, Progress: -1}
}

// up is the facts of a replica that answers and says nothing.
func up(e replica.Engine) replica.Facts {
	f := blank(e)
	f.Up = true
	return f
}

// alive is the last resort of a round whose main question found no answer in
// time: busy is not dead. A server that answers a cheaper question is up, only
// what it is doing stays unknown.
func alive(ctx context.Context, c *client, path string, cause error) (note string, err error) {
	if !isTimeout(cause) || ctx.Err() != nil {
		return "", cause
	}
	if a, err := c.get(ctx, path); err != nil || a.status != http.StatusOK {
		return "", cause
	}
	return fmt.Sprintf("busy: %v, but GET %s was answered", cause, path), nil
}
