package model

import "time"

// runner is one model of an engine: its slots, its hidden queue, its prompt
// cache and the batch that runs.
type runner struct {
	e     *Engine
	name  string
	cache promptCache
	stats Stats
	used  Usage
	slots []*Task
	free  int

	queue []*Task // waits for a slot, in order of turn; ended ones are skipped
	live  int     // tasks in queue that have not ended
	waits int     // of Engine.pending

	state     residency
	readyAt   time.Time // loading ends
	context   int       // the context size it is loaded with
	keepAlive time.Duration
	expires   time.Time // zero: never

	batch
}

func newRunner(e *Engine, name string) *runner {
	return &runner{e: e, name: name, stats: Stats{Slots: e.cfg.Slots}}
}

// boot is the state after the process has started at the given time.
func (r *runner) boot(at time.Time) {
	r.stop()
	r.cache = newCache(&r.e.cfg)
	r.slots = make([]*Task, r.e.cfg.Slots)
	r.free = len(r.slots)
	r.queue, r.live = nil, 0
	r.context, r.keepAlive = r.e.cfg.Context, r.e.cfg.KeepAlive
	r.state, r.readyAt, r.expires = resident, time.Time{}, time.Time{}
	if r.e.cfg.Kind == Ollama {
		r.state = absent
	}
	r.rest(at)
}

// each visits all work that runs or is queued for a slot.
func (r *runner) each(visit func(*Work)) {
	var all []*Work
	for _, t := range r.slots {
		if t != nil {
			all = append(all, t.work)
		}
	}
	for _, t := range r.queue {
		if !t.ended {
			all = append(all, t.work)
		}
	}
	for _, w := range all {
		visit(w)
	}
}

// ollamaContexts is where Ollama ends an answer that nobody has bounded: after
// so many times the context (server/routes.go sets num_predict so).
const ollamaContexts = 10

// fit checks the prompts against the context and sets the output lengths.
func (r *runner) fit(w *Work) *Rejection {
	limit := r.wanted(w)
	for i := range w.Tasks {
		t := &w.Tasks[i]
		tooLong := t.Prompt > limit || t.Prompt == limit && r.e.cfg.Kind != Ollama
		if tooLong && (r.e.cfg.Kind != Ollama || w.Request.Strict) {
			return &Rejection{Kind: RejectTooLong, Status: 400, PromptTokens: t.Prompt, ContextTokens: limit}
		}
		if tooLong { // Ollama silently keeps what fits, and its cache is of no use then
			t.Prompt, t.parts = limit, nil
		}
		if w.Request.NoOutput || w.Request.Preload {
			continue
		}
		want := w.Request.Output
		if want <= 0 {
			want = r.e.cfg.Output.Draw(t.Seed)
		}
		room := max(limit-t.Prompt, 1)
		if r.e.cfg.Kind == Ollama { // it forgets the beginning as it goes on
			room = ollamaContexts * limit
		}
		if w.Request.Max > 0 {
			room = min(room, w.Request.Max)
		}
		t.Target, t.Limited = min(want, room), want >= room
	}
	return nil
}

// full reports whether the engine's own queue takes no more.
func (r *runner) full(w *Work) bool {
	limit := r.e.cfg.Queue
	switch r.e.cfg.Kind {
	case Ollama: // one is being loaded for, the others are pending
		return r.needsLoad(w) && len(r.e.pending) > limit
	case OpenAI:
		return limit > 0 && r.free == 0 && r.live >= limit
	}
	return false
}

// accept takes the work in hand.
func (r *runner) accept(w *Work) {
	w.hand = min(len(w.Tasks), len(r.slots))
	r.stats.take(w.hand)
	if r.needsLoad(w) {
		r.e.pending = append(r.e.pending, w)
		r.waits++
	} else {
		r.enqueue(w)
	}
	r.e.settle(r.e.now)
	r.stats.QueuedMax = max(r.stats.QueuedMax, r.live+r.waits)
}

func (r *runner) enqueue(w *Work) {
	if r.keepAlive = w.Request.KeepAlive; r.keepAlive == 0 {
		r.keepAlive = r.e.cfg.KeepAlive
	}
	if w.Request.Preload {
		w.unfinished = 0
		r.e.end(w, EndDone, r.e.now)
		r.rest(r.e.now)
		return
	}
	r.expires = time.Time{}
	turn := r.turn(w)
	for i := range w.Tasks {
		if t := &w.Tasks[i]; !t.ended {
			t.queued, t.turn = true, turn
			r.queue = append(r.queue, t)
			for j := len(r.queue) - 1; j > 0 && r.queue[j-1].turn > turn; j-- {
				r.queue[j-1], r.queue[j] = t, r.queue[j-1]
			}
			r.live++
		}
	}
	r.fill(r.e.now)
}

