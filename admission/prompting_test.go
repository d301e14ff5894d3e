package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// wide is a replica whose prompts are processed one after another.
func wide(name string) replica.Config {
	r := rep(name, 8)
	r.Engine = replica.EngineVLLM
	return r
}

// long is a request for the first token within a minute, of so many tokens.
func (w *world) long(tokens int) Ask {
	a := w.ask()
	a.PromptTokens, a.Deadline = tokens, w.now.Add(time.Minute)
	return a
}

// R6: a free slot is not a free engine. Who comes while a long prompt is being
// processed has his first token after it there, and goes elsewhere, where more
// slots are taken and no prompt is in the way.
func TestR6PromptsAheadAreInTheForecast(t *testing.T) {
	w := affine(t, wide("a"), wide("b"))
	w.pass(0)
	a := w.granted(w.accept(w.long(20_000)))
	other := map[string]string{"a": "b", "b": "a"}[a.Replica]
	for range 3 {
		b := w.granted(w.accept(w.long(500)))
		require.Equal(t, other, b.Replica)
		w.first(b, 500*time.Millisecond)
	}
	w.c.FirstToken(w.now, a)
	require.Equal(t, a.Replica, w.granted(w.accept(w.long(500))).Replica, "the long prompt is done")
}

// R4: what is ahead counts for the promise, and what is not does not.
func TestR4PromptsAheadAreInThePromise(t *testing.T) {
	w := affine(t, wide("a"))
	ask := w.long(500)
	ask.Deadline = w.now.Add(10 * time.Second)
	first := w.granted(w.accept(w.long(20_000)))
	late := w.arrive()
	ref := w.c.Admit(w.now, late, ask)
	require.NotNil(t, ref)
	require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
	require.InDelta(t, 10.5, ref.RetryAfter.Seconds(), 0.1)
	w.c.End(w.now, late, Refused, ref.Reason)

	w.c.FirstToken(w.now, first)
	w.granted(w.accept(ask))
}

// Prompts that are processed together teach the speed of the engine, not of their
// share in it.
func TestR6PromptsAheadTeachNoSlowness(t *testing.T) {
	w := affine(t, wide("a"))
	speed := w.c.mu.fleet[0].Speed("m")
	for range 20 {
		var both []*Assignment
		for range 4 {
			both = append(both, w.granted(w.accept(w.long(2000))))
		}
		for _, a := range both {
			w.pass(2 * time.Second)
			w.c.FirstToken(w.now, a)
			w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now, Usage: Usage{PromptTokens: 2000, OutputTokens: 1, CacheSaid: true}})
			w.c.End(w.now, a.ticket, Completed, "")
		}
	}
	d, _ := speed.FirstToken(2000)
	require.InDelta(t, 2, d.Seconds(), 0.2)
}

// Of other servers it is not assumed that a newcomer comes last.
func TestR6OfUnknownServersNothingIsAssumed(t *testing.T) {
	w := affine(t, rep("a", 8))
	w.granted(w.accept(w.long(20_000)))
	ask := w.long(500)
	ask.Deadline = w.now.Add(time.Second)
	w.granted(w.accept(ask))
}

// What a prompt costs others counts where the fleet is at prompts: the request
// goes where half of its prompt is, though its own first token would come sooner
// where nothing is, and would hold up all others for longer.
func TestR6WhatAPromptCostsOthersCounts(t *testing.T) {
	for _, busy := range []bool{false, true} {
		w := affine(t, wide("a"), wide("b"))
		home := w.converse(talk("x", 2))
		w.pass(time.Second)
		ahead := func(name string, d time.Duration) {
			r := w.c.mu.byName[name]
			r.Pool("m").Prompting.Until = w.now.Add(d).Sub(w.c.mu.began)
			w.c.mu.touch(r)
		}
		ahead(home.Replica, 7*time.Second)
		if busy {
			ahead(map[string]string{"a": "b", "b": "a"}[home.Replica], 100*time.Millisecond)
		}
		a := w.granted(w.accept(w.turn(talk("x", 4))))
		require.Equal(t, busy, a.Replica == home.Replica, "4 s of work after none, or 2 s after 7")
	}
}

// R7: a silent attempt does not go where it would be late anyway.
func TestR7ASilentAttemptMovesOnlyInTime(t *testing.T) {
	w := affine(t, wide("a"), wide("b"))
	a := w.granted(w.accept(w.long(20_000)))
	w.pass(30 * time.Second)
	require.True(t, w.c.MayMove(w.now, a), "20 s elsewhere, and 30 are left")
	w.pass(15 * time.Second)
	require.False(t, w.c.MayMove(w.now, a), "20 s elsewhere, and 15 are left")
}

// Who goes back to his prompt takes nobody's turn: conversations of two turns, one
// after another, do not all begin on the same replica.
func TestR6ConversationsBeginInTurn(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2))
	began := map[string]int{}
	for i := range 10 {
		name := fmt.Sprint("x", i, "-")
		first := w.converse(talk(name, 1))
		began[first.Replica]++
		require.Equal(t, first.Replica, w.converse(talk(name, 2)).Replica)
	}
	require.Equal(t, map[string]int{"a": 5, "b": 5}, began)
}
