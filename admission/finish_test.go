package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

func status(code int) AttemptResult { return AttemptResult{Kind: ResultStatus, Status: code} }

// TestR7Table goes through every row of the table: what is done first, what
// when the second replica answers the same, and who is blamed.
func TestR7Table(t *testing.T) {
	tests := []struct {
		name           string
		result         AttemptResult
		first, second  Action
		blamed         bool // after the first alone, when the second then succeeds
		poison, frozen bool
	}{
		{name: "refused", result: AttemptResult{Kind: ResultConnect, NothingSent: true}, first: ActWait, second: ActWait, blamed: true},
		{name: "EOF before the answer", result: AttemptResult{Kind: ResultConnect}, first: ActWait, second: ActWait, blamed: true},
		{name: "500", result: status(500), first: ActWait, second: ActPassOn, blamed: true, poison: true},
		{name: "502", result: status(502), first: ActWait, second: ActPassOn, blamed: true, poison: true},
		{name: "504", result: status(504), first: ActWait, second: ActPassOn, blamed: true, poison: true},
		{name: "503", result: status(503), first: ActWait, second: ActWait, frozen: true},
		{name: "429", result: status(429), first: ActWait, second: ActWait, frozen: true},
		{name: "hang", result: AttemptResult{Kind: ResultNoToken}, first: ActWait, second: ActWait, blamed: true},
		{name: "200 and an error", result: AttemptResult{Kind: ResultEmpty}, first: ActWait, second: ActWait, blamed: true},
		{name: "408", result: status(408), first: ActWait, second: ActWait},
		{name: "409", result: status(409), first: ActWait, second: ActWait},
		{name: "425", result: status(425), first: ActWait, second: ActWait},
		{name: "401", result: status(401), first: ActWait, second: ActPassOn},
		{name: "403", result: status(403), first: ActWait, second: ActPassOn},
		{name: "404", result: status(404), first: ActWait, second: ActPassOn},
		{name: "400", result: status(400), first: ActPassOn},
		{name: "422", result: status(422), first: ActPassOn},
		{name: "context", result: AttemptResult{Kind: ResultStatus, Status: 400, ContextTooLong: true}, first: ActPassOn},
		{name: "broken after the commit point", result: AttemptResult{Kind: ResultBroken, Committed: true}, first: ActEnd, blamed: true},
		{name: "client gone", result: AttemptResult{Kind: ResultClientGone}, first: ActEnd},
		{name: "client gone mid-stream", result: AttemptResult{Kind: ResultClientGone, Committed: true}, first: ActEnd},
		{name: "slow client", result: AttemptResult{Kind: ResultSlowClient, Committed: true}, first: ActEnd},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
			ticket := w.accept(w.ask())
			one := w.granted(ticket)
			next := w.c.Finish(w.now, one, tc.result)
			require.Equal(t, tc.first, next.Action)
			failed := func(name string) int64 { return w.replica(name).AttemptsFailed }
			if tc.first != ActWait {
				w.c.End(w.now, ticket, Completed, "")
				require.EqualValues(t, btoi(tc.blamed), failed(one.Replica))
				return
			}
			two := w.granted(ticket)
			require.NotEqual(t, one.Replica, two.Replica, "another replica first")
			require.Equal(t, 2, two.Attempt)

			next = w.c.Finish(w.now, two, tc.result)
			require.Equal(t, tc.second, next.Action)
			if tc.frozen {
				require.Positive(t, w.replica(one.Replica).HeldOffS)
			}
			if tc.second == ActWait {
				w.pass(time.Second)
				w.c.Finish(w.now, w.granted(ticket), AttemptResult{Kind: ResultOK})
			}
			w.c.End(w.now, ticket, Completed, "")
			wantBoth := btoi(tc.blamed && !tc.poison)
			require.EqualValues(t, 2*wantBoth, failed("a")+failed("b"))

			if tc.blamed { // alone, it is the replica's failure
				w = newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
				ticket = w.accept(w.ask())
				one = w.granted(ticket)
				w.c.Finish(w.now, one, tc.result)
				two = w.granted(ticket)
				w.c.Finish(w.now, two, AttemptResult{Kind: ResultOK})
				w.c.End(w.now, ticket, Completed, "")
				require.EqualValues(t, 1, failed(one.Replica))
				require.EqualValues(t, 0, failed(two.Replica))
			}
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestR7AttemptsUsedUp(t *testing.T) {
	for _, tc := range []struct {
		result AttemptResult
		want   Reason
	}{
		{AttemptResult{Kind: ResultConnect, Detail: "connection reset"}, ReasonUpstreamFailed},
		{AttemptResult{Kind: ResultNoToken}, ReasonUpstreamTimeout},
	} {
		w := newWorld(t, testConfig(rep("a", 1), rep("b", 1), rep("c", 1), rep("d", 1)))
		ticket := w.accept(w.ask())
		var next Next
		for range 3 {
			next = w.c.Finish(w.now, w.granted(ticket), tc.result)
		}
		require.Equal(t, ActFail, next.Action)
		require.Equal(t, tc.want, next.Refusal.Reason)
		w.c.End(w.now, ticket, Failed, next.Refusal.Reason)
		require.EqualValues(t, 1, w.snap().Promises.Broken)
	}
}

func TestR7ARetryKeepsItsPlace(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	first := w.accept(w.ask())
	a := w.granted(first)
	second := w.granted(w.accept(w.ask()))
	third := w.accept(w.ask())
	w.c.Finish(w.now, a, AttemptResult{Kind: ResultConnect})
	require.Equal(t, a.Replica, w.granted(third).Replica, "first avoids the replica that failed it")
	fourth := w.accept(w.ask())
	w.serve(second, 0)
	require.Equal(t, second.Replica, w.granted(first).Replica)
	w.waits(fourth)
}

func TestR7TheOnlyReplicaIsTriedAgain(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	ticket := w.accept(w.ask())
	require.Equal(t, ActWait, w.c.Finish(w.now, w.granted(ticket), AttemptResult{Kind: ResultConnect}).Action)
	require.Equal(t, "a", w.granted(ticket).Replica)
}

func TestR7BusyAnswersAreHeldOffAndPassedOnAtTheDeadline(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	ticket := w.accept(w.ask())
	busy := status(503)
	busy.RetryAfter = 4 * time.Second
	require.Equal(t, ActWait, w.c.Finish(w.now, w.granted(ticket), busy).Action)
	w.pass(3 * time.Second)
	w.waits(ticket)
	w.pass(time.Second)
	busy.RetryAfter = 20 * time.Second
	require.Equal(t, ActWait, w.c.Finish(w.now, w.granted(ticket), busy).Action)
	w.pass(7 * time.Second)
	require.True(t, w.refused(ticket).PassOn)
	w.c.End(w.now, ticket, Failed, "")
	require.Equal(t, "closed", w.replica("a").Breaker.State)

	f := facts("m")
	f.InHand = 0
	w.report("a", f) // a good probe ends the hold-off
	w.granted(w.accept(w.ask()))
}

func TestR7AnUnheardPauseGrows(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	r := w.c.mu.byName["a"]
	for _, want := range []float64{0.25, 0.5, 1, 2, 4, 8, 16, 30, 30} {
		r.HoldOff(w.now, 0)
		require.InDelta(t, want, r.HoldUntil.Sub(w.now).Seconds(), 0.001)
		w.now = r.HoldUntil
	}
	r.HoldOff(w.now, time.Hour)
	require.Equal(t, 30*time.Second, r.HoldUntil.Sub(w.now), "at most 30 s")
}

func TestR7ContextTooLongGoesToALargerOne(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1), rep("c", 1)))
	for name, n := range map[string]int{"a": 4096, "b": 4096, "c": 32768} {
		f := facts("m")
		f.Context = n
		w.report(name, f)
	}
	ticket := w.accept(w.ask())
	a := w.granted(ticket)
	for a.Replica == "c" {
		w.serve(a, 0)
		ticket = w.accept(w.ask())
		a = w.granted(ticket)
	}
	long := AttemptResult{Kind: ResultStatus, Status: 400, ContextTooLong: true}
	require.Equal(t, ActWait, w.c.Finish(w.now, a, long).Action)
	b := w.granted(ticket)
	require.Equal(t, "c", b.Replica)
	require.Equal(t, ActPassOn, w.c.Finish(w.now, b, long).Action)
}

