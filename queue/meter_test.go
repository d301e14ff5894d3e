package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMeterCountsTimeAsItPasses(t *testing.T) {
	m := newMeter(t0, 2)
	require.Zero(t, m.Share(t0, 0))
	m.Start(after(0.5), 0, 3)
	require.Zero(t, m.Used(after(0.5), 0, time.Minute))
	require.InDelta(t, 3, m.Used(after(1.5), 0, time.Minute), 1e-9, "a run that has not ended counts")
	m.Start(after(1.5), 1, 1)
	require.InDelta(t, 6, m.Used(after(2.5), 0, time.Minute), 1e-9)
	require.InDelta(t, 1.0/7, m.Share(after(2.5), 1), 1e-9)
	m.Stop(after(2.5), 0, 3)
	require.InDelta(t, 6, m.Used(after(30), 0, time.Minute), 1e-9)
	require.Equal(t, 0, m.Running(0))
	require.Equal(t, 1, m.Running(1))

	// Shorter windows, within a second and across.
	require.InDelta(t, 0.25, m.Used(after(40.5), 1, 250*time.Millisecond), 1e-9)
	require.InDelta(t, 5, m.Used(after(40.5), 1, 5*time.Second), 1e-9)
	require.Zero(t, m.Used(after(40.5), 1, 0))
	require.Zero(t, m.Used(after(40.5), 1, -time.Second))
	require.InDelta(t, 60, m.Used(after(400), 1, time.Hour), 1e-9, "a minute at most")
}

func TestMeterForgetsAfterAMinute(t *testing.T) {
	m := newMeter(t0, 2)
	m.Start(t0, 0, 1)
	m.Stop(after(10), 0, 1)
	require.InDelta(t, 10, m.Used(after(60), 0, time.Minute), 1e-9)
	require.InDelta(t, 7.5, m.Used(after(62.5), 0, time.Minute), 1e-9)
	require.InDelta(t, 1, m.Share(after(69.9), 0), 1e-9)
	require.Zero(t, m.Used(after(70), 0, time.Minute))
	require.Zero(t, m.Share(after(70), 0))

	// A pause far longer than the window, with a slot held all along.
	m.Start(after(80), 1, 2)
	require.InDelta(t, 120, m.Used(after(86_400.3), 1, time.Minute), 1e-9)
	require.Zero(t, m.Used(after(86_400.3), 0, time.Minute))
}

// Callers read the clock before they take the lock.
func TestMeterBearsTimesOutOfOrder(t *testing.T) {
	m := newMeter(t0, 1)
	m.Start(after(5), 0, 1)
	m.Stop(after(4.9), 0, 1)
	m.Start(after(3), 0, 1)
	require.InDelta(t, 1, m.Used(after(6), 0, time.Minute), 1e-9)
	require.InDelta(t, 1, m.Used(after(2), 0, time.Minute), 1e-9)
	require.Zero(t, newMeter(t0, 1).Share(after(-1), 0))
}

func TestMeterStopWithoutStartPanics(t *testing.T) {
	m := newMeter(t0, 2)
	m.Start(t0, 1, 2)
	m.Stop(t0, 1, 2)
	require.PanicsWithValue(t, "queue: 2 slots given back of 0 that class 1 holds", func() { m.Stop(t0, 1, 2) })
}
