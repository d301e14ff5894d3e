package admission

import "container/list"

// keyHabits are what the clients of one key do. Most often they are one program:
// one that never comes back says nothing of another key's that always does, and
// together they would be expected half of the time.
type keyHabits struct {
	key          string
	first, again habit
	back         fading // work that came back in its time
	place        *list.Element
}

const (
	// evenFade is how long the mean of what comes back is followed over: as long as
	// places are booked ahead.
	evenFade = bookSpan

	// keyPrior is how many of a key's own clients weigh as much as what is known of
	// the class: with none, a key is taken to be as all are. What one program does
	// is known after a few; it is more than one or two, since whether a client comes
	// is chance as well.
	keyPrior = 4.0

	// maxKeyHabits is of how many keys of a class habits are remembered, 0.8 KiB
	// each. Those of the longest idle one are forgotten for one more, and stay in
	// what is known of the class.
	maxKeyHabits = 1024
)

// habits are those that a client of a key has a part in: the class's and its key's.
func (r *returns) habits(key string, again bool) [2]*habit {
	k := r.keys[key]
	if k == nil {
		k = r.enter(key)
	}
	r.idle.MoveToBack(k.place)
	return [2]*habit{r.habit(again), k.habit(again)}
}

// enter makes room for a key's habits. In whole seconds or not, it begins as the
// class is: that is a yes or no, and has no prior.
func (r *returns) enter(key string) *keyHabits {
	var k *keyHabits
	if len(r.keys) < maxKeyHabits {
		k = &keyHabits{}
		k.place = r.idle.PushBack(k)
	} else {
		k = r.idle.Front().Value.(*keyHabits)
		delete(r.keys, k.key)
		*k = keyHabits{place: k.place}
	}
	k.key = key
	for _, again := range [...]bool{false, true} {
		h := k.habit(again)
		h.unit, h.rounds = 1, r.habit(again).rounds
	}
	if r.keys == nil {
		r.keys = map[string]*keyHabits{}
	}
	r.keys[key] = k
	return k
}

func (k *keyHabits) habit(again bool) *habit {
	if again {
		return &k.again
	}
	return &k.first
}

// rounds is the share of a key's clients that come in whole seconds.
func (r *returns) rounds(key string, again bool) float64 {
	if k := r.keys[key]; k != nil {
		return k.habit(again).rounds
	}
	return r.habit(again).rounds
}

// comers are the parts still to come, by steps after their time, of those who
// were told once and of those who had come back before.
type comers struct{ first, again [bookLate + 1]float64 }

// of is what of booked work is expected so many steps after its time.
func (s *comers) of(w expected, late int) float64 {
	return w.first*s.first[late] + w.again*s.again[late]
}

// expect makes own what is expected of a key's clients, and returns the share
// that comes of those who were told once. A key that is alone is the class.
func (r *returns) expect(key string) float64 {
	if k := r.keys[key]; k != nil && len(r.keys) > 1 {
		k.first.toward(r.habit(false), &r.own.first)
		k.again.toward(r.habit(true), &r.own.again)
	} else {
		r.own = *r.all()
	}
	return r.own.first[0]
}

// all is what is expected of the class's clients.
func (r *returns) all() *comers {
	r.habit(false).share(0)
	r.habit(true).share(0)
	r.everyone.first, r.everyone.again = r.first.left, r.again.left
	return &r.everyone
}

// toward is what is expected of clients of this habit, which is taken to be that
// of all as far as it is not known: the mean of a Dirichlet distribution of when
// they come, whose prior is what all do, worth keyPrior clients.
func (h *habit) toward(all *habit, into *[bookLate + 1]float64) {
	prior := keyPrior * h.unit / (all.known() * all.unit)
	sum, never := 0.0, h.never+prior*all.never
	for i := bookLate; i >= 0; i-- {
		sum += h.late[i] + prior*all.late[i]
		into[i] = sum / (sum + never)
	}
}
