package bench

import "time"

// Source is one stream of requests, open loop: it never waits for an answer
// before it sends what does not depend on it.
type Source struct {
	Kind     string  `yaml:"kind"` // poisson, burst, conversations, trace
	Rate     float64 `yaml:"rate"` // requests (conversations: new ones) per second
	Requests int     `yaml:"requests"`
}

// Traffic gives a trial's requests in order of time. It is used by one
// goroutine, or under one lock.
type Traffic struct{}

// NewTraffic begins a trial, counted from 1.
func (s *Scenario) NewTraffic(trial int) *Traffic { return &Traffic{} }

// Peek tells when the next request that is known is due; false: none is known
// now (see Open).
func (t *Traffic) Peek() (time.Duration, bool) { return 0, false }

// Next gives that request. Only after Peek said there is one.
func (t *Traffic) Next() *Request { return nil }

// Ended tells what became of a request: a conversation's next turn and a
// refused client's return are then known. Call it once per request.
func (t *Traffic) Ended(r *Request, o *Record) {}

// Open is the number of requests that were given out and have not Ended: while
// it is above 0, more may come.
func (t *Traffic) Open() int { return 0 }

// Total is how many first tries the trial will have, as far as that is known.
func (t *Traffic) Total() int { return 0 }
