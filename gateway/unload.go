package gateway

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/dialect"
	"switchyard/gateway/upstream"
)

// unloadAnswer bounds an unload's answer: a line.
const unloadAnswer = 64 << 10

// unload passes an Ollama unload (keep_alive 0 and nothing to do) on to every
// replica that has the model in memory, since the client knows of only one
// server. It takes no slot: Ollama frees the memory when running work is done.
// Where the model is nowhere resident one replica that has it may say so.
func (q *visit) unload(j *job, names []string) {
	if d := q.g.stopping(time.Now()); d != nil {
		q.deniedBy(d)
		return
	}
	forwardable(q.r.Header)
	where := q.residents(names)
	if len(where) == 0 {
		name, model, d := q.helper(j.ask.Model)
		if d != nil {
			q.deniedBy(d)
			return
		}
		where = []resident{{name, model}}
	}
	best, name := q.unloadAll(j, where)
	if best == nil {
		q.deniedBy(deny(admission.ReasonUpstreamFailed, "no replica answered the unload"))
		return
	}
	q.relayHead(name, best.head)
	q.w.Write(best.body) // a client that is gone needs no answer
	q.end = ending{outcome: outcomeOfAnswer(best.head.Status), status: best.head.Status}
}

// resident is a model in a replica's memory.
type resident struct{ replica, model string }

// residents lists where any of the names is in memory.
func (q *visit) residents(names []string) (where []resident) {
	for _, m := range q.fleet() {
		if m.Up && m.Resident &&
			slices.ContainsFunc(names, func(n string) bool { return goesBy(m, n) }) {
			where = append(where, resident{m.Replica, m.Name})
		}
	}
	return where
}

// unloaded is one replica's answer.
type unloaded struct {
	head *upstream.Response
	body []byte
}

// unloadAll asks all of them at once and returns the answer to pass on: the
// first, in order, that is a success, else the first at all; nil if none came.
func (q *visit) unloadAll(j *job, where []resident) (best *unloaded, name string) {
	ctx, cancel := q.cuttable()
	defer cancel()
	answers := make([]*unloaded, len(where))
	var all sync.WaitGroup
	for i, w := range where {
		all.Go(func() {
			body := j.body
			if w.model != j.ask.Model {
				body = dialect.ReplaceModel(body, j.ask, w.model)
			}
			answers[i] = q.unloadOne(ctx, parcel{w.replica, body, q.at.Add(helperTime)})
		})
	}
	all.Wait()
	for i, a := range answers {
		if a != nil && (best == nil || best.head.Status >= 300 && a.head.Status < 300) {
			best, name = a, where[i].replica
		}
	}
	return best, name
}

func (q *visit) unloadOne(ctx context.Context, p parcel) *unloaded {
	x, head, err := q.exchange(ctx, p)
	if err != nil {
		q.g.log().Warn("a replica did not answer an unload", "replica", p.replica, "error", err)
		return nil
	}
	defer x.Close()
	stop := context.AfterFunc(ctx, x.Interrupt)
	defer stop()
	a := &unloaded{head: head}
	for len(a.body) < unloadAnswer {
		piece, err := x.Next(p.by)
		a.body = append(a.body, piece...)
		if err == io.EOF {
			return a
		}
		if err != nil {
			return nil
		}
	}
	return nil
}
