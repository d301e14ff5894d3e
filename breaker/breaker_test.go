package breaker

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// defaults are the documented defaults of the configuration.
func defaults() Config {
	return Config{
		ConsecutiveFailures: 3,
		FailureShare:        0.5,
		Window:              20,
		Cooldown:            5 * time.Second,
		MaxCooldown:         2 * time.Minute,
		TrialStart:          0.05,
		TrialFactor:         1.6,
	}
}

// attempt begins and ends one attempt.
func attempt(b *Breaker, now time.Time, r Result) {
	b.Done(now, b.Begin(now), r)
}

// feed runs one attempt for each letter: s(uccess), f(ailure), n(eutral).
func feed(b *Breaker, now time.Time, results string) {
	for _, c := range results {
		attempt(b, now, map[rune]Result{'s': Success, 'f': Failure, 'n': Neutral}[c])
	}
}

// opened gives a breaker that has just opened at t0 on failures in a row.
func opened(cfg Config) *Breaker {
	b := New(cfg)
	feed(b, t0, "fff")
	return b
}

func TestR9Opens(t *testing.T) {
	small := defaults()
	small.Window, small.FailureShare, small.ConsecutiveFailures = 4, 0.5, 0
	third := defaults()
	third.Window, third.FailureShare, third.ConsecutiveFailures = 10, 0.3, 0
	one := defaults()
	one.ConsecutiveFailures = 1
	never := Config{Cooldown: time.Second}

	tests := []struct {
		name    string
		cfg     Config
		results string
		reason  string // empty: stays closed
	}{
		{"one failure", defaults(), "f", ""},
		{"two in a row", defaults(), "ff", ""},
		{"three in a row", defaults(), "fff", "3 consecutive failures"},
		{"three in a row after successes", defaults(), "ssssfff", "3 consecutive failures"},
		{"a success breaks the row", defaults(), "ffsff", ""},
		{"neutral results neither break nor lengthen the row", defaults(), "fnfnnf", "3 consecutive failures"},
		{"neutral results alone", defaults(), strings.Repeat("n", 100), ""},
		{"one in a row is enough where configured", one, "sf", "1 failure"},
		{"every second fails, window not yet full", defaults(), strings.Repeat("sf", 9), ""},
		{"every second fails", defaults(), strings.Repeat("sf", 10), "10 of the last 20 attempts failed"},
		{"two of three fail: judged as if the rest were successes", defaults(), "ffsffsffsffsff", "10 of the last 14 attempts failed"},
		{"one of three fails", defaults(), strings.Repeat("ssf", 40), ""},
		{"one of two fails at first", small, "sf", ""},
		{"old failures leave the window", small, "fsssfsssfsssf", ""},
		{"two of four", small, "ssssfsf", "2 of the last 4 attempts failed"},
		{"exactly the share, though 0.3 × 10 has no exact float", third, "sssssssfsfsf", "3 of the last 10 attempts failed"},
		{"neutral results take no place in the window", small, "fnnnnnnf", "2 of the last 2 attempts failed"},
		{"nothing configured", never, strings.Repeat("f", 1000), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := New(tt.cfg)
			feed(b, t0, tt.results)
			v := b.View(t0)
			require.Equal(t, tt.reason, v.Reason)
			if tt.reason == "" {
				require.Equal(t, Closed, v.State)
				require.Equal(t, 1.0, v.Share)
				require.Zero(t, v.NextTrial)
				require.Equal(t, 8, b.Allowance(t0, 8))
				return
			}
			require.Equal(t, Open, v.State)
			require.Zero(t, v.Share)
			require.Equal(t, t0.Add(tt.cfg.Cooldown), v.NextTrial)
			require.Zero(t, b.Allowance(t0, 8))
		})
	}
}

// Pain 9: a window on the clock never saw enough at low rates.
func TestR9SlowTrafficTripsToo(t *testing.T) {
	b := New(defaults())
	now := t0
	for i := range 20 {
		require.Equal(t, Closed, b.View(now).State)
		now = now.Add(5 * time.Second)
		b.ProbeOK(now) // passing probes are no attempts
		attempt(b, now, []Result{Success, Failure}[i%2])
	}
	require.Equal(t, Open, b.View(now).State)
	require.Equal(t, "10 of the last 20 attempts failed", b.View(now).Reason)
}

