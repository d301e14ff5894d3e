package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The queue in detail says who waits, how long, and who goes next, and agrees
// with the books (R13); looking changes nothing.
func TestWatchTellsWhoWaits(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	ask := func(id, class, key string, deadline time.Duration) *Ticket {
		tk := w.c.Arrive(w.now, Arrival{ID: id, Class: class, Key: key, At: w.now})
		a := benchAsk(w.now)
		a.Class, a.Deadline = class, w.now.Add(deadline)
		require.Nil(t, w.c.Admit(w.now, tk, a), id)
		return tk
	}
	ask("runs", "standard", "x", time.Minute)
	w.now = w.now.Add(time.Second)
	ask("late", "standard", "x", 50*time.Second)
	ask("batch", "batch", "y", 10*time.Minute)
	w.now = w.now.Add(2 * time.Second)
	ask("soon", "standard", "x", 20*time.Second)
	ask("other", "standard", "z", 30*time.Second)
	s := w.c.Watch(w.now)
	got := s.Waiting
	require.Equal(t, []WaitingGroup{
		{Class: "standard", Key: "x", Queued: 2, OldestS: 2, SoonestS: 20},
		{Class: "standard", Key: "z", Queued: 1, OldestS: 0, SoonestS: 30},
		{Class: "batch", Key: "y", Queued: 1, OldestS: 2, SoonestS: 598},
	}, got.Groups)
	var ids []string
	for i, n := range got.Next {
		ids = append(ids, n.ID)
		if i > 0 {
			require.GreaterOrEqual(t, n.StartS, got.Next[i-1].StartS)
		}
	}
	require.Equal(t, []string{"soon", "other", "late", "batch"}, ids)
	require.Equal(t, "m", got.Next[0].Model)
	require.Equal(t, 50.0, got.Next[2].DeadlineS)
	require.Equal(t, 2.0, got.Next[2].AgeS)
	require.EqualValues(t, 4, s.Totals.Queued)
	require.Equal(t, 1, s.Replicas[0].BusyByClass[s.classIndex("standard")])
	require.Nil(t, w.snap().Waiting)
	require.Equal(t, got, w.c.Watch(w.now).Waiting)
}

func (s *Snapshot) classIndex(name string) int {
	for i, c := range s.Classes {
		if c.Name == name {
			return i
		}
	}
	return -1
}

// However many wait, of however many keys, what is told is bounded.
func TestWatchIsBounded(t *testing.T) {
	c, now, _ := benchWorld(t, 2, 0)
	for i := range 1000 {
		tk := c.Arrive(now, Arrival{ID: fmt.Sprint(i), Class: "standard", Key: fmt.Sprint("key", i%250), At: now})
		require.Nil(t, c.Admit(now, tk, benchAsk(now)))
	}
	w := c.Watch(now).Waiting
	require.Len(t, w.Groups, maxWaitingGroups)
	require.Equal(t, (250-maxWaitingGroups)*4, w.Others)
	require.Len(t, w.Next, maxWaitingNext)
}

// BenchmarkWatch is how long the controller's mutex is held for the page, and
// for a scrape.
func BenchmarkWatch(b *testing.B) {
	for _, size := range []struct{ replicas, queued int }{{3, 10}, {10, 1000}, {100, 10000}, {1000, 10000}} {
		c, now, _ := benchWorld(b, size.replicas, size.queued)
		for name, f := range map[string]func(time.Time) *Snapshot{"Watch": c.Watch, "Snapshot": c.Snapshot} {
			b.Run(fmt.Sprintf("%s/replicas=%d/queued=%d", name, size.replicas, size.queued), func(b *testing.B) {
				for b.Loop() {
					f(now)
				}
			})
		}
	}
}
