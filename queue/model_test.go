package queue

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the queue told again as plainly as possible: a slice that is sorted
// and searched, and a list of who held a slot when.
type model struct {
	classes []Class
	items   []*Item[string]
	held    []hold
}

// hold is a time during which a class held slots; to is zero while it does.
type hold struct {
	class, width int
	from, to     time.Time
}

// used is the slot time of a class in the window that ends now, worked out
// from every hold there ever was.
func (m *model) used(now time.Time, class int, window time.Duration) (sum time.Duration) {
	for _, h := range m.held {
		to := h.to
		if to.IsZero() {
			to = now
		}
		from := h.from
		if start := now.Add(-window); from.Before(start) {
			from = start
		}
		if h.class == class && to.After(from) {
			sum += to.Sub(from) * time.Duration(h.width)
		}
	}
	return sum
}

// behind says by R3.1's words whether a class has had less than its share, and
// holds less than it.
func (m *model) behind(now time.Time, class int) bool {
	var total time.Duration
	for c := range m.classes {
		total += m.used(now, c, time.Minute)
	}
	held, all := 0, 0
	for _, h := range m.held {
		if h.to.IsZero() {
			all += h.width
			if h.class == class {
				held += h.width
			}
		}
	}
	share := m.classes[class].MinShare
	return float64(m.used(now, class, time.Minute)) < share*float64(total) && float64(held) < max(1, share*float64(all+1))
}

func (m *model) sorted(keep func(*Item[string]) bool) []*Item[string] {
	var kept []*Item[string]
	for _, it := range m.items {
		if keep(it) {
			kept = append(kept, it)
		}
	}
	slices.SortFunc(kept, func(a, b *Item[string]) int {
		return cmp.Or(a.Class-b.Class, a.Deadline.Compare(b.Deadline), cmp.Compare(a.Seq, b.Seq))
	})
	return kept
}

func (m *model) next(now time.Time, eligible func(string) bool) *Item[string] {
	can := m.sorted(func(it *Item[string]) bool { return eligible(it.Lane) })
	for _, it := range can {
		if m.behind(now, it.Class) {
			return it
		}
	}
	if len(can) > 0 {
		return can[0]
	}
	return nil
}

func (m *model) remove(it *Item[string]) {
	m.items = slices.DeleteFunc(m.items, func(o *Item[string]) bool { return o == it })
}

// machine runs the queue and the model side by side.
type machine struct {
	q     *Queue[string]
	m     model
	now   time.Time
	seq   uint64
	spent []*Item[string] // taken out, to be pushed again
}

var laneNames = []string{"a", "b", "c", "d"}

func drawClasses(t *rapid.T) []Class {
	classes := make([]Class, rapid.IntRange(1, 4).Draw(t, "classes"))
	for i := range classes {
		classes[i] = Class{Name: fmt.Sprint("c", i), MinShare: rapid.SampledFrom([]float64{0, 0.05, 0.2, 0.4}).Draw(t, "min_share")}
	}
	return classes
}

// fill draws the fields of an item. Few values, so that they often tie.
func (s *machine) fill(t *rapid.T, it *Item[string]) {
	it.Class = rapid.IntRange(0, len(s.m.classes)-1).Draw(t, "class")
	it.Lane = rapid.SampledFrom(laneNames).Draw(t, "lane")
	it.Deadline = s.now.Add(time.Duration(rapid.IntRange(-5, 20).Draw(t, "deadline")) * time.Second)
	it.Bytes = int64(rapid.IntRange(0, 1000).Draw(t, "bytes"))
	it.Work = float64(rapid.IntRange(0, 100).Draw(t, "work")) / 8
	it.Latest = time.Time{}
	if in := rapid.IntRange(-1, 10).Draw(t, "latest"); in >= 0 {
		it.Latest = s.now.Add(time.Duration(in) * time.Second)
	}
}

func drawEligible(t *rapid.T) func(string) bool {
	mask := rapid.IntRange(0, 15).Draw(t, "eligible")
	return func(lane string) bool { return mask>>slices.Index(laneNames, lane)&1 == 1 }
}

func (s *machine) push(t *rapid.T) {
	it := new(Item[string])
	if n := len(s.spent); n > 0 && rapid.Bool().Draw(t, "again") {
		it, s.spent = s.spent[n-1], s.spent[:n-1]
	} else {
		s.seq++
		it.Seq = s.seq
	}
	s.fill(t, it)
	s.q.Push(it)
	s.m.items = append(s.m.items, it)
}

