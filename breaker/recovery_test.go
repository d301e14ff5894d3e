package breaker

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
