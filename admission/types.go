// Package admission decides: who is accepted, who is refused and told when to
// come back, who goes next, and to which replica. It owns the queue and the
// fleet's ledgers behind one mutex, is told the time by its callers, and never
// starts a goroutine, reads a clock or opens a socket.
package admission

import (
	"time"

	"switchyard/affinity"
	"switchyard/replica"
)

// Outcome is how a request ended; every request ends exactly once (R13).
type Outcome uint8

// The outcomes, in the order in which the books list them.
const (
	OutcomeNone Outcome = iota // not ended yet
	Completed                  // a whole answer passed on, a replica's own 4xx too
	Refused                    // turned away by the gateway itself
	Failed                     // 502, 504, a broken stream, a replica's 5xx passed on
	Cancelled                  // the client left or read nothing for too long
)

// String gives the metric label.
func (o Outcome) String() string {
	return [...]string{"", "completed", "refused", "failed", "cancelled"}[o]
}

// Reason is a code clients see in X-Switchyard-Reason.
type Reason string

// The codes of the interface. The gateway alone turns them into statuses.
const (
	ReasonDeadlineUnmeetable Reason = "deadline_unmeetable"
	ReasonDeadlineExpired    Reason = "deadline_expired"
	ReasonQueueFull          Reason = "queue_full"
	ReasonRateRequests       Reason = "rate_limited_requests"
	ReasonRateTokens         Reason = "rate_limited_tokens"
	ReasonTooManyRunning     Reason = "too_many_running"
	ReasonBadRequest         Reason = "bad_request"
	ReasonUnauthorized       Reason = "unauthorized"
	ReasonForbidden          Reason = "forbidden"
	ReasonModelNotFound      Reason = "model_not_found"
	ReasonNotFound           Reason = "not_found"
	ReasonMethodNotAllowed   Reason = "method_not_allowed"
	ReasonBodyTooLarge       Reason = "body_too_large"
	ReasonEncoding           Reason = "unsupported_encoding"
	ReasonNotSupported       Reason = "not_supported"
	ReasonLoop               Reason = "loop"
	ReasonUpstreamFailed     Reason = "upstream_failed"
	ReasonUpstreamTimeout    Reason = "upstream_timeout"
	ReasonNoReplica          Reason = "no_replica"
	ReasonDraining           Reason = "draining"
)

// Arrival is what is known of a request when its headers have been read.
type Arrival struct {
	ID    string    // X-Request-ID
	Class string    // class as far as headers tell; Ask may name another
	Key   string    // configured key name, or "anonymous"
	At    time.Time // end of the headers: deadlines count from here
}

// Ask is what is known of a request when its body has been read.
type Ask struct {
	Class    string   // final class
	Models   []string // candidates, best first; empty: any model
	Public   string   // model name as the client gave it, for labels
	Path     string   // request path, for eligibility and labels
	Engines  []replica.Engine
	Pin      string // only this replica (Responses API); empty: any
	Once     bool   // the replica stores the answer: never sent again once anything was sent (R17)
	Width    int    // slots needed, ≥ 1
	Bytes    int64  // size of the body, counted against queue.max_bytes
	BodyHash uint64 // over key and body: recognises the same request again
	Try      Try    // what the client says of its earlier tries

	PromptTokens int    // estimate
	Chain        []Part // the prompt's prefix chain, in the same tokens; nil: unknown. It must not change
	Hint         bool   // Chain says where the request would be best, not what is cached there: a session's id
	MaxTokens    int    // the request's own maximum; 0 unstated
	NoOutput     bool   // it makes no tokens: embeddings, rankings
	Stream       bool   // the client wants a stream

	Deadline       time.Time // first token due
	ClientDeadline bool      // the client itself stated it: it bounds the whole answer when not streaming
}

// Part is one piece of a prompt's prefix chain, in estimated tokens.
type Part = affinity.Part

// Try is what a client says of its earlier tries of a request.
type Try uint8

// What it may say.
const (
	TryUnsaid Try = iota
	TryFirst      // there was none
	TryAgain      // this is a retry
)