func (s *machine) pick(t *rapid.T) *Item[string] {
	if len(s.m.items) == 0 {
		t.Skip("nothing waits")
	}
	return s.m.items[rapid.IntRange(0, len(s.m.items)-1).Draw(t, "which")]
}

func (s *machine) gone(it *Item[string]) {
	s.m.remove(it)
	s.spent = append(s.spent, it)
}

func (s *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"push": s.push,
		"push many": func(t *rapid.T) {
			for range rapid.IntRange(1, 20).Draw(t, "n") {
				s.push(t)
			}
		},
		"remove": func(t *rapid.T) {
			it := s.pick(t)
			require.True(t, s.q.Remove(it))
			require.False(t, s.q.Remove(it))
			s.gone(it)
		},
		"update": func(t *rapid.T) {
			it := s.pick(t)
			s.fill(t, it)
			require.True(t, s.q.Update(it))
		},
		"update latest": func(t *rapid.T) {
			it := s.pick(t)
			it.Latest = s.now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "latest")) * time.Second)
			require.True(t, s.q.Update(it))
		},
		"next": func(t *rapid.T) {
			eligible := drawEligible(t)
			for range rapid.IntRange(1, 8).Draw(t, "times") {
				it := s.q.Next(s.now, eligible)
				require.Same(t, s.m.next(s.now, eligible), it)
				if it == nil {
					return
				}
				s.q.Remove(it)
				s.gone(it)
			}
		},
		"expire": func(t *rapid.T) {
			var want []*Item[string]
			for _, it := range s.m.items {
				if !it.Latest.IsZero() && it.Latest.Before(s.now) {
					want = append(want, it)
				}
			}
			slices.SortFunc(want, func(a, b *Item[string]) int {
				return cmp.Or(a.Latest.Compare(b.Latest), cmp.Compare(a.Seq, b.Seq))
			})
			require.Equal(t, want, s.q.Expired(s.now))
			for _, it := range want {
				s.gone(it)
			}
		},
		"wait": func(t *rapid.T) {
			s.now = s.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
		},
		"start": func(t *rapid.T) {
			h := hold{class: rapid.IntRange(0, len(s.m.classes)-1).Draw(t, "class"), width: rapid.IntRange(1, 3).Draw(t, "width"), from: s.now}
			s.q.Meter().Start(s.now, h.class, h.width)
			s.m.held = append(s.m.held, h)
		},
		"stop": func(t *rapid.T) {
			for i, h := range s.m.held {
				if h.to.IsZero() {
					s.q.Meter().Stop(s.now, h.class, h.width)
					s.m.held[i].to = s.now
					return
				}
			}
		},
		"reload": func(t *rapid.T) {
			old := len(s.m.classes)
			s.m.classes = drawClasses(t)
			moved := rapid.SliceOfN(rapid.IntRange(0, len(s.m.classes)-1), old, old).Draw(t, "moved")
			for i, h := range s.m.held {
				s.m.held[i].class = moved[h.class]
			}
			want := make(map[*Item[string]]int)
			for _, it := range s.m.items {
				want[it] = moved[it.Class]
			}
			s.q.SetClasses(s.now, s.m.classes, moved)
			for it, class := range want {
				require.Equal(t, class, it.Class)
			}
		},
		"": s.check,
	}
}

// check compares everything that can be asked.
func (s *machine) check(t *rapid.T) {
	checkTrees(t, s.q)
	checkHeap(t, s.q)

	var bytes int64
	for c := range s.m.classes {
		mine := s.m.sorted(func(it *Item[string]) bool { return it.Class == c })
		var classBytes int64
		var work float64
		for _, it := range mine {
			classBytes += it.Bytes
			work += it.Work
		}
		bytes += classBytes
		require.Equal(t, len(mine), s.q.ClassLen(c))
		require.Equal(t, classBytes, s.q.ClassBytes(c))
		require.Equal(t, work, s.q.ClassWork(c))
	}
	require.Equal(t, len(s.m.items), s.q.Len())
	require.Equal(t, bytes, s.q.Bytes())
	require.ElementsMatch(t, s.m.items, slices.Collect(s.q.All()))

	competes := drawEligible(t)
	probe := &Item[string]{Seq: rapid.Uint64Range(0, s.seq+1).Draw(t, "seq")}
	s.fill(t, probe)
	n, work := s.q.Ahead(probe.Class, probe.Deadline, probe.Seq, competes)
	wantN, wantWork := 0, 0.0
	for _, it := range s.m.items {
		if competes(it.Lane) && cmp.Or(it.Class-probe.Class, it.Deadline.Compare(probe.Deadline), cmp.Compare(it.Seq, probe.Seq)) < 0 {
			wantN++
			wantWork += it.Work
		}
	}
	require.Equal(t, wantN, n)
	require.Equal(t, wantWork, work)

	at, ok := s.q.NextExpiry()
	var first time.Time
	for _, it := range s.m.items {
		if !it.Latest.IsZero() && (first.IsZero() || it.Latest.Before(first)) {
			first = it.Latest
		}
	}
	require.Equal(t, !first.IsZero(), ok)
	if ok {
		require.Equal(t, first.Add(1), at)
	}
}

