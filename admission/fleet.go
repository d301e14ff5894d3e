package admission

import (
	"slices"
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

func (c *core) addReplica(rc replica.Config) {
	r := replica.New(rc, breaker.New(c.cfg.Breaker))
	r.Remember(c.prompts)
	c.join(r)
}

func (c *core) join(r *replica.Replica) {
	r.Index = len(c.fleet)
	c.fleet = append(c.fleet, r)
	c.byName[r.Config.Name] = r
}

// report takes a probe's findings in. Whoever can be served by what it found
// is sent.
func (c *core) report(now time.Time, name string, f replica.Facts) {
	r := c.byName[name]
	if r == nil {
		return
	}
	if r.Observe(now, f) {
		c.forgetRoutes()
	}
	c.changed(now, r)
}

func (c *core) reportGPU(now time.Time, name string, f replica.GPUFacts) {
	r := c.byName[name]
	if r == nil {
		return
	}
	slow := r.Slow
	r.ObserveGPU(now, f)
	c.touch(r)
	if f.Fault != "" || r.Slow != slow { // else nothing that anyone waits for
		c.changed(now, r)
	}
}

// changed follows up on a replica whose availability may have changed.
func (c *core) changed(now time.Time, r *replica.Replica) {
	c.touch(r)
	if at, ok := r.Breaker.NextChange(now); ok {
		c.due(at)
	}
	if r.HoldUntil.After(now) {
		c.due(r.HoldUntil)
	}
	c.note(now, r)
	c.rebind(now, r)
	c.recallFor(now, r)
	c.dispatch(now)
}

// reconfigure applies a new configuration: classes are matched by name,
// replicas by URL; what is new starts unprobed, what is gone finishes
// what it has (R15).
func (c *core) reconfigure(now time.Time, cfg Config) {
	c.recallAll()
	c.remapClasses(now, cfg)
	c.configure(cfg)
	c.relimit(now)
	c.memory.turn(cfg.Affinity)
	c.forgetRoutes()
	old := c.byName
	c.fleet, c.byName = nil, map[string]*replica.Replica{}
	for _, rc := range cfg.Replicas {
		r := c.known(rc, old)
		if r == nil {
			c.addReplica(rc)
			continue
		}
		delete(old, r.Config.Name)
		if i := slices.Index(c.gone, r); i >= 0 {
			c.gone = slices.Delete(c.gone, i, i+1)
			r.Draining = false
		}
		if r.Config.Engine != rc.Engine {
			r.Facts.Engine = rc.Engine
		}
		r.Reconfigure(rc)
		r.Remember(c.prompts)
		r.Breaker.SetConfig(cfg.Breaker)
		c.join(r)
	}
	c.retier()
	c.gone = slices.DeleteFunc(c.gone, func(r *replica.Replica) bool { return r.Held() == 0 })
	for _, r := range old {
		r.Draining = true
		r.Remember(nil)
		c.rebind(now, r)
		if r.Held() > 0 {
			c.gone = append(c.gone, r)
		}
	}
	c.tellOrphans(now)
	c.dispatch(now)
}

// tellOrphans turns away who waits for a model that no replica has any more, as
// a newcomer would be, and not at the end of its deadline.
func (c *core) tellOrphans(now time.Time) {
	for _, t := range c.waiters() {
		l := lane{model: t.lane.model, engines: t.engines, pin: t.ask.Pin}
		if !slices.ContainsFunc(c.fleet, func(r *replica.Replica) bool {
			serves, sure := c.servesKnown(r, l)
			return serves || !sure
		}) {
			c.turnAway(now, t, c.modelNotFound(t.ask))
		}
	}
}

// known is the replica that has this address already: among the present ones,
// whatever its name was, or among those that were removed and still work. What
// runs there holds its slots, however often it is configured anew (R1).
func (c *core) known(rc replica.Config, present map[string]*replica.Replica) *replica.Replica {
	if r := present[rc.Name]; r != nil && r.Config.URL == rc.URL {
		return r
	}
	for _, r := range present {
		if r.Config.URL == rc.URL {
			return r
		}
	}
	for _, r := range c.gone {
		if r.Config.URL == rc.URL {
			return r
		}
	}
	return nil
}

// remapClasses moves books and queue to the new classes; requests of a class
// that is gone go on in the default class.
func (c *core) remapClasses(now time.Time, cfg Config) {
	mapping := make([]int, len(c.classes))
	books := make([]*classBook, len(cfg.Classes))
	for i, b := range c.classes {
		mapping[i] = cfg.classOr(b.name)
	}
	for _, b := range c.former { // requests of theirs may still run
		b.index = mapping[b.index]
	}
	for i, b := range c.classes {
		b.index = mapping[i]
		if j, ok := cfg.class(b.name); ok {
			books[j] = b
		} else {
			c.former = append(c.former, b)
		}
	}
	for j, cl := range cfg.Classes {
		if books[j] == nil {
			books[j] = &classBook{name: cl.Name, index: j}
		}
	}
	c.classes = books
	c.q.SetClasses(now, queueClasses(cfg.Classes), mapping)
}

func (c *core) drainReplica(now time.Time, name string, on bool) bool {
	r := c.byName[name]
	if r == nil {
		return false
	}
	r.Draining = on
	c.changed(now, r)
	return true
}

// stop begins the end: new requests are refused, and of the queued ones those
// that cannot end within timeout are told at once (R15).
func (c *core) stop(now time.Time, timeout time.Duration) {
	c.stopping, c.stopAt = true, now.Add(timeout)
	for _, t := range c.waiters() {
		f := c.forecast(now, t)
		if f.known && f.wait+f.load+f.prompt+f.rest > timeout || f.none {
			c.turnAway(now, t, c.drainingRefusal(now))
		}
	}
	c.due(c.stopAt)
}

// waiters lists every waiting request.
func (c *core) waiters() []*Ticket {
	var ts []*Ticket
	for it := range c.q.All() {
		ts = append(ts, it.Value.(*Ticket))
	}
	for t := range c.bound {
		ts = append(ts, t)
	}
	for t := range c.waitlist {
		ts = append(ts, t)
	}
	return ts
}

func (c *core) drainingRefusal(now time.Time) *Refusal {
	return &Refusal{
		Reason:     ReasonDraining,
		Message:    "this gateway is stopping; another instance or a later try will serve",
		RetryAfter: max(time.Second, c.stopAt.Sub(now)),
	}
}

// Helper picks a replica for a path that takes no slot: the first available
// one that serves it, least busy first.
func (c *Controller) Helper(now time.Time, model string, engines []replica.Engine) (name, url string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := lane{model: model, engines: c.mu.joinEngines(engines)}
	var best *replica.Replica
	for _, r := range c.mu.fleet {
		if !r.Available(now) || r.Facts.Loading || !c.mu.serves(r, l) {
			continue
		}
		if best == nil || r.Held() < best.Held() {
			best = r
		}
	}
	if best == nil {
		return "", "", false
	}
	return best.Config.Name, best.Config.URL, true
}

// ListedModel is one model of the fleet with the entries replicas list it by.
type ListedModel struct {
	replica.Model
	Replica string
	Engine  replica.Engine
	Version string // the replica's engine version
	Up      bool   // the replica can be sent work now
}

// ListModels gives the models of all replicas as last heard of, in
// configuration order; a model on several replicas appears once for each. A
// replica that is out keeps its place: its models are not gone.
func (c *Controller) ListModels(now time.Time) []ListedModel {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []ListedModel
	for _, r := range c.mu.fleet {
		for _, m := range r.Facts.Models {
			if serves, _ := r.Serves(m.Name); serves {
				out = append(out, ListedModel{
					Model: m, Replica: r.Config.Name, Engine: r.Engine(), Version: r.Facts.Version, Up: r.Available(now),
				})
			}
		}
	}
	return out
}

// Works reports whether the gateway has work in hand on the replica, zombies
// included.
func (c *Controller) Works(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.byName[name]
	return r != nil && r.Held() > 0
}

// OutputTokens is how many tokens the replica has made in attempts that ended.
func (c *Controller) OutputTokens(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.mu.byName[name]; r != nil {
		return r.OutputTokens
	}
	return 0
}
