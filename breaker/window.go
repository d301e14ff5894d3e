package breaker

// window remembers how the last attempts ended: a ring, with the number of
// failures in it.
type window struct {
	ring     []bool // true: failed
	next     int    // where the next result goes
	count    int    // results held
	failures int
}

func (w *window) add(failed bool) {
	if len(w.ring) == 0 {
		return
	}
	if w.count == len(w.ring) {
		if w.ring[w.next] {
			w.failures--
		}
	} else {
		w.count++
	}
	w.ring[w.next] = failed
	if failed {
		w.failures++
	}
	w.next++
	if w.next == len(w.ring) {
		w.next = 0
	}
}

func (w *window) clear() {
	w.next, w.count, w.failures = 0, 0, 0
}

// resize changes how many results fit; the newest stay.
func (w *window) resize(size int) {
	size = max(0, size)
	if size == len(w.ring) {
		return
	}
	old := *w
	*w = window{ring: make([]bool, size)}
	for i := old.count; i > 0; i-- {
		w.add(old.ring[(old.next-i+len(old.ring))%len(old.ring)])
	}
}
