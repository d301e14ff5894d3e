package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load is a queue of n items in three classes and three lanes, and a way to
// turn it over.
type load struct {
	keys   []string
	q      *Queue[string]
	now    time.Time
	random *rand.PCG
	items  []*Item[string]
	seq    uint64
}

func newLoad(n, keys int) *load {
	l := &load{q: New[string](usual, t0), now: t0, random: rand.NewPCG(5, 6)}
	for i := range keys {
		l.keys = append(l.keys, fmt.Sprint("key-", i))
	}
	for range n {
		it := new(Item[string])
		l.items = append(l.items, it)
		l.push(it)
	}
	l.q.Meter().Start(t0, 0, 8)
	return l
}

func (l *load) push(it *Item[string]) {
	l.seq++
	r := l.random.Uint64()
	wait := time.Duration(r>>20%60_000) * time.Millisecond
	*it = Item[string]{
		Class: int(r % 3), Lane: laneNames[r>>8%3], Seq: l.seq, Width: 1, Work: 4.5, Bytes: 4096, Slots: 8,
		Key:      l.keys[r>>40%uint64(len(l.keys))],
		Deadline: l.now.Add(wait), Latest: l.now.Add(wait + time.Hour),
	}
	l.q.Push(it)
}

// turn is what a request costs the queue, all told: a forecast, a place, a
// new latest start, its turn, its charge and the truth about it, and another
// that leaves from anywhere.
func (l *load) turn() {
	l.now = l.now.Add(time.Millisecond)
	first := l.q.Next(l.now, anyLane)
	l.q.Ahead(1, l.now.Add(10*time.Second), l.seq, anyLane)
	l.q.Turn(first, anyLane)
	l.q.Endangers(l.now, first)

	class, key := first.Class, first.Key
	l.q.Remove(first)
	l.q.Begin(first)
	l.push(first)
	first.Latest = first.Latest.Add(-time.Minute)
	l.q.Update(first)
	l.q.Charge(class, key, 0.5)
	l.q.Done(class, key)

	leaver := l.items[l.random.Uint64()%uint64(len(l.items))]
	l.q.Remove(leaver)
	l.push(leaver)
}

// BenchmarkQueue is the cost of one request's operations (fourteen) with so many
// waiting, of so many keys. It must grow no faster than log n, and allocate
// nothing.
func BenchmarkQueue(b *testing.B) {
	for _, size := range []struct{ n, keys int }{{100, 1}, {1_000, 1}, {20_000, 1}, {20_000, 100}, {20_000, 10_000}, {200_000, 10_000}} {
		b.Run(fmt.Sprintf("%d of %d keys", size.n, size.keys), func(b *testing.B) {
			l := newLoad(size.n, size.keys)
			b.ReportAllocs()
			for b.Loop() {
				l.turn()
			}
		})
	}
}

func BenchmarkOperations(b *testing.B) {
	const n = 20_000
	operations := map[string]func(l *load){
		"ahead":         func(l *load) { l.q.Ahead(2, l.now.Add(30*time.Second), l.seq, anyLane) },
		"turn":          func(l *load) { l.q.Turn(l.items[7], anyLane) },
		"endangers":     func(l *load) { l.q.Endangers(l.now, l.items[7]) },
		"next":          func(l *load) { l.q.Next(l.now, anyLane) },
		"update latest": func(l *load) { l.items[7].Latest = l.items[7].Latest.Add(1); l.q.Update(l.items[7]) },
		"remove push": func(l *load) {
			it := l.items[l.random.Uint64()%n]
			l.q.Remove(it)
			l.push(it)
		},
	}
	for _, name := range []string{"ahead", "turn", "endangers", "next", "update latest", "remove push"} {
		b.Run(name, func(b *testing.B) {
			l := newLoad(n, 10_000)
			b.ReportAllocs()
			for b.Loop() {
				l.now = l.now.Add(time.Microsecond)
				operations[name](l)
			}
		})
	}
}

// R3: operations are O(log n). Steps down a tree are counted instead of time,
// so that the test says the same on any machine: a random tree is about
// 2.1 log₂ n deep on the way to a node at most, whatever order items came in.
func TestR3TreesStayBalanced(t *testing.T) {
	orders := map[string]func(i, n int) float64{
		"rising":      func(i, _ int) float64 { return float64(i) },
		"falling":     func(i, n int) float64 { return float64(n - i) },
		"all equal":   func(int, int) float64 { return 1 },
		"inside out":  func(i, n int) float64 { return math.Pow(-1, float64(i)) * float64(i) },
		"two streams": func(i, n int) float64 { return float64(i%2*n + i) },
	}
	for name, deadline := range orders {
		t.Run(name, func(t *testing.T) {
			const n = 20_000
			q := New[string](usual, t0)
			for i := range n {
				q.Push(item("", 0, "m", deadline(i, n), uint64(i)))
			}
			deepest, total := 0, 0
			for it := range q.All() {
				steps := 0
				for ; it != nil; it = it.nodes[ofLane].parent {
					steps++
				}
				deepest = max(deepest, steps)
				total += steps
			}
			require.Less(t, float64(total)/n, 2.1*math.Log2(n))
			require.Less(t, float64(deepest), 4*math.Log2(n))
		})
	}
}

func TestR3NoAllocations(t *testing.T) {
	l := newLoad(1_000, 500)
	require.Zero(t, testing.AllocsPerRun(10_000, l.turn))

	// Lanes, and keys, that come and go with each request neither.
	q := New[string](usual, t0)
	it := item("a", 0, "m", 1, 1)
	i := 0
	require.Zero(t, testing.AllocsPerRun(10_000, func() {
		i++
		it.Lane, it.Key = laneNames[i%len(laneNames)], l.keys[i%len(l.keys)]
		q.Push(it)
		q.Remove(it)
	}))
}

// Lanes are used once and never again: nothing of them may stay.
func TestLanesOnceUsedAreForgotten(t *testing.T) {
	q := New[string](usual, t0)
	for i := range 10_000 {
		it := item("", 1, fmt.Sprint("model-", i), 1, 1)
		q.Push(it)
		q.Remove(it)
	}
	require.Empty(t, q.classes[1].byKey)
	require.Empty(t, q.classes[1].lanes)
	require.Len(t, q.spare.lanes, 1)
	require.Empty(t, q.classes[1].flows)
}
