// Package breaker decides how much of one replica may be used, judging by how
// the attempts on it ended and nothing else (R9). It never probes, waits,
// counts slots or chooses a replica: it is told results and asked for an
// allowance.
//
// # States
//
//	        failures                  cool-down over
//	Closed ─────────▶ Open ────────────────────────────▶ HalfOpen
//	   ▲               ▲                                  │    │
//	   │               └── a failure, cool-down doubles ──┘    │
//	   └────────────── share of slots has reached 1 ───────────┘
//
// Closed: every slot may be used. It opens on ConsecutiveFailures failures in
// a row, or when ⌈FailureShare × Window⌉ of the last Window attempts failed.
// Attempts are counted and not clocked, so a replica that fails every second
// request trips however slowly they come. A window that is not full yet is
// judged by the same number of failures, as if its missing places were
// successes: it opens early only where the full window is sure to be over the
// limit, so one failure out of the first two means nothing.
//
// Open: nothing may be sent for the cool-down, Cooldown × 2ⁿ up to MaxCooldown
// after n recoveries in a row that failed. A breaker that has closed again
// starts from Cooldown. Then it is half-open by itself, without a timer: every
// method is told the time.
//
// HalfOpen: one slot at first, whatever the replica has. Each success
// multiplies the share of slots, TrialStart × TrialFactorᵏ after k successes
// (0.05, 0.08, 0.13, 0.20, 0.33, 0.52, 0.84, 1), so a replica that has just
// come back with cold caches is not flooded; the allowance is
// max(1, ⌊share × slots⌋). At 1 it closes with an empty window. One failure
// opens it again.
//
// # Trials cannot leak
//
// The breaker hands out no trial places and keeps no count of trials under
// way: it only says how many slots may be in use, and the caller compares that
// with the slots it holds. A Permit is a value that remembers since which
// opening it counts. One that is never reported, or ends Neutral, leaves
// nothing behind; one that comes back after the breaker has opened meanwhile
// is ignored, because it tells of a time already judged.
//
// A Breaker is not safe for concurrent use; its owner's lock guards it.
package breaker

import (
	"fmt"
	"math"
	"time"
)

// Config says when a breaker opens and how it recovers.
type Config struct {
	ConsecutiveFailures int           // failures in a row that open it; 0: they never do
	FailureShare        float64       // share of failed attempts that opens it; 0: no share does
	Window              int           // attempts over which FailureShare is judged; 0: none
	Cooldown            time.Duration // how long it stays open at first
	MaxCooldown         time.Duration // where doubling ends; below Cooldown it means Cooldown
	TrialStart          float64       // share of slots at the first trial
	TrialFactor         float64       // what a success multiplies the share by; unless the share grows by it, the first success closes
	ProbeRecovery       bool          // a good probe ends the cool-down
}

// State is where a breaker stands. Its number is the value of the metric.
type State uint8

// The states.
const (
	Closed State = iota
	HalfOpen
	Open
)

// String gives the name that interfaces show.
func (s State) String() string {
	return [...]string{"closed", "half-open", "open"}[s]
}

// Result is how an attempt ended, as far as the replica's health goes.
type Result uint8

// The results.
const (
	Neutral Result = iota // no verdict: the client left, a 4xx, a 429; a trial is given back
	Success
	Failure
)

// Permit is one attempt's tie to the breaker. The zero Permit belongs to no
// attempt; its result is ignored.
type Permit struct {
	period uint64
}

// Breaker is the breaker of one replica.
type Breaker struct {
	cfg   Config
	state State
	// period numbers the times between openings. Results of permits of an
	// earlier period are ignored.
	period uint64

	// while closed
	window window

	// while open
	until, opened time.Time

	// while half-open
	share float64
	steps int // successes so far; at 0 one trial is allowed whatever the share says

	failedRecoveries int // since it was last closed
	consecutive      int
	cause            string // why it opened first
	reason           string // why it is not closed, for people
}

// New returns a closed breaker.
func New(cfg Config) *Breaker {
	b := &Breaker{cfg: cfg, period: 1}
	b.window.resize(cfg.Window)
	return b
}

// SetConfig replaces the configuration and keeps the state: a running
// cool-down ends when it would have, a recovery goes on from its share, the
// newest results stay in the window and are judged with the next one.
func (b *Breaker) SetConfig(cfg Config) {
	b.cfg = cfg
	b.window.resize(cfg.Window)
}

// Allowance is how many of a replica's slots may be in use through it now. A
// caller that holds as many or more must not begin another attempt.
func (b *Breaker) Allowance(now time.Time, slots int) int {
	b.advance(now)
	switch {
	case b.state == Open || slots <= 0:
		return 0
	case b.state == Closed:
		return slots
	case b.steps == 0:
		return 1
	}
	// 0.05 × 1.6 × 100 must be 8 whichever way the last bit was rounded.
	return min(slots, max(1, int(b.share*float64(slots)+1e-9)))
}

// Begin starts an attempt; the caller has checked Allowance. While open there
// is none to start: the permit's result would be ignored.
func (b *Breaker) Begin(now time.Time) Permit {
	b.advance(now)
	if b.state == Open {
		return Permit{}
	}
	return Permit{period: b.period}
}

