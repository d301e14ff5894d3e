package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
)

// helperTime bounds a helper's whole answer.
const helperTime = 30 * time.Second

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
		if names := q.servedNames(); ask.Model == "" && len(names) > 1 {
			return deny(badRequest, "the request names no model and there are several: name one of %s", strings.Join(names, ", ")).about("model")
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
	names := q.candidates(model)
	if len(names) == 0 {
		names = []string{""}
	}
	for _, m := range names {
		if name, _, ok := q.g.controller.Helper(now, m, engines); ok {
			return name, m, nil
		}
	}
	return "", "", q.nobody(model, names)
}

// nobody says why no replica could help: nobody has the model, or whoever has
// it is out.
func (q *visit) nobody(public string, names []string) *denial {
	there := q.fleet()
	known := slices.ContainsFunc(there, func(m admission.ListedModel) bool {
		return slices.ContainsFunc(names, func(n string) bool { return goesBy(m, n) })
	})
	if known || public == "" || len(there) == 0 {
		return deny(admission.ReasonNoReplica, "every replica that could serve this request is out")
	}
	return q.unknownModel(public)
}

// unknownModel names the models there are for the key.
func (q *visit) unknownModel(public string) *denial {
	d := deny(admission.ReasonModelNotFound, "model %q not found", clipped(public))
	d.Models = q.modelNames()
	return d
}

// fleet lists the models of the replicas that serve the path.
func (q *visit) fleet() []admission.ListedModel {
	engines := q.g.enginesOf(q.ep)
	return slices.DeleteFunc(q.g.controller.ListModels(q.at), func(m admission.ListedModel) bool {
		return !slices.Contains(engines, m.Engine)
	})
}

// modelNames are the names the key may use on the path, aliases first.
func (q *visit) modelNames() (names []string) {
	for _, a := range q.v.Aliases {
		if q.key.mayUse(a.Name) {
			names = append(names, a.Name)
		}
	}
	for _, n := range q.servedNames() {
		if q.key.mayUse(n) && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// servedNames are the models that replicas serve on the path.
func (q *visit) servedNames() (names []string) {
	for _, m := range q.fleet() {
		if !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	return names
}
