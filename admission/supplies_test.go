package admission

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// What requests need is allocated while the mutex is free: under it
// thousands of them allocate next to nothing, whether promised, refused with a place
// booked, or come back. Maps that grow are all that is left.
func TestNothingIsAllocatedUnderTheMutex(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := newTaught(t, 4, 40)
	r := newRefuser(t, 4, 40)
	var m runtime.MemStats
	allocated, calls := uint64(0), 0
	held := func(do func()) {
		runtime.ReadMemStats(&m)
		before := m.Mallocs
		do()
		runtime.ReadMemStats(&m)
		allocated, calls = allocated+m.Mallocs-before, calls+1
	}
	for range 500 {
		w.round(held)
		r.next(held)
	}
	require.Greater(t, calls, 5000)
	require.Less(t, float64(allocated)/float64(calls), 0.02)
}

// A wait that has been forecast is not forecast again: for one who goes before all
// that wait, the fair turn is as good as the order of deadlines, and without newcomers
// its wait is never longer than if all took what is theirs.
func TestWaitsAreForecastOnce(t *testing.T) {
	r := newRefuser(t, 4, 40)
	r.next(func(do func()) { do() })
	require.Len(t, r.c.mu.waits, 1)

	w := newTaught(t, 4, 40)
	w.now = w.now.Add(4 * newcomersFade) // those of its keys are forgotten
	for range 40 {
		tk := w.c.Arrive(w.now, Arrival{ID: "b", Key: "k1", Class: "standard", At: w.now})
		require.Nil(t, w.c.Admit(w.now, tk, benchAsk(w.now)))
		require.Len(t, w.c.mu.waits, 2)
	}
}
