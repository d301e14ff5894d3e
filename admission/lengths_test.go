package admission

import (
	"math"
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

// R4: a bucket is a quarter of an octave, also at its very edges.
func TestLengthBucketsAreQuartersOfAnOctave(t *testing.T) {
	plain := func(x float64) int {
		frac, exp := math.Frexp(x) // x = frac × 2^exp, frac in [½, 1)
		q := 0
		for _, edge := range []float64{0.5946035575013605, 0.7071067811865476, 0.8408964152537145} {
			if frac >= edge {
				q++
			}
		}
		return min(4*(exp-1)+q, lengthBuckets-1)
	}
	for exp := range 20 {
		for q := range 4 {
			at := math.Ldexp(math.Exp2(float64(q)/4), exp)
			for _, x := range []float64{math.Nextafter(at, 0), at, math.Nextafter(at, math.Inf(1)), 1.1 * at} {
				if x >= 1 {
					require.Equal(t, plain(x), lengthBucket(x), "%v", x)
				}
			}
		}
	}
	require.Zero(t, lengthBucket(0.5))
	require.Equal(t, lengthBuckets-1, lengthBucket(1e300))
}

// R4: what is kept of tails is what those that are longer say, at any length.
func TestLengthsRestAgainstTheBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l lengths
		for _, x := range rapid.SliceOfN(rapid.IntRange(1, 300_000), 1, 40).Draw(t, "samples") {
			l.add(x)
		}
		had, limit := rapid.Float64Range(1, 400_000).Draw(t, "had"), rapid.IntRange(0, 400_000).Draw(t, "limit")
		w, s, q := 0.0, 0.0, 0.0
		for i, n := range l.weight {
			if at := lengthBucket(had); n > 0 && (i > at || i == at && l.sum[i] > n*had) {
				w, s, q = w+n, s+l.sum[i], q+l.sum[i]*l.sum[i]/n
			}
		}
		more, spread := had/4, had/4
		if w > 0 {
			more, spread = s/w-had, math.Sqrt(max(0, q/w-s/w*(s/w)))
		}
		if limit > 0 {
			more = min(more, max(0, float64(limit)-had))
		}
		spread = min(spread, more)
		gotMore, gotSpread := l.rest(had, limit)
		require.InDelta(t, more, gotMore, 1e-6*(1+more))
		require.InDelta(t, spread, gotSpread, 1e-3*(1+more))
	})
}
