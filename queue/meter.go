package queue

import (
	"fmt"
	"time"
)

const (
	meterWindow = 60              // seconds of slot time remembered
	meterRing   = meterWindow + 1 // the second under way and the window's before it
	second      = int64(time.Second)
)

// Meter knows how much slot time each class has used in the last minute, and
// is using: a class that holds w slots for a second uses w slot-seconds, as
// they pass, not when they end. It keeps whole seconds, and counts of the
// oldest, which the window covers in part, that part. Sums are integers, so
// they are exact however long it runs.
//
// Times may come slightly out of order, as from callers that read the clock
// before they took the lock: an earlier one is taken for the latest seen.
type Meter struct {
	origin  time.Time
	at      int64 // nanoseconds since origin up to which time has been counted
	classes []usage
}

// usage is the slot time of one class.
type usage struct {
	running int64            // slots held now
	ring    [meterRing]int64 // slot-nanoseconds by second since origin, modulo
	sum     int64            // of ring
}

func newMeter(now time.Time, classes int) *Meter {
	return &Meter{origin: now, classes: make([]usage, classes)}
}

// Start counts width more slots as used by the class.
func (m *Meter) Start(now time.Time, class, width int) {
	m.advance(now)
	m.classes[class].running += int64(width)
}

// Stop ends what a Start of the same width began. It panics when the class
// does not hold that many.
func (m *Meter) Stop(now time.Time, class, width int) {
	m.advance(now)
	u := &m.classes[class]
	if u.running < int64(width) {
		panic(fmt.Sprintf("queue: %d slots given back of %d that class %d holds", width, u.running, class))
	}
	u.running -= int64(width)
}

// Running is the number of slots the class holds.
func (m *Meter) Running(class int) int { return int(m.classes[class].running) }

// Share is the class's share of all slot time used in the last minute, 0 when
// none was.
func (m *Meter) Share(now time.Time, class int) float64 {
	m.advance(now)
	if total := m.total(); total > 0 {
		return m.classes[class].lastMinute(m.at) / total
	}
	return 0
}

// Used is the slot time, in slot-seconds, that the class has used in the last
// window, a minute at most.
func (m *Meter) Used(now time.Time, class int, window time.Duration) float64 {
	m.advance(now)
	u := &m.classes[class]
	start := max(0, m.at-int64(min(max(window, 0), meterWindow*time.Second)))
	used := 0.0
	for s := start / second; s*second < m.at; s++ {
		from, to := s*second, min((s+1)*second, m.at)
		part := float64(to-max(start, from)) / float64(to-from)
		used += part * float64(u.ring[s%meterRing])
	}
	return used / float64(second)
}

// below reports whether the class has had less than a share of the slot time
// of the minute before the latest time seen (where none was used, none has)
// and does not hold that share, or one slot, now: with long answers it would
// else take every slot that comes free until the first of them ends.
func (m *Meter) below(class int, share float64) bool {
	u := &m.classes[class]
	return share > 0 && u.lastMinute(m.at) < share*m.total() && float64(u.running) < max(1, share*float64(m.held()+1))
}

// held is the number of slots that all classes hold.
func (m *Meter) held() (n int64) {
	for i := range m.classes {
		n += m.classes[i].running
	}
	return n
}

func (m *Meter) total() float64 {
	total := 0.0
	for i := range m.classes {
		total += m.classes[i].lastMinute(m.at)
	}
	return total
}

// lastMinute is the slot-nanoseconds of the minute that ends at nanosecond at,
// which the ring has reached.
func (u *usage) lastMinute(at int64) float64 {
	oldest := at/second - meterWindow
	if oldest < 0 {
		return float64(u.sum)
	}
	over := float64(at%second) / float64(second)
	return float64(u.sum) - over*float64(u.ring[oldest%meterRing])
}

// advance counts the time up to now.
func (m *Meter) advance(now time.Time) {
	to := int64(now.Sub(m.origin))
	if to-m.at > meterRing*second {
		// What was counted is forgotten by now; so is most of the gap.
		for i := range m.classes {
			m.classes[i].forget()
		}
		m.at = (to/second - meterWindow) * second
	}
	for m.at < to {
		s := m.at / second
		end := min((s+1)*second, to)
		for i := range m.classes {
			m.classes[i].count(s, end-m.at)
		}
		m.at = end
		if end == (s+1)*second {
			for i := range m.classes {
				m.classes[i].turn(s + 1)
			}
		}
	}
}

// count adds a stretch of second s.
func (u *usage) count(s, stretch int64) {
	used := u.running * stretch
	u.ring[s%meterRing] += used
	u.sum += used
}

// turn makes room for second s.
func (u *usage) turn(s int64) {
	u.sum -= u.ring[s%meterRing]
	u.ring[s%meterRing] = 0
}

func (u *usage) forget() {
	*u = usage{running: u.running}
}

// setClasses moves what old class i used, and uses, to new class moved[i].
func (m *Meter) setClasses(now time.Time, classes int, moved []int) {
	m.advance(now)
	old := m.classes
	m.classes = make([]usage, classes)
	for i := range old {
		u := &m.classes[moved[i]]
		u.running += old[i].running
		u.sum += old[i].sum
		for s, used := range old[i].ring {
			u.ring[s] += used
		}
	}
}