func TestR7TheBudgetBoundsRetries(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	retried := 0
	for range 40 {
		w.report("a", facts("m"))
		ticket := w.accept(w.ask())
		n := w.c.Finish(w.now, w.granted(ticket), status(408))
		if n.Action == ActWait {
			retried++
			w.c.Finish(w.now, w.granted(ticket), AttemptResult{Kind: ResultOK})
		}
		w.c.End(w.now, ticket, Completed, "")
	}
	require.InDelta(t, 0.2*40+2, retried, 1)
	free := AttemptResult{Kind: ResultConnect, NothingSent: true}
	ticket := w.accept(w.ask())
	require.Equal(t, ActWait, w.c.Finish(w.now, w.granted(ticket), free).Action, "what was never sent is free")
}

// TestPoison is R7's last rows: a body that makes engines answer 500 fails
// once, is not sent to every replica, and blames nobody.
func TestPoison(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		var cfgs []replica.Config
		for i := range n {
			cfgs = append(cfgs, rep(string(rune('a'+i)), 4))
		}
		w := newWorld(t, testConfig(cfgs...))
		for i := range 3 { // three such bodies in a row
			ask := w.ask()
			ask.BodyHash = uint64(1 + i)
			ticket := w.accept(ask)
			require.Equal(t, ActWait, w.c.Finish(w.now, w.granted(ticket), status(500)).Action)
			require.Equal(t, ActPassOn, w.c.Finish(w.now, w.granted(ticket), status(500)).Action)
			d := w.c.End(w.now, ticket, Failed, "")
			require.Len(t, d.Attempts, 2)
		}
		for _, r := range w.snap().Replicas {
			require.Equal(t, "closed", r.Breaker.State, "%d replicas", n)
		}
	}
}