// ollamaJostle is how far requests to Ollama overtake each other: they reach
// the queue of the model's process only when their prompts have been prepared,
// side by side. Recorded with v0.17.4 on a busy machine: of ten that came
// within 0.1 s the fifth was served second, the third eighth.
const ollamaJostle = 100 * time.Millisecond

// turn is a work's place in the queue: first come, first served, but for
// Ollama's jostling.
func (r *runner) turn(w *Work) int64 {
	at := r.e.now.Sub(r.e.born)
	if r.e.cfg.Kind == Ollama {
		at += time.Duration(unit(mix(r.e.cfg.Seed, uint64(w.ID))) * float64(r.e.cfg.scaled(ollamaJostle)))
	}
	return int64(at)
}

// fill gives free slots to what waits, in order.
func (r *runner) fill(at time.Time) {
	for r.free > 0 && len(r.queue) > 0 {
		t := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		if t.ended {
			continue
		}
		t.queued = false
		r.live--
		r.place(t, at)
	}
	if len(r.queue) == 0 {
		r.queue = nil
	}
}

func (r *runner) place(t *Task, at time.Time) {
	r.cut()
	t.Slot, t.Cached = r.cache.take(t, r.slots)
	r.slots[t.Slot] = t
	r.free--
	t.Started = at
	if t.leader != nil {
		t.Cached = t.Prompt - 1 // its leader does the work
	}
	t.Processed = t.Cached
	r.begun(t.work, at)
	if t.work.notice == noticeTurn && t.held(r.e) {
		r.e.noticed(t.work, at)
	}
}

// begun tells that a work's first task runs; a hanging one does not tell.
func (r *runner) begun(w *Work, at time.Time) {
	e := r.e
	if !w.Started.IsZero() || w.meets(e, FaultHang) {
		return
	}
	w.Started = at
	e.emit(Event{Kind: Started, At: at, Work: w})
	switch {
	case w.meets(e, FaultEmpty):
		e.end(w, EndEmpty, at)
	case w.meets(e, FaultCut) && e.fault.AfterTokens == 0:
		w.Reset = e.fault.Reset
		e.end(w, EndCut, at)
	}
}

// settle starts what can start: those that a hang held back and no longer
// does, those that wait where a slot is free, the next batch.
func (r *runner) settle(at time.Time) {
	if r.state != resident {
		return
	}
	for _, t := range r.slots {
		if t != nil {
			r.begun(t.work, at)
		}
	}
	r.fill(at)
	if r.batchEnds.IsZero() {
		r.begin(at)
	}
}

// promptDone books a task's share of prompt tokens in the batch.
func (r *runner) promptDone(t *Task, at time.Time) {
	t.Processed += t.chunk
	t.chunk = 0
	if t.prompting() {
		if !r.e.cfg.Milestones {
			r.e.emit(Event{Kind: Progress, At: at, Work: t.work})
		}
		return
	}
	r.stats.prompt(t)
	r.cache.filled(t)
	t.First = at
	if t.Target == 0 {
		r.taskDone(t, at)
		return
	}
	r.token(t, at)
}

// token books one output token.
func (r *runner) token(t *Task, at time.Time) {
	w, e := t.work, r.e
	t.Decoded++
	r.stats.token(t, 1)
	if w.Request.Stream {
		e.lastResult = at
	}
	if t.Decoded == 1 || !e.cfg.Milestones {
		e.emit(Event{Kind: Token, At: at, Work: w, Task: t.index()})
	}
	switch {
	case w.meets(e, FaultCut) && w.Generated() >= e.fault.AfterTokens:
		w.Reset = e.fault.Reset
		e.end(w, EndCut, at)
	case t.Decoded >= t.Target:
		r.taskDone(t, at)
	}
}

func (t *Task) index() int {
	for i := range t.work.Tasks {
		if &t.work.Tasks[i] == t {
			return i
		}
	}
	return 0
}

func (r *runner) taskDone(t *Task, at time.Time) {
	w := t.work
	r.drop(t, at)
	r.e.lastResult = at
	w.unfinished--
	if hand := min(w.unfinished, len(r.slots)); hand < w.hand {
		r.stats.InHand -= w.hand - hand
		w.hand = hand
	}
	r.e.emit(Event{Kind: TaskDone, At: at, Work: w, Task: t.index()})
	if w.unfinished == 0 {
		r.e.end(w, EndDone, at)
	}
}

// drop takes a task out of its slot or the queue.
func (r *runner) drop(t *Task, at time.Time) {
	t.ended, t.Ended = true, at
	if t.inBatch {
		r.cut()
	}
	t.inBatch, t.chunk = false, 0
	switch {
	case t.Slot >= 0 && r.slots[t.Slot] == t:
		r.cache.left(t)
		r.used.ended(t)
		r.slots[t.Slot] = nil
		r.free++
		r.stats.SlotSeconds += at.Sub(t.Started).Seconds()
		if !t.work.Left.IsZero() {
			r.stats.zombie(t, at)
		}
	case t.queued:
		r.live--
	}
	t.queued = false
	r.rest(at)
}
