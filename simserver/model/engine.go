// Package model is the simulated inference engine without its HTTP face: what
// a GPU and a server around it do with requests, as a pure state machine. It
// takes the time as an argument and says when it wants to be called next; it
// starts no goroutine, reads no clock, opens no socket. Calls must not overlap.
//
// # Batches
//
// Work is done in batches, as in the real engines: a batch holds one output
// token for each running stream and up to Config.Batch prompt tokens of those
// whose prompt is still being processed. It lasts
//
//	promptTokens/Prefill + (streams > 0 ? (1 + BatchSlowdown·(streams-1))/Decode : 0)
//
// times the slowness of the moment (faults, other engines on the device). So n
// streams decode at Decode/(1+BatchSlowdown·(n-1)) each, a long prompt stalls
// the other streams for a batch, and who gets a slot in the middle of a batch is
// worked on from the next one. The first token comes with the end of the prompt;
// an answer of N tokens is N-1 decoding batches long. Who needs no word of each
// token has these done in one go: Config.Milestones.
//
// # What the engines do differently
//
// The prompt cache and the choice of the slot (promptCache), who is loaded when
// and who waits for it (Engine.schedule, runner.rest), whom a queue turns away
// (runner.full) and in which order it serves (runner.turn), and when a departed
// client is noticed (Engine.Leave). The tests named TestRecorded… hold this
// against what was recorded of real ones.
//
// # Work in hand
//
// A request counts as in hand from its arrival until its last task has ended,
// whether it runs, waits for a slot or waits for its model; a departed client's
// until the engine has noticed and stopped. A request of several tasks (n, arrays
// of prompts) counts min(unfinished tasks, slots): alone on an engine it never
// exceeds the slots, and anything beside it does. The count is kept per model.
package model

import (
	"math/rand/v2"
	"strings"
	"time"
)

// Engine is one simulated server.
type Engine struct {
	cfg     Config
	rng     *rand.Rand
	born    time.Time
	now     time.Time
	loaded  time.Time // not Ollama: when the model is there
	runners []*runner
	byName  map[string]*runner
	nextID  int
	events  []Event

	fault      Fault
	faultEnds  time.Time
	faultEpoch int
	script     []TimedFault

	pending    []*Work   // waits for a model to be loaded
	departed   []*Work   // left, not yet noticed
	lastResult time.Time // llama.cpp: when any task last gave a result
	requests   int
}

// New makes an engine that starts at the given time. The script's faults begin
// by themselves; it is sorted by time.
func New(cfg Config, script []TimedFault, now time.Time) *Engine {
	cfg = cfg.WithDefaults()
	e := &Engine{
		cfg:    cfg,
		born:   now,
		now:    now,
		fault:  Fault{Kind: FaultNone},
		script: script,
		byName: make(map[string]*runner),
	}
	e.seed()
	e.cfg.Device.engines++
	for i, name := range cfg.Models {
		if cfg.Kind == Ollama {
			name = canonical(name)
		}
		if e.byName[name] != nil {
			continue
		}
		// Ollama runs several models, and llama.cpp's router a server for each;
		// elsewhere further names are aliases.
		if i == 0 || cfg.Kind == Ollama || cfg.Kind == LlamaCpp {
			e.runners = append(e.runners, newRunner(e, name))
		}
		e.byName[name] = e.runners[len(e.runners)-1]
	}
	e.boot(now)
	return e
}

func (e *Engine) seed() { e.rng = rand.New(rand.NewPCG(e.cfg.Seed, 0x5157)) }

// canonical is a model's whole name in Ollama.
func canonical(name string) string {
	if strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
		return name
	}
	return name + ":latest"
}

// Config is the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// boot is a fresh process.
func (e *Engine) boot(at time.Time) {
	e.loaded = at
	if e.cfg.Kind != Ollama {
		e.loaded = at.Add(e.cfg.LoadTime)
	}
	for _, r := range e.runners {
		r.boot(e.loaded)
	}
}

// crash ends everything there is.
func (e *Engine) crash(at time.Time) {
	for len(e.pending) > 0 {
		e.end(e.pending[0], EndLost, at)
	}
	for _, r := range e.runners {
		r.each(func(w *Work) { e.end(w, EndLost, at) })
		r.boot(at)
	}
	e.departed = e.departed[:0]
}