func TestR7AnsweredErrorsNeverOpenTheLastReplica(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	for i := range 60 {
		w.pass(time.Minute)
		w.report("a", facts("m"))
		w.report("b", facts("m"))
		ask := w.ask()
		ask.BodyHash = uint64(i)
		ticket := w.accept(ask)
		for a := w.granted(ticket); ; a = w.granted(ticket) {
			if w.c.Finish(w.now, a, status(500)).Action != ActWait {
				break
			}
		}
		w.c.End(w.now, ticket, Failed, "")
	}
	open := 0
	for _, r := range w.snap().Replicas {
		open += btoi(r.Breaker.State == "open")
	}
	require.LessOrEqual(t, open, 1)
}

// TestR9OneThatFailsEverythingTripsAtLowRates: 0.2 requests a second.
func TestR9OneThatFailsEverythingTripsAtLowRates(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	for range 12 {
		ticket := w.accept(w.ask())
		a := w.granted(ticket)
		if a.Replica == "a" {
			require.Equal(t, ActWait, w.c.Finish(w.now, a, status(500)).Action)
			a = w.granted(ticket)
		}
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK})
		w.c.End(w.now, ticket, Completed, "")
		if w.replica("a").Breaker.State == "open" {
			return
		}
		w.pass(5 * time.Second)
	}
	require.Fail(t, "the breaker of a is still closed")
}

// TestR9TheRamp: a trial at a time, then the geometric shares by counted success.
func TestR9TheRamp(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 20)))
	for range 3 {
		ticket := w.accept(w.ask())
		w.c.Finish(w.now, w.granted(ticket), AttemptResult{Kind: ResultEmpty})
		w.c.Leave(w.now, ticket)
		w.c.End(w.now, ticket, Cancelled, "")
	}
	require.Equal(t, "open", w.replica("a").Breaker.State)
	require.Equal(t, ReasonNoReplica, w.c.Admit(w.now, w.arrive(), w.ask()).Reason)
	w.pass(5 * time.Second)
	for i, want := range []int{1, 1, 2, 4, 6, 10, 16} {
		var got []*Assignment
		var waiting []*Ticket
		for range 20 {
			ticket := w.accept(w.ask())
			select {
			case g := <-ticket.C():
				got = append(got, g.Assignment)
			default:
				waiting = append(waiting, ticket)
			}
		}
		require.Len(t, got, want, "step %d", i)
		for _, ticket := range waiting {
			w.c.Leave(w.now, ticket)
			w.c.End(w.now, ticket, Cancelled, "")
		}
		for j, a := range got { // one success counts; the others' clients leave
			kind := ResultClientGone
			if j == 0 {
				kind = ResultOK
			}
			w.c.Finish(w.now, a, AttemptResult{Kind: kind})
			w.c.End(w.now, a.ticket, Completed, "")
		}
	}
	require.Equal(t, "closed", w.replica("a").Breaker.State)
}

