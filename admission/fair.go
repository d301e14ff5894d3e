package admission

import (
	"container/list"
	"math"
	"time"
)

// claims is what is known of the keys that share a class (R3, R4): who has come
// lately, and how much capacity newcomers have lately asked for. A newcomer is a
// key with nothing waiting while others wait: it is served before their backlog,
// so its coming must be foreseen when they are told how long theirs will take.
// With a single key there are none.
type claims struct {
	all    claim
	keys   map[string]*presence
	latest list.List // of *presence, by the last request, oldest first
	weight float64   // of those
}

// presence is one key that has asked lately.
type presence struct {
	key    string
	weight float64
	at     time.Time // of its last request
	claim  claim     // as a newcomer
	had    claim     // what it was promised
	place  *list.Element
}

const (
	claimFades = 20 * time.Second // to 1/e
	hadFades   = time.Minute
	present    = time.Minute
)

// claim is slot-seconds asked for, fading.
type claim struct {
	sum       float64
	at, since time.Time
	fades     time.Duration
}

func (c *claim) add(now time.Time, work float64) {
	left := c.left(now)
	if left == 0 {
		c.since = now
	}
	c.sum, c.at = left+work, now
}

func (c *claim) left(now time.Time) float64 {
	if age := now.Sub(c.at); age < 4*c.fades {
		return c.sum * math.Exp(-age.Seconds()/c.fades.Seconds())
	}
	return 0
}

// span is the time, in seconds, over which what is left has been asked for.
func (c *claim) span(now time.Time) float64 {
	age := max(now.Sub(c.since), time.Second)
	return c.fades.Seconds() * (1 - math.Exp(-age.Seconds()/c.fades.Seconds()))
}

// came notes that a key asks, and forgets who has not for some time.
func (c *claims) came(now time.Time, key string, weight float64) {
	p := c.keys[key]
	if p == nil {
		if c.keys == nil {
			c.keys = map[string]*presence{}
		}
		p = &presence{key: key, claim: claim{fades: claimFades}, had: claim{fades: hadFades}}
		c.all.fades = claimFades
		p.place = c.latest.PushBack(p)
		c.keys[key] = p
	}
	c.weight += weight - p.weight
	p.weight, p.at = weight, now
	c.latest.MoveToBack(p.place)
	for {
		old := c.latest.Front().Value.(*presence)
		if now.Sub(old.at) < present {
			return
		}
		c.latest.Remove(old.place)
		delete(c.keys, old.key)
		c.weight -= old.weight
	}
}

// add takes in that a newcomer has asked for so many slot-seconds, of slots that
// it could use: as far as that is within its share of them, since more it would
// not get.
func (c *claims) add(now time.Time, key string, work, slots float64) {
	p := c.keys[key]
	if p == nil || work <= 0 {
		return
	}
	share := slots * p.weight / max(c.weight, p.weight)
	work = min(work, share*claimFades.Seconds()-p.claim.left(now))
	if work > 0 {
		p.claim.add(now, work)
		c.all.add(now, work)
	}
}

// of is the number of slots that newcomers other than the key take up.
func (c *claims) of(now time.Time, key string) float64 {
	left := c.all.left(now)
	if p := c.keys[key]; p != nil {
		left -= p.claim.left(now)
	}
	return max(0, left) / c.all.span(now)
}

// had is the number of slots that what a key was promised lately takes up.
func (c *claims) had(now time.Time, key string) float64 {
	if p := c.keys[key]; p != nil && p.had.sum > 0 {
		return p.had.left(now) / p.had.span(now)
	}
	return 0
}

// weightOf is a key's share of its class, as against other keys'.
func (c *core) weightOf(key string) float64 {
	if w := c.cfg.Weights[key]; w > 0 {
		return w
	}
	return 1
}

// shared is the wait of a request whose class has more keys than its own. In its
// fair turn it waits the shorter of
//   - what it would be if every key that has come lately took all that is its, and
//   - what it would be beside those that wait, and the newcomers that come.
//
// That is its wait if it is shorter than in order of deadlines, unless a promise
// were broken by it. If it is longer it is what is promised, unless the key has
// had less than its share lately: then nothing keeps it from its deadline.
func (c *core) shared(now time.Time, t *Ticket, f *forecast, b backlog) time.Duration {
	k, w, turn := &t.class.claims, t.item.Weight, &f.turn
	n, newcomers := float64(len(b.slots)), b.part*k.of(now, t.key)
	all := max(1, k.weight/w, 1+turn.Others/w)
	fair := max(n/all, (n-b.taken-newcomers)/(1+turn.Others/w)) / b.part

	least := b
	least.own = turn.Own * all
	least.work = turn.Urgent + least.own
	b.own = turn.Own + turn.Theirs
	b.work = turn.Urgent + b.own
	b.taken += newcomers
	wait := min(c.wait(now, t, least), c.wait(now, t, b))
	switch {
	case wait < f.ordered && c.q.Endangers(now, &t.item):
		return f.ordered
	case wait > f.ordered && k.had(now, t.key) < fair:
		return f.ordered
	}
	return wait
}

// others reports whether other keys than this one have asked lately.
func (c *claims) others(key string) bool {
	return len(c.keys) > 1 || len(c.keys) == 1 && c.keys[key] == nil
}

// claim lets the forecasts of others foresee a newcomer, whether it is accepted
// or not: what has been promised to them may be in its way.
func (c *core) claim(now time.Time, t *Ticket, f forecast) {
	if f.turn.Others > 0 && !f.turn.Waiting && f.own() <= t.ask.Deadline.Sub(now) {
		t.class.claims.add(now, t.key, t.work, t.item.Slots)
	}
}
