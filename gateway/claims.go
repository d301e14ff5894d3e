package gateway

import (
	"errors"

	"github.com/cespare/xxhash/v2"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/replica"
)

// credentials checks the headers that every path but the health checks needs
// right: where the request has been, how its body comes, and who sends it.
func (q *visit) credentials() *denial {
	h := q.r.Header
	q.key = q.v.findKey(h)
	switch {
	case q.v.looped(h):
		return deny(admission.ReasonLoop, "this request has passed this gateway before (Via: %s): a replica's url leads back here", q.v.via)
	case encoded(h):
		return deny(admission.ReasonEncoding, "compressed bodies are not taken: send it as it is")
	case q.key == nil && q.v.KeysRequired:
		return deny(admission.ReasonUnauthorized, "a known key is required, as Authorization: Bearer KEY or X-Api-Key: KEY")
	}
	return nil
}

// wishes reads class and deadline from the headers.
func (q *visit) wishes() (d *denial) {
	q.byHeader, d = q.v.headerClass(q.r.Header)
	q.class = q.v.class(q.byHeader, "", q.key)
	mark(q.w.Header(), "X-Switchyard-Class", q.values[1:2:2], q.class)
	if d == nil {
		q.patience, d = q.v.headerDeadline(q.r.Header)
	}
	return d
}

func (q *visit) keyName() string {
	if q.key == nil {
		return anonymous
	}
	return q.key.Name
}

// unreadable is the denial of a body that the dialect cannot take.
func unreadable(err error) *denial {
	if bad, ok := errors.AsType[*dialect.BadRequest](err); ok {
		return deny(badRequest, "%s", bad.Message).about(bad.Param)
	}
	return deny(badRequest, "%v", err)
}

// candidates are the names that may stand behind a public name, best first;
// none where the client names no model.
func (q *visit) candidates(name string) []string {
	if name == "" {
		return nil
	}
	if c, ok := q.v.aliases[name]; ok {
		return c
	}
	if q.format == dialect.Ollama {
		if c, ok := q.v.aliases[untagged(name)]; ok {
			return c
		}
	}
	q.only[0] = name
	return q.only[:]
}

// mayAsk checks the key's models. A request that names none is for the only
// model there is, so that one must be allowed.
func (q *visit) mayAsk(model string) *denial {
	if model != "" {
		if !q.key.mayUse(model) {
			return deny(admission.ReasonForbidden, "the key may not use the model %q", clipped(model)).about("model")
		}
		return nil
	}
	if q.key == nil || len(q.key.Models) == 0 {
		return nil
	}
	for _, m := range q.fleet() {
		if !q.key.mayUse(m.Name) {
			return deny(admission.ReasonForbidden, "the key may use only some models: name one").about("model")
		}
	}
	return nil
}

// enginesOf names the engines that serve the endpoint.
func (g *Gateway) enginesOf(ep *dialect.Endpoint) []replica.Engine {
	if es, ok := g.engines.Load(ep); ok {
		return es.([]replica.Engine)
	}
	es := make([]replica.Engine, len(ep.Engines))
	for i, e := range ep.Engines {
		es[i] = replica.Engine(e)
	}
	g.engines.Store(ep, es)
	return es
}

// hashOf recognises the same body of the same key again, by the body's sum.
func hashOf(key string, sum uint64) uint64 { return sum ^ xxhash.Sum64String(key) }
