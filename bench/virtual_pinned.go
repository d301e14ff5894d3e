package bench

import (
	"cmp"
	"errors"
	"slices"
)

// pinnedFront is the best that affinity can find: a plain proxy that sends all of
// a conversation to one server for good, and knew all of them beforehand when it
// spread them. It finds what the servers' caches can hold, whatever waiting for it
// costs; its times are no ceiling.
type pinnedFront struct {
	proxyFront
	home map[string]int // of conversations and of requests without one
}

// newPinnedFront plays the trial's traffic once beforehand, every answer at once:
// what is asked does not depend on the answers.
func newPinnedFront(w *world, rehearsal *Traffic) (*pinnedFront, error) {
	if rehearsal == nil {
		return nil, errors.New("pinned conversations: want traffic that can be known beforehand")
	}
	d := &dialogues{of: map[string]int{}, at: map[uint64]earlier{}}
	for r := rehearsal.Next(); r != nil; r = rehearsal.Next() {
		d.add(r)
		end := r.At.Seconds()
		rehearsal.Ended(r, &Record{Status: 200, FirstTokenS: &end, EndS: end})
	}
	p := &pinnedFront{home: d.spread(len(w.fleet))}
	p.proxyFront = proxyFront{w: w, choose: func(j *journey) int { return p.home[nameOf(j.r)] }}
	return p, nil
}

// nameOf is what a request is pinned by.
func nameOf(r *Request) string { return cmp.Or(r.Session, r.Origin) }

// dialogues tells which requests belong together: a conversation's, and where
// none is stated those that go on from at least half of an earlier prompt.
type dialogues struct {
	of     map[string]int // by nameOf, into tokens
	tokens []int          // of all prompts
	at     map[uint64]earlier
}

// earlier is the latest prompt that began in a certain way.
type earlier struct{ dialogue, tokens int }

func (d *dialogues) add(r *Request) {
	n, known := d.of[nameOf(r)]
	if !known {
		n = -1
		if r.Session == "" {
			n = d.before(r)
		}
		if n < 0 {
			n = len(d.tokens)
			d.tokens = append(d.tokens, 0)
		}
		d.of[nameOf(r)] = n
	}
	d.tokens[n] += r.PromptTokens
	if r.Session == "" {
		for h := range beginnings(r) {
			d.at[h] = earlier{n, r.PromptTokens}
		}
	}
}

// before is the dialogue that a request goes on from, -1 if there is none.
func (d *dialogues) before(r *Request) int {
	n := -1
	for h, sum := range beginnings(r) {
		e, ok := d.at[h]
		if !ok {
			break
		}
		if n = -1; 2*sum >= e.tokens {
			n = e.dialogue
		}
	}
	return n
}

// beginnings gives a hash for each beginning of a prompt, and its tokens.
func beginnings(r *Request) func(yield func(hash uint64, tokens int) bool) {
	return func(yield func(uint64, int) bool) {
		h, sum := uint64(0), 0
		for _, p := range r.Prompt {
			h, sum = blend(blend(blend(h, uint64(p.Role)), p.Seed), uint64(p.Tokens)), sum+p.Tokens
			if !yield(h, sum) {
				return
			}
		}
	}
}

// spread gives each dialogue a server, the largest first, each to the one that
// has least so far.
func (d *dialogues) spread(servers int) map[string]int {
	order := make([]int, len(d.tokens))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return d.tokens[b] - d.tokens[a] })
	server, load := make([]int, len(order)), make([]int, servers)
	for _, n := range order {
		server[n] = slices.Index(load, slices.Min(load))
		load[server[n]] += d.tokens[n]
	}
	home := map[string]int{}
	for name, n := range d.of {
		home[name] = server[n]
	}
	return home
}
