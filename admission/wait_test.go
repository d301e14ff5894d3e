package admission

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawSlots(t *rapid.T) (slots []slotTime) {
	for range rapid.IntRange(1, maxLooked-1).Draw(t, "slots") {
		free := rapid.Float64Range(0, 30).Draw(t, "free")
		spread := rapid.SampledFrom([]float64{0, 0.1, 0.7, 1}).Draw(t, "spread") * free
		slots = append(slots, slotTime{free, spread})
	}
	return slots
}

// R4: a turn counts, of each slot, the share that what runs has ended by then, one
// standard deviation early, and what has been begun there since.
func TestR4StartsAgainstThePlainSum(t *testing.T) {
	freed := func(u float64) float64 { return 1 - math.Exp(-max(0, u)) }
	rapid.Check(t, func(t *rapid.T) {
		b := backlog{slots: drawSlots(t), part: rapid.Float64Range(0.1, 1).Draw(t, "part"), varied: rapid.Float64Range(0, 1).Draw(t, "varied")}
		b.ahead = float64(rapid.IntRange(0, 200).Draw(t, "ahead"))
		b.work = b.ahead * rapid.Float64Range(0.1, 5).Draw(t, "each")
		b.taken = rapid.Float64Range(0, float64(len(b.slots))).Draw(t, "taken")
		then := rapid.Float64Range(0, 60).Draw(t, "then")
		n := float64(len(b.slots))
		mean, variance, each, off := 0.0, 0.0, math.Inf(1), 1e-9
		if b.ahead > 0 {
			each = b.work / b.ahead
		}
		after := 0.0
		if b.ahead > 0 {
			after = each * (1 - b.varied) / 2
		}
		for _, s := range b.slots {
			past := then - (s.free - s.spread)
			if past < 0 {
				continue
			}
			free, since := 1.0, past-s.spread-after
			if s.spread > 1e-3 {
				free = freed(past / s.spread)
				since = past - after - s.spread*freed((past-after)/s.spread)
			}
			again := max(0, since) / each
			off += 0.011 * (1 + s.spread/each) // freed is near to a hundredth
			mean += free + again
			variance += free*(1-free) + b.varied*again
		}
		want := mean - sureness*math.Sqrt(b.part*variance) - b.part*((b.ahead+1)/max(1-b.taken/n, 0.05)-0.5)
		s := b.starts(make([]ending, 0, maxLooked))
		off += sureness * math.Sqrt(b.part*off) // at the most, of the variance
		require.InDelta(t, want, s.over(then), off)
	})
}

// R4: slots are filled to the level at which the work has been begun.
func TestR4FillIsWhereTheWorkHasBeenBegun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := drawSlots(t)
		n := float64(len(slots))
		work := rapid.Float64Range(0, 40*n).Draw(t, "work")
		level := fill(slots, work, 0).Seconds()
		begun, first := 0.0, math.Inf(1)
		for _, s := range slots {
			begun += max(0, level-s.free)
			first = min(first, s.free)
		}
		require.GreaterOrEqual(t, level, first-1e-6)
		require.InDelta(t, work, begun, 1e-4*n)
	})
}

// A lane counts as stuck in a dispatch only where its next found no replica though there
// was room: that the last slot is gone is seen before one is looked for.
func TestDispatchSeesThatTheLastSlotIsGone(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	w.teach(time.Second)
	a := w.granted(w.accept(w.ask()))
	for range 3 {
		w.waits(w.accept(w.ask()))
	}
	w.serve(a, time.Second)
	require.Empty(t, w.c.mu.rooms.stuck)
	require.Equal(t, 2, w.c.mu.q.Len())
}
