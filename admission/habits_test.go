package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// settle lets so many clients of a key come in time, or not.
func (r *returns) settle(key string, n int, come bool) {
	for range n {
		for _, h := range r.habits(key, false) {
			if come {
				h.came(0)
			} else {
				h.stayed()
			}
		}
	}
}

// R14: a key whose clients all come back is not expected the less because those of
// another never do; of one that nothing is known of, as many are as of all.
func TestR14HabitsAreOfKeys(t *testing.T) {
	r := &returns{}
	require.Equal(t, 0.8, r.expect("k"), "nobody has come or stayed away yet")
	r.settle("alone", 30, true)
	require.Equal(t, r.habit(false).share(0), r.expect("alone"))
	r.settle("leaves", 90, false)
	require.InDelta(t, 34.0/125, r.expect("new"), 0.02)
	require.Greater(t, r.expect("alone"), 0.9)
	require.Less(t, r.expect("leaves"), 0.05)

	for range 100 {
		r.habit(false).rounding(true)
	}
	rounds := r.habit(false).rounds
	require.Equal(t, rounds, r.rounds("slow", false), "nothing is known of it")
	r.settle("slow", 1, false)
	require.Equal(t, rounds, r.rounds("slow", false), "whether it comes says nothing of that")
	require.Zero(t, r.rounds("slow", true))

	for _, h := range r.habits("slow", false) { // late, too, is a key's own habit
		h.came(8)
	}
	r.settle("slow", 2, false)
	r.expect("slow")
	slow := r.own.first
	r.expect("leaves")
	require.Greater(t, slow[8], 2*r.own.first[8])
	require.Equal(t, slow[1], slow[8], "nobody came in between")
	require.Less(t, slow[9], slow[8])
}

// R14: with few clients a key is taken to be as the class is, as if four of them
// had been of its own.
func TestR14HabitsShrinkTowardsTheClass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &returns{}
		r.settle("others", rapid.IntRange(0, 200).Draw(rt, "others came"), true)
		r.settle("others", rapid.IntRange(1, 200).Draw(rt, "others stayed"), false)
		came, stayed := rapid.IntRange(0, 30).Draw(rt, "came"), rapid.IntRange(0, 30).Draw(rt, "stayed")
		r.settle("k", came, true)
		r.settle("k", stayed, false)
		class := r.habit(false).share(0)
		want := (float64(came) + 4*class) / (float64(came+stayed) + 4)
		require.InDelta(t, want, r.expect("k"), 0.02) // older ones fade a little
		for late := range bookLate {
			require.GreaterOrEqual(t, r.own.first[late], r.own.first[late+1])
		}
		require.Equal(t, r.all().again, r.own.again, "none of its clients has come twice")
	})
}

// R14: where everybody has come in time for very long, that is known as well.
func TestR14NobodyHasStayedForVeryLong(t *testing.T) {
	r := &returns{}
	r.settle("k", 1_000_000, true)
	r.settle("new", 1, true)
	for _, key := range []string{"k", "new", "unknown"} {
		require.InDelta(t, 1, r.expect(key), 1e-6)
		require.Zero(t, r.own.first[bookLate])
	}
}

// R12, R14: ten thousand keys cost no more than a thousand, and those that are not
// remembered are taken to be as all are.
func TestR14HabitsOfManyKeys(t *testing.T) {
	r := &returns{}
	for i := range 10_000 {
		r.settle(fmt.Sprint("k", i), 1, i%2 == 0)
		if i%100 == 0 {
			r.settle("busy", 1, false)
		}
	}
	require.Len(t, r.keys, maxKeyHabits)
	require.Equal(t, maxKeyHabits, r.idle.Len())
	require.InDelta(t, 0.5, r.habit(false).share(0), 0.05)
	require.Equal(t, r.habit(false).share(0), r.expect("k0"), "forgotten")
	require.InDelta(t, (1+4*r.habit(false).share(0))/5, r.expect("k9998"), 1e-3)
	require.Less(t, r.expect("busy"), 0.1, "it has been heard of all the time")
}

// R14: what comes back of one key is expected as that key's clients do, whatever
// those of others do.
func TestR14ExpectedAreAKeysOwnClients(t *testing.T) {
	w := busyWorld(t, "faithful")
	r := &w.c.mu.classes[1].returns
	r.settle("faithful", 100, true)
	r.settle("leaves", 900, false)
	last := time.Duration(0)
	for i := range 20 {
		ref := w.asks(Arrival{ID: fmt.Sprint("x", i), Key: "faithful"}, w.ask())
		require.NotNil(t, ref)
		last = ref.RetryAfter
	}
	require.Greater(t, last, 18*time.Second, "all of them are expected, a second of work each")
}

// BenchmarkReturns is what is learned of a return, and what is expected then of
// its key, with so many keys in turn (R12: 10,000 keys cost nothing noticeable).
func BenchmarkReturns(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, keys := &returns{}, make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprint("k", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				r.settle(keys[i], 1, i%2 == 0)
				r.expect(keys[i])
				if i++; i == n {
					i = 0
				}
			}
		})
	}
}
