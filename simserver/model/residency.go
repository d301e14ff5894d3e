package model

import "time"

// residency is whether a model is in memory. Only Ollama's change.
type residency uint8

const (
	absent residency = iota
	loading
	resident
)

// needsLoad reports whether the work must wait for the model: it is not there,
// or there with another context size, or others wait for that already.
func (r *runner) needsLoad(w *Work) bool {
	return r.state != resident || len(r.waiting) > 0 || r.wanted(w) != r.context
}

func (r *runner) wanted(w *Work) int {
	if r.e.cfg.Kind == Ollama && w.Request.Context > 0 {
		return w.Request.Context
	}
	return r.e.cfg.Context
}

// load begins to load the model for the first that waits, once nothing runs.
func (r *runner) load(at time.Time) {
	if len(r.waiting) == 0 || r.state == loading || r.busy() {
		return
	}
	r.state, r.context = loading, r.wanted(r.waiting[0])
	r.readyAt = at.Add(time.Duration(float64(r.e.cfg.LoadTime) * r.e.slowness()))
	r.expires = time.Time{}
	if !r.readyAt.After(at) {
		r.ready(at)
	}
}

// ready lets in those who waited for the model as it is now loaded.
func (r *runner) ready(at time.Time) {
	r.state = resident
	r.cache = newCache(r.e.cfg.CacheTokens)
	for len(r.waiting) > 0 && r.wanted(r.waiting[0]) == r.context {
		w := r.waiting[0]
		r.waiting = r.waiting[1:]
		w.Load = at.Sub(w.Arrived)
		r.enqueue(w)
	}
}

// unwait takes ended work out of those who wait for the model.
func (r *runner) unwait(w *Work) {
	for i, o := range r.waiting {
		if o == w {
			r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
			return
		}
	}
}

// busy reports whether work runs or waits for a slot.
func (r *runner) busy() bool { return r.free < len(r.slots) || r.live > 0 }

// rest starts the time after which an idle model is unloaded.
func (r *runner) rest(at time.Time) {
	if r.e.cfg.Kind != Ollama || r.state != resident || r.busy() {
		return
	}
	r.expires = time.Time{}
	if r.keepAlive >= 0 {
		r.expires = at.Add(r.keepAlive)
	}
}

// next is when the runner has something to do by itself; zero: never.
func (r *runner) next() time.Time {
	switch {
	case r.state == loading:
		return r.readyAt
	case !r.batchEnds.IsZero():
		return r.batchEnds
	}
	return r.expires
}

// fire does what is due.
func (r *runner) fire(at time.Time) {
	due := func(t time.Time) bool { return !t.IsZero() && !t.After(at) }
	if r.state == loading && due(r.readyAt) {
		r.ready(at)
	}
	if due(r.batchEnds) {
		r.finishBatch(at)
	}
	if due(r.expires) && r.state == resident && !r.busy() {
		r.state, r.expires = absent, time.Time{}
	}
}

// Unload makes Ollama forget a model as soon as nothing runs on it; false: it
// does not know the model.
func (e *Engine) Unload(now time.Time, name string) bool {
	e.run(now)
	r := e.find(name)
	if r == nil {
		return false
	}
	switch {
	case r.state != resident:
	case r.busy():
		r.keepAlive = 1 // a moment after the last one has ended
	default:
		r.state, r.expires = absent, time.Time{}
	}
	return true
}

// crashRunners is the death of the processes that hold Ollama's models: what
// they had in hand ends, the models are to be loaded again, and the server and
// those who wait for a load stay.
func (e *Engine) crashRunners(at time.Time) {
	for _, r := range e.runners {
		if e.cfg.Kind != Ollama || r.state != resident {
			continue
		}
		waiting := r.waiting
		r.waiting = nil
		r.each(func(w *Work) { e.end(w, EndDied, at) })
		r.waiting = waiting
		r.state, r.expires = absent, time.Time{}
		if !r.batchEnds.IsZero() {
			r.batchEnds = time.Time{}
			e.cfg.Device.computing--
		}
	}
}