func TestR9R10ATrialWhoseClientLeavesGivesItsPlaceBack(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 4)))
	w.c.mu.byName["a"].Breaker.Trip(w.now, "test")
	w.pass(5 * time.Second)
	for range 1000 {
		ticket := w.accept(w.ask())
		w.c.Finish(w.now, w.granted(ticket), AttemptResult{Kind: ResultClientGone})
		w.c.End(w.now, ticket, Cancelled, "")
	}
	require.Equal(t, "half-open", w.replica("a").Breaker.State)
	w.granted(w.accept(w.ask()))
	w.waits(w.accept(w.ask()))
}

func TestR7AMovedAttemptIsBlamedOnlyIfItHung(t *testing.T) {
	for _, responsive := range []bool{true, false} {
		w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
		w.teach(time.Second)
		ticket := w.accept(w.ask())
		a := w.granted(ticket)
		require.Equal(t, 5*time.Second, a.MoveAfter)
		require.True(t, w.c.MayMove(w.now, a))
		require.Equal(t, ActWait, w.c.Finish(w.now, a, AttemptResult{Kind: ResultMoved, Running: true}).Action)
		require.NotEqual(t, a.Replica, w.granted(ticket).Replica)
		require.Zero(t, w.replica(a.Replica).AttemptsFailed)
		w.c.Released(w.now, a, responsive)
		require.EqualValues(t, btoi(!responsive), w.replica(a.Replica).AttemptsFailed)
	}
}

func TestR7FirstTokenTimeoutFollowsTheForecastAndProgress(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	ticket := w.accept(w.ask())
	a := w.granted(ticket)
	require.Equal(t, 5*time.Minute, a.FirstTokenTimeout, "nothing is known yet")
	require.Zero(t, w.c.Overdue(w.now, a))
	w.serve(a, time.Second)

	w.teach(200 * time.Second) // first token after some 10 s
	long := w.ask()
	long.Deadline = w.now.Add(time.Minute)
	a = w.granted(w.accept(long))
	require.Greater(t, a.FirstTokenTimeout, 15*time.Second)
	f := facts("m")
	f.Progress = 512
	w.report("a", f)
	require.Positive(t, w.c.Overdue(w.now, a), "it processes the prompt")
	require.Zero(t, w.c.Overdue(w.now, a), "no further since")
}

func TestR8AnEndedPromiseIsJudgedOnce(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	ticket := w.accept(w.ask())
	a := w.granted(ticket)
	w.c.FirstToken(w.now, a)
	w.pass(time.Minute)
	w.c.Finish(w.now, a, AttemptResult{Kind: ResultBroken, Committed: true})
	w.c.End(w.now, ticket, Failed, ReasonUpstreamFailed)
	require.Equal(t, Promises{Kept: 1}, w.snap().Promises)
}

func TestR17AStoredAnswerIsRetriedOnlyIfNothingWasSent(t *testing.T) {
	for _, sent := range []bool{true, false} {
		w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
		ask := w.ask()
		ask.Once = true
		ticket := w.accept(ask)
		next := w.c.Finish(w.now, w.granted(ticket), AttemptResult{Kind: ResultConnect, NothingSent: !sent})
		require.Equal(t, sent, next.Action == ActFail)
	}
}

func TestR13AnEndWithoutAFinishGivesTheSlotBack(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	ticket := w.accept(w.ask())
	w.granted(ticket)
	w.c.End(w.now, ticket, Failed, "")
	require.Equal(t, SlotState{Total: 1, Free: 1}, w.replica("a").Slots)
	w.snap()
}

// TestR7AWholeAnswerIsRetriedAfterItsFirstTokensDeadline: a class's deadline is
// about the first token, which a long answer had before it failed.
func TestR7AWholeAnswerIsRetriedAfterItsFirstTokensDeadline(t *testing.T) {
	for _, stated := range []bool{false, true} {
		w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
		w.teach(9 * time.Second)
		ask := w.ask()
		ask.Stream, ask.ClientDeadline = false, stated
		ticket := w.accept(ask)
		a := w.granted(ticket)
		w.pass(12 * time.Second) // the deadline was after ten
		next := w.c.Finish(w.now, a, AttemptResult{Kind: ResultConnect})
		if stated {
			require.Equal(t, ActFail, next.Action, "the client stated a deadline for the whole answer")
			continue
		}
		require.Equal(t, ActWait, next.Action)
		w.serve(w.granted(ticket), time.Second)
		require.Equal(t, Promises{Kept: 1}, w.snap().Promises)
	}
}
