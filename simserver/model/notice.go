package model

import "time"

// noticeMode is how the engine comes to know that a client has left.
type noticeMode uint8

const (
	noticeNone  noticeMode = iota
	noticeTimed            // at Work.due
	noticeBatch            // at the end of the batch it is in
	noticeTurn             // when its turn has come: at the end of its first batch
	noticeQuiet            // after a whole quiet second (llama.cpp, not streaming)
)

const (
	ollamaNoticeMin = 100 * time.Millisecond
	ollamaNoticeVar = 200 * time.Millisecond
	llamaQuiet      = time.Second
)

// Leave tells the engine that the client has gone. It notices in its own time:
// after Config.Notice where that is set, else as the real engines do. Ollama
// takes 0.1 to 0.3 s. vLLM and others see it between two batches. llama.cpp
// sees a stream's departure at the end of the running batch and that of a
// stream still queued when its turn has come; one that does not stream is
// looked at only after a whole second without a result of any task.
func (e *Engine) Leave(now time.Time, w *Work) {
	e.run(now)
	now = e.now
	if w.End != Running || !w.Left.IsZero() {
		return
	}
	w.Left = now
	w.runner.stats.CutByClient++
	if w.Request.Detached {
		return
	}
	w.runner.cut()
	w.notice = e.noticeModeOf(w, now)
	e.departed = append(e.departed, w)
	if w.notice == noticeBatch && !w.inBatch() {
		e.noticed(w, now)
	}
	e.noticeDue(now)
	e.settle(now)
}

func (e *Engine) noticeModeOf(w *Work, now time.Time) noticeMode {
	switch {
	case e.cfg.Notice != 0:
		w.due = now.Add(max(e.cfg.Notice, 0))
		return noticeTimed
	case e.cfg.Kind == Ollama:
		w.due = now.Add(e.cfg.scaled(ollamaNoticeMin + time.Duration(e.rng.Int64N(int64(ollamaNoticeVar)))))
		return noticeTimed
	case e.cfg.Kind != LlamaCpp:
		return noticeBatch
	case !w.Request.Stream:
		return noticeQuiet
	case w.Started.IsZero() && !w.meets(e, FaultHang):
		return noticeTurn
	}
	return noticeBatch
}

func (w *Work) inBatch() bool {
	for i := range w.Tasks {
		if w.Tasks[i].inBatch {
			return true
		}
	}
	return false
}

// noticeAt is when a departed client is noticed by the clock; zero: not by it.
func (e *Engine) noticeAt(w *Work) time.Time {
	switch w.notice {
	case noticeTimed:
		return w.due
	case noticeQuiet:
		// The waiter's second starts anew with each result of any task; it
		// looks at the socket only when one has passed.
		base := w.Arrived
		if e.lastResult.After(base) {
			base = e.lastResult
		}
		quiet := e.cfg.scaled(llamaQuiet)
		looks := max(1, (w.Left.Sub(base)+quiet-1)/quiet)
		return base.Add(looks * quiet)
	}
	return time.Time{}
}

// noticeDue notices those whose time has come.
func (e *Engine) noticeDue(at time.Time) {
	for i := 0; i < len(e.departed); i++ {
		w := e.departed[i]
		if t := e.noticeAt(w); t.IsZero() || t.After(at) {
			continue
		}
		if w.notice == noticeQuiet && w.inBatch() {
			// It is told off now; the slot stays taken until the batch has ended.
			w.notice = noticeBatch
			w.runner.cut()
			e.emit(Event{Kind: Noticed, At: at, Work: w})
			continue
		}
		e.noticed(w, at)
		i-- // end has taken it out of the list
	}
}

// batchNotices notices those who had to wait for the end of this runner's batch.
func (e *Engine) batchNotices(r *runner, at time.Time) {
	for i := 0; i < len(e.departed); i++ {
		w := e.departed[i]
		ripe := w.notice == noticeBatch || w.notice == noticeTurn && w.processed()
		if w.runner == r && ripe {
			e.noticed(w, at)
			i--
		}
	}
}

// processed reports whether any prompt token of the work has been processed.
func (w *Work) processed() bool {
	for i := range w.Tasks {
		if t := &w.Tasks[i]; t.Slot >= 0 && t.Processed > t.Cached {
			return true
		}
	}
	return false
}

// noticed ends the work of a departed client.
func (e *Engine) noticed(w *Work, at time.Time) {
	e.emit(Event{Kind: Noticed, At: at, Work: w})
	e.end(w, EndLeft, at)
}

// forget takes ended work out of the list of departed ones.
func (e *Engine) forget(w *Work) {
	for i, d := range e.departed {
		if d == w {
			e.departed = append(e.departed[:i], e.departed[i+1:]...)
			return
		}
	}
}

// Polled tells llama.cpp that its /slots or /metrics was read: that is a
// result of a task like any other, and puts off what noticeQuiet waits for.
func (e *Engine) Polled(now time.Time) {
	e.run(now)
	e.lastResult = e.now
}
