package queue

import (
	"math"
	"time"
)

// expiry is when an item expires. Times stand in the heap itself, so that
// comparing touches no item.
type expiry[L comparable] struct {
	latest time.Duration // since the queue's origin
	seq    uint64        // so that runs repeat where times are equal
	item   *Item[L]
}

func (e expiry[L]) precedes(o expiry[L]) bool {
	return e.latest < o.latest || e.latest == o.latest && e.seq < o.seq
}

func (e expiry[L]) place() *int { return &e.item.expiry }

// Expired removes and returns the items whose Latest is past, the longest past
// first. At Latest itself an item can still start.
func (q *Queue[L]) Expired(now time.Time) []*Item[L] {
	var gone []*Item[L]
	for at := now.Sub(q.origin); len(q.expiry) > 0 && q.expiry[0].latest < at; {
		it := q.expiry[0].item
		q.Remove(it)
		gone = append(gone, it)
	}
	return gone
}

// NextExpiry is the first moment at which Expired would return something, just
// past the earliest Latest; false when nothing waits that could expire.
func (q *Queue[L]) NextExpiry() (time.Time, bool) {
	if len(q.expiry) == 0 {
		return time.Time{}, false
	}
	return q.origin.Add(q.expiry[0].latest + 1), true
}

// schedule puts an item where its Latest says.
func (q *Queue[L]) schedule(it *Item[L]) {
	if it.latest == never {
		q.expiry.remove(&it.expiry)
		return
	}
	q.expiry.set(expiry[L]{it.latest, it.Seq, it})
}

// never is the latest start of an item that does not expire.
const never = time.Duration(math.MaxInt64)

func (q *Queue[L]) latest(it *Item[L]) time.Duration {
	if it.Latest.IsZero() {
		return never
	}
	return it.Latest.Sub(q.origin)
}
