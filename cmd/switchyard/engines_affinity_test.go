//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	talkRounds = 3    // of two conversations, each with and without affinity
	talkWords  = 1600 // of a first turn, of one token each
)

// R6: the second turn of a long conversation, with affinity and without, at two
// real servers. What it costs them is their own word, prompt_eval_duration.
//
// Each server has one slot, so its cache holds what it was asked last and
// nothing else: the test knows of every second turn whether its first one is
// still there. Two conversations begin at the same time, so that each has a
// server, and go on one after the other, in one order in even rounds and in the
// other in odd ones: who takes the servers in turn cannot be right in both. No
// text is like another's, and one model with one context stays loaded throughout.
func TestRealEngineAffinity(t *testing.T) {
	with := startEngines(t, engineSetup{slots: 1, context: 4096, layers: 2})
	without := *with
	const patient = "retry: {first_token_floor: 1m}\n" // a prompt takes long on a busy CPU
	with.serve(patient)
	without.serve(patient + "affinity: {enabled: false}\n")
	gateways := []*engineRig{with, &without}
	for _, r := range gateways {
		r.warm()
	}
	words := rand.New(rand.NewPCG(6, 1))
	seconds := map[*engineRig][]secondTurn{}
	for round := range talkRounds {
		for i := range gateways {
			r := gateways[(round+i)%2]
			seconds[r] = append(seconds[r], r.twoTalks(words, round%2 == 1)...)
		}
	}

	t.Logf("with affinity: %s", told(seconds[with]))
	t.Logf("without: %s", told(seconds[&without]))
	require.Len(t, took(seconds[with], inCache), 2*talkRounds, "with affinity all go where their first turn is")
	all := slices.Concat(seconds[with], seconds[&without])
	cached, anew := took(all, inCache), append(took(all, overwritten), took(all, elsewhere)...)
	require.NotEmpty(t, took(all, elsewhere), "without affinity some go elsewhere")
	t.Logf("prompt_eval_duration: %s where the first turn was in the cache, %s where it was not", spreadOf(cached), spreadOf(anew))
	require.Less(t, median(cached), median(anew)/2)
}

// secondTurn is what became of one.
type secondTurn struct {
	where string
	took  time.Duration
}

const (
	inCache     = "back, in the cache"
	overwritten = "back, but another was there since"
	elsewhere   = "elsewhere"
)

func took(turns []secondTurn, where string) (out []time.Duration) {
	for _, s := range turns {
		if s.where == where {
			out = append(out, s.took)
		}
	}
	return out
}

func told(turns []secondTurn) string {
	var out []string
	for _, where := range []string{inCache, overwritten, elsewhere} {
		if d := took(turns, where); len(d) > 0 {
			out = append(out, fmt.Sprintf("%d of %d %s, %s", len(d), len(turns), where, spreadOf(d)))
		}
	}
	return strings.Join(out, "; ")
}

func median(d []time.Duration) time.Duration { return slices.Sorted(slices.Values(d))[len(d)/2] }

func spreadOf(d []time.Duration) string {
	const ms = time.Millisecond
	return fmt.Sprintf("median %v (%v to %v)", median(d).Round(ms), slices.Min(d).Round(ms), slices.Max(d).Round(ms))
}

// twoTalks has two conversations of two turns; the one that began at a, or if
// swapped the one that began at b, goes on first.
func (r *engineRig) twoTalks(words *rand.Rand, swapped bool) (out []secondTurn) {
	t := r.t
	t.Helper()
	openings := [2]string{ramble(words), ramble(words)}
	var first [2]engineAnswer
	var wg sync.WaitGroup
	for i, text := range openings {
		wg.Go(func() {
			first[i] = r.send(r.ctx, engineAsk{path: "/api/chat", said: []turn{{"user", text}}, tokens: 20})
		})
	}
	wg.Wait()
	talks, holds := map[string][]turn{}, map[string]string{} // by the server they began at; whose prompt a server holds
	for i, got := range first {
		home := got.replica()
		talks[home] = []turn{{"user", openings[i]}, {"assistant", r.prompted(got).text()}, {"user", "go on"}}
		holds[home] = home
	}
	require.Len(t, talks, 2, "two at once take both servers, which have one slot each")
	order := []string{"a", "b"}
	if swapped {
		slices.Reverse(order)
	}
	for _, home := range order {
		got := r.send(r.ctx, engineAsk{path: "/api/chat", said: talks[home], tokens: 20})
		said, at := r.prompted(got), got.replica()
		s := secondTurn{elsewhere, time.Duration(said.Took)}
		if at == home {
			s.where = overwritten
			if holds[at] == home {
				s.where = inCache
			}
		}
		holds[at] = home
		t.Logf("began at %s, second turn of %d tokens at %s, %s: %v, affinity %s",
			home, said.Prompt, at, s.where, s.took.Round(time.Millisecond), got.header.Get("X-Switchyard-Affinity"))
		out = append(out, s)
	}
	return out
}

// prompted is a whole answer to a long prompt, which was not cut, by a model
// that was loaded.
func (r *engineRig) prompted(got engineAnswer) enginePiece {
	r.t.Helper()
	require.NoError(r.t, got.whole())
	pieces, _, err := got.pieces()
	require.NoError(r.t, err)
	require.Greater(r.t, pieces[0].Prompt, talkWords)
	require.Less(r.t, pieces[0].Prompt, talkWords+200)
	require.Less(r.t, time.Duration(pieces[0].Load), 500*time.Millisecond, "loading takes longer")
	return pieces[0]
}

// ramble is a long text that shares its beginning with no other.
func ramble(words *rand.Rand) string {
	var out strings.Builder
	for range talkWords {
		fmt.Fprintf(&out, " %c%c", "bdfgklmnprstvz"[words.IntN(14)], "aeiou"[words.IntN(5)])
	}
	return out.String()
}