func TestR9CooldownAndHalfOpenByTimeAlone(t *testing.T) {
	b := opened(defaults())
	at, open := b.NextChange(t0)
	require.True(t, open)
	require.Equal(t, t0.Add(5*time.Second), at)

	require.Zero(t, b.Allowance(at.Add(-1), 8))
	require.Equal(t, 1, b.Allowance(at, 8))
	v := b.View(at)
	require.Equal(t, HalfOpen, v.State)
	require.Equal(t, 0.05, v.Share)
	require.Equal(t, "recovering from 3 consecutive failures", v.Reason)
	require.Zero(t, v.NextTrial)
	_, open = b.NextChange(at)
	require.False(t, open)
}

func TestR9RampStepsByEachSuccess(t *testing.T) {
	shares := []float64{0.05, 0.08, 0.13, 0.20, 0.33, 0.52, 0.84, 1}
	allowances := map[int][]int{
		1:   {1, 1, 1, 1, 1, 1, 1, 1},
		4:   {1, 1, 1, 1, 1, 2, 3, 4},
		10:  {1, 1, 1, 2, 3, 5, 8, 10},
		100: {1, 8, 12, 20, 32, 52, 83, 100}, // one at first, whatever the slots
		0:   {0, 0, 0, 0, 0, 0, 0, 0},
	}
	b := opened(defaults())
	now := t0.Add(5 * time.Second)
	for i, share := range shares {
		require.InDelta(t, share, b.View(now).Share, 0.005, "after %d successes", i)
		for slots, want := range allowances {
			require.Equal(t, want[i], b.Allowance(now, slots), "%d slots after %d successes", slots, i)
		}
		if i < len(shares)-1 {
			require.Equal(t, HalfOpen, b.View(now).State)
			attempt(b, now, Success)
		}
	}
	v := b.View(now)
	require.Equal(t, Closed, v.State)
	require.Empty(t, v.Reason)
	require.Zero(t, v.Consecutive)
}

func TestR9ClosesWithAFreshWindow(t *testing.T) {
	b := New(defaults())
	feed(b, t0, strings.Repeat("sf", 10))
	now := t0.Add(5 * time.Second)
	feed(b, now, "sssssss")
	require.Equal(t, Closed, b.View(now).State)
	feed(b, now, strings.Repeat("fs", 9)) // with the old failures this would be far too many
	require.Equal(t, Closed, b.View(now).State)
}

func TestR9CooldownDoublesUpToTheMaximumAndResetsAfterClosing(t *testing.T) {
	b := opened(defaults())
	now := t0
	for i, want := range []int{5, 10, 20, 40, 80, 120, 120, 120} {
		at, open := b.NextChange(now)
		require.True(t, open)
		require.Equal(t, time.Duration(want)*time.Second, at.Sub(now), "opening %d", i)
		now = at
		attempt(b, now, Success) // a recovery that fails later on is one, too
		attempt(b, now, Failure)
	}
	require.Equal(t, "trial failed in recovery 8 from 3 consecutive failures", b.View(now).Reason)

	now, _ = b.NextChange(now)
	feed(b, now, "sssssss")
	require.Equal(t, Closed, b.View(now).State)
	feed(b, now, "fff")
	at, _ := b.NextChange(now)
	require.Equal(t, 5*time.Second, at.Sub(now))
}

func TestR9CooldownNeverOverflows(t *testing.T) {
	cfg := defaults()
	cfg.Cooldown, cfg.MaxCooldown = 3*time.Second, math.MaxInt64
	b := opened(cfg)
	now := t0
	for range 200 {
		at, open := b.NextChange(now)
		require.True(t, open)
		require.GreaterOrEqual(t, at.Sub(now), 3*time.Second)
		b.halfOpen()
		attempt(b, now, Failure)
	}
	cfg.MaxCooldown = 0 // below Cooldown: Cooldown
	b = opened(cfg)
	attempt(b, t0.Add(3*time.Second), Failure)
	at, _ := b.NextChange(t0.Add(3 * time.Second))
	require.Equal(t, t0.Add(6*time.Second), at)
}

func TestR9ResultsFromBeforeTheOpeningAreIgnored(t *testing.T) {
	for _, late := range []Result{Success, Failure, Neutral} {
		b := New(defaults())
		old := b.Begin(t0)
		feed(b, t0, "fff")

		b.Done(t0.Add(time.Second), old, late) // while open
		require.Equal(t, t0.Add(5*time.Second), b.View(t0.Add(time.Second)).NextTrial)
		require.Equal(t, 3, b.View(t0.Add(time.Second)).Consecutive)

		now := t0.Add(5 * time.Second)
		require.Equal(t, HalfOpen, b.View(now).State)
		b.Done(now, old, late) // while half-open
		v := b.View(now)
		require.Equal(t, HalfOpen, v.State)
		require.Equal(t, 0.05, v.Share)

		feed(b, now, "sssssss")
		b.Done(now, old, late) // after closing: still of the time before
		require.Zero(t, b.View(now).Consecutive)
	}
}

