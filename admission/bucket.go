package admission

import "time"

// mostTokens is more than any request has: beyond it nobody counts.
const mostTokens = 1_000_000_000

// bucket is a token bucket: it holds a minute's worth and fills up within a
// minute. It counts what it lacks, in whole parts of a token, and time in whole
// microseconds, so that it is exact however long it runs. It may lack more than
// it can hold: what was used beyond its estimate is owed.
type bucket struct {
	size int           // a minute's worth; 0: no limit
	owed int64         // what it lacks, in parts
	at   time.Duration // when it did
}

// partsPerToken is such that a bucket gains size parts each microsecond.
const partsPerToken = int64(time.Minute / time.Microsecond)

// resize sets a minute's worth.
func (b *bucket) resize(size int) {
	if size == b.size {
		return
	}
	b.size = min(size, mostTokens)
	b.owed = min(b.owed, int64(b.size)*partsPerToken)
}

// drain lets the bucket fill up until at. A time before the last is that time.
func (b *bucket) drain(at time.Duration) {
	passed := int64((at - b.at) / time.Microsecond)
	if passed <= 0 {
		return
	}
	b.at = at
	if b.size == 0 || passed > b.owed/int64(b.size) {
		b.owed = 0
		return
	}
	b.owed -= passed * int64(b.size)
}

// wait is how long it takes until n tokens are there.
func (b *bucket) wait(n int) time.Duration {
	if b.size == 0 {
		return 0
	}
	return b.gaining(b.owed + int64(n-b.size)*partsPerToken)
}

func (b *bucket) untilFull() time.Duration {
	if b.size == 0 {
		return 0
	}
	return b.gaining(b.owed)
}

// gaining is how long the bucket takes to gain so many parts.
func (b *bucket) gaining(parts int64) time.Duration {
	if parts <= 0 {
		return 0
	}
	return time.Duration((parts+int64(b.size)-1)/int64(b.size)) * time.Microsecond
}

// take takes n tokens, whether they are there or not.
func (b *bucket) take(n int) {
	if b.size > 0 {
		b.owed = min(b.owed+int64(n)*partsPerToken, mostOwed)
	}
}

// mostOwed is where a debt ends to grow: far from where sums would overflow.
const mostOwed = 100 * mostTokens * partsPerToken

// give gives n tokens back.
func (b *bucket) give(n int) { b.owed = max(0, b.owed-int64(n)*partsPerToken) }

// left is the number of whole tokens there are.
func (b *bucket) left() int {
	return int(max(0, int64(b.size)*partsPerToken-b.owed) / partsPerToken)
}

func (b *bucket) allowance() Allowance {
	return Allowance{Limit: b.size, Remaining: b.left(), Reset: b.untilFull()}
}
