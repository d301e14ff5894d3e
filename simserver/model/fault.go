package model

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// FaultKind names what is wrong with the engine.
type FaultKind string

// The faults.
const (
	FaultNone             FaultKind = "none"
	FaultRefuse           FaultKind = "refuse"             // takes no connections
	FaultReset            FaultKind = "reset"              // resets each request's connection
	FaultError            FaultKind = "error"              // answers Status
	FaultBusy             FaultKind = "busy"               // answers Status with Retry-After
	FaultLoading          FaultKind = "loading"            // answers as while the model loads
	FaultSlow             FaultKind = "slow"               // Factor times slower
	FaultHang             FaultKind = "hang"               // accepts, never answers
	FaultHangAfterHeaders FaultKind = "hang-after-headers" // 200 and headers, then nothing
	FaultStall            FaultKind = "stall"              // stops after AfterTokens
	FaultCut              FaultKind = "cut"                // ends after AfterTokens without a last word
	FaultEmpty            FaultKind = "empty"              // 200 and nothing
	FaultGarbage          FaultKind = "garbage"            // fluent nonsense
	FaultCPU              FaultKind = "cpu"                // fell off the GPU
	FaultCrash            FaultKind = "crash"              // gone, with all its work
	FaultRunnerCrash      FaultKind = "runner-crash"       // Ollama: the models' processes die, once
)

// Fault is one fault with its parameters; those that its kind does not know
// are ignored, but for a rate where there is no share to be had: refuse, cpu,
// crash and runner-crash are the whole server's. A fault strikes requests as they arrive, and
// those it holds back (hang, hang-after-headers, stall) go on when it is over.
// Stall and cut strike what already runs, too, unless they have a rate. Slow and
// cpu change the speed of everything from the next batch on; slow with a rate
// that of the batches with a request that was struck.
type Fault struct {
	Kind        FaultKind
	For         time.Duration // 0: until it is replaced
	Status      int           // error: 500; busy: 503
	Rate        float64       // share of requests that meet it; 0: all
	RetryAfter  time.Duration // busy: none when 0
	Factor      float64       // slow: 3; cpu: 10
	AfterTokens int
	Reset       bool // cut: reset the connection instead of ending it cleanly
}

// TimedFault is a fault that begins by itself, At after the engine started.
type TimedFault struct {
	At    time.Duration
	Fault Fault
}

// Check fills in the defaults of a fault, or says what is wrong with it.
func (f Fault) Check() (Fault, error) {
	switch f.Kind {
	case FaultNone, FaultRefuse, FaultReset, FaultLoading, FaultHang, FaultHangAfterHeaders,
		FaultStall, FaultCut, FaultEmpty, FaultGarbage, FaultCrash, FaultRunnerCrash:
	case FaultError:
		if f.Status == 0 {
			f.Status = 500
		}
		if f.Status < 400 || f.Status > 599 {
			return f, fmt.Errorf("fault error: status %d: want 400 to 599", f.Status)
		}
	case FaultBusy:
		if f.Status == 0 {
			f.Status = 503
		}
		if f.Status != 429 && f.Status != 503 {
			return f, fmt.Errorf("fault busy: status %d: want 429 or 503", f.Status)
		}
	case FaultSlow:
		f.Factor = orFloat(f.Factor, 3)
	case FaultCPU:
		f.Factor = orFloat(f.Factor, 10)
	default:
		return f, fmt.Errorf("fault %q: want none, refuse, reset, error, busy, loading, slow, hang, hang-after-headers, stall, cut, empty, garbage, cpu, crash or runner-crash", f.Kind)
	}
	if f.Rate > 0 && f.Rate < 1 && slices.Contains([]FaultKind{FaultRefuse, FaultCPU, FaultCrash, FaultRunnerCrash}, f.Kind) {
		return f, fmt.Errorf("fault %s: rate %g: it is the whole server's: want none; reset, error, busy, slow, hang, stall, cut and empty have one", f.Kind, f.Rate)
	}
	if f.For < 0 || f.RetryAfter < 0 || f.AfterTokens < 0 || f.Rate < 0 || f.Rate > 1 || f.Factor < 0 || math.IsInf(f.Factor, 0) || math.IsNaN(f.Factor+f.Rate) {
		return f, fmt.Errorf("fault %s: negative or impossible parameter: want for, retry_after, after_tokens and factor of at least 0, rate from 0 to 1", f.Kind)
	}
	return f, nil
}