func TestR9ATrialOfAnEarlierRecoveryIsIgnored(t *testing.T) {
	b := opened(defaults())
	now := t0.Add(5 * time.Second)
	attempt(b, now, Success)
	first, second := b.Begin(now), b.Begin(now)
	b.Done(now, first, Failure)
	now, _ = b.NextChange(now)
	require.Equal(t, HalfOpen, b.View(now).State)
	b.Done(now, second, Success)
	require.Equal(t, 0.05, b.View(now).Share, "a success from before the second opening must not speed the second recovery")
	b.Done(now, second, Failure)
	require.Equal(t, HalfOpen, b.View(now).State)
}

func TestR9ATrialThatOutlivesTheRecoveryCountsInTheNewWindow(t *testing.T) {
	b := opened(defaults())
	now := t0.Add(5 * time.Second)
	trial := b.Begin(now)
	feed(b, now, "sssssss")
	require.Equal(t, Closed, b.View(now).State)
	b.Done(now, trial, Failure) // it began after the last opening
	require.Equal(t, 1, b.View(now).Consecutive)
}

// A trial that ends without a verdict is given back.
func TestR9NeutralGivesTheTrialBack(t *testing.T) {
	b := opened(defaults())
	now := t0.Add(5 * time.Second)
	for range 50 {
		require.Equal(t, 1, b.Allowance(now, 8))
		attempt(b, now, Neutral)
	}
	v := b.View(now)
	require.Equal(t, HalfOpen, v.State)
	require.Equal(t, 0.05, v.Share)
}

// Pain 2: one trial that never reported kept a healthy upstream out for good.
// Here lost permits leave nothing behind at any step of the ramp.
func TestR9LostTrialsCannotWedge(t *testing.T) {
	b := opened(defaults())
	now := t0.Add(5 * time.Second)
	for step := range 7 {
		want := b.Allowance(now, 4)
		for range 1000 {
			b.Begin(now) // lost: never reported
		}
		require.Equal(t, want, b.Allowance(now, 4), "step %d", step)
		require.Positive(t, want)
		attempt(b, now, Success)
	}
	require.Equal(t, Closed, b.View(now).State)
	require.Equal(t, 4, b.Allowance(now, 4))
}

func TestR9BeginWhileOpenCountsForNothing(t *testing.T) {
	b := opened(defaults())
	p := b.Begin(t0)
	require.Equal(t, Permit{}, p)
	b.Done(t0, p, Success)
	now := t0.Add(5 * time.Second)
	require.Equal(t, HalfOpen, b.View(now).State)
	b.Done(now, p, Failure)
	require.Equal(t, HalfOpen, b.View(now).State)
	b = New(defaults())
	for range 10 {
		b.Done(t0, Permit{}, Failure)
	}
	require.Equal(t, Closed, b.View(t0).State)
}

func TestR9TripOpensAtOnce(t *testing.T) {
	b := New(defaults())
	old := b.Begin(t0)
	b.Trip(t0, "connection refused")
	v := b.View(t0)
	require.Equal(t, View{State: Open, Reason: "connection refused", NextTrial: t0.Add(5 * time.Second)}, v)
	b.Done(t0, old, Success)
	require.Equal(t, v, b.View(t0))
}

func TestR9TripWhileOpenDoublesNothing(t *testing.T) {
	b := New(defaults())
	now := t0
	for range 30 { // a process gone for a minute, probed every two seconds
		b.Trip(now, "connection refused")
		require.Equal(t, Open, b.View(now).State)
		at, _ := b.NextChange(now)
		require.Equal(t, now.Add(5*time.Second), at, "one first cool-down after it was last found gone")
		now = now.Add(2 * time.Second)
	}

	// A longer cool-down is not shortened.
	b = opened(defaults())
	now = t0.Add(5 * time.Second)
	attempt(b, now, Failure)
	b.Trip(now.Add(time.Second), "connection refused")
	v := b.View(now.Add(time.Second))
	require.Equal(t, now.Add(10*time.Second), v.NextTrial)
	require.Equal(t, "connection refused", v.Reason)
}

