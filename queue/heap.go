package queue

// heap is a binary heap whose entries know their places in it, counted from 1
// (0: not in it), so that any of them can move or leave.
type heap[E entry[E]] []E

type entry[E any] interface {
	precedes(E) bool
	place() *int
}

// set adds an entry, or moves it to where it now belongs.
func (h *heap[E]) set(e E) {
	if *e.place() == 0 {
		*h = append(*h, e)
		*e.place() = len(*h)
	}
	h.settle(*e.place()-1, e)
}

// remove takes out the entry whose place is given, if it is in.
func (h *heap[E]) remove(place *int) {
	if *place == 0 {
		return
	}
	hole, last := *place-1, len(*h)-1
	moved := (*h)[last]
	var none E
	(*h)[last] = none
	*h = (*h)[:last]
	*place = 0
	if hole != last {
		h.settle(hole, moved)
	}
}

// settle finds the place of an entry, up or down from hole i.
func (h heap[E]) settle(i int, e E) {
	for i > 0 && e.precedes(h[(i-1)/2]) {
		h.put(i, h[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].precedes(h[child]) {
			child++
		}
		if child >= len(h) || !h[child].precedes(e) {
			break
		}
		h.put(i, h[child])
		i = child
	}
	h.put(i, e)
}

func (h heap[E]) put(i int, e E) {
	h[i] = e
	*e.place() = i + 1
}
