package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// usual are the default classes.
var usual = []Class{{Name: "interactive"}, {Name: "standard", MinShare: 0.05}, {Name: "batch", MinShare: 0.05}}

func after(seconds float64) time.Time {
	return t0.Add(time.Duration(seconds * float64(time.Second)))
}

func anyLane(string) bool { return true }

func lanes(names ...string) func(string) bool {
	return func(lane string) bool { return slices.Contains(names, lane) }
}

// item is an item called name; its deadline is in seconds after t0.
func item(name string, class int, lane string, deadline float64, seq uint64) *Item[string] {
	return &Item[string]{Class: class, Lane: lane, Deadline: after(deadline), Seq: seq, Width: 1, Value: name}
}

// drain takes everything out in the order of Next.
func drain(q *Queue[string], now time.Time, eligible func(string) bool) string {
	var names []string
	for it := q.Next(now, eligible); it != nil; it = q.Next(now, eligible) {
		names = append(names, it.Value.(string))
		q.Remove(it)
	}
	return strings.Join(names, " ")
}

func TestR3Order(t *testing.T) {
	tests := []struct {
		name     string
		items    []*Item[string]
		eligible func(string) bool
		want     string
	}{
		{"nothing", nil, anyLane, ""},
		{
			"classes strictly, whatever the deadlines",
			[]*Item[string]{item("c", 2, "m", 1, 1), item("b", 1, "m", 2, 2), item("a", 0, "m", 3, 3)},
			anyLane, "a b c",
		},
		{
			"earliest deadline inside a class",
			[]*Item[string]{item("c", 0, "m", 30, 1), item("a", 0, "m", 10, 2), item("b", 0, "m", 20, 3)},
			anyLane, "a b c",
		},
		{
			"arrival among equal deadlines",
			[]*Item[string]{item("b", 1, "m", 10, 8), item("c", 1, "m", 10, 9), item("a", 1, "m", 10, 7)},
			anyLane, "a b c",
		},
		{
			"lanes of a class are one order",
			[]*Item[string]{item("d", 0, "x", 4, 1), item("c", 0, "y", 3, 2), item("b", 0, "x", 2, 3), item("a", 0, "y", 1, 4)},
			anyLane, "a b c d",
		},
		{
			"lanes that cannot run are passed over, urgent ones too",
			[]*Item[string]{item("a", 0, "x", 1, 1), item("b", 1, "y", 2, 2), item("c", 2, "y", 1, 3), item("d", 1, "x", 1, 4)},
			lanes("y"), "b c",
		},
		{
			"no lane can run",
			[]*Item[string]{item("a", 0, "x", 1, 1)},
			lanes(), "",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := New[string](usual, t0)
			for _, it := range tt.items {
				q.Push(it)
			}
			require.Equal(t, tt.want, drain(q, t0, tt.eligible))
		})
	}
}

// R3: a retry goes back where it stood, not to the end.
func TestR3ARetryGoesBackWhereItStood(t *testing.T) {
	q := New[string](usual, t0)
	for i, name := range []string{"a", "b", "c"} {
		q.Push(item(name, 1, "m", 10, uint64(i)))
	}
	it := q.Next(t0, anyLane)
	require.True(t, q.Remove(it))
	require.Equal(t, "b", q.Next(t0, anyLane).Value)
	q.Push(it)
	require.Equal(t, "a b c", drain(q, t0, anyLane))
}

func TestR3MinShare(t *testing.T) {
	// Each row: seconds of one slot that the classes have used one after
	// another, ending now; what waits; who is next.
	tests := []struct {
		name     string
		used     [3]float64
		waiting  []*Item[string]
		eligible func(string) bool
		want     string
	}{
		{
			"nothing was used: nobody is behind",
			[3]float64{},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 1, 2), item("c", 2, "m", 1, 3)},
			anyLane, "a",
		},
		{
			"behind: first",
			[3]float64{50, 10, 0},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 1, 2), item("c", 2, "m", 1, 3)},
			anyLane, "c",
		},
		{
			"two behind: the more urgent of them",
			[3]float64{60, 0, 0},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 9, 2), item("c", 2, "m", 1, 3)},
			anyLane, "b",
		},
		{
			"two behind, though the less urgent has had less",
			[3]float64{57, 2, 1},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 9, 2), item("c", 2, "m", 1, 3)},
			anyLane, "b",
		},
		{
			"just the share is enough",
			[3]float64{54, 3, 3},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 1, 2), item("c", 2, "m", 1, 3)},
			anyLane, "a",
		},
		{
			"of a shorter time only what was used counts",
			[3]float64{9, 0.5, 0.5},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 1, 2), item("c", 2, "m", 1, 3)},
			anyLane, "a",
		},
		{
			"the most urgent has no share of its own and needs none",
			[3]float64{0, 30, 30},
			[]*Item[string]{item("a", 0, "m", 1, 1), item("b", 1, "m", 1, 2), item("c", 2, "m", 1, 3)},
			anyLane, "a",
		},
		{
			"behind but nothing waiting",
			[3]float64{60, 0, 0},
			[]*Item[string]{item("a", 0, "m", 1, 1)},
			anyLane, "a",
		},
		{
			"behind but what waits cannot run",
			[3]float64{60, 0, 0},
			[]*Item[string]{item("a", 0, "x", 1, 1), item("b", 1, "y", 1, 2), item("c", 2, "y", 1, 3)},
			lanes("x"), "a",
		},
		{
			"behind and only part of it can run",
			[3]float64{60, 0, 0},
			[]*Item[string]{item("a", 0, "x", 1, 1), item("b", 1, "y", 1, 2), item("c", 2, "x", 1, 3)},
			lanes("x"), "c",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := New[string](usual, t0)
			now := t0.Add(1234 * time.Millisecond)
			for class, used := range tt.used {
				q.Meter().Start(now, class, 1)
				now = now.Add(time.Duration(used * float64(time.Second)))
				q.Meter().Stop(now, class, 1)
			}
			for _, it := range tt.waiting {
				q.Push(it)
			}
			require.Equal(t, tt.want, q.Next(now, tt.eligible).Value)
		})
	}
}

