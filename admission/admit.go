package admission

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// admit decides on a request whose body has been read. The steps, in order:
//  1. a stopping gateway refuses;
//  2. the names are resolved to replicas: none has the model → 404, all that
//     have it are out → 503;
//  3. the limits of its key refuse (R12);
//  4. the forecast of each candidate model is made; the first that meets the
//     deadline is taken, else the first that is served;
//  5. a full queue refuses, or too many of its key's in it, unless a slot is
//     free now;
//  6. one that comes back is held to what it was told (R14);
//  7. a forecast past the deadline refuses (R4), unless admission only observes;
//  8. otherwise the request is charged to its key, promised, queued, and the
//     queue is dispatched.
func (c *core) admit(now time.Time, t *Ticket, ask Ask) *Refusal {
	t.ask, t.engines = ask, c.joinEngines(ask.Engines)
	c.reclass(t, ask.Class)
	c.arrivedIn(t)
	if c.stopping {
		return c.drainingRefusal(now)
	}
	models, ref := c.resolve(now, ask, t.engines)
	if ref != nil {
		return ref
	}
	if ref := c.overLimits(now, t, models[0]); ref != nil {
		return ref
	}
	t.class.claims.came(now, t.key, c.weightOf(t.key))
	c.recognise(now, t)
	f := c.chooseModel(now, t, models)
	c.foresee(now, t, &f)
	t.record.forecastS = f.firstToken().Seconds()
	t.record.candidates = c.notes(now, t, f)
	if f.wait > 0 {
		if ref := c.queueFull(now, ask, f); ref != nil {
			return ref
		}
	}
	if ref := c.queueOverLimit(now, t, f); ref != nil {
		return ref
	}
	late := c.cfg.Enabled && f.known && f.total() > ask.Deadline.Sub(now)
	if late && c.outdated(now, t) {
		late, t.dares = false, true
	}
	if ref := c.returned(now, t, f, late); ref != nil {
		return ref
	}
	if late {
		if !c.cfg.Observe {
			return c.unmeetable(now, t, f)
		}
		t.record.wouldRefuse = true
		t.record.arithmetic = c.reckon(now, t, &f, nil)
	}
	t.tab.charge()
	c.pledge(now, t, f)
	c.enqueue(now, t)
	t.promise = t.item.Work
	t.class.flows.of(now, t.lane).add(now, t.promise, max(1, ask.Width))
	t.class.claims.promise(now, t.key, t.work)
	t.class.latest, t.class.latestKey = t.lane, t.key
	c.dispatch(now)
	if t.phase == waiting {
		c.dueAfter(t.item.Latest)
	}
	return nil
}

// reclass moves a request to the class its body asked for.
func (c *core) reclass(t *Ticket, name string) {
	if name == "" || name == t.class.name {
		return
	}
	t.class = c.classes[c.cfg.classOr(name)]
}

// resolve gives the candidates that some available replica serves. They are
// valid until the next call.
func (c *core) resolve(now time.Time, ask Ask, engines string) ([]string, *Refusal) {
	names := ask.Models
	if len(names) == 0 {
		name, ref := c.onlyModel(ask)
		if ref != nil {
			return nil, ref
		}
		names = []string{name}
	}
	usable := c.namesList[:0]
	known, unread := false, false
	for _, m := range names {
		l := lane{model: m, engines: engines, pin: ask.Pin}
		for _, r := range c.fleet {
			serves, sure := c.servesKnown(r, l)
			unread = unread || !sure
			known = known || serves
			if serves && r.Available(now) {
				usable = append(usable, m)
				break
			}
		}
	}
	c.namesList = usable
	switch {
	case len(usable) > 0:
		return usable, nil
	case known || unread:
		return nil, c.noReplica(now, ask)
	}
	return nil, c.modelNotFound(ask)
}

