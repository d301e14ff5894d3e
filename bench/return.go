package bench

import (
	"fmt"
	"math"
	"time"
)

// What refused clients do.
const (
	RetryNone   = "none"
	RetryTold   = "told"    // come back at Retry-After; not where none was said, or where x-should-retry is false
	RetryAtOnce = "at-once" // come back within a tenth of a second, whatever was said
	RetrySDK    = "sdk"     // as OpenAI's Python client does
)

// How often they come back where the source does not say it; the last is the
// SDK's own number.
const (
	toldReturns   = 3
	atOnceReturns = 10
	sdkReturns    = 2
)

// The SDK's numbers (openai-python, _base_client.py): a Retry-After is followed
// up to a minute; else the wait doubles from half a second to eight, less up to
// a quarter of it.
const (
	sdkLongest = 60.0
	sdkFirst   = 0.5
	sdkMost    = 8.0
	sdkJitter  = 0.25
)

// again is the same request asked once more, nil if its client does not come
// back. A client that left, or has had a part of an answer, does not.
func (r *Request) again(o *Record) *Request {
	var wait float64
	ok := false
	random := r.source.traffic.draws(blend(r.seed, uint64(r.Turn)), forReturn+uint64(r.Retry))
	switch r.source.Retry {
	case RetryTold:
		ok = comeBack(o.Status) && o.RetryAfterS != nil && !o.NoRetry && r.Retry < r.source.returns(toldReturns)
		if ok {
			wait = *o.RetryAfterS
		}
	case RetryAtOnce:
		ok = comeBack(o.Status) && r.Retry < r.source.returns(atOnceReturns)
		wait = 0.1 * random.Float64()
	case RetrySDK:
		ok = sdkRetries(o) && r.Retry < r.source.returns(sdkReturns)
		wait = min(sdkFirst*math.Pow(2, float64(r.Retry)), sdkMost) * (1 - sdkJitter*random.Float64())
		if o.RetryAfterS != nil && *o.RetryAfterS > 0 && *o.RetryAfterS <= sdkLongest {
			wait = *o.RetryAfterS
		}
	}
	if !ok {
		return nil
	}
	next := *r
	next.Retry++
	next.ID = fmt.Sprintf("%s.r%d", r.Origin, next.Retry)
	next.RetriedOf = r.ID
	next.At = durationOf(o.EndS) + durationOf(wait)
	return &next
}

func (x *Source) returns(otherwise int) int {
	if x.Retries != nil {
		return *x.Retries
	}
	return otherwise
}

// sdkRetries reports whether the SDK asks again: no answer at all, 408, 409, 429
// and 5xx, unless the answer says that it should not.
func sdkRetries(o *Record) bool {
	switch {
	case o.Error == ErrLeft || o.FirstTokenS != nil || o.NoRetry:
		return false
	case o.Status == 0:
		return o.Error != ""
	}
	return o.Status == 408 || o.Status == 409 || o.Status == 429 || o.Status >= 500
}

// comeBack reports whether a status tells the client to come another time.
func comeBack(status int) bool { return status == 429 || status == 503 }

// durationOf turns a number of seconds into a duration, to the nanosecond. What
// is beyond the end of time is a little beyond it.
func durationOf(s float64) time.Duration {
	return time.Duration(math.Round(min(s, 2*endOfTime.Seconds()) * float64(time.Second)))
}

// blend makes one number of two, so that neighbours share nothing (the finisher
// of splitmix64).
func blend(a, b uint64) uint64 {
	x := a + 0x9e3779b97f4a7c15*(b+1)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// zipf is the weight of the k-th of things whose popularity falls with their
// rank.
func zipf(k int, skew float64) float64 { return math.Pow(float64(k), -skew) }
