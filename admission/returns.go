package admission

// returns is what has been learned of the clients of one class that were told
// when to come back: how many do and how late, so that a booking counts for
// what it is likely to bring; and how much room must be kept in reserve, so that
// those who come in time are accepted.
type returns struct {
	late  [bookLate + 1]float64 // those who came, by steps after their time
	never float64               // those who did not
	left  [bookLate + 1]float64 // share still to come of those not there yet, by steps after their time
	unit  float64               // weight of the next one; 0: nothing has been learned
	stale bool                  // left is out of date

	// reserve is a share of the time that a newcomer may wait. Work comes back
	// and is done at random around what is expected, so what was just enough room
	// when it was promised is too little half of the time. It goes up with each
	// client that comes in time and is refused and down with each that is
	// accepted, and so stands still where honest of them are (as margin does).
	reserve float64
}

const (
	honest       = 0.95 // share of those who come in time that are to be accepted
	returnMemory = 256  // clients
	reserveStep  = 0.02
	reserveFirst = 0.1
	reserveMost  = 0.5
)

// begin assumes that half of them come, and at their time.
func (r *returns) begin() {
	if r.unit == 0 {
		r.unit, r.late[0], r.never, r.reserve, r.stale = 1, 4, 4, reserveFirst, true
	}
}

// weigh is the weight of one more client. Older ones fade.
func (r *returns) weigh() float64 {
	r.begin()
	r.stale = true
	if r.unit *= 1 + 1.0/returnMemory; r.unit > 1e9 {
		for i := range r.late {
			r.late[i] /= r.unit
		}
		r.never /= r.unit
		r.unit = 1
	}
	return r.unit
}

// stayed takes in that one has not come.
func (r *returns) stayed() { r.never += r.weigh() }

// came takes in that one came, so many steps after its time.
func (r *returns) came(late int, accepted bool) {
	r.late[min(max(late, 0), bookLate)] += r.weigh()
	if accepted {
		r.reserve -= reserveStep * (1 - honest)
	} else {
		r.reserve += reserveStep * honest
	}
	r.reserve = min(max(r.reserve, 0), reserveMost)
}

// share is the part that is still to come of those who are not there so many
// steps after their time.
func (r *returns) share(late int) float64 {
	r.begin()
	if r.stale {
		r.stale = false
		sum := 0.0
		for i := bookLate; i >= 0; i-- {
			sum += r.late[i]
			r.left[i] = sum / (sum + r.never)
		}
	}
	return r.left[min(max(late, 0), bookLate)]
}
