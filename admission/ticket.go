package admission

import (
	"slices"
	"strings"
	"time"

	"switchyard/breaker"
	"switchyard/queue"
	"switchyard/replica"
)

// lane is what the queue sorts by beside class and deadline: requests of one
// lane can be served by exactly the same replicas.
type lane struct {
	model   string   // as resolved; "" any
	engines string   // names of the engines that serve the path, joined
	pin     string   // only this replica
	avoid   string   // replicas tried already, joined: others first
	tier    int      // replicas of higher tiers are not needed
	context int      // only replicas with a larger context than this
	capped  *account // whose max_running they wait for; nil: nobody's
}

// phase is where a request is on its way.
type phase uint8

const (
	uploading phase = iota // headers read, body still coming: counts as queued
	waiting                // in the queue, or bound to a replica that pays a debt
	running                // an attempt is under way
	between                // an attempt has ended and the request's end is due
	ended
)

// Ticket is one request on its way through the gateway, from Arrive to End.
// Its fields belong to the controller; the holder reads only C, ID and, before and after Admit, Quota.
//
// A waiting ticket receives exactly one Grant on its channel, which has room
// for one so that the controller never blocks. Leave and a grant can race: the
// controller's mutex decides. If Leave comes first the item is out of the
// queue and no grant follows; if the grant came first, Leave finds phase
// running, takes the unread grant back and returns its slot.
type Ticket struct {
	id      string
	class   *classBook
	at      time.Time
	c       chan Grant
	wake    func() // called once C has something; nil: nobody asked
	phase   phase
	ask     Ask
	lane    lane
	engines string // ask.Engines, joined
	item    queue.Item[lane]
	since   time.Time // waiting since
	queued  time.Duration
	tries   int
	expect  int           // output tokens predicted for the model of the lane
	longer  float64       // so many more, but for the longest, where its deadline bounds the whole answer
	own     time.Duration // what it takes on the replica that is fastest for it, up to what its deadline bounds
	promise float64       // slot-seconds counted in its class's flow
	used    float64       // slot-seconds that its attempts have held
	work    float64       // slot-seconds, as the mean over the replicas that serve it
	kept    bool          // the replica's last answer is kept by the data plane: pass it on at the end
	avoid   []string
	suspect *suspect // an answered 5xx whose blame waits for a second opinion (R7, poison)
	bound   *member
	listed  waitlisted
	current *Assignment
	back    *booking // its place, if it comes back; nil once admission has decided

	again    bool // it has come back in its time
	dares    bool // accepted although it is expected to be late, so that it is found out
	lacking  lacking
	supplies supplies // until Admit
	counted  bool     // in its class's arrivals
	promised bool     // accepted
	judged   bool     // the promise has been called kept or broken
	pledge   pledge
	tab      *tab // with its key; nil: that has no limits
	record   record
	key      string // here, so that newTicket writes to all of its pages
}

func newTicket(a Arrival) *Ticket {
	return &Ticket{id: a.ID, key: a.Key, at: a.At, c: make(chan Grant, 1)}
}

// record is what of a request's Decision is known before its end.
type record struct {
	forecastS, retryAfterS float64
	attempts               []AttemptNote
	candidates             []CandidateNote
	wouldRefuse            bool
	inTime                 *bool // with wouldRefuse: whether it was
	arithmetic             *Arithmetic
}

// ID is the request's identifier.
func (t *Ticket) ID() string { return t.id }

// C delivers the grant, or the refusal, of a waiting ticket.
func (t *Ticket) C() <-chan Grant { return t.c }

// Quota is what the key had left when the request arrived, and once Admit has
// returned, what it has left then; zero where it has no limits.
func (t *Ticket) Quota() Quota {
	if t.tab == nil {
		return Quota{}
	}
	return t.tab.quota
}

// suspect is an answered 5xx that may be the request's fault or the replica's.
type suspect struct {
	status int
	rep    *replica.Replica
	permit breaker.Permit
}

// lease is the slot an assignment holds.
type lease struct {
	rep     *replica.Replica
	pool    *replica.Slots
	runs    *runs
	width   int
	place   int // in its pool's runs
	permit  breaker.Permit
	trial   bool
	begun   time.Time
	charged float64   // slot-seconds, to the key
	first   time.Time // estimated first token; zero: nothing is known
	cold    bool
	loads   bool            // the model, as the first one that needs it
	came    bool            // its first token
	behind  bool            // a much larger prompt, which may have held its own up
	cached  int             // tokens of the prompt believed to be in the replica's cache when it was sent
	caches  *replica.Caches // of the prompt; nil: no account is kept
	slot    int             // as caches gave it
	filled  bool            // the replica is known to have processed the prompt

	prompting bool // it is being processed, as far as is known
	between   int  // how many tokens of others were to be processed before it

	p     int // progress mark of the engine when last asked
	more  time.Duration
	state leaseState
	blame bool // moved away from: Released decides whether it hung
}

type leaseState uint8

const (
	leaseNone leaseState = iota
	leaseBusy
	leaseZombie
	leaseGone
)

// joinEngines makes one name of several, always the same one: a lane has it.
func (c *core) joinEngines(es []replica.Engine) string {
	if len(es) == 1 {
		return string(es[0])
	}
	b := c.joining[:0]
	for i, e := range es {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e...)
	}
	c.joining = b
	joined, ok := c.joined[string(b)]
	if !ok {
		joined = string(b)
		c.joined[joined] = joined
	}
	return joined
}

func containsName(joined, name string) bool {
	for one := range strings.SplitSeq(joined, ",") {
		if one == name {
			return true
		}
	}
	return false
}

// avoiding adds a replica to those tried.
func (t *Ticket) avoiding(name string) {
	if !slices.Contains(t.avoid, name) {
		t.avoid = append(t.avoid, name)
		slices.Sort(t.avoid)
	}
	t.lane.avoid = strings.Join(t.avoid, ",")
}
