package gateway

import (
	"slices"
	"sync"
	"time"

	"switchyard/admission"
	"switchyard/gateway/upstream"
	"switchyard/replica"
)

// How long a zombie is believed in (R1).
const (
	// endMargin lies between a server's closing of the connection and the
	// moment its slot is taken for free: it closes when its handler has
	// returned, its engine may need a moment more.
	endMargin = 100 * time.Millisecond
	// zombieLimit is for a replica that gives no sign at all.
	zombieLimit = 30 * time.Second
	// zombieMost is for a llama.cpp that goes on saying that it is busy: a
	// request that is not streamed may run to its end there.
	zombieMost = 10 * time.Minute
	// wordAge is how old a replica's word about its work in hand may be.
	wordAge = 10 * time.Second
	// startGap is how long a request may take from being sent until the
	// replica's own word counts it.
	startGap = time.Second
)

// zombies are the attempts that were ended while their replica may still be
// working. Each holds its slot until the replica is known to have stopped:
// by the end of the connection, or, on a llama.cpp, which notices late and
// closes before it stops, by its own word about the work in hand.
type zombies struct {
	mu struct {
		sync.Mutex
		closed bool
		homes  map[string]*home // by replica
	}
}

// home is one replica with its zombies. What lives there too is counted only
// for a llama.cpp, whose word is about both.
type home struct {
	live int       // slots of attempts under way
	dead []*zombie // oldest first
	word time.Time // when it last said what it has in hand
}

type zombie struct {
	a        *admission.Assignment
	width    int
	since    time.Time
	endedAt  time.Time // when the replica closed the connection; zero: it has not
	timer    *time.Timer
	released bool
}

// speaks reports whether the engine's word about its work in hand decides.
func speaks(a *admission.Assignment) bool { return a.Engine == replica.EngineLlamaCpp }

func (z *zombies) home(name string) *home {
	h := z.mu.homes[name]
	if h == nil {
		h = &home{}
		if z.mu.homes == nil {
			z.mu.homes = map[string]*home{}
		}
		z.mu.homes[name] = h
	}
	return h
}

// lives counts an attempt that begins, of width slots, or with a negative
// width one that ends, where the replica's word is about it.
func (z *zombies) lives(a *admission.Assignment, width int) {
	if !speaks(a) {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.home(a.Replica).live += width
}

// bury ends the exchange of an attempt that was finished as still running, and
// returns its slot once the replica has stopped.
func (g *Gateway) bury(a *admission.Assignment, x *upstream.Exchange, width int) {
	z := &zombie{a: a, width: max(1, width), since: time.Now()}
	if !g.zombies.add(z, func() { g.unheard(z) }) {
		x.Close()
		g.controller.Released(time.Now(), a, true)
		return
	}
	x.Abort(zombieLimit, func(eof bool) {
		if eof && g.zombies.ended(z) && g.Settled != nil {
			g.Settled(z.a.Replica)
		}
	})
}

// add is false when there is nobody left to wait.
func (z *zombies) add(n *zombie, unheard func()) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.mu.closed {
		return false
	}
	h := z.home(n.a.Replica)
	h.dead = append(h.dead, n)
	n.timer = time.AfterFunc(zombieLimit, unheard)
	return true
}

// ended notes that the replica has closed the connection of n. That is its
// word, unless there is a better one to come: settled reports that it may be
// asked for now, since no other zombie there is unnoticed.
func (z *zombies) ended(n *zombie) (settled bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if n.released {
		return false
	}
	n.endedAt = time.Now()
	h := z.home(n.a.Replica)
	if !speaks(n.a) || n.endedAt.Sub(h.word) >= wordAge {
		n.timer.Reset(endMargin)
		return false
	}
	n.timer.Reset(zombieLimit)
	return !slices.ContainsFunc(h.dead, func(o *zombie) bool { return o.endedAt.IsZero() })
}

// unheard is called when the time to wait for a sign has passed.
func (g *Gateway) unheard(n *zombie) {
	now := time.Now()
	if responsive, over := g.zombies.judge(now, n); over {
		g.controller.Released(now, n.a, responsive)
	}
}

// judge decides about a zombie whose timer fired. over is false when there is
// reason to go on waiting, or when it has been released meanwhile.
func (z *zombies) judge(now time.Time, n *zombie) (responsive, over bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if n.released {
		return false, false
	}
	h := z.home(n.a.Replica)
	if n.endedAt.IsZero() && now.Sub(h.word) < wordAge && now.Sub(n.since) < zombieMost {
		n.timer.Reset(zombieLimit) // it says itself that it is busy
		return false, false
	}
	h.remove(n)
	return !n.endedAt.IsZero(), true
}

func (h *home) remove(n *zombie) {
	n.released = true
	n.timer.Stop()
	h.dead = slices.DeleteFunc(h.dead, func(o *zombie) bool { return o == n })
}

// Observe takes a probe's findings in: for the controller, and for the zombies
// of a replica that says what it has in hand.
func (g *Gateway) Observe(now time.Time, name string, f replica.Facts) {
	g.controller.Report(now, name, f)
	for _, n := range g.zombies.heard(name, f) {
		g.controller.Released(now, n.a, !f.Gone)
	}
}

// heard returns the zombies that have ended by the replica's word.
//
// llama.cpp cancels a task before it closes the task's connection, and tells of
// its slots in the same queue: a word asked for after the close knows of the
// cancelling. So a zombie whose connection is closed has ended if what is in
// hand can be explained without it. One whose connection is open has ended only
// if there is less in hand than all zombies together, whatever else may be.
func (z *zombies) heard(name string, f replica.Facts) (ended []*zombie) {
	z.mu.Lock()
	defer z.mu.Unlock()
	h := z.mu.homes[name]
	if h == nil {
		return nil
	}
	if f.Gone { // no process, no work
		return z.clear(h)
	}
	if !f.Up || f.InHand < 0 || f.Engine != replica.EngineLlamaCpp {
		return nil
	}
	h.word = f.At
	width := 0
	for _, n := range h.dead {
		width += n.width
	}
	for _, n := range slices.Clone(h.dead) {
		most := f.InHand + max(0, f.Waiting) // slots of zombies there can be
		if !n.endedAt.IsZero() {
			most -= h.live
		}
		if width-n.width >= most && n.before(f.At) {
			width -= n.width
			h.remove(n)
			ended = append(ended, n)
		}
	}
	return ended
}

// before reports whether a word from at can speak of the zombie: the replica
// had closed its connection by then, or had had time to begin with it.
func (n *zombie) before(at time.Time) bool {
	if !n.endedAt.IsZero() {
		return at.After(n.endedAt)
	}
	return at.Sub(n.since) > startGap
}

func (z *zombies) clear(h *home) []*zombie {
	all := h.dead
	h.dead = nil
	for _, n := range all {
		n.released = true
		n.timer.Stop()
	}
	return all
}

// Close ends what outlives requests, after Shutdown: no zombie is waited for any
// more, and no connection to a replica is kept.
func (g *Gateway) Close() {
	for _, n := range g.zombies.close() {
		g.controller.Released(time.Now(), n.a, true)
	}
	for _, l := range g.view.Load().links {
		l.client.Close()
	}
}

func (z *zombies) close() (all []*zombie) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.mu.closed = true
	for _, h := range z.mu.homes {
		all = append(all, z.clear(h)...)
	}
	return all
}
