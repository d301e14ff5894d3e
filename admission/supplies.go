package admission

// supplies is memory that decisions are about to need. It is allocated while the
// mutex is free: who allocates may have to wait for fresh pages, or to help the
// garbage collector first.
type supplies struct {
	assignment *Assignment
	refusal    *Refusal
	arithmetic *Arithmetic
	booking    *booking
	attempts   []AttemptNote // for one
}

// lacking is what a ticket is told at its arrival to bring when it is admitted.
type lacking struct {
	notes                                              int // candidates
	assignment, attempts, refusal, arithmetic, booking bool
}

func (c *core) lacking() lacking {
	s := &c.supplies
	return lacking{
		min(len(c.fleet), maxCandidates), s.assignment == nil, s.attempts == nil, s.refusal == nil, s.arithmetic == nil, s.booking == nil,
	}
}

// bring allocates what is lacking, and writes to it: a fresh page comes with the
// first write.
func (t *Ticket) bring() {
	l, s := &t.lacking, &t.supplies
	notes := make([]CandidateNote, l.notes)
	if l.notes > 0 {
		notes[0].ForecastS, notes[l.notes-1].ForecastS = -1, -1
	}
	t.record.candidates = notes[:0]
	if l.assignment {
		s.assignment = &Assignment{Attempt: 1}
	}
	if l.attempts {
		s.attempts = append(make([]AttemptNote, 0, 1), AttemptNote{Ms: -1})[:0]
	}
	if l.refusal {
		s.refusal = &Refusal{NoRetry: true}
	}
	if l.arithmetic {
		s.arithmetic = &Arithmetic{Place: placeNone}
	}
	if l.booking {
		s.booking = &booking{step: -1}
	}
}

// store takes what a ticket brings.
func (s *supplies) store(from *supplies) {
	if s.assignment == nil {
		s.assignment = from.assignment
	}
	if s.refusal == nil {
		s.refusal = from.refusal
	}
	if s.arithmetic == nil {
		s.arithmetic = from.arithmetic
	}
	if s.booking == nil {
		s.booking = from.booking
	}
	if s.attempts == nil {
		s.attempts = from.attempts
	}
	*from = supplies{}
}

// use takes one of the supplies, or allocates it after all.
func use[T any](one **T) *T {
	x := *one
	if x == nil {
		return new(T)
	}
	*one = nil
	return x
}
