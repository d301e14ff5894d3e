package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// R3.1 on a simulated fleet on which every class always has work waiting. Each
// grant is judged by an oracle that knows nothing of meters and queues: it
// integrates who held slots when. At the end every class must have had its
// share, and the rest must have gone to the most urgent.
func TestR3NoClassStarves(t *testing.T) {
	tests := []struct {
		name     string
		slots    int
		shortest time.Duration // service times
		longest  time.Duration
		minutes  int
		urgent   float64 // share the most urgent class has at least
	}{
		{"one slot, a second each", 1, time.Second, time.Second, 30, 0.85},
		{"one slot, long and short", 1, 100 * time.Millisecond, 20 * time.Second, 120, 0.60},
		{"four slots, short", 4, 50 * time.Millisecond, 500 * time.Millisecond, 3, 0.88},
		{"eight slots, seconds", 8, time.Second, 10 * time.Second, 30, 0.87},
		{"eight slots, half a minute each", 8, 20 * time.Second, 40 * time.Second, 120, 0.85},
		{"thirty-two slots", 32, time.Second, 4 * time.Second, 4, 0.80},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fleet{t: t, slots: tt.slots, q: New[string](usual, t0), random: rand.New(rand.NewPCG(3, 4))}
			f.service = func() time.Duration {
				return tt.shortest + time.Duration(f.random.Int64N(int64(tt.longest-tt.shortest)+1))
			}
			f.run(time.Duration(tt.minutes) * time.Minute)
			shares := f.shares()
			t.Logf("shares of slot time: %.3f", shares)
			require.GreaterOrEqual(t, shares[0], tt.urgent)
			for class := 1; class < len(usual); class++ {
				require.GreaterOrEqual(t, shares[class], 0.9*usual[class].MinShare)
			}
		})
	}
}

// fleet is some slots, kept busy.
type fleet struct {
	t       *testing.T
	slots   int
	service func() time.Duration
	random  *rand.Rand
	q       *Queue[string]
	seq     uint64
	holds   []hold // of the last minute; to is when the slot will be free
	total   [3]time.Duration
}

func (f *fleet) run(length time.Duration) {
	for class := range usual {
		f.push(class, t0)
	}
	var ends []time.Time // of what runs
	for now := t0; now.Before(t0.Add(length)); {
		for len(ends) < f.slots {
			ends = append(ends, f.grant(now))
		}
		slices.SortFunc(ends, time.Time.Compare)
		now = ends[0]
		for len(ends) > 0 && !ends[0].After(now) {
			ends = ends[1:]
		}
		f.release(now)
	}
}

func (f *fleet) push(class int, now time.Time) {
	f.seq++
	f.q.Push(item("", class, "m", now.Sub(t0).Seconds()+10, f.seq))
}

// grant gives a slot to whoever the queue says and tells when it will be free.
func (f *fleet) grant(now time.Time) time.Time {
	it := f.q.Next(now, anyLane)
	f.judge(now, it.Class)
	f.q.Remove(it)
	f.push(it.Class, now)
	took := f.service()
	f.q.Meter().Start(now, it.Class, 1)
	f.holds = append(f.holds, hold{class: it.Class, width: 1, from: now, to: now.Add(took)})
	f.total[it.Class] += took
	return now.Add(took)
}

// release gives back the slots that are free now and forgets what is older
// than the minute.
func (f *fleet) release(now time.Time) {
	for _, h := range f.holds {
		if h.to.Equal(now) {
			f.q.Meter().Stop(now, h.class, 1)
		}
	}
	f.holds = slices.DeleteFunc(f.holds, func(h hold) bool { return h.to.Before(now.Add(-62 * time.Second)) })
}

// judge says whether class was the one to go. What the meter's oldest second
// can hide is borne.
func (f *fleet) judge(now time.Time, class int) {
	used, hidden := f.slotTime(now, time.Minute), f.hidden(now)
	all, allHidden := sum(used), sum(hidden)
	holds := func(c int) bool { // its share now
		held := 0
		for _, h := range f.holds {
			held += btoi(h.class == c && h.to.After(now))
		}
		return float64(held) >= max(1, usual[c].MinShare*float64(f.slots))
	}
	certainly := func(c int) bool { // behind, whatever is hidden
		return used[c]+hidden[c] < usual[c].MinShare*(all-allHidden) && !holds(c)
	}
	possibly := func(c int) bool {
		return used[c]-hidden[c] < usual[c].MinShare*(all+allHidden) && !holds(c)
	}
	for c := range usual {
		switch {
		case c == class && (c == 0 || possibly(c)):
			return
		case certainly(c):
			require.Failf(f.t, "wrong class", "%d went at %v though %d was behind: %v of %v", class, now.Sub(t0), c, used, all)
		}
	}
	require.Failf(f.t, "wrong class", "%d went at %v though it was not behind: %v of %v", class, now.Sub(t0), used, all)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// slotTime is what each class used in the window that ends now, in seconds.
func (f *fleet) slotTime(now time.Time, window time.Duration) (used [3]float64) {
	for _, h := range f.holds {
		from, to := h.from, h.to
		if start := now.Add(-window); from.Before(start) {
			from = start
		}
		if to.After(now) {
			to = now
		}
		used[h.class] += max(0, to.Sub(from).Seconds())
	}
	return used
}

// hidden is what each class used in the whole second in which the minute
// begins.
func (f *fleet) hidden(now time.Time) [3]float64 {
	edge := now.Add(-time.Minute).Sub(t0).Truncate(time.Second)
	if edge < 0 {
		return [3]float64{}
	}
	hidden := f.slotTime(t0.Add(edge+time.Second), time.Second)
	for c := range hidden {
		hidden[c] += 1e-6
	}
	return hidden
}

func (f *fleet) shares() (shares [3]float64) {
	var all time.Duration
	for _, d := range f.total {
		all += d
	}
	for c, d := range f.total {
		shares[c] = d.Seconds() / all.Seconds()
	}
	return shares
}

func sum(of [3]float64) float64 { return of[0] + of[1] + of[2] }
