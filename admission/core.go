package admission

import (
	"time"

	"switchyard/queue"
	"switchyard/replica"
)

// core is the pure part of the controller: one event in, state changed, no
// clock, no lock, no I/O. Grants go to tickets' own channels, which have room.
type core struct {
	cfg       Config
	began     time.Time
	q         *queue.Queue[lane]
	fleet     []*replica.Replica // in configuration order
	byName    map[string]*replica.Replica
	tiers     []int              // of the fleet, lowest first
	gone      []*replica.Replica // removed by a reload, still holding slots
	routes    map[lane]*route
	overlap   map[[2]lane]bool
	lastLane  lane
	lastRoute *route // of lastLane; nil: none
	running   map[*replica.Slots]*runs
	bound     map[*Ticket]struct{} // wide requests waiting for a replica to pay its debt
	memory                         // of prompt caches
	touched                        // replicas
	supplies  supplies             // of memory
	seq       uint64
	turn      int // rotates ties between equal replicas

	totals  Totals
	promise Promises
	classes []*classBook
	former  []*classBook           // of classes that are gone
	output  map[outputKey]*lengths // learned output tokens by key and model
	budget  budget
	seen    seenBodies

	accounts map[string]*account // of keys that have limits, by name
	bookings bookings

	noted   map[*replica.Replica]noted
	changes int // of any replica's availability

	events []Event // not yet taken

	noteGrants bool // somebody asks for Granted
	granted    []*Ticket

	joined    map[string]string // of joinEngines
	joining   []byte            // scratch of joinEngines
	namesList []string          // scratch of resolve
	slotEnds  []slotTime        // scratch of forecast
	waits     []waited          // likewise
	rooms     rooms             // scratch of dispatch

	stopping bool
	stopAt   time.Time
	planned  time.Time // when Tick was last told to come
	wanted   time.Time // earliest moment something is due; zero none
}

// classBook is what is counted for one class. Requests point at it, so that a
// reload can reorder classes under them; index is its present place.
type classBook struct {
	name  string
	index int

	arrived, kept, broken int64
	running               int
	flows                 flows
	margin                margin
	claims                claims
	returns               returns
	observed              Observed
	latest                lane   // of the last accepted request: what a newcomer is likely to ask for
	latestKey             string // and who
}

func (c *core) init(cfg Config, now time.Time) {
	c.configure(cfg)
	c.began = now
	c.byName = map[string]*replica.Replica{}
	c.routes, c.overlap, c.running = map[lane]*route{}, map[[2]lane]bool{}, map[*replica.Slots]*runs{}
	c.bound = map[*Ticket]struct{}{}
	c.output = map[outputKey]*lengths{}
	c.joined = map[string]string{}
	c.seen.init()
	c.accounts = map[string]*account{}
	c.noted = map[*replica.Replica]noted{}
	c.q = queue.New[lane](queueClasses(cfg.Classes), now)
	for i, cl := range cfg.Classes {
		c.classes = append(c.classes, &classBook{name: cl.Name, index: i})
	}
	c.memory.init(cfg.Affinity)
	for _, rc := range cfg.Replicas {
		c.addReplica(rc)
	}
	c.retier()
}

// configure takes a configuration as the one in force.
func (c *core) configure(cfg Config) {
	if cfg.Keep == 0 {
		cfg.Keep = 0.95
	}
	c.cfg = cfg
}

func queueClasses(cs []Class) []queue.Class {
	out := make([]queue.Class, len(cs))
	for i, c := range cs {
		out[i] = queue.Class{Name: c.Name, MinShare: c.MinShare}
	}
	return out
}

func (c *core) arrive(now time.Time, t *Ticket, class string) {
	t.class = c.classes[c.cfg.classOr(class)]
	c.seq++
	t.item.Seq = c.seq
	c.totals.Arrived++
	c.totals.Queued++
	c.budget.request(now)
	t.lacking = c.lacking()
	c.openTab(now, t)
}

