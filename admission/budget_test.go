package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// R4: what a class takes up is known as soon as it comes, however long there was
// none of it before, and a long request is one slot and not the work of many.
func TestR4AFlowCountsFromWhereItBegan(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var f flow
	require.Zero(t, f.rate(start))
	for _, begin := range []time.Duration{0, time.Hour} {
		at := start.Add(begin)
		for i := range 30 { // three slots' work
			if i > 0 {
				require.InDelta(t, 3, f.rate(at), 0.35, "after %d s", i)
			}
			for range 3 {
				f.add(at, 1, 1)
			}
			at = at.Add(time.Second)
		}
		require.InDelta(t, 3, f.rate(at.Add(-time.Second)), 0.01)
		require.Zero(t, f.rate(at.Add(flowSpan)))
	}

	for i := range 5 {
		var f flow
		at := start.Add(time.Duration(i) * time.Minute)
		f.add(at, 10, 1)
		require.InDelta(t, 1, f.rate(at), 0.01)
		require.InDelta(t, 1, f.rate(at.Add(10*time.Second)), 0.01)
		require.InDelta(t, 10/19.0, f.rate(at.Add(19*time.Second)), 0.01)
		f.correct(at.Add(30*time.Second), 5)
		require.Zero(t, f.rate(at.Add(30*time.Second)), "one that ends late is no new load")
	}
	f = flow{}
	f.add(start, 40, 4)
	require.InDelta(t, 4, f.rate(start), 0.01, "a wide one holds as many as it needs")
}

// R5: a promise that was made before it was known what more urgent classes take
// up teaches the margin nothing about forecasts that know it.
func TestR5WhatWasForecastAtOtherRatesTeachesNothing(t *testing.T) {
	cfg := testConfig(rep("r", 4))
	w := newWorld(t, cfg)
	w.teach(time.Second)
	tk := w.arrive()
	tk.class = w.c.mu.classes[1]
	tk.ask = w.ask()
	w.c.mu.describe(tk)
	tk.lane = lane{model: "m"}
	w.c.mu.weigh(w.now, tk)
	for _, tt := range []struct {
		rate    float64
		teaches bool
	}{{4, true}, {8, false}, {2, false}} {
		tk.class.margin.log = 0
		tk.pledge = pledge{tested: true, work: tk.work, rate: tt.rate}
		w.c.mu.calibrate(w.now, tk, false)
		require.Equal(t, tt.teaches, tk.class.margin.log != 0, "%v slots", tt.rate)
	}
}
