package breaker

import (
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
	require.Equal(t, View{State: Open, Reason: "connection refused", NextTrial: t0.Add(5 * time.Second), Opened: t0}, v)
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