// Refusal says why a request is turned away and when it would be accepted.
type Refusal struct {
	Reason     Reason
	Message    string        // one sentence for people
	RetryAfter time.Duration // 0: none is given
	NoRetry    bool          // coming back cannot help: x-should-retry: false
	Models     []string      // the models there are, with ReasonModelNotFound
	PassOn     bool          // pass on the replica's own last answer instead (R7)

	say  func() string // what phrase makes Message of
	late lateness      // likewise
}

// Grant is what a waiting ticket receives on its channel: exactly one of the
// two is set.
type Grant struct {
	Assignment *Assignment
	Refusal    *Refusal
}

// Assignment is one attempt: a slot taken on a replica for a ticket. The
// holder must end it with Controller.Finish exactly once.
type Assignment struct {
	Replica string
	URL     string // base URL of the replica
	Engine  replica.Engine
	Model   string // the name to send; replaces the client's where it is an alias
	Attempt int    // 1 for the first try
	Queued  time.Duration

	// Affinity says whether the replica is believed to have a part of the
	// prompt in its cache, and CachedTokens how much of it.
	Affinity     Affinity
	CachedTokens int
	Pinned       bool // llama.cpp: ask for Slot
	Slot         int

	// FirstTokenTimeout runs from the moment the request is sent. It follows
	// the forecast; ask Controller.Overdue before acting on it.
	FirstTokenTimeout time.Duration
	// MoveAfter is when a silent attempt may ask Controller.MayMove; 0: never.
	MoveAfter time.Duration

	ticket *Ticket
	lease  lease
}

// Affinity is what prompt caches had to do with an assignment.
type Affinity uint8

// The kinds of affinity.
const (
	AffinityNone Affinity = iota // nothing is known of the prompt, or affinity is off
	AffinityMiss                 // the replica is not believed to have any of it
	AffinityHit                  // it is
)

// String gives the metric label.
func (a Affinity) String() string { return [...]string{"none", "miss", "hit"}[a] }

// ResultKind is what an attempt came to: the rows of rule R7's table.
type ResultKind uint8

// The kinds of result.
const (
	ResultOK         ResultKind = iota // a whole, good answer
	ResultConnect                      // refused, reset, TLS or DNS error, EOF before the answer
	ResultStatus                       // a status ≥ 400; see AttemptResult.Status
	ResultNoToken                      // no first token within the timeout
	ResultEmpty                        // 200 and then an error, an empty stream, or an end without terminal event, before any content
	ResultBroken                       // the stream broke, stalled or ended without its terminal event after the commit point
	ResultClientGone                   // the client left
	ResultMoved                        // given up in favour of another replica; blame waits
	ResultSlowClient                   // the client read nothing for write_timeout
)

// AttemptResult is what the data plane reports about an ended attempt.
type AttemptResult struct {
	Kind           ResultKind
	Status         int           // replica's status, if it answered
	RetryAfter     time.Duration // what a 429 or 503 asked for; 0 none
	ContextTooLong bool          // a 400 that says the context is too long
	NothingSent    bool          // no byte of the request had been written: the retry is free
	Committed      bool          // a byte of the answer had reached the client
	Running        bool          // the replica may still be working: the slot is a zombie until Released
	Detail         string        // for logs: "connection refused", "no first token in 15s"

	FirstTokenAt time.Time // zero: none came
	Usage        Usage
}

// Usage is what an attempt's answer said about tokens and time; zero = unsaid.
type Usage struct {
	PromptTokens int
	CachedTokens int
	OutputTokens int
	Load         time.Duration
	Prompt       time.Duration // prompt processing
	Decode       time.Duration
	CacheSaid    bool // CachedTokens was said, if only to be 0
}

// Action is what the data plane does after Finish.
type Action uint8

// The actions.
const (
	ActEnd    Action = iota // the answer is complete or cannot be continued: end the request
	ActWait                 // back in the queue at its old place: wait on the ticket's channel
	ActPassOn               // pass the replica's own answer on
	ActFail                 // answer Next.Refusal (502, 504, 429 or 503)
)

// Next is Finish's verdict.
type Next struct {
	Action  Action
	Refusal *Refusal // with ActFail
	Retry   string   // with ActWait: reason label of switchyard_retries_total
	Result  string   // result label of switchyard_attempts_total
}
