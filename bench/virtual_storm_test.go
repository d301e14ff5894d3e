package bench

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// R14 at the clients: in `retry-storm`, at its three times the capacity and at
// half of that, also where half of the clients never come back, and where each
// kind of client has its own key, nine in ten at least are accepted of those who
// come when they were told, whatever the seed; no slot idles while somebody is
// refused; and asking at once gains nothing.
func TestR14RetryStormScenario(t *testing.T) {
	for _, load := range []float64{0.5, 1} {
		for _, leaving := range []bool{false, true} {
			for _, keyed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%.1f times the capacity, half never %v, keys %v", 3*load, leaving, keyed), func(t *testing.T) {
					t.Parallel()
					retryStorm(t, load, leaving, keyed)
				})
			}
		}
	}
}

func retryStorm(t *testing.T, load float64, leaving, keyed bool) {
	trials, least := 12, 0.93
	if keyed { // each key's share is a quarter: a few dozen come back in a trial
		trials, least = 60, 0.9
	}
	s, err := Load("retry-storm")
	require.NoError(t, err)
	s.Trials = 1
	for i := range s.Traffic {
		from := &s.Traffic[i]
		from.Rate, from.Peak = from.Rate*load, from.Peak*load
		if leaving {
			from.Rate, from.Peak = from.Rate/2, from.Peak/2
		}
	}
	if leaving {
		for _, from := range s.Traffic {
			from.Retry = RetryNone
			s.Traffic = append(s.Traffic, from)
		}
	}
	if keyed {
		for i := range s.Traffic {
			s.Traffic[i].Key = s.Traffic[i].Retry
		}
		for _, name := range []string{RetryTold, RetrySDK, RetryAtOnce, RetryNone} {
			s.Keys.List = append(s.Keys.List, KeySpec{Name: name})
		}
	}
	came, taken, worst := 0, 0, 1.0
	over, busy := 0.0, 0.0
	asked, served := map[string]int{}, map[string]int{}
	for trial := 1; trial <= trials; trial++ {
		to, err := ParseTarget("switchyard")
		require.NoError(t, err)
		got, err := RunVirtual(t.Context(), s, to, trial, VirtualOptions{Wire: wire})
		require.NoError(t, err)
		require.Empty(t, got.Violations)
		back, ok := honesty(got.Records)
		came, taken = came+back, taken+ok
		if back >= 100 { // of fewer, chance alone may refuse one in ten
			worst = min(worst, float64(ok)/float64(back))
		}
		o, b := crowdedTime(got.Records, 8)
		over, busy = over+o, busy+b
		for i := range got.Records {
			r := &got.Records[i]
			who := s.Traffic[r.ID[0]-'a'].Retry
			if r.RetriedOf == "" {
				asked[who]++
			}
			if r.OnTime {
				served[who]++
			}
		}
	}
	share := func(key string) float64 { return float64(served[key]) / float64(asked[key]) }
	t.Logf("accepted %.3f of %d who came in time, in one trial %.3f; busy %.4f of %.0f s; served told %.2f, sdk %.2f, at once %.2f, never %.2f",
		float64(taken)/float64(came), came, worst, busy/over, over, share(RetryTold), share(RetrySDK), share(RetryAtOnce), share(RetryNone))
	require.GreaterOrEqual(t, worst, 0.9)
	require.GreaterOrEqual(t, float64(taken), least*float64(came))
	require.Greater(t, over, 25.0*float64(trials))
	require.GreaterOrEqual(t, busy/over, 0.98)
	if !keyed { // else each key has what is its own, whatever its clients do
		require.Less(t, share(RetryAtOnce), share(RetryTold))
	}
}

// honesty counts those who came back when they had been told, and those of them
// who were accepted, as the tables do.
func honesty(all []Record) (came, taken int) {
	told := map[string]float64{}
	for i := range all {
		if r := &all[i]; r.outcome() == refused && r.RetryAfterS != nil {
			told[r.ID] = r.EndS + *r.RetryAfterS
		}
	}
	for i := range all {
		r := &all[i]
		if at, ok := told[r.RetriedOf]; ok && r.ArrivalS > at-0.05 && r.ArrivalS < at+1 {
			came++
			if r.outcome() != refused {
				taken++
			}
		}
	}
	return came, taken
}

// crowdedTime is how many seconds there were in which somebody was refused, and
// what share of the slots had work in them, added up.
func crowdedTime(all []Record, slots int) (over, busy float64) {
	type change struct {
		at float64
		by int
	}
	var changes []change
	crowded := map[int]bool{}
	last := 0.0
	for i := range all {
		switch r := &all[i]; r.outcome() {
		case refused:
			crowded[int(r.ArrivalS)] = true
		case onTime, late:
			changes = append(changes, change{r.ArrivalS, 1}, change{r.EndS, -1})
			last = max(last, r.EndS)
		}
	}
	for s := range int(last) + 1 { // so that each stretch lies in one second
		changes = append(changes, change{float64(s), 0})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	n, at := 0, 0.0
	for _, c := range changes {
		if crowded[int(at)] {
			over += c.at - at
			busy += (c.at - at) * float64(min(n, slots)) / float64(slots)
		}
		n, at = n+c.by, c.at
	}
	return over, busy
}
