package admission

import (
	"container/list"
	"math"
)

// returns is what has been learned of the clients of one class that were told
// when to come back: how many do and how late, so that a booking counts for
// what it is likely to bring; and how much room must be kept in reserve, so that
// those who come in time are accepted.
type returns struct {
	first, again  habit // of those who were told once, and of those who had come back before
	keys          map[string]*keyHabits
	idle          list.List // of *keyHabits, that of the longest idle key first
	own, everyone comers    // scratch of expect and all

	// reserve is in requests, each as much work as the mean one and as answers'
	// lengths spread. Work comes back and is done at random around what is
	// expected, so what was just enough room when it was promised is too little
	// half of the time; how far it strays, as a queue's length does, goes with the
	// mean square of work over its mean. It goes up with each client that comes in
	// time and is refused and down with each that is accepted, and so stands still
	// where honest of them are. As with margin, the step is the smaller the more
	// places are booked.
	reserve float64
}

const (
	honest        = 0.97 // share of those who come in time that are to be accepted
	reserveFirst  = 3.0
	reserveLeast  = 0.25
	reserveMost   = 64.0
	reserveOfRoom = 0.75 // of the time that a newcomer may wait, the most

	reserveSpeed                      = 40 // step, times the places booked
	reserveStepMost, reserveStepLeast = 0.1, 0.005
)

func (r *returns) begin() {
	if r.first.unit == 0 {
		r.reserve = reserveFirst
		r.first.begin()
		r.again.begin()
	}
}

func (r *returns) habit(again bool) *habit {
	r.begin()
	if again {
		return &r.again
	}
	return &r.first
}

// learn takes in whether one that came in time was accepted, while so many
// places were booked.
func (r *returns) learn(accepted bool, booked int) {
	step := min(max(reserveSpeed/float64(booked+1), reserveStepLeast), reserveStepMost)
	if accepted {
		step *= honest - 1
	} else {
		step *= honest
	}
	r.reserve = min(max(r.reserve*math.Exp(step), reserveLeast), reserveMost)
}

// dispersion is that of the answers' lengths as far as it is known; 1: all alike.
func (c *core) dispersion(t *Ticket) float64 {
	if l := c.lengthsOf(t.key, t.lane.model); l != nil {
		return l.dispersion()
	}
	return 1
}

// habit is what clients do who were told when to come back.
type habit struct {
	late  [bookLate + 1]float64 // those who came, by steps after their time
	never float64               // those who did not
	left  [bookLate + 1]float64 // share still to come of those not there yet, by steps after their time
	unit  float64               // weight of the next one
	stale bool                  // left is out of date

	rounds float64 // share that comes in whole seconds, not at the millisecond that was told beside them
}

// returnMemory is over how many clients a habit fades. At the end of a booked
// minute an error of the share is one of as much of that minute.
const returnMemory = 1024

// begin assumes that four in five of them come, and at their time: if it is
// fewer, newcomers make up for it at once, but who comes beyond what was expected
// can only be refused.
func (h *habit) begin() { h.unit, h.late[0], h.never, h.stale = 1, 4, 1, true }

// weigh is the weight of one more client. Older ones fade.
func (h *habit) weigh() float64 {
	h.stale = true
	if h.unit *= 1 + 1.0/returnMemory; h.unit > 1e9 {
		for i := range h.late {
			h.late[i] /= h.unit
		}
		h.never = max(h.never/h.unit, 1e-300) // never none: share would have nobody to divide by
		h.unit = 1
	}
	return h.unit
}

// stayed takes in that one has not come.
func (h *habit) stayed() { h.never += h.weigh() }

// came takes in that one came, so many steps after its time.
func (h *habit) came(late int) { h.late[min(max(late, 0), bookLate)] += h.weigh() }

// known is of how many clients it is, as they fade.
func (h *habit) known() float64 {
	n := h.never
	for _, w := range h.late {
		n += w
	}
	return n / h.unit
}

// rounding takes in whether one came only when the whole second was over.
func (h *habit) rounding(yes bool) {
	const memory = 64
	if h.rounds -= h.rounds / memory; yes {
		h.rounds += 1.0 / memory
	}
}

// share is the part that is still to come of those who are not there so many
// steps after their time.
func (h *habit) share(late int) float64 {
	if h.stale {
		h.stale = false
		sum := 0.0
		for i := bookLate; i >= 0; i-- {
			sum += h.late[i]
			h.left[i] = sum / (sum + h.never)
		}
	}
	return h.left[min(max(late, 0), bookLate)]
}
