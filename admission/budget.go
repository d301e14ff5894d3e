package admission

import (
	"slices"
	"time"
)

// budget is the retry budget of the whole gateway: so many retries as a share
// of the last minute's requests, plus the fleet's slots. It keeps a dying
// fleet from being finished off by retries (R7).
type budget struct {
	requests, retries [60]int
	at                int64 // second of the newest bucket
}

// advance clears the buckets that a minute has passed over.
func (b *budget) advance(now time.Time) int {
	s := now.Unix()
	for n := min(s-b.at, 60); n > 0; n-- {
		i := (s - n + 1) % 60
		b.requests[i], b.retries[i] = 0, 0
	}
	b.at = max(b.at, s)
	return int(b.at % 60)
}

func (b *budget) request(now time.Time) { b.requests[b.advance(now)]++ }

// retry takes one retry, if the budget has one.
func (b *budget) retry(now time.Time, share float64, slots int) bool {
	i := b.advance(now)
	requests, retries := 0, 0
	for j := range b.requests {
		requests += b.requests[j]
		retries += b.retries[j]
	}
	if float64(retries) >= share*float64(requests)+float64(slots) {
		return false
	}
	b.retries[i]++
	return true
}

// flowSpan is the time over which a class's accepted work is summed.
const flowSpan = 20 * time.Second

// flow sums up a class's accepted work, in slot-seconds: as expected when a
// request is accepted, corrected when it ends and the truth is known.
type flow struct {
	lane  lane
	work  [int(flowSpan / time.Second)]float64
	slots [int(flowSpan / time.Second)]int // that they need
	at    int64                            // second of the newest bucket
	from  time.Time                        // since when there has been some
}

// flows are a class's, by what its requests ask for: other classes' requests feel
// only what could take their slots.
type flows []*flow

// maxFlows is when those of nobody lately are forgotten.
const maxFlows = 64

// of gives the flow of a lane's requests.
func (fs *flows) of(now time.Time, l lane) *flow {
	l = lane{model: l.model, engines: l.engines, pin: l.pin}
	for _, f := range *fs {
		if f.lane == l {
			return f
		}
	}
	if len(*fs) >= maxFlows {
		*fs = slices.DeleteFunc(*fs, func(f *flow) bool { return f.rate(now) == 0 })
	}
	f := &flow{lane: l}
	*fs = append(*fs, f)
	return f
}

func (f *flow) advance(now time.Time) int {
	n, s := int64(len(f.work)), now.Unix()
	for k := min(s-f.at, n); k > 0; k-- {
		f.work[(s-k+1)%n], f.slots[(s-k+1)%n] = 0, 0
	}
	f.at = max(f.at, s)
	return int(f.at % n)
}

// add takes in an accepted request that needs so many slots.
func (f *flow) add(now time.Time, work float64, slots int) {
	i := f.advance(now)
	if _, n := f.sum(); n == 0 {
		f.from = now
	}
	f.work[i] += work
	f.slots[i] += slots
}

// correct takes in by how much more one took than was expected.
func (f *flow) correct(now time.Time, more float64) { f.work[f.advance(now)] += more }

func (f *flow) sum() (work float64, slots int) {
	for i := range f.work {
		work += f.work[i]
		slots += f.slots[i]
	}
	return max(0, work), slots
}

// rate is the number of slots that it takes up: on average over the span, or
// since it began where that is less. It is never more than its requests need: a
// long one that came just now holds one slot.
func (f *flow) rate(now time.Time) float64 {
	f.advance(now)
	work, n := f.sum()
	return min(work/min(flowSpan, max(time.Second, now.Sub(f.from))).Seconds(), float64(n))
}

// seenBodies remembers the last requests that were answered with a 5xx, so
// that a client which repeats a poison request has it counted once.
type seenBodies struct {
	ring [256]uint64
	set  map[uint64]int
	next int
}

func (s *seenBodies) init() { s.set = make(map[uint64]int, len(s.ring)) }

// before reports whether h was here lately, and notes it.
func (s *seenBodies) before(h uint64) bool {
	if s.set[h] > 0 {
		return true
	}
	if old := s.ring[s.next]; s.set[old] > 1 {
		s.set[old]--
	} else {
		delete(s.set, old)
	}
	s.ring[s.next] = h
	s.set[h]++
	s.next = (s.next + 1) % len(s.ring)
	return false
}