// Done reports how an attempt ended, at most once a permit. It is ignored when
// the attempt began before the breaker last opened.
func (b *Breaker) Done(now time.Time, p Permit, r Result) {
	b.advance(now)
	if p.period != b.period || r == Neutral {
		return
	}
	failed := r == Failure
	if failed {
		b.consecutive++
	} else {
		b.consecutive = 0
	}
	if b.state == HalfOpen {
		if failed {
			b.reopen(now, "trial failed")
		} else {
			b.step()
		}
		return
	}
	b.window.add(failed)
	if failed {
		b.judge(now)
	}
}

// Trip opens the breaker at once, for what is known without an attempt: the
// process is gone, the GPU has failed. While already open it doubles nothing
// and only sees to it that no trial comes sooner than a first cool-down from
// now, so that nothing is sent to a replica which every probe finds gone.
func (b *Breaker) Trip(now time.Time, reason string) {
	b.advance(now)
	switch b.state {
	case Closed:
		b.open(now, reason)
	case HalfOpen:
		b.reopen(now, reason)
	case Open:
		b.cause, b.reason = reason, reason
		if soonest := now.Add(b.cfg.Cooldown); b.until.Before(soonest) {
			b.until = soonest
		}
	}
}

// ProbeOK reports that a probe found the replica well. Probes are no attempts:
// it ends a cool-down where ProbeRecovery says so, and is nothing otherwise.
func (b *Breaker) ProbeOK(now time.Time) {
	b.advance(now)
	if b.state == Open && b.cfg.ProbeRecovery {
		b.halfOpen()
	}
}

// NextChange is when an open breaker turns half-open; false when it is not
// open. It is the only change that time alone brings.
func (b *Breaker) NextChange(now time.Time) (time.Time, bool) {
	b.advance(now)
	if b.state != Open {
		return time.Time{}, false
	}
	return b.until, true
}

// State is where the breaker stands now.
func (b *Breaker) State(now time.Time) State {
	b.advance(now)
	return b.state
}

// View is a breaker as people see it.
type View struct {
	State       State
	Share       float64   // share of slots that may be used, 0…1
	Reason      string    // why it is not closed; empty while closed
	NextTrial   time.Time // end of the cool-down; zero unless open
	Opened      time.Time // when it last opened; zero unless open
	Consecutive int       // failures in a row, among results that counted
}

// View shows the breaker.
func (b *Breaker) View(now time.Time) View {
	b.advance(now)
	v := View{State: b.state, Reason: b.reason, Consecutive: b.consecutive}
	switch b.state {
	case Closed:
		v.Share = 1
	case HalfOpen:
		v.Share = b.share
	case Open:
		v.NextTrial, v.Opened = b.until, b.opened
	}
	return v
}

// advance makes an open breaker half-open when its cool-down is over.
func (b *Breaker) advance(now time.Time) {
	if b.state == Open && !now.Before(b.until) {
		b.halfOpen()
	}
}

// judge opens a closed breaker if the failures so far are too many.
func (b *Breaker) judge(now time.Time) {
	if n := b.cfg.ConsecutiveFailures; n > 0 && b.consecutive >= n {
		b.open(now, failuresInARow(b.consecutive))
		return
	}
	if limit := b.failureLimit(); limit > 0 && b.window.failures >= limit {
		b.open(now, fmt.Sprintf("%d of the last %d attempts failed", b.window.failures, b.window.count))
	}
}

// failureLimit is the number of failures in the window that opens the breaker;
// 0 when no number does.
func (b *Breaker) failureLimit() int {
	if b.cfg.FailureShare <= 0 || b.cfg.Window <= 0 {
		return 0
	}
	return int(math.Ceil(b.cfg.FailureShare*float64(b.cfg.Window) - 1e-9))
}

func failuresInARow(n int) string {
	if n == 1 {
		return "1 failure"
	}
	return fmt.Sprintf("%d consecutive failures", n)
}

func (b *Breaker) open(now time.Time, reason string) {
	b.cause = reason
	b.startCooldown(now, reason)
}

// reopen ends a recovery that failed.
func (b *Breaker) reopen(now time.Time, what string) {
	b.failedRecoveries++
	b.startCooldown(now, fmt.Sprintf("%s in recovery %d from %s", what, b.failedRecoveries, b.cause))
}

func (b *Breaker) startCooldown(now time.Time, reason string) {
	b.state = Open
	b.period++
	b.opened, b.until = now, now.Add(b.cooldown())
	b.reason = reason
}

// cooldown is Cooldown doubled for each failed recovery, up to MaxCooldown.
func (b *Breaker) cooldown() time.Duration {
	first := b.cfg.Cooldown
	limit := max(first, b.cfg.MaxCooldown)
	if first > limit>>b.failedRecoveries {
		return limit
	}
	return first << b.failedRecoveries
}

func (b *Breaker) halfOpen() {
	b.state = HalfOpen
	b.reason = "recovering from " + b.cause
	b.share = min(1, max(0, b.cfg.TrialStart))
	b.steps = 0
}

// step counts a successful trial.
func (b *Breaker) step() {
	b.steps++
	next := b.share * b.cfg.TrialFactor
	if !(next > b.share) || next >= 1-1e-9 { // the first also catches a NaN
		b.close()
		return
	}
	b.share = next
}

func (b *Breaker) close() {
	b.state = Closed
	b.failedRecoveries = 0
	b.cause, b.reason = "", ""
	b.window.clear()
}
