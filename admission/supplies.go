package admission

// supplies is memory that decisions are about to need. It is allocated while the
// mutex is free: who allocates may have to wait for fresh pages, or to help the
// garbage collector first.
type supplies struct {
	assignment *Assignment
	refusal    *Refusal
	arithmetic *Arithmetic
}

// lacking is what a ticket is told at its arrival to bring when it is admitted.
type lacking struct {
	notes                           int // candidates
	assignment, refusal, arithmetic bool
}

func (c *core) lacking() lacking {
	s := &c.supplies
	return lacking{min(len(c.fleet), maxCandidates), s.assignment == nil, s.refusal == nil, s.arithmetic == nil}
}

// bring allocates what is lacking.
func (t *Ticket) bring() {
	l, s := &t.lacking, &t.supplies
	t.record.candidates = make([]CandidateNote, 0, l.notes)
	if l.assignment {
		s.assignment = new(Assignment)
	}
	if l.refusal {
		s.refusal = new(Refusal)
	}
	if l.arithmetic {
		s.arithmetic = new(Arithmetic)
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
