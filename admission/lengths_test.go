package admission

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// R4: until old samples have faded, expectations are those of the samples
// themselves, to the width of a bucket.
func TestLengthsAgainstTheSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.IntRange(1, 5000), 1, 12).Draw(t, "samples")
		limit := rapid.IntRange(1, 6000).Draw(t, "limit")
		var l lengths
		for _, x := range xs {
			l.add(x)
		}
		capped := 0.0
		for _, x := range xs {
			capped += float64(min(x, limit)) / float64(len(xs))
		}
		require.InEpsilon(t, capped, l.mean(limit), 0.12, "samples %v", xs)
		require.LessOrEqual(t, l.mean(limit), float64(limit)+1e-9)
		require.GreaterOrEqual(t, l.mean(0)+1e-9, l.mean(limit))

		require.LessOrEqual(t, l.quantile(0.5, 0), l.quantile(0.95, 0))
		require.InEpsilon(t, float64(slices.Max(xs)), l.quantile(0.999, 0), 0.19)
		require.LessOrEqual(t, l.quantile(0.95, limit), float64(limit))
	})
}

// R4: what is left of an answer is what those as long already still had.
func TestLengthsRest(t *testing.T) {
	var l lengths
	for range 50 {
		l.add(100)
		l.add(1000)
	}
	rest := func(had float64, limit int) float64 {
		more, spread := l.rest(had, limit)
		require.LessOrEqual(t, spread, more)
		return more
	}
	_, spread := l.rest(0, 0)
	require.InDelta(t, 450, spread, 10, "one of two lengths")
	_, spread = l.rest(110, 0)
	require.InDelta(t, 0, spread, 1, "it can only be the one")
	require.InDelta(t, 550, rest(0, 0), 10)
	require.InDelta(t, 890, rest(110, 0), 1, "it is a long one")
	require.InDelta(t, 390, rest(110, 500), 1, "its own maximum bounds it")
	require.InDelta(t, 500, rest(2000, 0), 1, "longer than any: a quarter of what it has had")
}

// R4: expectations follow a change within some hundred answers.
func TestLengthsForget(t *testing.T) {
	var l lengths
	for range 1000 {
		l.add(100)
	}
	for range 500 {
		l.add(800)
	}
	require.Greater(t, l.mean(0), 600.0)
	for range 200_000 { // weights are scaled back before they overflow
		l.add(50)
	}
	require.InDelta(t, 50, l.mean(0), 0.1)
}