func TestAhead(t *testing.T) {
	q := New[string](usual, t0)
	add := func(class int, lane string, deadline float64, seq uint64, work float64) {
		it := item("", class, lane, deadline, seq)
		it.Work = work
		q.Push(it)
	}
	add(0, "x", 50, 1, 1)
	add(0, "y", 60, 2, 2)
	add(1, "x", 10, 3, 4)
	add(1, "x", 20, 4, 8)
	add(1, "x", 20, 6, 16)
	add(1, "y", 15, 5, 32)
	add(2, "x", 1, 7, 64)

	tests := []struct {
		class    int
		deadline float64
		seq      uint64
		competes func(string) bool
		n        int
		work     float64
	}{
		{0, 0, 0, anyLane, 0, 0},
		{0, 100, 0, anyLane, 2, 3},
		{1, 0, 0, anyLane, 2, 3},
		{1, 20, 5, anyLane, 5, 47},
		{1, 20, 4, anyLane, 4, 39}, // an item does not stand before itself
		{1, 20, 5, lanes("x"), 3, 13},
		{1, 20, 5, lanes("y"), 2, 34},
		{1, 20, 5, lanes(), 0, 0},
		{1, 99, 99, anyLane, 6, 63},
		{2, 1, 7, anyLane, 6, 63},
		{2, 1, 8, anyLane, 7, 127},
	}
	for _, tt := range tests {
		n, work := q.Ahead(tt.class, after(tt.deadline), tt.seq, tt.competes)
		require.Equal(t, tt.n, n, "%+v", tt)
		require.Equal(t, tt.work, work, "%+v", tt)
	}
}

func TestAheadCountsFinite(t *testing.T) {
	nan := 0.0
	nan /= nan
	for work, want := range map[float64]float64{-1: 0, nan: 0, 1e300: 1e7, 0.25: 0.25} {
		q := New[string](usual, t0)
		it := item("a", 0, "m", 1, 1)
		it.Work = work
		q.Push(it)
		require.Equal(t, want, q.ClassWork(0), "%v", work)
	}
}

func TestExpired(t *testing.T) {
	q := New[string](usual, t0)
	for i, latest := range []float64{3, 1, 2, 0, 2} { // 0: never
		it := item(fmt.Sprint("r", i), i%3, "m", 10, uint64(i))
		if latest > 0 {
			it.Latest = after(latest)
		}
		q.Push(it)
	}
	names := func(items []*Item[string]) (s []string) {
		for _, it := range items {
			require.False(t, it.Queued())
			s = append(s, it.Value.(string))
		}
		return s
	}

	at, ok := q.NextExpiry()
	require.True(t, ok)
	require.Equal(t, after(1).Add(1), at)
	require.Empty(t, q.Expired(after(1)), "at its latest moment it can still start")
	require.Equal(t, []string{"r1"}, names(q.Expired(at)), "whoever comes at NextExpiry finds something, or he would come again for ever")
	require.Equal(t, []string{"r2", "r4", "r0"}, names(q.Expired(after(100))))
	_, ok = q.NextExpiry()
	require.False(t, ok)
	require.Equal(t, "r3", drain(q, after(1e6), anyLane))
}

