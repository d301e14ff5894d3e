package model

import "time"

// FirstToken foresees when a request of one prompt would have its first token
// that got a slot now: if nobody else comes or leaves, faults stay as they are,
// and whatever else computes on the device goes on. It changes nothing. For
// benchmarks that compare an admission with one that knows.
func (e *Engine) FirstToken(now time.Time, req Request) time.Time {
	e.run(now)
	r := e.runners[0]
	if known := e.find(req.Model); known != nil {
		r = known
	}
	var parts []Part
	if len(req.Prompts) > 0 {
		parts = req.Prompts[0]
	}
	prompt := max(tokensOf(parts), 1)
	f := foresight{e: e, at: e.now, share: e.cfg.Device.computing}
	if !r.computing {
		f.share++
	}
	switch {
	case r.state == loading:
		f.at = r.readyAt
	case r.state == absent:
		f.at = f.at.Add(time.Duration(float64(e.cfg.LoadTime) * e.slowness(false)))
	case e.now.Before(e.loaded):
		f.at = e.loaded
	}
	slot, cached := r.cache.peek(parts, r.slots)
	own := 0
	for i, t := range r.slots {
		if i == slot {
			own = len(f.tasks)
			f.tasks = append(f.tasks, remaining{prompt: max(1, prompt-cached), output: 2})
		} else if t != nil && !t.held(e) {
			f.tasks = append(f.tasks, remaining{t.Prompt - t.Processed, t.Target - t.Decoded, t.chunk})
		}
	}
	if slot < 0 { // as if one were free
		own = len(f.tasks)
		f.tasks = append(f.tasks, remaining{prompt: max(1, prompt-cached), output: 2})
	}
	if !r.batchEnds.IsZero() {
		f.tasks[own].output++ // it is not in the batch that runs
		f.at = r.booked.Add(r.step)
		f.done()
	}
	for f.tasks[own].prompt > 0 {
		f.batch()
	}
	return f.at
}

// foresight is an engine's next batches, played on paper.
type foresight struct {
	e     *Engine
	at    time.Time
	share int
	tasks []remaining
}

// remaining is what a task has to do still, and what it has in the batch.
type remaining struct{ prompt, output, chunk int }

// batch plays one batch as runner.begin and runner.finishBatch would.
func (f *foresight) batch() {
	budget, streams := f.e.cfg.Batch, 0
	for i := range f.tasks {
		switch t := &f.tasks[i]; {
		case t.prompt > 0:
			t.chunk = min(t.prompt, budget)
			budget -= t.chunk
		case t.output > 0:
			streams++
		}
	}
	s := float64(f.e.cfg.Batch-budget) / f.e.cfg.Prefill
	if streams > 0 {
		s += (1 + f.e.cfg.BatchSlowdown*float64(streams-1)) / f.e.cfg.Decode
	}
	s *= f.e.slowness(false) * float64(f.share)
	f.at = f.at.Add(max(time.Duration(s*float64(time.Second)), 1))
	f.done()
}

// done books what the batch has made.
func (f *foresight) done() {
	for i := range f.tasks {
		t := &f.tasks[i]
		waits := t.prompt > 0 && t.chunk == 0 // the batch had no room for it
		t.prompt -= t.chunk
		t.chunk = 0
		if t.prompt == 0 && !waits {
			t.output--
		}
	}
}
