package admission

import (
	"slices"
	"time"
)

// backlog is what a request waits for: work, and the slots that do it.
type backlog struct {
	slots []slotTime
	part  float64 // of all slots that these are
	ahead float64 // requests that go before it
	work  float64 // slot-seconds of those
	own   float64 // of that in its own class
	taken float64 // of these slots, those that others keep busy meanwhile
}

// slotTime is when a slot is expected to be free, in seconds from now, and one
// standard deviation of that.
type slotTime struct{ free, spread float64 }

// wait forecasts how long a request's backlog takes, before it is calibrated.
func (c *core) wait(now time.Time, t *Ticket, b backlog) time.Duration {
	wait := fill(b.slots, b.part*b.work, b.taken)
	wait = min(wait, b.soon(wait))
	if share := c.cfg.Classes[t.class.index].MinShare; share > 0 && c.q.Meter().Share(now, t.class.index) < share {
		wait = min(wait, b.waitAtShare(share))
	}
	return wait
}

// waitAtShare is the wait in a class that is served at its min_share alone: while
// it has had less, it never has to wait longer (R3).
func (b *backlog) waitAtShare(share float64) time.Duration {
	level := 0.0
	for i, s := range b.slots {
		if i == 0 || s.free < level {
			level = s.free
		}
	}
	return seconds(level + max(0, b.own)*b.part/(share*float64(max(1, len(b.slots)))))
}

// soon is the wait of one who has but few before it: until as many slots are
// free. That is sooner than any of them is on average, since of many slots the
// first to be free is one that was expected later. Each is taken to become free
// evenly over what its expected time is uncertain by. With more before it than
// half of the slots, work is what matters, and soon is never before most.
func (b *backlog) soon(most time.Duration) time.Duration {
	n := float64(len(b.slots))
	want := b.part * (b.ahead + 1) / max(1-b.taken/max(n, 1), 0.05)
	if n == 0 || want > max(n/2, 1) {
		return most
	}
	// Of hundreds a part tells it as well.
	step := 1 + len(b.slots)/maxLooked
	want *= float64((len(b.slots)+step-1)/step) / n
	var room [maxLooked]slotTime
	some := room[:0]
	for i := 0; i < len(b.slots); i += step {
		some = append(some, b.slots[i])
	}
	high := most.Seconds()
	if freeBy(some, high) < want {
		return most
	}
	low := 0.0
	for range 14 {
		mid := (low + high) / 2
		if freeBy(some, mid) < want {
			low = mid
			continue
		}
		high = mid
		some = slices.DeleteFunc(some, func(s slotTime) bool { return s.free-s.spread >= high }) // they never count again
	}
	return seconds(high)
}

// freeBy is how many of some slots are expected to be free by then.
func freeBy(slots []slotTime, then float64) (n float64) {
	for i := range slots {
		switch s := &slots[i]; {
		case then >= s.free:
			n++
		case then > s.free-s.spread:
			n += (then - s.free + s.spread) / s.spread
		}
	}
	return n
}