// onlyModel is the model of a request that names none: the one that all
// replicas which serve the path offer, if they offer the same one (R17).
func (c *core) onlyModel(ask Ask) (string, *Refusal) {
	l := lane{engines: c.joinEngines(ask.Engines), pin: ask.Pin}
	var names []string
	for _, r := range c.fleet {
		if !c.servesPath(r, l) {
			continue
		}
		for _, m := range r.Facts.Models {
			if serves, _ := r.Serves(m.Name); serves && !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	switch {
	case len(names) == 1:
		return names[0], nil
	case len(names) > 1:
		slices.Sort(names)
		return "", &Refusal{
			Reason:  ReasonBadRequest,
			Message: "the request names no model and there are several: name one of " + strings.Join(clip(names), ", "),
		}
	}
	return "", nil
}

func clip(names []string) []string {
	const most = 20
	if len(names) <= most {
		return names
	}
	return append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
}

// servesPath reports whether a replica's engine serves the lane's path.
func (c *core) servesPath(r *replica.Replica, l lane) bool {
	if l.pin != "" && l.pin != r.Config.Name {
		return false
	}
	return l.engines == "" || containsName(l.engines, string(r.Engine()))
}

// serves reports whether a replica may be sent requests of the lane, whatever
// its present state.
func (c *core) serves(r *replica.Replica, l lane) bool {
	ok, _ := c.servesKnown(r, l)
	return ok
}

// servesKnown is serves, and whether that is certain: before the first answer
// of a replica whose models are not configured it is not.
func (c *core) servesKnown(r *replica.Replica, l lane) (serves, sure bool) {
	if l.pin != "" && l.pin != r.Config.Name {
		return false, true
	}
	if e := r.Engine(); e == replica.EngineAuto || e == "" {
		return false, false
	}
	if !c.servesPath(r, l) {
		return false, true
	}
	if l.context > 0 && r.ContextOf(l.model) <= l.context {
		return false, true
	}
	if l.model == "" {
		return true, true
	}
	return r.Serves(l.model)
}

// noReplica is the answer while every replica that could serve is out.
func (c *core) noReplica(now time.Time, ask Ask) *Refusal {
	wait := time.Duration(0)
	for _, r := range c.fleet {
		back := max(c.cfg.ProbeEvery, time.Second)
		if v := r.Breaker.View(now); v.State == breaker.Open && v.NextTrial.Sub(now) > back {
			back = v.NextTrial.Sub(now)
		}
		if wait == 0 || back < wait {
			wait = back
		}
	}
	what := "every replica that could serve this request is out"
	if ask.Public != "" {
		what = fmt.Sprintf("every replica that could serve %q is out", ask.Public)
	}
	return &Refusal{Reason: ReasonNoReplica, Message: what, RetryAfter: max(wait, time.Second)}
}

func (c *core) modelNotFound(ask Ask) *Refusal {
	var names []string
	for _, r := range c.fleet {
		if !c.servesPath(r, lane{engines: c.joinEngines(ask.Engines)}) {
			continue
		}
		for _, m := range r.Facts.Models {
			if serves, _ := r.Serves(m.Name); serves && !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	slices.Sort(names)
	return &Refusal{Reason: ReasonModelNotFound, Models: clip(names)}
}

// chooseModel takes the first candidate whose forecast meets the deadline, on
// the lowest tiers that do; else the first candidate on all of them.
func (c *core) chooseModel(now time.Time, t *Ticket, models []string) forecast {
	var fallback forecast
	var first lane
	for i, m := range models {
		t.lane = lane{model: m, engines: t.engines, pin: t.ask.Pin}
		for _, tier := range c.tiers {
			t.lane.tier = tier
			f := c.forecast(now, t)
			if !f.none && (!f.known || f.total() <= t.ask.Deadline.Sub(now)) {
				return f
			}
			if i == 0 {
				fallback, first = f, t.lane
			}
		}
	}
	if t.lane != first {
		t.lane = first
		c.weigh(now, t)
	}
	return fallback
}

// retier lists the fleet's tiers, lowest first.
func (c *core) retier() {
	c.tiers = c.tiers[:0]
	for _, r := range c.fleet {
		if i, found := slices.BinarySearch(c.tiers, r.Config.Tier); !found {
			c.tiers = slices.Insert(c.tiers, i, r.Config.Tier)
		}
	}
}

// queueFull refuses what the queue has no room for.
func (c *core) queueFull(now time.Time, ask Ask, f forecast) *Refusal {
	q := c.cfg.Queue
	waiting := c.q.Len() + len(c.bound) + len(c.waitlist)
	switch {
	case q.MaxRequests > 0 && waiting >= q.MaxRequests:
		return &Refusal{
			Reason:     ReasonQueueFull,
			say:        sayf("the queue is full: %d requests wait", waiting),
			RetryAfter: retryAfter(f.wait / 2),
		}
	case q.MaxBytes > 0 && c.q.Bytes()+ask.Bytes > q.MaxBytes:
		return &Refusal{
			Reason:     ReasonQueueFull,
			say:        sayf("the queue is full: %d bytes of requests wait, and this one has %d", c.q.Bytes(), ask.Bytes),
			RetryAfter: retryAfter(f.wait / 2), NoRetry: ask.Bytes > q.MaxBytes,
		}
	}
	return nil
}

// round leaves what a person reads: tenths of a second, milliseconds below one.
func round(d time.Duration) time.Duration {
	if d.Abs() < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
