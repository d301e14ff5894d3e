package replica

import "time"

// Slots is the ledger of one pool of slots: a whole replica's, or one model's
// where the engine counts slots per model (Ollama). Rule R1 lives here.
type Slots struct {
	Total   int // what the replica can run at once
	Busy    int // held by attempts of ours
	Zombie  int // held by attempts we ended and the replica has not
	Foreign int // held by work that did not come through us

	changed    time.Time // last time one of ours began or ended
	suspect    int       // foreign work seen by the last clean probe
	suspectAt  time.Time // when that probe began
	suspicious bool

	Prompting Prompting // of what is in them
}

// Free is the number of slots a new attempt could take; never negative.
func (s *Slots) Free() int { return max(0, s.Total-s.Busy-s.Zombie-s.Foreign) }

// Held is the number of slots our work has in hand there.
func (s *Slots) Held() int { return s.Busy + s.Zombie }

// Take debits n slots. It panics when they are not free: the caller decides
// under the controller's lock, so a miss is a broken invariant, not a race.
func (s *Slots) Take(now time.Time, n int) {
	if n < 1 || n > s.Free() {
		panic("replica: taking slots that are not free")
	}
	s.Busy += n
	s.changed = now
}

// Bury turns n busy slots into zombies.
func (s *Slots) Bury(now time.Time, n int) {
	if n > s.Busy {
		panic("replica: burying slots that are not busy")
	}
	s.Busy -= n
	s.Zombie += n
	s.changed = now
}

// Give returns n busy slots.
func (s *Slots) Give(now time.Time, n int) {
	if n > s.Busy {
		panic("replica: returning slots twice")
	}
	s.Busy -= n
	s.changed = now
}

// Exhume returns n zombie slots.
func (s *Slots) Exhume(now time.Time, n int) {
	if n > s.Zombie {
		panic("replica: returning zombie slots twice")
	}
	s.Zombie -= n
	s.changed = now
}

// Observe compares the engine's own count of work in hand with the ledger, as
// read by a probe begun at began. A probe that overlapped with a beginning or
// an end of ours says nothing. More foreign work is believed only when two
// clean probes in a row agree (the smaller excess counts); less at once.
func (s *Slots) Observe(began time.Time, inHand int) {
	if inHand < 0 || !s.changed.Before(began) {
		s.suspicious = false
		return
	}
	excess := min(max(0, inHand-s.Held()), s.Total)
	if excess <= s.Foreign {
		s.Foreign = excess
		s.suspicious = false
		return
	}
	if s.suspicious && s.changed.Before(s.suspectAt) {
		s.Foreign = max(s.Foreign, min(excess, s.suspect))
	}
	s.suspect, s.suspectAt, s.suspicious = excess, began, true
}
