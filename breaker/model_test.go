package breaker

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the breaker told again, as plainly as possible: whole histories are
// kept, and everything is worked out from them each time.
type model struct {
	cfg       Config
	state     State
	openings  int
	until     time.Time
	failedRec int
	counted   []bool // failures among results that counted, ever
	closedAt  int    // where in counted the present closed time began
	successes int    // of this recovery
}

func (m *model) tick(now time.Time) {
	if m.state == Open && !now.Before(m.until) {
		m.state, m.successes = HalfOpen, 0
	}
}

func (m *model) consecutive() int {
	n := 0
	for n < len(m.counted) && m.counted[len(m.counted)-1-n] {
		n++
	}
	return n
}

func (m *model) share() float64 {
	return m.cfg.TrialStart * math.Pow(m.cfg.TrialFactor, float64(m.successes))
}

func (m *model) allowance(slots int) int {
	switch {
	case m.state == Open:
		return 0
	case m.state == Closed:
		return slots
	case m.successes == 0:
		return 1
	}
	return min(slots, max(1, int(math.Floor(m.share()*float64(slots)+1e-9))))
}

func (m *model) open(now time.Time) {
	if m.state == HalfOpen {
		m.failedRec++
	}
	m.state = Open
	m.openings++
	pause := min(float64(m.cfg.MaxCooldown), float64(m.cfg.Cooldown)*math.Pow(2, float64(m.failedRec)))
	m.until = now.Add(time.Duration(pause))
}

func (m *model) done(now time.Time, begun int, r Result) {
	if begun != m.openings || r == Neutral {
		return
	}
	m.counted = append(m.counted, r == Failure)
	switch {
	case m.state == HalfOpen && r == Failure:
		m.open(now)
	case m.state == HalfOpen:
		m.successes++
		if m.share() >= 1-1e-9 {
			m.state, m.failedRec, m.closedAt = Closed, 0, len(m.counted)
		}
	case r == Failure:
		last := m.counted[m.closedAt:]
		last = last[max(0, len(last)-m.cfg.Window):]
		failures := 0
		for _, failed := range last {
			if failed {
				failures++
			}
		}
		if m.consecutive() >= m.cfg.ConsecutiveFailures ||
			float64(failures) >= m.cfg.FailureShare*float64(m.cfg.Window)-1e-9 {
			m.open(now)
		}
	}
}

// R9 as a whole, against the plain model, with late, lost, neutral and
// repeated events in any order.
func TestR9AgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			ConsecutiveFailures: rapid.IntRange(1, 5).Draw(t, "consecutive"),
			FailureShare:        rapid.SampledFrom([]float64{0.1, 0.3, 0.5, 0.7, 1}).Draw(t, "share"),
			Window:              rapid.IntRange(1, 12).Draw(t, "window"),
			Cooldown:            rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second}).Draw(t, "cooldown"),
			MaxCooldown:         rapid.SampledFrom([]time.Duration{5 * time.Second, time.Minute}).Draw(t, "max"),
			TrialStart:          rapid.SampledFrom([]float64{0.05, 0.25, 0.6}).Draw(t, "start"),
			TrialFactor:         rapid.SampledFrom([]float64{1.6, 2}).Draw(t, "factor"),
			ProbeRecovery:       rapid.Bool().Draw(t, "probes"),
		}
		b, m := New(cfg), &model{cfg: cfg}
		type begun struct {
			permit  Permit
			opening int
		}
		var out []begun
		now := t0

		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 8000).Draw(t, "ms")) * time.Millisecond)
				m.tick(now)
			},
			"begin": func(t *rapid.T) {
				if b.Allowance(now, 100) > 0 {
					out = append(out, begun{b.Begin(now), m.openings})
				}
			},
			"done": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				r := rapid.SampledFrom([]Result{Success, Success, Failure, Failure, Neutral}).Draw(t, "result")
				b.Done(now, out[i].permit, r)
				m.done(now, out[i].opening, r)
				out = append(out[:i], out[i+1:]...)
			},
			"succeed": func(t *rapid.T) { // so that recoveries get to their end
				for range rapid.IntRange(1, 10).Draw(t, "times") {
					if b.Allowance(now, 1) > 0 {
						p, o := b.Begin(now), m.openings
						b.Done(now, p, Success)
						m.done(now, o, Success)
					}
				}
			},
			"lose": func(t *rapid.T) {
				if len(out) > 0 {
					out = out[1:]
				}
			},
			"trip": func(*rapid.T) {
				b.Trip(now, "gone")
				if m.state == Open {
					if soonest := now.Add(cfg.Cooldown); soonest.After(m.until) {
						m.until = soonest
					}
				} else {
					m.open(now)
				}
			},
			"probe": func(*rapid.T) {
				b.ProbeOK(now)
				if cfg.ProbeRecovery && m.state == Open {
					m.state, m.successes = HalfOpen, 0
				}
			},
			"": func(t *rapid.T) {
				v := b.View(now)
				require.Equal(t, m.state, v.State)
				require.Equal(t, m.consecutive(), v.Consecutive)
				require.Equal(t, m.state == Closed, v.Reason == "")
				for _, slots := range []int{1, 3, 20, 1000} {
					require.Equal(t, m.allowance(slots), b.Allowance(now, slots))
				}
				at, open := b.NextChange(now)
				require.Equal(t, m.state == Open, open)
				if open {
					require.Equal(t, m.until, at)
					require.Equal(t, at, v.NextTrial)
					require.LessOrEqual(t, at.Sub(now), max(cfg.Cooldown, cfg.MaxCooldown))
				}
			},
		})

		// From wherever it stands, with whatever was lost, a replica that is
		// well again gets all its slots back: one cool-down and the ramp.
		if at, open := b.NextChange(now); open {
			now = at
		}
		for i := 0; b.View(now).State != Closed; i++ {
			require.Less(t, i, 10)
			require.Positive(t, b.Allowance(now, 4))
			attempt(b, now, Success)
		}
		require.Equal(t, 4, b.Allowance(now, 4))
	})
}

func TestWindowAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 8).Draw(t, "size")
		var w window
		w.resize(size)
		var all []bool
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				failed := rapid.Bool().Draw(t, "failed")
				w.add(failed)
				all = append(all, failed)
				all = all[max(0, len(all)-size):]
			},
			"resize": func(t *rapid.T) {
				size = rapid.IntRange(-1, 8).Draw(t, "size")
				w.resize(size)
				size = max(0, size)
				all = all[max(0, len(all)-size):]
			},
			"clear": func(*rapid.T) {
				w.clear()
				all = nil
			},
			"": func(t *rapid.T) {
				failures := 0
				for _, failed := range all {
					if failed {
						failures++
					}
				}
				require.Equal(t, len(all), w.count)
				require.Equal(t, failures, w.failures)
			},
		})
	})
}
