package bench

import (
	"time"

	"switchyard/admission"
)

// oracle is what an admission could do that knew the true service times. The
// order, the choice of the replica, the slots and the retries are the
// controller's own, but it admits everyone and turns nobody away. In its place
// the oracle refuses, at the moment in which a request would get its slot, the
// one whose first token cannot come within its deadline, so that the slot goes
// to the next. With the order as it is, that serves exactly those that an
// admission would accept at arrival which knew how long everything before them
// takes: those that are refused take no service, so when a request gets its slot
// depends only on those that are served.
//
// Whether the first token can come in time, the engine's model foresees; what it
// cannot know is who comes after and what other engines on the device will do, so
// now and then a request that it has served is late after all.
//
// It tells clients late what it knew from the start. Its times of refusal and
// its Retry-After mean nothing.
type oracle struct {
	g *gatewayFront
}

// tooLate is the oracle's refusal.
var tooLate = &admission.Refusal{Reason: admission.ReasonDeadlineUnmeetable, Message: "the first token would come after the deadline"}

// asOracle makes a configuration one in which the controller refuses nobody.
func asOracle(c admission.Config) admission.Config {
	c.Enabled = false
	c.Queue = admission.QueueLimits{}
	return c
}

// accepted watches the deadline of a request that waits.
func (o *oracle) accepted(j *journey) {
	if o == nil {
		return
	}
	j.way.due.who = giveUp{o, j}
	o.g.w.plan.set(&j.way.due, o.g.deadline(j))
}

// deadline is when the first token of a request must have come.
func (g *gatewayFront) deadline(j *journey) time.Time {
	return dawn.Add(j.r.At + j.r.Deadline)
}

type giveUp struct {
	o *oracle
	j *journey
}

// wake turns away a request whose deadline has come while it waited.
func (u giveUp) wake() {
	if g := u.o.g; u.j.now == nil && u.j.rec.FirstTokenS == nil {
		g.ctl.Leave(g.w.now, u.j.way.ticket)
		g.refuse(u.j, tooLate)
	}
}

// refuses reports whether a request that is to be served now would be late. One
// for which a model must be loaded is served whatever it takes: somebody has to
// wait for it.
func (o *oracle) refuses(j *journey, grant *admission.Assignment) bool {
	if o == nil || grant.Attempt > 1 {
		return false // what it has promised it does not take back
	}
	s := o.g.w.server(grant.Replica)
	return s.firstToken(j).After(o.g.deadline(j)) && !s.absent(j)
}

// absent reports whether nobody has asked yet for the request's model to be loaded.
func (s *server) absent(j *journey) bool {
	name, _ := s.model.Known(j.r.Model)
	for _, v := range s.model.Models(s.w.now) {
		if v.Name == name {
			return !v.Resident && !v.Loading
		}
	}
	return false
}