func TestR9TripWhileHalfOpenIsAFailedRecovery(t *testing.T) {
	b := opened(defaults())
	now := t0.Add(5 * time.Second)
	trial := b.Begin(now)
	b.Trip(now, "connection refused")
	v := b.View(now)
	require.Equal(t, now.Add(10*time.Second), v.NextTrial)
	require.Equal(t, "connection refused in recovery 1 from 3 consecutive failures", v.Reason)
	b.Done(now, trial, Success)
	require.Equal(t, v, b.View(now))
}

func TestR9ProbesCutACooldownShortOnlyWhenConfigured(t *testing.T) {
	b := opened(defaults())
	b.ProbeOK(t0)
	require.Equal(t, Open, b.View(t0).State)

	cfg := defaults()
	cfg.ProbeRecovery = true
	b = opened(cfg)
	b.ProbeOK(t0.Add(time.Second))
	require.Equal(t, HalfOpen, b.View(t0.Add(time.Second)).State)
	require.Equal(t, 1, b.Allowance(t0.Add(time.Second), 8))
	attempt(b, t0.Add(time.Second), Success)
	share := b.View(t0.Add(time.Second)).Share
	b.ProbeOK(t0.Add(time.Second)) // nothing while half-open
	require.Equal(t, share, b.View(t0.Add(time.Second)).Share)

	b = New(cfg)
	feed(b, t0, "ff")
	b.ProbeOK(t0) // nothing while closed: probes do not feed the window
	require.Equal(t, 2, b.View(t0).Consecutive)
	feed(b, t0, "f")
	require.Equal(t, Open, b.View(t0).State)
}

func TestSetConfigKeepsTheState(t *testing.T) {
	b := opened(defaults())
	longer := defaults()
	longer.Cooldown, longer.TrialFactor = time.Minute, 2
	b.SetConfig(longer)
	now := t0.Add(5 * time.Second)
	require.Equal(t, now, b.View(t0).NextTrial)
	feed(b, now, "ss")
	require.InDelta(t, 0.2, b.View(now).Share, 1e-9)
	b.SetConfig(defaults())
	require.InDelta(t, 0.2, b.View(now).Share, 1e-9)
	feed(b, now, "s")
	require.InDelta(t, 0.32, b.View(now).Share, 1e-9)

	// The window keeps the newest results and judges them with the next one.
	b = New(defaults())
	feed(b, t0, "ffsffsffs")
	smaller := defaults()
	smaller.Window = 5
	b.SetConfig(smaller)
	require.Equal(t, Closed, b.View(t0).State)
	feed(b, t0, "s")
	require.Equal(t, Closed, b.View(t0).State)
	feed(b, t0, "f")
	require.Equal(t, "3 of the last 5 attempts failed", b.View(t0).Reason)
}

// Odd numbers must not make a breaker that never closes again.
func TestR9EveryConfigurationRecovers(t *testing.T) {
	tests := []struct {
		name          string
		start, factor float64
		successes     int
	}{
		{"defaults", 0.05, 1.6, 7},
		{"exactly one at the end", 0.125, 2, 3},
		{"a tenth, ten times", 0.1, 10, 1},
		{"whole at once", 1, 1.6, 1},
		{"above the whole", 7, 1.6, 1},
		{"no start", 0, 1.6, 1},
		{"negative start", -1, 1.6, 1},
		{"no growth", 0.05, 1, 1},
		{"shrinking", 0.05, 0.5, 1},
		{"not a number", 0.05, math.NaN(), 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := defaults()
			cfg.TrialStart, cfg.TrialFactor = tt.start, tt.factor
			b := opened(cfg)
			now := t0.Add(5 * time.Second)
			n := 0
			for ; b.View(now).State != Closed; n++ {
				require.Less(t, n, 100)
				require.Positive(t, b.Allowance(now, 8))
				share := b.View(now).Share
				require.True(t, share >= 0 && share <= 1, "share %v", share)
				attempt(b, now, Success)
			}
			require.Equal(t, tt.successes, n)
		})
	}
}

func TestStateNames(t *testing.T) {
	require.Equal(t, "closed half-open open", strings.Join([]string{Closed.String(), HalfOpen.String(), Open.String()}, " "))
}

func TestNoAllocations(t *testing.T) {
	b := New(defaults())
	now := t0
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if b.Allowance(now, 8) > 0 {
			b.Done(now, b.Begin(now), Success)
		}
	}))
}

func BenchmarkBreaker(b *testing.B) {
	br := New(defaults())
	now := t0
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		now = now.Add(time.Millisecond)
		if br.Allowance(now, 8) > 0 {
			r := Success
			if i++; i%4 == 0 {
				r = Failure
			}
			br.Done(now, br.Begin(now), r)
		}
	}
}
