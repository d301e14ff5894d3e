package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pooled runs a shipped scenario under a made-up clock, with traffic changed,
// and pools its trials.
func pooled(t *testing.T, name string, change func(*Source) bool) []Record {
	t.Helper()
	s, err := Load(name)
	require.NoError(t, err)
	s.Traffic = slices.DeleteFunc(s.Traffic, func(from Source) bool { return !change(&from) })
	for i := range s.Traffic {
		change(&s.Traffic[i])
	}
	return pool(t, s, "switchyard")
}

// pool runs all trials of a scenario under a made-up clock.
func pool(t *testing.T, s *Scenario, target string) (all []Record) {
	t.Helper()
	to, err := ParseTarget(target)
	require.NoError(t, err)
	for trial := 1; trial <= s.Trials; trial++ {
		got, err := RunVirtual(t.Context(), s, to, trial, VirtualOptions{Wire: wire})
		require.NoError(t, err)
		require.Empty(t, got.Violations)
		all = append(all, got.Records...)
	}
	return all
}

// R3.2 at the clients: the nine keep at least 0.95 of what they get without the
// noisy one, and it gets what they leave.
func TestR3NoisyNeighbourScenario(t *testing.T) {
	onTime := func(noisy bool) func(*Record) bool {
		return func(r *Record) bool { return r.OnTime && (r.Key == "noisy") == noisy }
	}
	alone := pooled(t, "noisy-neighbour", func(from *Source) bool { return from.Key != "noisy" })
	beside := pooled(t, "noisy-neighbour", func(*Source) bool { return true })
	was, is, rest := howMany(alone, onTime(false)), howMany(beside, onTime(false)), howMany(beside, onTime(true))
	t.Logf("the nine: %d on time alone, %d beside the noisy one, which had %d", was, is, rest)
	require.Greater(t, was, 1500)
	require.GreaterOrEqual(t, float64(is), 0.95*float64(was))
	require.Greater(t, rest, 450)

	// R14 beside it: a noisy one that comes back as told gets its booked places,
	// within its own share.
	returns := pooled(t, "noisy-neighbour", func(from *Source) bool {
		if times := 3; from.Key == "noisy" {
			from.Retry, from.Retries = RetryTold, &times
		}
		return true
	})
	is, rest = howMany(returns, onTime(false)), howMany(returns, onTime(true))
	t.Logf("%d beside one that comes back, which had %d", is, rest)
	require.GreaterOrEqual(t, float64(is), 0.93*float64(was))
	back := func(r *Record) bool { return r.RetriedOf != "" }
	taken := func(r *Record) bool { return back(r) && r.Status != 429 }
	require.Greater(t, float64(howMany(returns, taken)), 0.85*float64(howMany(returns, back)))
}

// R3.1 at the clients: interactive requests are served as well, to 3 in 100,
// beside four times the capacity of batch work as beside none, and batch has its
// min_share.
func TestR3PrioritiesScenario(t *testing.T) {
	of := func(class string) func(*Record) bool {
		return func(r *Record) bool { return r.OnTime && r.Class == class }
	}
	const long = 6 * time.Minute
	without := pooled(t, "priorities", func(from *Source) bool {
		from.Until = long
		return from.Class != "batch"
	})
	beside := pooled(t, "priorities", func(from *Source) bool {
		from.Until = long
		if from.Class == "batch" {
			from.Rate = 10.5
		}
		return true
	})
	was, is := howMany(without, of("interactive")), howMany(beside, of("interactive"))
	sent := howMany(without, func(r *Record) bool { return r.Class == "interactive" })
	seconds := 0.0
	for i := range beside {
		if r := &beside[i]; r.Class == "batch" && r.OnTime && r.EndS <= long.Seconds() {
			seconds += r.EndS - *r.FirstTokenS
		}
	}
	share := seconds / (3 * 8 * long.Seconds())
	t.Logf("interactive: %d on time without batch, %d beside it, of %d; batch had %.3f of the slots", was, is, sent, share)
	require.InEpsilon(t, float64(was), float64(is), 0.03)
	require.Greater(t, float64(was), 0.95*float64(sent))
	require.Greater(t, share, 0.05)
}
