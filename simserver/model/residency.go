package model

import (
	"slices"
	"time"
)

// residency is whether a model is in memory. Ollama's come and go; llama.cpp's
// is absent while it sleeps; the others' are always resident.
type residency uint8

const (
	absent residency = iota
	loading
	resident
)

// needsLoad reports whether the work must wait for the model: it is not there,
// or there with another context size. While it is there as wanted no other who
// waits is before it.
func (r *runner) needsLoad(w *Work) bool {
	return r.state != resident || r.wanted(w) != r.context
}

func (r *runner) wanted(w *Work) int {
	if r.e.cfg.Kind == Ollama && w.Request.Context > 0 {
		return w.Request.Context
	}
	return r.e.cfg.Context
}

// schedule is Ollama's loop over those who wait for a load (server/sched.go,
// processPending): one at a time for the whole server, in order, and the first
// of them may have to wait until a model that is in its way has nothing left
// to do. Requests for a model that is resident as they want it do not come
// here (GetRunner): they go past those who wait, even when these wait for that
// very model to end. As recorded: A streams with a context of 4096, B wants
// 2048 and waits for A, C comes after B, wants 4096 and is served at once.
func (e *Engine) schedule(at time.Time) {
	for len(e.pending) > 0 {
		w := e.pending[0]
		r := w.runner
		switch {
		case r.state == resident && !r.needsLoad(w):
			e.pending = e.pending[1:]
			r.waits--
			w.Load = at.Sub(w.Arrived)
			r.enqueue(w)
		case e.anyLoading():
			return
		default:
			if v := e.inTheWay(r); v != nil {
				if !v.retire() {
					return
				}
				continue
			}
			r.load(at, r.wanted(w))
		}
	}
	e.pending = nil
}

func (e *Engine) anyLoading() bool {
	return slices.ContainsFunc(e.runners, func(r *runner) bool { return r.state == loading })
}

// inTheWay is the model that has to go before r can be loaded, if any: r itself
// with another context size, or, if there are as many as there may be, an idle
// one, of these the one that would stay the shortest, else a busy one.
func (e *Engine) inTheWay(r *runner) *runner {
	if r.state == resident {
		return r
	}
	var way *runner
	n := 0
	for _, o := range e.runners {
		if o.state != resident {
			continue
		}
		n++
		switch {
		case way == nil, way.busy() && !o.busy():
			way = o
		case way.busy() == o.busy() && uint64(o.keepAlive) < uint64(way.keepAlive): // negative: for ever
			way = o
		}
	}
	if e.cfg.Kind != Ollama || n < e.cfg.MaxLoaded {
		return nil
	}
	return way
}

// retire unloads a model; false: it is busy and goes when it is not.
func (r *runner) retire() bool {
	if r.busy() {
		r.keepAlive = 1
		return false
	}
	r.unload()
	return true
}

func (r *runner) unload() {
	r.stop()
	r.state, r.expires = absent, time.Time{}
	r.cache = newCache(&r.e.cfg)
}

// load begins to load the model.
func (r *runner) load(at time.Time, context int) {
	r.state, r.context, r.keepAlive = loading, context, r.e.cfg.KeepAlive
	r.readyAt = at.Add(time.Duration(float64(r.e.cfg.LoadTime) * r.e.slowness(false)))
	r.expires = time.Time{}
	if !r.readyAt.After(at) {
		r.ready(at)
	}
}

// ready is when the model has been loaded; schedule lets in who waited.
func (r *runner) ready(at time.Time) {
	r.state = resident
	r.rest(at)
}

// unwait takes ended work out of those who wait for a load. If it was loaded
// for, Ollama gives that up ("client connection closed before server finished
// loading, aborting load").
func (e *Engine) unwait(w *Work) {
	i := slices.Index(e.pending, w)
	if i < 0 {
		return
	}
	e.pending = slices.Delete(e.pending, i, i+1)
	w.runner.waits--
	if i == 0 && w.runner.state == loading && e.cfg.Kind == Ollama {
		w.runner.state = absent
	}
}

// die ends a model's process and all that runs on it; Ollama's server lives on,
// and the next request loads the model again.
func (r *runner) die(at time.Time) {
	if r.state != resident {
		return
	}
	r.each(func(w *Work) { r.e.end(w, EndDied, at) })
	r.boot(at)
}

// busy reports whether work runs or waits for a slot.
func (r *runner) busy() bool { return r.free < len(r.slots) || r.live > 0 }

// rest starts the time after which an idle model is unloaded (Ollama), or the
// engine sleeps (llama.cpp).
func (r *runner) rest(at time.Time) {
	if r.state != resident || r.busy() {
		return
	}
	r.expires = time.Time{}
	switch c := &r.e.cfg; {
	case c.Kind == Ollama && r.keepAlive >= 0:
		r.expires = at.Add(r.keepAlive)
	case c.Kind == LlamaCpp && c.SleepIdle > 0:
		r.expires = at.Add(c.SleepIdle)
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
		r.unload()
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
	if r.state == resident {
		r.retire()
	}
	return true
}

// Sleeping reports whether llama.cpp sleeps or is waking up: its /health and
// /props answer, and say so; /metrics does not wake it. "" is the first model.
func (e *Engine) Sleeping(now time.Time, name string) bool {
	e.run(now)
	return e.cfg.Kind == LlamaCpp && e.fault.Kind != FaultCrash && e.orFirst(name).state != resident
}

// Wake ends llama.cpp's sleep, as a request or a look at /slots does, and tells
// when it is awake: now, if it is.
func (e *Engine) Wake(now time.Time, name string) time.Time {
	e.run(now)
	r := e.orFirst(name)
	if e.cfg.Kind == LlamaCpp && r.state == absent {
		r.load(e.now, e.cfg.Context)
	}
	if r.state == loading {
		return r.readyAt
	}
	return e.now
}
