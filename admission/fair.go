package admission

import (
	"container/list"
	"math"
	"time"
)

// claims is what is known of the keys that share a class (R3, R4): who has come
// in the last minute, what each was promised, and how much capacity newcomers
// have lately asked for. A newcomer is a key with nothing waiting while others
// wait: it goes before their backlog, so its coming must be foreseen when they
// are told how long theirs will take. With a single key there are none.
type claims struct {
	keys      map[string]*presence
	latest    list.List // of *presence, by the last request, oldest first
	weight    float64   // of those
	newcomers fading
}

// presence is one key that has asked in the last minute.
type presence struct {
	key      string
	weight   float64
	at       time.Time // of its last request
	newcomer fading    // what it asked for as one
	had      fading    // what it was promised
	place    *list.Element
}

// Claims of newcomers are followed more quickly than shares are judged, which is
// over the minute that shares of classes are judged over, too.
const (
	newcomersFade = 20 * time.Second
	sharesFade    = time.Minute
)

// fading is slot-seconds of late: a sum of which each part is worth 1/e of what
// it was after a time.
type fading struct {
	sum       float64
	at, since time.Time // of the last part, and of the first
}

func (f *fading) add(now time.Time, work float64, fade time.Duration) {
	left := f.left(now, fade)
	if left == 0 {
		f.since = now
	}
	f.sum, f.at = left+work, now
}

func (f *fading) left(now time.Time, fade time.Duration) float64 {
	if age := now.Sub(f.at); f.sum > 0 && age < 4*fade {
		return f.sum * math.Exp(-float64(age)/float64(fade))
	}
	return 0
}

// rate spreads what is left, in slot-seconds, over the time that it is of: it
// gives slots.
func (f *fading) rate(now time.Time, left float64, fade time.Duration) float64 {
	age := float64(max(now.Sub(f.since), time.Second))
	return max(0, left) / (fade.Seconds() * (1 - math.Exp(-age/float64(fade))))
}

// came notes that a key asks, and forgets those that have not for a minute.
func (k *claims) came(now time.Time, key string, weight float64) {
	p := k.keys[key]
	if p == nil {
		if k.keys == nil {
			k.keys = map[string]*presence{}
		}
		p = &presence{key: key}
		p.place = k.latest.PushBack(p)
		k.keys[key] = p
	}
	k.weight += weight - p.weight
	p.weight, p.at = weight, now
	k.latest.MoveToBack(p.place)
	for {
		old := k.latest.Front().Value.(*presence)
		if now.Sub(old.at) < sharesFade {
			return
		}
		k.latest.Remove(old.place)
		delete(k.keys, old.key)
		k.weight -= old.weight
	}
}

// alone reports whether no other key than this one has come lately.
func (k *claims) alone(key string) bool {
	return len(k.keys) == 0 || len(k.keys) == 1 && k.keys[key] != nil
}

// claim takes in that a newcomer has asked for so many slot-seconds, as far as
// that is within its share of the slots: more it would not get.
func (k *claims) claim(now time.Time, key string, work, slots float64) {
	p := k.keys[key]
	share := slots * p.weight / k.weight * newcomersFade.Seconds()
	if work = min(work, share-p.newcomer.left(now, newcomersFade)); work > 0 {
		p.newcomer.add(now, work, newcomersFade)
		k.newcomers.add(now, work, newcomersFade)
	}
}

// others is the number of slots that newcomers take up, but for one key's own.
func (k *claims) others(now time.Time, key string) float64 {
	left := k.newcomers.left(now, newcomersFade)
	if p := k.keys[key]; p != nil {
		left -= p.newcomer.left(now, newcomersFade)
	}
	return k.newcomers.rate(now, left, newcomersFade)
}

// promise takes in what a key was promised.
func (k *claims) promise(now time.Time, key string, work float64) {
	if p := k.keys[key]; p != nil {
		p.had.add(now, work, sharesFade)
	}
}

// had is the number of slots that takes up.
func (k *claims) had(now time.Time, key string) float64 {
	if p := k.keys[key]; p != nil {
		return p.had.rate(now, p.had.left(now, sharesFade), sharesFade)
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
// If that is less than in order of deadlines, it is its wait unless it broke a
// promise. If it is more, it is what the key can be promised, unless it has had
// less than its share in the last minute: then its deadline is enough.
func (c *core) shared(now time.Time, t *Ticket, f *forecast, b backlog) time.Duration {
	k, w, turn := &t.class.claims, t.item.Weight, &f.turn
	newcomers := b.part * k.others(now, t.key)
	all := max(1, k.weight/w, 1+turn.Others/w)
	n := float64(len(b.slots))
	share := max(n/all, (n-b.taken-newcomers)/(1+turn.Others/w)) / b.part

	f.fair = share
	ahead := func(work float64) float64 { return work / max(t.work, 1e-3) }
	least := b
	least.own = turn.Own * all
	least.work = turn.Urgent + least.own
	least.ahead = ahead(least.work)
	b.own = turn.Own + turn.Theirs
	b.work = turn.Urgent + b.own
	b.ahead = ahead(b.work)
	b.taken += newcomers
	wait := c.wait(now, t, b)
	if newcomers > 0 { // else the first has no less work ahead, and no more slots
		wait = min(wait, c.wait(now, t, least))
	}
	switch {
	case wait < f.ordered && c.q.Endangers(now, &t.item):
		return f.ordered
	case wait > f.ordered && (k.had(now, t.key) < share || t.back != nil && t.back.open(now)):
		return f.ordered
	}
	return wait
}

// foresee lets the forecasts of others foresee a newcomer, whether it is accepted
// or not: what has been promised to them may be in its way.
func (c *core) foresee(now time.Time, t *Ticket, f *forecast) {
	if f.turn.Others > 0 && !f.turn.Waiting && f.own() <= t.ask.Deadline.Sub(now) {
		t.class.claims.claim(now, t.key, t.work, t.item.Slots)
	}
}