// setPhase moves a ticket between the books' columns.
func (c *core) setPhase(t *Ticket, p phase) {
	c.totals.Queued -= count(t.phase == uploading || t.phase == waiting)
	c.totals.Running -= count(t.phase == running || t.phase == between)
	t.class.running -= int(count(t.phase == running || t.phase == between))
	if t.tab != nil && (t.phase == waiting) != (p == waiting) {
		t.tab.countQueued(p == waiting, t.work)
	}
	t.phase = p
	c.totals.Queued += count(p == uploading || p == waiting)
	c.totals.Running += count(p == running || p == between)
	t.class.running += int(count(p == running || p == between))
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// arrivedIn counts an arrival in its class, once the class is final: a counter
// must not move from one label to another.
func (c *core) arrivedIn(t *Ticket) {
	if !t.counted {
		t.counted = true
		t.class.arrived++
	}
}

// leave takes a waiting ticket out of the queue, or its unread grant back.
func (c *core) leave(now time.Time, t *Ticket) {
	switch t.phase {
	case waiting:
		c.unqueue(now, t)
		c.setPhase(t, between)
	case running:
		if a := t.current; a != nil {
			<-t.c // the grant that raced is still unread: the holder is leaving instead
			c.finish(now, a, AttemptResult{Kind: ResultClientGone, NothingSent: true})
		}
	}
	c.dispatch(now)
}

// unqueue takes a waiting ticket off the queue or off the replica it is bound to.
func (c *core) unqueue(now time.Time, t *Ticket) {
	switch {
	case t.bound != nil:
		c.unbind(t)
	case t.listed.at != nil:
		c.delist(t)
	default:
		c.q.Remove(&t.item)
	}
	t.queued += now.Sub(t.since)
}

// end closes the books on a request.
func (c *core) end(now time.Time, t *Ticket, o Outcome, r Reason) Decision {
	if t.phase == ended {
		panic("admission: request " + t.id + " ended twice")
	}
	if t.phase == waiting {
		c.unqueue(now, t)
	}
	if a := t.current; a != nil { // its holder broke off without a word: a panic
		c.finish(now, a, AttemptResult{Kind: ResultClientGone})
	}
	c.resolveSuspect(now, t)
	c.settle(now, t.tab)
	c.arrivedIn(t)
	if t.promised { // what it took in truth, instead of what was expected
		t.class.flows.of(now, t.lane).correct(now, t.used-t.promise)
	}
	c.setPhase(t, ended)
	switch o {
	case Completed:
		c.totals.Completed++
	case Refused:
		c.totals.Refused++
	case Failed:
		c.totals.Failed++
	case Cancelled:
		c.totals.Cancelled++
	default:
		panic("admission: request " + t.id + " ended without an outcome")
	}
	switch {
	case !t.promised || t.judged:
	case t.record.wouldRefuse && now.After(t.ask.Deadline):
		c.compare(now, t)
	case t.record.wouldRefuse:
		t.class.observed.Unknown++
	case o == Failed || o == Refused:
		c.broken(now, t) // a replica's own 4xx, passed on, breaks no promise
	}
	return t.decided(now, t.class.name, o, r)
}

// judge calls a promise kept or broken at the moment of the first token.
func (c *core) judge(now time.Time, t *Ticket) {
	if t.judged || !t.promised {
		return
	}
	if t.record.wouldRefuse {
		c.compare(now, t)
		return
	}
	if t.ask.Deadline.IsZero() || !now.After(t.ask.Deadline) {
		t.judged = true
		c.promise.Kept++
		t.class.kept++
		c.calibrate(now, t, true)
		return
	}
	c.broken(now, t)
}

// compare tells of a request that would have been refused whether that would
// have been right. It was promised nothing, so it is in no promise's count.
func (c *core) compare(now time.Time, t *Ticket) {
	t.judged = true
	in := !now.After(t.ask.Deadline)
	t.record.inTime = &in
	if in {
		t.class.observed.InTime++
	} else {
		t.class.observed.Late++
	}
}

func (c *core) broken(now time.Time, t *Ticket) {
	t.judged = true
	c.promise.Broken++
	t.class.broken++
	c.calibrate(now, t, false)
}

// due notes that something happens at when.
func (c *core) due(when time.Time) {
	if !when.IsZero() && (c.wanted.IsZero() || when.Before(c.wanted)) {
		c.wanted = when
	}
}

// dueAfter notes that something happens just past a last moment: at the moment
// itself a request can still start.
func (c *core) dueAfter(latest time.Time) {
	if !latest.IsZero() {
		c.due(latest.Add(1))
	}
}

// early reports whether Tick must come before it was asked to, and takes the
// wish as told.
func (c *core) early() bool {
	if len(c.events) > 0 {
		return true
	}
	if c.wanted.IsZero() || !c.planned.IsZero() && !c.wanted.Before(c.planned) {
		return false
	}
	c.planned = c.wanted
	return true
}
