package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"switchyard/simserver/model"
)

// world is a trial under a made-up clock: clients, replicas and what stands
// between them, all on one goroutine. Whatever happens, happens at a moment of
// the agenda; what follows from it at once is done before the next moment.
// Nothing takes time but what the engines' model says: there is no network.
type world struct {
	ctx     context.Context
	now     time.Time
	plan    agenda
	traffic traffic
	due     alarm // the next arrival
	fleet   []*server
	byName  map[string]*server
	front   front
	random  *rand.Rand // of the probes' times
	pending []happening
	open    int // requests under way
	working int // attempts that engines have in hand
	done    int
	over    time.Time // when the last one ended; zero: not yet
	told    func(done, total int)
	trial   *Trial
}

// traffic is Traffic; tests say themselves what comes when.
type traffic interface {
	Peek() (time.Duration, bool)
	Next() *Request
	Ended(*Request, *Record)
	Open() int
	Total() int
}

// front is what clients send to: the gateway or a plain proxy.
type front interface {
	arrive(j *journey)
	leave(j *journey) // its client's patience has ended
	// happened tells of an attempt's first token, and of its end at the engine.
	happened(a *attempt, first bool)
	// settle does what has become due at this moment; false: there was nothing.
	settle() bool
	// idle reports that nothing is left to wait for.
	idle() bool
	violations() []string
}

// happening is an event of an engine that is still to be dealt with.
type happening struct {
	a     *attempt
	first bool
}

// dawn is the moment at which every trial begins.
var dawn = time.Unix(1_700_000_000, 0).UTC()

// afterwards is how long a trial may go on when all requests have ended: for
// work of clients who left, and its slots.
const afterwards = 2 * time.Minute

func newWorld(ctx context.Context, t traffic, seed uint64) *world {
	w := &world{ctx: ctx, now: dawn, traffic: t, trial: &Trial{}, byName: map[string]*server{}, random: rand.New(rand.NewPCG(seed, 0xbe9c4))}
	w.due.who = arrivals{w}
	return w
}

// run plays the trial to its end.
func (w *world) run() error {
	w.trial.Records = make([]Record, 0, w.traffic.Total())
	w.expect()
	for n := 1; !w.ended(); n++ {
		if n%4096 == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		al := w.plan.next()
		if al == nil {
			return fmt.Errorf("virtual run: nothing is planned at %s while %d requests are under way", w.since(), w.open)
		}
		w.now = al.at
		al.who.wake()
		w.settle()
	}
	w.tell()
	return nil
}

// ended reports whether the trial is over.
func (w *world) ended() bool {
	if w.open > 0 || w.due.place > 0 {
		return false
	}
	if w.over.IsZero() {
		w.over = w.now
	}
	return w.working == 0 && w.front.idle() || w.now.Sub(w.over) > afterwards
}

// settle does all that follows from what has just happened.
func (w *world) settle() {
	for {
		for i := 0; i < len(w.pending); i++ {
			h := w.pending[i]
			w.front.happened(h.a, h.first)
		}
		w.pending = w.pending[:0]
		if !w.front.settle() && len(w.pending) == 0 {
			return
		}
	}
}

// since is the time since the trial's start.
func (w *world) since() time.Duration { return w.now.Sub(dawn) }

// expect plans the next arrival.
func (w *world) expect() {
	if at, ok := w.traffic.Peek(); ok {
		w.plan.set(&w.due, dawn.Add(max(at, w.since())))
	} else {
		w.plan.drop(&w.due)
	}
}

type arrivals struct{ w *world }

func (a arrivals) wake() {
	w := a.w
	r := w.traffic.Next()
	w.expect()
	j := &journey{w: w, r: r, rec: r.New(), place: len(w.trial.Records)}
	w.trial.Records = append(w.trial.Records, Record{})
	w.open++
	if r.Patience > 0 {
		j.patience.who = impatience{j}
		w.plan.set(&j.patience, w.now.Add(r.Patience))
	}
	w.front.arrive(j)
}

// server finds a replica by its name.
func (w *world) server(name string) *server { return w.byName[name] }

func (w *world) tell() {
	if w.told != nil {
		w.told(w.done, max(w.traffic.Total(), w.done+w.open))
	}
}

// journey is one request on its way, as its client sees it.
type journey struct {
	w        *world
	r        *Request
	rec      Record
	place    int // in the trial's records
	patience alarm
	prompt   []model.Part
	now      *attempt // under way at a replica; nil: none
	way      way      // the gateway's
}

type impatience struct{ j *journey }

func (i impatience) wake() { i.j.w.front.leave(i.j) }

// token notes the first content that the client sees.
func (j *journey) token() {
	j.w.plan.drop(&j.patience)
	at := j.w.since().Seconds()
	j.rec.FirstTokenS = &at
}

// whole takes the whole answer of an attempt.
func (j *journey) whole(a *attempt) {
	if j.rec.FirstTokenS == nil {
		j.token()
	}
	j.rec.OutputTokens, j.rec.CachedTokens = a.work.Generated(), a.cached()
	a.on.remember(a)
}

// end ends the request for its client.
func (j *journey) end(status int, code, wrong string) {
	w := j.w
	w.plan.drop(&j.patience)
	j.rec.Status, j.rec.Code, j.rec.Error, j.rec.EndS = status, code, wrong, w.since().Seconds()
	j.rec.Judge()
	w.trial.Records[j.place] = j.rec
	w.traffic.Ended(j.r, &j.rec)
	w.expect()
	w.open--
	if w.done++; w.done%1000 == 0 {
		w.tell()
	}
}

// attempt is a journey at a replica.
type attempt struct {
	alarm alarm
	j     *journey
	on    *server
	work  *model.Work
	begun bool // the first token has come
	over  bool // the front has done with it
	hold  hold // the gateway's

	noticed bool // the engine knows that nobody waits any more
}
