package queue

import (
	"cmp"
	"slices"
	"time"
)

// model is the queue told again as plainly as possible: a slice that is sorted
// and searched, and a list of who held a slot when.
type model struct {
	classes []Class
	items   []*Item[string]
	held    []hold
	keys    map[who]*had
	virtual map[int]float64   // of classes
	local   map[where]float64 // virtual time of lanes with items
}

// who is a key in a class, had what it has had of it: its start tag.
type who struct {
	class int
	key   string
}

type had struct {
	start   float64
	running int
}

type where struct {
	class int
	lane  string
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

// sorted gives those to keep by class and deadline.
func (m *model) sorted(keep func(*Item[string]) bool) []*Item[string] {
	var kept []*Item[string]
	for _, it := range m.items {
		if keep(it) {
			kept = append(kept, it)
		}
	}
	slices.SortFunc(kept, earlier)
	return kept
}

func earlier(a, b *Item[string]) int {
	return cmp.Or(a.Class-b.Class, a.Deadline.Compare(b.Deadline), cmp.Compare(a.Seq, b.Seq))
}

func (m *model) next(now time.Time, eligible func(string) bool) *Item[string] {
	can := m.sorted(func(it *Item[string]) bool { return eligible(it.Lane) })
	for _, it := range can {
		if m.behind(now, it.Class) {
			return m.first(now, it.Class, eligible)
		}
	}
	if len(can) > 0 {
		return m.first(now, can[0].Class, eligible)
	}
	return nil
}

// first is R3.2 and R3.3: of the key with the least tag the earliest deadline,
// but the earliest deadline of a lane where that would break a promise.
func (m *model) first(now time.Time, class int, eligible func(string) bool) *Item[string] {
	can := m.sorted(func(it *Item[string]) bool { return it.Class == class && eligible(it.Lane) })
	fair := slices.MinFunc(can, func(a, b *Item[string]) int {
		return cmp.Or(cmp.Compare(m.keys[who{class, a.Key}].start, m.keys[who{class, b.Key}].start), earlier(a, b))
	})
	at := where{class, fair.Lane}
	m.local[at] = max(m.local[at], m.keys[who{class, fair.Key}].start)
	m.virtual[class] = max(m.virtual[class], m.local[at])
	for _, it := range can { // the first in danger is the earliest of its lane
		if earlier(it, fair) < 0 && m.endangers(now, it.Lane, fair) {
			return it
		}
	}
	return fair
}

// endangers plays a lane through in order of deadlines, after fair: would one
// of those with earlier deadlines start too late?
func (m *model) endangers(now time.Time, lane string, fair *Item[string]) bool {
	all := m.sorted(func(it *Item[string]) bool { return it.Class == fair.Class && it.Lane == lane })
	slots := laneSlots[lane]
	if len(all) == 0 || slots == 0 {
		return false
	}
	work := 0.0
	for _, it := range all {
		work += it.Work
	}
	from := now.Sub(t0).Seconds() + work/float64(len(all))/2
	taken := fair.Work
	for _, it := range all {
		if earlier(it, fair) >= 0 {
			break
		}
		if !it.Latest.IsZero() && it.Latest.Sub(t0).Seconds()*slots < from*slots+taken {
			return true
		}
		taken += it.Work
	}
	return false
}

func (m *model) waiting(class int, key, lane string) bool {
	return slices.ContainsFunc(m.items, func(it *Item[string]) bool {
		return it.Class == class && (key == "" || it.Key == key) && (lane == "" || it.Lane == lane)
	})
}

// add brings a key that waited for nothing up to the virtual time.
func (m *model) add(it *Item[string]) {
	at := where{it.Class, it.Lane}
	if !m.waiting(it.Class, "", it.Lane) {
		m.local[at] = m.virtual[it.Class]
	}
	k := m.keys[who{it.Class, it.Key}]
	if k == nil {
		k = &had{}
		m.keys[who{it.Class, it.Key}] = k
	}
	if !m.waiting(it.Class, it.Key, "") {
		k.start = max(k.start, m.local[at])
	}
	m.items = append(m.items, it)
}

// begin charges a served item to its key.
func (m *model) begin(it *Item[string]) {
	w := who{it.Class, it.Key}
	if m.keys[w] == nil {
		m.keys[w] = &had{start: m.virtual[it.Class]}
	}
	m.keys[w].start += it.Work / keyWeights[it.Key]
	m.keys[w].running++
}

// forget drops those that have nothing left to be remembered for.
func (m *model) forget() {
	for w, k := range m.keys {
		if k.running == 0 && k.start <= m.virtual[w.class] && !m.waiting(w.class, w.key, "") {
			delete(m.keys, w)
		}
	}
}

// reload moves what keys are ahead of their class to the new ones.
func (m *model) reload(moved []int) {
	old := m.keys
	m.keys = make(map[who]*had)
	for w, k := range old {
		to := who{moved[w.class], w.key}
		if m.keys[to] == nil {
			m.keys[to] = &had{}
		}
		m.keys[to].start += max(0, k.start-m.virtual[w.class])
		m.keys[to].running += k.running
	}
	clear(m.virtual)
}

func (m *model) remove(it *Item[string]) {
	m.items = slices.DeleteFunc(m.items, func(o *Item[string]) bool { return o == it })
}

// turn adds up what of the competing lanes goes before an item by shares.
func (m *model) turn(it *Item[string], competes func(string) bool) Turn {
	w := who{it.Class, it.Key}
	t := Turn{Waiting: m.waiting(it.Class, it.Key, "")}
	others := 0.0
	streams := map[[2]string]bool{}
	for _, o := range m.items {
		switch {
		case !competes(o.Lane) || o.Class > it.Class:
		case o.Class < it.Class:
			t.Urgent += o.Work
		case o.Key == it.Key:
			if earlier(o, it) < 0 {
				t.Own += o.Work
			}
		default:
			others += o.Work
			streams[[2]string{o.Lane, o.Key}] = true
		}
	}
	for st := range streams {
		t.Others += keyWeights[st[1]]
	}
	if k := m.keys[w]; k != nil && t.Others > 0 {
		virtual := m.virtual[it.Class]
		if m.waiting(it.Class, "", it.Lane) {
			virtual = m.local[where{it.Class, it.Lane}]
		}
		t.Own += max(0, k.start-virtual) * keyWeights[it.Key]
	}
	t.Theirs = min(others, t.Own/keyWeights[it.Key]*t.Others)
	return t
}
