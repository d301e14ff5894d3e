package bench

import (
	"slices"
	"time"

	"switchyard/simserver/model"
)

// How long a zombie is believed in, as in package gateway.
const (
	endMargin   = 100 * time.Millisecond // from the end of its connection to that of its work
	zombieLimit = 30 * time.Second       // without any sign
	zombieMost  = 10 * time.Minute       // of a llama.cpp that goes on saying that it is busy
	wordAge     = 10 * time.Second       // of a replica's word about its work in hand
	settledGap  = 50 * time.Millisecond  // from the end of a connection to the question what is in hand
)

// bury gives an attempt up while the engine still works on it: its slot stays
// taken until the engine is known to have stopped (R1).
func (g *gatewayFront) bury(a *attempt) {
	a.hold.zombie, a.hold.since = true, g.w.now
	a.on.probed.dead = append(a.on.probed.dead, a)
	g.zombies++
	g.w.plan.set(&a.alarm, g.w.now.Add(zombieLimit))
	a.on.leave(a)
	g.stirred(a)
}

// stirred follows what an engine does with work of a client who left: once it
// has noticed, or ended it, it closes the connection.
func (g *gatewayFront) stirred(a *attempt) {
	h := &a.hold
	if !h.zombie || !h.endedAt.IsZero() || a.work.End == model.Running && !a.noticed {
		return
	}
	h.endedAt = g.w.now
	p := &a.on.probed
	if a.on.cfg.Kind != model.LlamaCpp || g.w.now.Sub(p.word) >= wordAge {
		g.w.plan.set(&a.alarm, g.w.now.Add(endMargin))
		return
	}
	g.w.plan.set(&a.alarm, g.w.now.Add(zombieLimit))
	if !slices.ContainsFunc(p.dead, func(o *attempt) bool { return o.hold.endedAt.IsZero() }) {
		g.w.plan.set(&p.alarm, g.w.now.Add(settledGap)) // its word frees the slot
	}
}

// unheard is when the time to wait for a sign has passed.
func (g *gatewayFront) unheard(a *attempt) {
	h, p := &a.hold, &a.on.probed
	if h.endedAt.IsZero() && g.w.now.Sub(p.word) < wordAge && g.w.now.Sub(h.since) < zombieMost {
		g.w.plan.set(&a.alarm, g.w.now.Add(zombieLimit))
		return
	}
	g.release(a, !h.endedAt.IsZero())
}

// heard releases the zombies of a llama.cpp that have ended by its own word.
func (g *gatewayFront) heard(s *server, gone bool) {
	for _, a := range slices.Clone(s.probed.dead) {
		if gone || !a.hold.endedAt.IsZero() && a.work.End != model.Running {
			g.release(a, !gone)
		}
	}
}

func (g *gatewayFront) release(a *attempt, responsive bool) {
	p := &a.on.probed
	p.dead = slices.DeleteFunc(p.dead, func(o *attempt) bool { return o == a })
	a.hold.zombie = false
	g.zombies--
	g.w.plan.drop(&a.alarm)
	g.ctl.Released(g.w.now, a.hold.grant, responsive)
}