// Submit hands the engine a request. Without a rejection the work is in hand
// from now on.
func (e *Engine) Submit(now time.Time, req Request) (*Work, *Rejection) {
	e.run(now)
	now = e.now
	e.requests++
	struck := e.strike()
	if r := e.refusal(struck); r != nil {
		return nil, r
	}
	r := e.runners[0]
	if e.cfg.Kind == Ollama || e.cfg.Kind != LlamaCpp && req.Model != "" || len(e.runners) > 1 {
		if r = e.find(req.Model); r == nil {
			return nil, &Rejection{Kind: RejectModel}
		}
	}
	e.nextID++
	w := newWork(e.nextID, req, e.cfg.OutputSeed, now)
	w.runner, w.Model = r, r.name
	w.Struck, w.epoch, w.Garbage = struck, e.faultEpoch, struck == FaultGarbage
	if rej := r.fit(w); rej != nil {
		return nil, rej
	}
	if r.full(w) {
		return nil, &Rejection{Kind: RejectQueueFull}
	}
	r.accept(w)
	e.settle(now)
	return w, nil
}

// CountRequest counts a request that never became work because its body was
// wrong: it is one the engine has seen all the same.
func (e *Engine) CountRequest(now time.Time) {
	e.run(now)
	e.requests++
}

// refusal is the answer to a request that meets a fault before any work.
func (e *Engine) refusal(struck FaultKind) *Rejection {
	switch {
	case e.fault.Kind == FaultCrash || e.fault.Kind == FaultRefuse:
		return &Rejection{Kind: RejectDown}
	case struck == FaultReset:
		return &Rejection{Kind: RejectReset}
	case struck == FaultError:
		return &Rejection{Kind: RejectError, Status: e.fault.Status}
	case struck == FaultBusy:
		return &Rejection{Kind: RejectBusy, Status: e.fault.Status, RetryAfter: e.fault.RetryAfter}
	case struck == FaultLoading || e.now.Before(e.loaded):
		return &Rejection{Kind: RejectLoading, Status: 503}
	}
	return nil
}

// Loading reports whether the engine is up and its model is not.
func (e *Engine) Loading(now time.Time) bool {
	e.run(now)
	return e.now.Before(e.loaded) || e.fault.Kind == FaultLoading
}

func (e *Engine) find(name string) *runner {
	if e.cfg.Kind == Ollama {
		name = canonical(name)
	}
	return e.byName[name]
}

// Remember tells the prompt cache that a text is there for reuse: a finished
// answer with its prompt, so that the conversation's next turn finds both. The
// engine keeps parts.
func (e *Engine) Remember(now time.Time, w *Work, parts []Part) {
	e.run(now)
	if e.fault.Kind != FaultCrash && w.End == EndDone {
		w.runner.cache.remember(w, parts)
	}
}

// Next is when the engine has something to do; false: nothing until a call.
func (e *Engine) Next() (time.Time, bool) {
	at, ok := e.nextFault()
	earlier := func(t time.Time) {
		if !t.IsZero() && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	for _, r := range e.runners {
		earlier(r.next())
	}
	for _, w := range e.departed {
		earlier(e.noticeAt(w))
	}
	return at, ok
}

// Advance does everything that is due and gives what has happened since it was
// last called, in order. The slice is valid until the engine's next call.
func (e *Engine) Advance(now time.Time) []Event {
	e.run(now)
	ev := e.events
	e.events = e.events[:0]
	return ev
}

// run brings the engine to the given time.
func (e *Engine) run(now time.Time) {
	for {
		at, ok := e.Next()
		if !ok || at.After(now) {
			break
		}
		if at.Before(e.now) {
			at = e.now
		}
		e.now = at
		for _, r := range e.runners {
			r.reveal(at)
		}
		e.turnFault(at)
		for _, r := range e.runners {
			r.fire(at)
		}
		e.noticeDue(at)
		e.settle(at)
	}
	if now.After(e.now) {
		e.now = now
	}
	for _, r := range e.runners {
		r.book(e.now)
	}
}

// settle starts what can start.
func (e *Engine) settle(at time.Time) {
	e.schedule(at)
	for _, r := range e.runners {
		r.settle(at)
	}
}

func (e *Engine) emit(ev Event) { e.events = append(e.events, ev) }

// end ends a piece of work for good.
func (e *Engine) end(w *Work, how End, at time.Time) {
	if w.End != Running {
		return
	}
	for i := range w.Tasks {
		if t := &w.Tasks[i]; !t.ended {
			w.runner.drop(t, at)
		}
	}
	w.End, w.Ended = how, at
	r := w.runner
	r.stats.InHand -= w.hand
	w.hand = 0
	if how == EndDone && w.Left.IsZero() {
		r.stats.Completed++
	}
	e.unwait(w)
	e.forget(w)
	e.emit(Event{Kind: Finished, At: at, Work: w})
}