// perRequest tells the faults that strike single requests as they arrive.
func (f *Fault) perRequest() bool {
	switch f.Kind {
	case FaultSlow:
		return f.Rate > 0
	case FaultReset, FaultError, FaultBusy, FaultLoading, FaultHang, FaultHangAfterHeaders,
		FaultStall, FaultCut, FaultEmpty, FaultGarbage:
		return true
	}
	return false
}

// SetFault replaces the fault that is active; f has passed Check.
func (e *Engine) SetFault(now time.Time, f Fault) {
	e.run(now)
	e.setFault(e.now, f)
	e.settle(e.now)
}

func (e *Engine) setFault(at time.Time, f Fault) {
	wasDown := e.fault.Kind == FaultCrash
	kind := f.Kind
	if kind == FaultRunnerCrash {
		f = Fault{Kind: FaultNone} // over at once
	}
	e.fault, e.faultEnds = f, time.Time{}
	e.faultEpoch++ // requests held by the old one go on
	if f.For > 0 {
		e.faultEnds = at.Add(f.For)
	}
	for _, r := range e.runners {
		r.cut()
	}
	switch {
	case f.Kind == FaultCrash:
		e.crash(at)
	case wasDown:
		e.boot(at)
	case kind == FaultRunnerCrash && e.cfg.Kind == Ollama:
		for _, r := range e.runners {
			r.die(at)
		}
	case (f.Kind == FaultStall || f.Kind == FaultCut) && f.Rate == 0:
		e.strikeAll(f.Kind)
	}
	e.emit(Event{Kind: FaultChanged, At: at, Fault: f.Kind})
}

// strikeAll lets a fault meet what is in hand, too.
func (e *Engine) strikeAll(k FaultKind) {
	strike := func(w *Work) { w.Struck, w.epoch = k, e.faultEpoch }
	for _, r := range e.runners {
		r.each(strike)
	}
	for _, w := range e.pending {
		strike(w)
	}
}

// Fault gives the fault that is active.
func (e *Engine) Fault(now time.Time) Fault {
	e.run(now)
	return e.fault
}

// strike says whether a request that arrives now meets the active fault.
func (e *Engine) strike() FaultKind {
	f := &e.fault
	if !f.perRequest() || f.Rate > 0 && e.rng.Float64() >= f.Rate {
		return FaultNone
	}
	return f.Kind
}

// slowness is the factor by which something takes longer, for a batch with or
// without a request that the fault has struck.
func (e *Engine) slowness(struck bool) float64 {
	f := &e.fault
	if f.Kind == FaultCPU || f.Kind == FaultSlow && (f.Rate == 0 || struck) {
		return f.Factor
	}
	return 1
}

// nextFault is the next moment at which the fault changes by itself.
func (e *Engine) nextFault() (time.Time, bool) {
	at, ok := e.faultEnds, !e.faultEnds.IsZero()
	if len(e.script) > 0 {
		if s := e.born.Add(e.script[0].At); !ok || s.Before(at) {
			at, ok = s, true
		}
	}
	return at, ok
}

// turnFault applies what is due of the fault's end and the script.
func (e *Engine) turnFault(at time.Time) {
	if !e.faultEnds.IsZero() && !e.faultEnds.After(at) {
		e.setFault(at, Fault{Kind: FaultNone})
	}
	for len(e.script) > 0 && !e.born.Add(e.script[0].At).After(at) {
		f := e.script[0].Fault
		e.script = e.script[1:]
		e.setFault(at, f)
	}
}