func TestUpdate(t *testing.T) {
	q := New[string](usual, t0)
	a, b := item("a", 1, "m", 10, 1), item("b", 1, "m", 20, 2)
	q.Push(a)
	q.Push(b)

	a.Deadline = after(30)
	require.Equal(t, "a", q.Next(t0, anyLane).Value, "a change counts from Update on")
	require.True(t, q.Update(a))
	require.Equal(t, "b", q.Next(t0, anyLane).Value)

	a.Class = 0
	require.True(t, q.Update(a))
	require.Equal(t, "a", q.Next(t0, anyLane).Value)
	require.Equal(t, []int{1, 1}, []int{q.ClassLen(0), q.ClassLen(1)})

	a.Lane, a.Bytes, a.Work = "x", 100, 2.5
	require.True(t, q.Update(a))
	require.Equal(t, "b", q.Next(t0, lanes("m")).Value)
	require.Equal(t, int64(100), q.Bytes())
	require.Equal(t, int64(100), q.ClassBytes(0))
	require.Equal(t, 2.5, q.ClassWork(0))
	a.Bytes = 50 // each of them alone
	require.True(t, q.Update(a))
	require.Equal(t, int64(50), q.ClassBytes(0))
	a.Work = 1
	require.True(t, q.Update(a))
	require.Equal(t, 1.0, q.ClassWork(0))
	a.Lane = "y"
	require.True(t, q.Update(a))
	require.Same(t, a, q.Next(t0, lanes("y")))

	b.Latest = after(5)
	require.True(t, q.Update(b))
	at, _ := q.NextExpiry()
	require.Equal(t, after(5).Add(1), at)
	b.Latest = time.Time{}
	require.True(t, q.Update(b))
	_, ok := q.NextExpiry()
	require.False(t, ok)

	require.True(t, q.Remove(a))
	require.False(t, q.Remove(a))
	require.False(t, q.Update(a))
	require.Equal(t, 1, q.Len())
	require.Zero(t, q.Bytes())
}

// An item changed without Update must not upset the books when it leaves.
func TestRemoveAfterChangesCountsWhatWasCounted(t *testing.T) {
	q := New[string](usual, t0)
	it := item("a", 1, "m", 10, 1)
	it.Bytes, it.Work, it.Latest = 10, 1, after(1)
	q.Push(it)
	it.Class, it.Lane, it.Bytes, it.Work, it.Deadline, it.Latest = 2, "x", 99, 99, after(99), time.Time{}
	require.True(t, q.Remove(it))
	require.Zero(t, q.Len())
	require.Zero(t, q.Bytes())
	require.Zero(t, q.ClassLen(1))
	require.Zero(t, q.ClassBytes(1))
	require.Zero(t, q.ClassWork(1))
	_, ok := q.NextExpiry()
	require.False(t, ok)
}

func TestPushTwicePanics(t *testing.T) {
	q := New[string](usual, t0)
	it := item("a", 1, "m", 10, 1)
	q.Push(it)
	require.PanicsWithValue(t, "queue: item pushed that is queued already", func() { q.Push(it) })
}

// R15: a reload changes classes without dropping a request.
func TestR15SetClasses(t *testing.T) {
	q := New[string](usual, t0)
	for i, class := range []int{0, 1, 1, 2, 2} {
		it := item(fmt.Sprint("r", i), class, "m", float64(10-i), uint64(i))
		it.Bytes, it.Work, it.Latest = 1<<i, float64(int(1)<<i), after(float64(i+1))
		q.Push(it)
	}
	q.Meter().Start(t0, 1, 2)
	q.Meter().Start(t0, 2, 1)
	now := after(10.5)

	// A new most urgent class; standard and batch become one.
	q.SetClasses(now, []Class{{Name: "urgent"}, {Name: "interactive", MinShare: 0.5}, {Name: "rest", MinShare: 0.1}}, []int{1, 2, 2})
	require.Equal(t, []int{0, 1, 4}, []int{q.ClassLen(0), q.ClassLen(1), q.ClassLen(2)})
	require.Equal(t, []int64{0, 1, 30}, []int64{q.ClassBytes(0), q.ClassBytes(1), q.ClassBytes(2)})
	require.Equal(t, 30.0, q.ClassWork(2))
	require.Equal(t, 31.5, q.Meter().Used(now, 2, time.Minute))
	require.Equal(t, 3, q.Meter().Running(2))
	require.Equal(t, 1.0, q.Meter().Share(now, 2))
	q.Meter().Stop(now, 2, 3)

	n, work := q.Ahead(2, after(7), 3, anyLane)
	require.Equal(t, 2, n) // r0 of the class before, r4 by deadline
	require.Equal(t, 17.0, work)
	for it := range q.All() {
		require.Equal(t, map[bool]int{true: 1, false: 2}[it.Value == "r0"], it.Class)
	}
	at, _ := q.NextExpiry()
	require.Equal(t, after(1).Add(1), at)
	require.Equal(t, "r0 r4 r3 r2 r1", drain(q, now, anyLane))
}

func TestAllWalksInOrderAndStopsWhenAsked(t *testing.T) {
	q := New[string](usual, t0)
	for i := range 30 {
		q.Push(item(fmt.Sprint(i), i%3, "m", float64(30-i), uint64(i)))
	}
	var got []*Item[string]
	for it := range q.All() {
		got = append(got, it)
	}
	require.Len(t, got, 30)
	require.True(t, slices.IsSortedFunc(got, func(a, b *Item[string]) int {
		if a.Class != b.Class {
			return a.Class - b.Class
		}
		return a.Deadline.Compare(b.Deadline)
	}))
	n := 0
	for range q.All() {
		if n++; n == 7 {
			break
		}
	}
	require.Equal(t, 7, n)
}
