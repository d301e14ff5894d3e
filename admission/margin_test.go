package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// R5: keep is the share of all promises. Where few of them are put to the test
// those may be broken more often, by what the others leave, and never less often
// than all.
func TestR5TheTargetIsForAllPromises(t *testing.T) {
	for _, tt := range []struct{ keep, easy, lost, may float64 }{
		{0.95, 0, 0, 0.05},
		{0.95, 0.5, 0, 0.1},
		{0.95, 0.5, 0.02, 0.06},
		{0.95, 0.5, 0.2, 0.05},
		{0.95, 0.99, 0, 0.2},
		{0.95, 1, 0, 0.2},
		{0.99, 0.5, 0, 0.02},
		{0.3, 0.9, 0, 0.85},
	} {
		m := margin{easy: tt.easy, lost: tt.lost}
		require.InDelta(t, tt.may, m.may(tt.keep), 1e-9, "%+v", tt)
	}
}

// R5: the margin comes to rest where so many are broken in all, whatever share
// of them is put to the test, if that is possible.
func TestR5TheMarginSettlesWhereAllAreKeptAsAsked(t *testing.T) {
	for _, share := range []float64{1, 0.6, 0.3, 0.1} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var m margin
			broken, n := 0, 0
			for i := range 60000 {
				tested := r.Float64() < share
				m.made(!tested)
				kept := !tested || m.log >= r.NormFloat64()/4 // how far off the forecast is
				m.ended(tested, kept)
				if tested {
					m.learn(kept, 0.95, 5)
				}
				if i >= 10000 {
					n++
					broken += int(count(!kept))
				}
			}
			require.InDelta(t, min(0.05, lenient*0.05*share), float64(broken)/float64(n), 0.004)
		})
	}
}

// R5: a promise is easy whose wait is short by deadlines and in its fair turn; what
// would have been refused was promised nothing. What is broken without having been
// put to the test takes from what the others may be.
func TestR5EasyPromises(t *testing.T) {
	w := newWorld(t, testConfig(rep("r", 4)))
	w.teach(time.Second)
	tk := w.arrive()
	tk.ask = w.ask() // ten seconds
	for _, tt := range []struct {
		ordered, wait time.Duration
		observed      bool
		easy          bool
	}{
		{0, 0, false, true},
		{5 * time.Second, 5 * time.Second, false, true},
		{9 * time.Second, 9 * time.Second, false, false},
		{9 * time.Second, 0, false, false},
		{0, 9 * time.Second, false, false},
		{0, 0, true, false},
	} {
		m := &tk.class.margin
		*m, tk.record.wouldRefuse = margin{}, tt.observed
		w.c.mu.pledge(w.now, tk, forecast{ordered: tt.ordered, wait: tt.wait})
		require.Equal(t, tt.easy, m.easy > 0, "%+v", tt)
		tested := tk.pledge.tested
		require.Equal(t, min(tt.ordered, tt.wait) > 8*time.Second, tested)
		w.c.mu.calibrate(w.now, tk, true)
		require.Zero(t, m.lost)
		w.c.mu.calibrate(w.now, tk, false)
		require.Equal(t, !tested, m.lost > 0, "%+v", tt)
	}
}
