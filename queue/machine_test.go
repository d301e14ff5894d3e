package queue

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// machine runs the queue and the model side by side.
type machine struct {
	q     *Queue[string]
	m     model
	now   time.Time
	seq   uint64
	spent []*Item[string] // taken out, to be pushed again
	runs  []who           // taken and not done
}

var (
	laneNames  = []string{"a", "b", "c", "d"}
	laneSlots  = map[string]float64{"a": 0, "b": 1, "c": 2, "d": 8}
	keyNames   = []string{"k1", "k2", "k4", "l1"}
	keyWeights = map[string]float64{"k1": 1, "k2": 2, "k4": 4, "l1": 1}
)

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
	it.Slots = laneSlots[it.Lane]
	it.Key = rapid.SampledFrom(keyNames).Draw(t, "key")
	it.Weight = keyWeights[it.Key]
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
	s.m.add(it)
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
			was := *it
			s.fill(t, it)
			require.True(t, s.q.Update(it))
			if was.Class != it.Class || was.Lane != it.Lane || was.Key != it.Key || was.Deadline != it.Deadline || was.Work != it.Work || was.Bytes != it.Bytes {
				s.m.remove(it) // moved: it leaves and comes
				s.m.forget()
				s.m.add(it)
			}
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
				s.m.forget()
				if rapid.Bool().Draw(t, "waitlisted") {
					continue // it is not served after all
				}
				s.q.Begin(it)
				s.m.begin(it)
				s.m.forget()
				s.runs = append(s.runs, who{it.Class, it.Key})
			}
		},
		"end": func(t *rapid.T) {
			if len(s.runs) == 0 {
				t.Skip("nothing runs")
			}
			i := rapid.IntRange(0, len(s.runs)-1).Draw(t, "which")
			w, more := s.runs[i], float64(rapid.IntRange(-50, 50).Draw(t, "more"))/8
			s.runs = slices.Delete(s.runs, i, i+1)
			s.q.Charge(w.class, w.key, more)
			s.q.Done(w.class, w.key)
			k := s.m.keys[w]
			k.start += more / keyWeights[w.key]
			k.running--
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
			s.m.reload(moved)
			for i := range s.runs {
				s.runs[i].class = moved[s.runs[i].class]
			}
			want := make(map[*Item[string]]int)
			for _, it := range s.m.items {
				want[it] = moved[it.Class]
			}
			s.q.SetClasses(s.now, s.m.classes, moved)
			for it, class := range want {
				require.Equal(t, class, it.Class)
			}
			clear(s.m.local)
			for _, it := range s.m.items {
				s.m.local[where{it.Class, it.Lane}] = 0
			}
		},
		"": s.check,
	}
}

// check compares everything that can be asked.
func (s *machine) check(t *rapid.T) {
	s.m.forget()
	checkTrees(t, s.q)
	checkHeap(t, s.q.expiry)
	s.checkKeys(t)

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
	require.Equal(t, s.m.turn(probe, competes), s.q.Turn(probe, competes))
	require.Equal(t, s.m.endangers(s.now, probe.Lane, probe), s.q.Endangers(s.now, probe))

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

// checkKeys compares what is remembered of keys, and that it is no more.
func (s *machine) checkKeys(t *rapid.T) {
	n := 0
	for i, c := range s.q.classes {
		n += len(c.flows)
		require.Equal(t, s.m.virtual[i], c.virtual)
		idle := 0
		for key, f := range c.flows {
			k := s.m.keys[who{i, key}]
			require.NotNil(t, k, "%s of %d is kept for nothing", key, i)
			require.Equal(t, *k, had{f.start, f.running}, "%s of %d", key, i)
			if len(f.streams) == 0 && f.running == 0 {
				idle++
			}
			for j, st := range f.streams {
				require.Equal(t, j, st.pos)
				require.Same(t, f, st.flow)
				require.NotNil(t, st.root)
			}
		}
		require.Len(t, c.idle, idle)
		checkHeap(t, c.idle)
		for _, ln := range c.lanes {
			require.Equal(t, s.m.local[where{i, ln.key}], ln.virtual)
			checkHeap(t, ln.streams)
			weight := 0.0
			for _, st := range ln.streams {
				require.Same(t, ln, st.lane)
				weight += st.flow.weight
			}
			require.Equal(t, weight, ln.weight)
		}
	}
	require.Len(t, s.m.keys, n)
}

// checkTrees verifies what the trees rest on: order, heap, parents, sums.
func checkTrees(t require.TestingT, q *Queue[string]) {
	for _, c := range q.classes {
		require.Len(t, c.byKey, len(c.lanes))
		for i, ln := range c.lanes {
			require.Equal(t, i, ln.pos)
			require.Same(t, ln, c.byKey[ln.key])
			items := checkTree(t, &ln.tree)
			streamed := 0
			for _, st := range ln.streams {
				for _, it := range checkTree(t, &st.tree) {
					require.Same(t, st, it.stream)
					streamed++
				}
			}
			require.Len(t, items, streamed)
		}
	}
}

func checkTree(t require.TestingT, tr *tree[string]) []*Item[string] {
	require.NotNil(t, tr.root)
	require.Nil(t, tr.root.nodes[tr.which].parent)
	items := checkNode(t, tr, tr.root)
	require.Same(t, items[0], tr.least)
	for j := 1; j < len(items); j++ {
		require.True(t, items[j-1].rank.before(items[j].rank))
		require.Same(t, items[j], tr.next(items[j-1]))
	}
	require.Nil(t, tr.next(items[len(items)-1]))
	return items
}

// checkNode verifies a subtree and gives its items in order.
func checkNode(t require.TestingT, tr *tree[string], it *Item[string]) []*Item[string] {
	if it == nil {
		return nil
	}
	n := &it.nodes[tr.which]
	for _, child := range []*Item[string]{n.left, n.right} {
		if child != nil {
			require.Same(t, it, child.nodes[tr.which].parent)
			require.LessOrEqual(t, child.priority, it.priority)
		}
	}
	items := append(append(checkNode(t, tr, n.left), it), checkNode(t, tr, n.right)...)
	var work int64
	tight := math.Inf(1)
	for _, it := range items {
		tight = min(tight, tr.room(it)-seconds(work))
		work += it.own
	}
	require.Equal(t, len(items), n.count)
	require.Equal(t, work, n.work)
	require.Equal(t, tight, n.tight)
	return items
}

func checkHeap[E entry[E]](t require.TestingT, h heap[E]) {
	for i, e := range h {
		require.Equal(t, i+1, *e.place())
		if i > 0 {
			require.False(t, e.precedes(h[(i-1)/2]))
		}
	}
}

// R3 as a whole against the plain model. Times are whole seconds, where the
// meter is exact; TestMeterAgainstHolds covers the rest.
func TestR3AgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := drawClasses(t)
		s := &machine{q: New[string](classes, t0), now: t0, m: model{
			classes: classes, keys: map[who]*had{}, virtual: map[int]float64{}, local: map[where]float64{},
		}}
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