// checkTrees verifies what the trees rest on: order, heap, parents, sums.
func checkTrees(t require.TestingT, q *Queue[string]) {
	for _, c := range q.classes {
		require.Len(t, c.byKey, len(c.lanes))
		for i, ln := range c.lanes {
			require.Equal(t, i, ln.pos)
			require.Same(t, ln, c.byKey[ln.key])
			require.NotNil(t, ln.root)
			require.Nil(t, ln.root.node.parent)
			items := checkNode(t, ln, ln.root)
			require.Same(t, items[0], ln.least)
			for j := 1; j < len(items); j++ {
				require.False(t, items[j].node.rank.before(items[j-1].node.rank))
				require.Same(t, items[j], next(items[j-1]))
			}
			require.Nil(t, next(items[len(items)-1]))
		}
	}
}

// checkNode verifies a subtree and gives its items in order.
func checkNode(t require.TestingT, ln *lane[string], it *Item[string]) []*Item[string] {
	if it == nil {
		return nil
	}
	n := &it.node
	for _, child := range []*Item[string]{n.left, n.right} {
		if child != nil {
			require.Same(t, it, child.node.parent)
			require.LessOrEqual(t, child.node.priority, n.priority)
		}
	}
	require.Same(t, ln, n.lane)
	items := append(append(checkNode(t, ln, n.left), it), checkNode(t, ln, n.right)...)
	var work int64
	for _, it := range items {
		work += it.node.own
	}
	require.Equal(t, len(items), n.count)
	require.Equal(t, work, n.work)
	return items
}

func checkHeap(t require.TestingT, q *Queue[string]) {
	for i, e := range q.expiry {
		require.True(t, e.item.Queued())
		require.Equal(t, i+1, e.item.expiry)
		if i > 0 {
			require.False(t, e.before(q.expiry[(i-1)/2]))
		}
	}
}

// R3 as a whole against the plain model. Times are whole seconds, where the
// meter is exact; TestMeterAgainstHolds covers the rest.
func TestR3AgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := drawClasses(t)
		s := &machine{q: New[string](classes, t0), m: model{classes: classes}, now: t0}
		t.Repeat(s.actions())
	})
}

// The meter at any moment: what it says is off by no more than the window's
// oldest second can hide.
func TestMeterAgainstHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const classes = 3
		m := newMeter(t0, classes)
		oracle := model{classes: make([]Class, classes)}
		now := t0
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				ms := rapid.OneOf(rapid.IntRange(0, 3000), rapid.IntRange(0, 200_000)).Draw(t, "ms")
				now = now.Add(time.Duration(ms) * time.Millisecond)
			},
			"start": func(t *rapid.T) {
				h := hold{class: rapid.IntRange(0, classes-1).Draw(t, "class"), width: rapid.IntRange(1, 4).Draw(t, "width"), from: now}
				m.Start(now, h.class, h.width)
				oracle.held = append(oracle.held, h)
			},
			"stop": func(t *rapid.T) {
				if len(oracle.held) == 0 {
					t.Skip("nothing ran")
				}
				i := rapid.IntRange(0, len(oracle.held)-1).Draw(t, "which")
				if h := &oracle.held[i]; h.to.IsZero() {
					m.Stop(now, h.class, h.width)
					h.to = now
				}
			},
			"": func(t *rapid.T) {
				window := time.Duration(rapid.IntRange(1, 60_000).Draw(t, "window")) * time.Millisecond
				total := 0.0
				for c := range classes {
					for _, w := range []time.Duration{window, time.Minute} {
						// The second in which the window begins.
						edge := now.Add(-w).Sub(t0).Truncate(time.Second)
						hidden := oracle.used(t0.Add(edge+time.Second), c, time.Second).Seconds()
						require.InDelta(t, oracle.used(now, c, w).Seconds(), m.Used(now, c, w), hidden+1e-6)
					}
					total += m.Used(now, c, time.Minute)
				}
				for c := range classes {
					share := m.Share(now, c)
					if total == 0 {
						require.Zero(t, share)
						continue
					}
					require.InDelta(t, m.Used(now, c, time.Minute)/total, share, 1e-9)
				}
			},
		})
	})
}
