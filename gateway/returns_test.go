package gateway

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
)

func TestTryOfR14(t *testing.T) {
	for value, want := range map[string]admission.Try{
		"": admission.TryUnsaid, "x": admission.TryUnsaid, "-1": admission.TryUnsaid,
		"0": admission.TryFirst, "1": admission.TryAgain, "7": admission.TryAgain,
	} {
		h := http.Header{}
		if value != "" {
			h.Set("X-Stainless-Retry-Count", value)
		}
		require.Equal(t, want, tryOf(h), value)
	}
}

// R14 and PAINS 23: a retry that comes while its first try still runs takes its
// place once that client is gone: the first is cancelled at the replica, its slot
// stays taken until the replica has stopped, and then the retry has it.
func TestARetryReplacesTheTryThatItsClientLeftR14(t *testing.T) {
	for _, slots := range []int{1, 2} {
		f := faces[0]
		reached := make(chan struct{}, 1)
		tr := newTroupe(t, func(k *call) { k.streamHead(f.media); k.chunk(f.begin); reach(reached); k.untilGone() }, f.good(true))
		r := newRig(t, tr, func(o *rigging) { o.replicas, o.slots = 1, slots })
		c := r.connect(f.path, f.body(true), "X-Request-ID: one")
		<-reached
		c.Close()
		again := r.post(f.path, f.body(true), "X-Request-ID: one", "X-Stainless-Retry-Count: 1")
		require.Equal(t, http.StatusOK, again.status)
		require.Equal(t, f.events(), again.body)
		require.Equal(t, "one", again.header.Get("X-Request-Id"))
		calls := tr.calls()
		require.Len(t, calls, 2)
		select {
		case <-calls[0].done: // the replica was told that nobody waits for the first
		case <-time.After(patienceInTests):
			t.Fatal("the first try was not cancelled")
		}
		seen := r.seen.after(t, 2)
		ends := map[admission.Outcome]int{}
		for _, rec := range seen.records {
			ends[rec.Outcome]++
		}
		require.Equal(t, map[admission.Outcome]int{admission.Cancelled: 1, admission.Completed: 1}, ends)
		require.Empty(t, seen.retries, "it is the client's retry, not the gateway's")
		require.Zero(t, r.failures())
	}
}

// R14: a refused request is told when to come back. Early it is told that its
// place is kept, and in its time it is accepted.
func TestRefusedClientsComeBackR14(t *testing.T) {
	f := faces[0]
	busy, release := make(chan struct{}, 1), make(chan struct{})
	slow := func(k *call) { k.wait(300 * time.Millisecond); f.good(true)(k) }
	tr := newTroupe(t, slow, slow, slow, func(k *call) { reach(busy); <-release; f.good(true)(k) }, f.good(true))
	r := newRig(t, tr, func(o *rigging) { o.replicas, o.slots = 1, 1 })
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	for range 3 { // 0.3 s is what a first token takes
		require.Equal(t, http.StatusOK, r.post(f.path, f.body(true)).status)
	}
	first := r.connect(f.path, f.body(true), "Connection: close")
	defer first.Close()
	<-busy
	ask := func(id string) reply {
		return r.post(f.path, f.body(true), "X-Request-ID: "+id, "X-Switchyard-Deadline: 500ms")
	}
	waiting := r.connect(f.path, f.body(true), "X-Switchyard-Deadline: 20s", "Connection: close")
	defer waiting.Close()
	require.True(t, soon(func() bool { return r.totals().Queued == 1 }))
	var refused reply
	require.True(t, soon(func() bool { refused = ask("one"); return refused.status == http.StatusTooManyRequests }))
	told := time.Now()
	require.Contains(t, []string{"deadline_unmeetable", "deadline_expired"}, refused.header.Get("X-Switchyard-Reason"))
	require.Equal(t, "1", refused.header.Get("Retry-After"))
	require.Empty(t, refused.header.Get("X-Should-Retry"))
	require.Equal(t, 1, r.ctl.Snapshot(time.Now()).Classes[0].Booked)

	early := ask("one")
	require.Equal(t, http.StatusTooManyRequests, early.status)
	require.Contains(t, early.body, "its place then is kept")
	require.Equal(t, 1, r.ctl.Snapshot(time.Now()).Classes[0].Booked)
	require.True(t, soon(func() bool {
		return slices.ContainsFunc(r.seen.after(t, 1).records, func(rec Record) bool {
			rec.Decision.Explain()
			return rec.Decision.Arithmetic != nil && rec.Decision.Arithmetic.Place == "kept" && len(rec.Decision.Explanation) > 0
		})
	}))

	free()
	require.True(t, soon(func() bool { return time.Since(told) > 1050*time.Millisecond }))
	require.Equal(t, http.StatusOK, ask("one").status)
	require.Zero(t, r.ctl.Snapshot(time.Now()).Classes[0].Booked)
}
