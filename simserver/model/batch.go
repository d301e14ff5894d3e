package model

import (
	"math"
	"time"
)

// batch is what a runner computes at the moment. With Config.Milestones it may
// be a run of steps that are all alike: each makes one token for each stream,
// and until its end nothing happens that anyone is told. A run is booked when
// somebody looks, and cut to its present step when something comes between:
// a task that begins, ends or leaves, a fault, another model on the device.
type batch struct {
	batchEnds time.Time     // the end of the batch, or of the run's last step; zero: none
	step      time.Duration // how long each step lasts
	steps     int           // steps from booked to batchEnds; 1: a batch alone
	booked    time.Time     // where the first of them began
	computing bool          // the device knows
}

// longestRun bounds a run, so that its end is a time that can be told.
const longestRun = time.Hour

// begin starts the next batch if there is something to compute.
func (r *runner) begin(at time.Time) {
	e := r.e
	plan := r.compose()
	if plan.prompt+plan.streams == 0 {
		r.stop()
		return
	}
	if !r.computing {
		r.computing = true
		e.cfg.Device.computing++
		e.cutOthers(r)
	}
	s := float64(plan.prompt) / e.cfg.Prefill
	if plan.streams > 0 {
		s += (1 + e.cfg.BatchSlowdown*float64(plan.streams-1)) / e.cfg.Decode
	}
	s *= e.slowness(plan.struck) * float64(e.cfg.Device.computing)
	r.step, r.steps = max(time.Duration(s*float64(time.Second)), 1), 1
	// What other engines on the device do changes the speed without a call of
	// this one.
	if e.cfg.Milestones && e.cfg.Device.engines == 1 && plan.prompt == 0 {
		r.steps = min(plan.alike, max(1, int(longestRun/r.step)))
	}
	r.booked, r.batchEnds = at, at.Add(r.step*time.Duration(r.steps))
}

// plan is what a batch is made of.
type plan struct {
	prompt  int  // tokens
	streams int  // that decode
	struck  bool // by a fault that strikes single requests
	alike   int  // steps until a stream ends or a fault counts its tokens
}

// compose chooses the tasks of the next batch.
func (r *runner) compose() plan {
	e := r.e
	p := plan{alike: math.MaxInt}
	budget := e.cfg.Batch
	for _, t := range r.slots {
		if t == nil || t.held(e) {
			continue
		}
		w := t.work
		switch {
		case !t.prompting():
			t.inBatch = true
			p.streams++
			p.alike = min(p.alike, t.Target-t.Decoded)
			if w.meets(e, FaultStall) || w.meets(e, FaultCut) {
				p.alike = 1
			}
		case t.leader != nil && t.leader.prompting() && !t.leader.ended:
			continue
		default:
			if t.chunk = min(t.Prompt-t.Processed, budget); t.chunk == 0 {
				continue
			}
			t.inBatch = true
			budget -= t.chunk
		}
		p.struck = p.struck || w.meets(e, e.fault.Kind)
	}
	p.prompt = e.cfg.Batch - budget
	return p
}

// stop tells the device that nothing is computed any more.
func (r *runner) stop() {
	r.batchEnds = time.Time{}
	if r.computing {
		r.computing = false
		r.e.cfg.Device.computing--
		r.e.cutOthers(r)
	}
}

// cutOthers is for when the share of the device changes.
func (e *Engine) cutOthers(r *runner) {
	for _, o := range e.runners {
		if o != r {
			o.cut()
		}
	}
}

// cut lets a run end with its present step; what came before has been booked.
func (r *runner) cut() {
	if !r.batchEnds.IsZero() && r.steps > 1 {
		r.steps = 1
		r.batchEnds = r.booked.Add(r.step)
	}
}

// book books the steps of a run that have ended by the given time, but never
// its last: that is for finishBatch.
func (r *runner) book(by time.Time) {
	if r.batchEnds.IsZero() || r.steps == 1 {
		return
	}
	n := min(int(by.Sub(r.booked)/r.step), r.steps-1)
	if n <= 0 {
		return
	}
	r.steps -= n
	r.booked = r.booked.Add(r.step * time.Duration(n))
	busy := 0
	for _, t := range r.slots {
		if t == nil || !t.inBatch {
			continue
		}
		busy++
		t.Decoded += n
		r.stats.token(t, n)
		if t.work.Request.Stream {
			r.e.lastResult = r.booked
		}
	}
	r.used.batches(n, busy)
}

// reveal prepares for something that happens at the given time: what ended
// before is booked, and a step that ends right then ends as a batch.
func (r *runner) reveal(at time.Time) {
	r.book(at.Add(-1))
	if r.steps > 1 && r.booked.Add(r.step).Equal(at) {
		r.cut()
	}
}

// finishBatch hands out what the batch has made.
func (r *runner) finishBatch(at time.Time) {
	r.batchEnds = time.Time{}
	busy := 0
	for _, t := range r.slots {
		if t == nil || !t.inBatch {
			continue
		}
		busy++
		t.inBatch = false
		if t.chunk > 0 {
			r.promptDone(t, at)
		} else {
			r.token(t, at)
		}
	}
	r.used.batches(1, busy)
	r.e.batchNotices(r, at)
}
