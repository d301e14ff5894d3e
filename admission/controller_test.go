package admission

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

func TestR2AFreeSlotIsTakenAtOnce(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	one, two, three := w.accept(w.ask()), w.accept(w.ask()), w.accept(w.ask())
	a, b := w.granted(one), w.granted(two)
	require.NotEqual(t, a.Replica, b.Replica)
	w.waits(three)
	require.EqualValues(t, 1, w.snap().Totals.Queued)
	w.serve(b, time.Second)
	require.Equal(t, b.Replica, w.granted(three).Replica)
}

func TestR3ClassesStrictlyThenEarliestDeadline(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	first := w.granted(w.accept(w.ask()))
	enqueue := func(class string, deadline time.Duration) *Ticket {
		a := w.ask()
		a.Class, a.Deadline = class, w.now.Add(deadline)
		return w.accept(a)
	}
	batch := enqueue("batch", time.Minute)
	late := enqueue("standard", 2*time.Minute)
	early := enqueue("standard", time.Minute)
	urgent := enqueue("interactive", 5*time.Minute)
	// standard and batch have min_share, but the first request ran as standard
	// and batch has had less than its share: it goes first among all.
	for _, next := range []*Ticket{batch, urgent, early, late} {
		w.serve(first, 10*time.Millisecond)
		first = w.granted(next)
	}
	w.serve(first, time.Millisecond)
	require.EqualValues(t, 5, w.snap().Totals.Completed)
}

func TestR4RefusesWhatCannotBeInTimeAndSaysWhen(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	w.teach(4 * time.Second)
	w.granted(w.accept(w.ask())) // runs for 4 s
	w.accept(w.ask())            // starts at 4 s
	w.accept(w.ask())            // starts at 8 s
	ticket := w.arrive()
	ref := w.c.Admit(w.now, ticket, w.ask()) // would start at 12 s
	require.NotNil(t, ref)
	require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
	require.InDelta(t, 2.4, ref.RetryAfter.Seconds(), 0.5)
	require.False(t, ref.NoRetry)
	w.c.End(w.now, ticket, Refused, ref.Reason)
	require.EqualValues(t, 1, w.snap().Totals.Refused)

	w.now = w.now.Add(ref.RetryAfter) // R14: the same request is accepted then
	require.Nil(t, w.asks(Arrival{ID: ticket.ID(), Key: "anonymous"}, w.ask()))
}

func TestR4NothingKnownAccepts(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	for range 50 {
		w.accept(w.ask())
	}
}

// R4: the first answers of a server that warms up may take many times what the
// later ones do, and what nobody has tried for a minute may have changed: neither
// keeps everyone out.
func TestR4WhatIsHardlyKnownRefusesNobody(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	slow := func(d time.Duration) {
		w.t.Helper()
		a := w.granted(w.accept(w.ask()))
		w.serve(a, d)
	}
	refused := func() bool {
		tk := w.arrive()
		ref := w.c.Admit(w.now, tk, w.ask())
		if ref != nil {
			w.c.End(w.now, tk, Refused, ref.Reason)
			return true
		}
		w.c.Leave(w.now, tk)
		w.c.End(w.now, tk, Cancelled, "")
		return false
	}
	slow(30 * time.Second) // a warm-up; the deadline is 10 s
	slow(15 * time.Second) // half the doubt: the mean is 22 s now
	require.True(t, refused(), "an eleven seconds' mean even at half")
	w.pass(time.Minute - time.Second)
	require.True(t, refused())
	w.pass(time.Second)
	require.False(t, refused(), "nobody has run for a minute")
	for range 12 {
		w.pass(time.Minute)
		slow(100 * time.Millisecond)
	}
	w.pass(time.Second)
	require.False(t, refused(), "it is known to be fast now")
}

func TestR4NeverMeetableSaysSo(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	w.teach(300 * time.Second) // first token after 30 s
	ref := w.c.Admit(w.now, w.arrive(), w.ask())
	require.NotNil(t, ref)
	require.True(t, ref.NoRetry)
}

func TestR4OnlyAClientDeadlineBoundsAWholeAnswer(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	w.teach(30 * time.Second)
	a := w.ask()
	a.Stream = false
	w.accept(a)
	a.ClientDeadline = true
	require.NotNil(t, w.c.Admit(w.now, w.arrive(), a))
}

func TestR4UrgentTrafficIsLeftOutOfAForecast(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 4)))
	w.teach(time.Second)
	for range 60 { // urgent work keeps half of the slots busy
		var urgent []*Assignment
		for range 2 {
			a := w.ask()
			a.Class = "interactive"
			urgent = append(urgent, w.granted(w.accept(a)))
		}
		w.serve(urgent[0], time.Second)
		w.serve(urgent[1], 0)
	}
	load := w.c.mu.urgentLoad(w.now, &Ticket{class: w.c.mu.classes[1]})
	require.InDelta(t, 2, load, 0.2)
	require.Zero(t, w.c.mu.urgentLoad(w.now, &Ticket{class: w.c.mu.classes[0]}))
	// Four slots with 8 slot-seconds ahead: 2 s for a class that has all four,
	// 4 s where half of them will be taken.
	require.Equal(t, 2*time.Second, fill(make([]slotTime, 4), 8, 0))
	require.Equal(t, 4*time.Second, fill(make([]slotTime, 4), 8, 2))
}

// R4: it is the next slots to be free that count, and the first of many is sooner
// than any is on average, unless all is certain. Of eight that end after 2 s on
// average, at any moment alike, a share p has ended at −2 ln(1−p) s. The first is
// sure enough when 8p less its standard deviation, the square root of 8p(1−p),
// is a half: p is 0.205 then. In the long run a slot is free every quarter of a second.
func TestR4TheNextSlotIsSoonerThanAny(t *testing.T) {
	slots := func(n int, spread float64) []slotTime { return slices.Repeat([]slotTime{{2, spread}}, n) }
	const one = 2.0 // slot-seconds
	for _, tt := range []struct {
		name string
		b    backlog
		want float64 // seconds
	}{
		{"the first of eight", backlog{slots: slots(8, 2), part: 1}, 0.460},
		{"the third", backlog{slots: slots(8, 2), part: 1, ahead: 2, work: 2 * one, varied: 1}, 1.049},
		{"half of them are taken by others", backlog{slots: slots(8, 2), part: 1, taken: 4}, 0.883},
		{"ends that are less uncertain", backlog{slots: slots(8, 1), part: 1}, 1.231},
		{"certain ends", backlog{slots: slots(8, 0), part: 1}, 2},
		{"certain ends with seven ahead", backlog{slots: slots(8, 0), part: 1, ahead: 7, work: 7 * one}, 2},
		{"nobody knows how long those ahead take", backlog{slots: slots(8, 0), part: 1, ahead: 50}, 2},
		{"of hundreds a part is looked at", backlog{slots: slots(800, 2), part: 1, ahead: 79, work: 79 * one, varied: 1}, 0.2212},
		{"which are themselves a part", backlog{slots: slots(80, 2), part: 0.1, ahead: 79, work: 79 * one, varied: 1}, 0.2212},
		{"as many ahead as run, and once more", backlog{slots: slots(8, 0), part: 1, ahead: 15, work: 15 * one}, 4.875},
		{"a hundred times as many", backlog{slots: slots(8, 2), part: 1, ahead: 800, work: 800 * one, varied: 1}, (800.5 + 28.8) / 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.InDelta(t, tt.want, tt.b.turn(seconds(4*tt.want)).Seconds(), 0.01*tt.want)
		})
	}
	require.Equal(t, 3*time.Second, (&backlog{part: 1, work: 3}).turn(3*time.Second), "no slot")
}

func TestR4DeparturesOfUrgentClassesUseNoCapacity(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 2)))
	w.teach(10 * time.Second)
	w.pass(30 * time.Second)
	standard := w.ask()
	standard.Deadline = w.now.Add(time.Minute)
	for range 2 {
		w.granted(w.accept(standard))
	}
	for range 40 { // interactive clients come and leave at once
		a := w.ask()
		a.Class, a.Deadline = "interactive", w.now.Add(10*time.Minute)
		ticket := w.accept(a)
		w.c.Leave(w.now, ticket)
		w.c.End(w.now, ticket, Cancelled, "")
	}
	for range 3 {
		w.accept(standard) // a slot is free after 10 s
	}
}

func TestR5TurnedAwayWhenTheDeadlineCannotBeMetAnyMore(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	running := w.granted(w.accept(w.ask()))
	w.teach(10 * time.Second)
	running.lease.runs.list[0].until = w.now.Sub(w.c.mu.began) + time.Second // it will take longer than believed
	waiting := w.accept(w.ask())
	w.pass(8 * time.Second)
	w.waits(waiting)
	w.pass(1500 * time.Millisecond) // 9.5 s: prompt processing takes one
	ref := w.refused(waiting)
	require.Equal(t, ReasonDeadlineExpired, ref.Reason)
	require.Positive(t, ref.RetryAfter)
	w.c.End(w.now, waiting, Refused, ref.Reason)
	require.EqualValues(t, 1, w.snap().Promises.Broken)
}

func TestR1WideRequestsWaitForTheirSlotsAndNothingOvertakes(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 4)))
	var held []*Assignment
	for range 3 {
		held = append(held, w.granted(w.accept(w.ask())))
	}
	wide := w.ask()
	wide.Width = 3
	wt := w.accept(wide)
	w.waits(wt)
	small := w.accept(w.ask())
	w.waits(small) // one slot is free, but the debt is not paid
	w.serve(held[0], time.Second)
	w.waits(wt)
	w.serve(held[1], time.Second)
	require.Equal(t, 4, w.replica("a").Slots.Busy-0, "three for the wide one beside the one that runs")
	w.serve(w.granted(wt), time.Second)
	w.granted(small)
}

func TestR1WiderThanTheReplicaTakesItWhole(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 2)))
	wide := w.ask()
	wide.Width = 5
	a := w.granted(w.accept(wide))
	require.Equal(t, SlotState{Total: 2, Busy: 2}, w.replica("a").Slots)
	w.serve(a, time.Second)
	require.Equal(t, SlotState{Total: 2, Free: 2}, w.replica("a").Slots)
}

func TestR1AWideRequestMovesOnWhenItsReplicaGoes(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 2), rep("b", 2)))
	var held []*Assignment
	for range 3 {
		held = append(held, w.granted(w.accept(w.ask())))
	}
	wide := w.ask()
	wide.Width = 2
	wt := w.accept(wide)
	w.waits(wt)
	bound := wt.bound.rep.Config.Name
	w.report(bound, replica.Facts{Gone: true, Err: "connection refused"})
	require.Nil(t, wt.bound)
	for _, a := range held {
		if a.Replica != bound {
			w.serve(a, time.Second)
		}
	}
	require.NotEqual(t, bound, w.granted(wt).Replica)
}

func TestR1R10AZombieHoldsItsSlot(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	first := w.accept(w.ask())
	a := w.granted(first)
	second := w.accept(w.ask())
	n := w.c.Finish(w.now, a, AttemptResult{Kind: ResultClientGone, Running: true})
	require.Equal(t, ActEnd, n.Action)
	w.c.End(w.now, first, Cancelled, "")
	w.waits(second)
	require.Equal(t, SlotState{Total: 1, Zombie: 1}, w.replica("a").Slots)
	w.c.Released(w.now, a, true)
	w.granted(second)
	require.Panics(t, func() { w.c.Released(w.now, a, true) }, "a slot is given back once")
	require.Panics(t, func() { w.c.End(w.now, first, Cancelled, "") }, "a request ends once")
}

func TestR10LeavingWhileQueuedOrInTheRaceWithAGrant(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	a := w.granted(w.accept(w.ask()))
	queued, raced := w.accept(w.ask()), w.accept(w.ask())
	w.c.Leave(w.now, queued)
	w.c.End(w.now, queued, Cancelled, "")
	w.serve(a, time.Second) // grants to raced, which leaves without reading it
	w.c.Leave(w.now, raced)
	w.c.End(w.now, raced, Cancelled, "")
	require.Equal(t, SlotState{Total: 1, Free: 1}, w.replica("a").Slots)
	require.Zero(t, w.replica("a").AttemptsFailed)
}

func TestR11ForeignWorkIsBelievedFromTheSecondCleanProbe(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 2)))
	busy := func(n int) {
		w.now = w.now.Add(2 * time.Second)
		f := facts("m")
		f.InHand = n
		w.report("a", f)
	}
	busy(1)
	require.Zero(t, w.replica("a").Slots.Foreign)
	busy(2)
	require.Equal(t, 1, w.replica("a").Slots.Foreign, "the smaller of the two")
	busy(0)
	require.Zero(t, w.replica("a").Slots.Foreign)
	a := w.granted(w.accept(w.ask()))
	busy(2)
	w.serve(a, 0) // one of ours ends between the two
	w.granted(w.accept(w.ask()))
	busy(2)
	require.Zero(t, w.replica("a").Slots.Foreign)
}

func TestR11SlotsByEngine(t *testing.T) {
	auto := func(e replica.Engine) replica.Config { return replica.Config{Name: "a", Engine: e} }
	w := newWorld(t, testConfig(auto(replica.EngineLlamaCpp)))
	f := facts("m")
	f.Engine, f.Slots = replica.EngineLlamaCpp, 3
	w.report("a", f)
	require.Equal(t, 3, w.replica("a").Slots.Total)

	w = newWorld(t, testConfig(auto(replica.EngineOllama)))
	f = facts("m:latest", "n:latest")
	f.Engine = replica.EngineOllama
	w.report("a", f)
	require.Equal(t, 2, w.replica("a").Slots.Total, "one for each model")
	w.granted(w.accept(w.ask()))
	w.waits(w.accept(w.ask()))
	other := w.ask()
	other.Models = []string{"n"}
	w.granted(w.accept(other))

	w = newWorld(t, testConfig(auto(replica.EngineVLLM)))
	f = facts("m")
	f.Engine, f.Waiting = replica.EngineVLLM, 0
	require.Equal(t, 16, w.replica("a").Slots.Total)
	for range 16 {
		w.granted(w.accept(w.ask()))
	}
	w.report("a", f)
	require.Equal(t, 17, w.replica("a").Slots.Total, "all busy, nothing waits inside: one more")
	f.Waiting = 2
	w.report("a", f)
	require.Equal(t, 16, w.replica("a").Slots.Total)
}

func TestR17ModelsAndReplicasThatAreOut(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	unknown := w.ask()
	unknown.Models = []string{"other"}
	ref := w.c.Admit(w.now, w.arrive(), unknown)
	require.Equal(t, ReasonModelNotFound, ref.Reason)
	require.Equal(t, []string{"m"}, ref.Models)

	w.report("a", replica.Facts{Gone: true, Err: "connection refused"})
	ref = w.c.Admit(w.now, w.arrive(), w.ask())
	require.Equal(t, ReasonNoReplica, ref.Reason, "it has the model, but is out")
	require.Positive(t, ref.RetryAfter)

	fresh := New(testConfig(rep("a", 1)), w.now)
	ref = fresh.Admit(w.now, fresh.Arrive(w.now, Arrival{At: w.now}), w.ask())
	require.Equal(t, ReasonNoReplica, ref.Reason, "no list could be read yet")
}

func TestR17NoModelNamed(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	a := w.ask()
	a.Models = nil
	require.Equal(t, "m", w.granted(w.accept(a)).Model)
	w.report("b", facts("m", "n"))
	ref := w.c.Admit(w.now, w.arrive(), a)
	require.Equal(t, ReasonBadRequest, ref.Reason)
	require.Contains(t, ref.Message, "m, n")
}

func TestAliasesTakeTheFirstThatMeetsTheDeadline(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	w.report("a", facts("big"))
	w.report("b", facts("small"))
	w.learn(w.c.mu.byName["a"], "big", replica.Sample{First: 5 * time.Second, Hold: 8 * time.Second})
	alias := w.ask()
	alias.Models = []string{"big", "small"}
	require.Equal(t, "big", w.granted(w.accept(alias)).Model)
	require.Equal(t, "small", w.granted(w.accept(alias)).Model, "big would be free only after 8 s")
}

func TestATierAboveServesOnlyWhenTheLowerCannot(t *testing.T) {
	spare := rep("b", 1)
	spare.Tier = 1
	w := newWorld(t, testConfig(rep("a", 1), spare))
	w.teach(6 * time.Second)
	require.Equal(t, "a", w.granted(w.accept(w.ask())).Replica)
	second := w.accept(w.ask())
	w.waits(second) // a is free again after 6 s, in time
	third := w.accept(w.ask())
	require.Equal(t, "b", w.granted(third).Replica, "a could not serve it before 12 s")
}

func TestR15StoppingTellsTheQueueAndRefusesNewcomers(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	w.teach(8 * time.Second)
	running := w.granted(w.accept(w.ask()))
	a := w.ask()
	a.Deadline = w.now.Add(time.Minute)
	soon, late := w.accept(a), w.accept(a)
	w.c.Stop(w.now, 20*time.Second) // soon would end after 16 s, late after 24
	w.waits(soon)
	require.Equal(t, ReasonDraining, w.refused(late).Reason)
	w.c.End(w.now, late, Refused, ReasonDraining)
	require.Equal(t, ReasonDraining, w.c.Admit(w.now, w.arrive(), a).Reason)
	w.serve(running, 8*time.Second)
	w.serve(w.granted(soon), time.Second)
	require.False(t, w.snap().Serving)
}

// R15: who waits for what a reload has taken away is told at once.
func TestR15AReloadTellsWhoWaitsInVain(t *testing.T) {
	cfg := testConfig(rep("a", 1))
	w := newWorld(t, cfg)
	running := w.granted(w.accept(w.ask()))
	waiting := w.accept(w.ask())
	w.waits(waiting)
	cfg.Replicas = []replica.Config{rep("a", 1)}
	w.c.Reconfigure(w.now, cfg)
	w.waits(waiting)
	cfg.Replicas = nil
	w.c.Reconfigure(w.now, cfg)
	require.Equal(t, ReasonModelNotFound, w.refused(waiting).Reason)
	w.c.End(w.now, waiting, Refused, ReasonModelNotFound)
	w.serve(running, time.Second)
	require.EqualValues(t, 1, w.snap().Totals.Completed)
}

func TestR15ReloadKeepsWhatGoesOn(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	onA, onB := w.granted(w.accept(w.ask())), w.granted(w.accept(w.ask()))
	waiting := w.accept(w.ask())
	cfg := testConfig(rep("b", 2), rep("c", 1))
	cfg.Classes = []Class{{Name: "batch", Deadline: time.Hour}, {Name: "standard", Deadline: time.Minute}}
	w.c.Reconfigure(w.now, cfg)
	require.Equal(t, "b", w.granted(waiting).Replica, "b has a second slot now")
	for _, a := range []*Assignment{onA, onB} { // the removed replica's answer still ends well
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK})
		w.c.End(w.now, a.ticket, Completed, "")
	}
	s := w.snap()
	require.Len(t, s.Replicas, 2)
	require.Equal(t, "batch", s.Classes[0].Name)
	require.Equal(t, 1, s.Classes[1].Running)
	require.False(t, w.c.DrainReplica(w.now, "a", true))
	require.True(t, w.c.DrainReplica(w.now, "b", true))
}

func TestGrantedNamesWhoWasSentAGrant(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1)))
	require.Empty(t, w.c.Granted(nil))
	first, second := w.accept(w.ask()), w.accept(w.ask())
	require.Equal(t, []*Ticket{first}, w.c.Granted(nil))
	w.serve(w.granted(first), time.Second)
	require.Equal(t, []*Ticket{first, second}, w.c.Granted([]*Ticket{first}), "added to what there is")
	require.Empty(t, w.c.Granted(nil), "told once")
}

// R1, R2: a wide request that is bound goes when the hold-off ends that it met.
func TestR2AWideRequestGoesWhenAHoldOffEnds(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 2)))
	a := w.granted(w.accept(w.ask()))
	wide := w.ask()
	wide.Width = 2
	wt := w.accept(wide)
	w.waits(wt)
	w.c.Finish(w.now, a, AttemptResult{Kind: ResultStatus, Status: 429, RetryAfter: 2 * time.Second})
	w.pass(time.Second)
	w.waits(wt)
	w.pass(1100 * time.Millisecond)
	w.granted(wt)
}

// R4: urgent work elsewhere, which cannot take a slot that a request could use,
// is not in its forecast.
func TestR4UrgentWorkElsewhereDoesNotCount(t *testing.T) {
	a, b := rep("a", 4), rep("b", 2)
	a.Models, b.Models = []string{"m"}, []string{"n"}
	w := newWorld(t, testConfig(a, b))
	w.report("b", facts("n"))
	w.c.mu.classes[0].flows.of(w.now, lane{model: "m"}).add(w.now, 4, 4)
	load := func(model string) float64 {
		return w.c.mu.urgentLoad(w.now, &Ticket{class: w.c.mu.classes[1], lane: lane{model: model}})
	}
	require.InDelta(t, 4, load("m"), 0.01)
	require.Zero(t, load("n"))
}

// R4: a small prompt that a much larger one held up says nothing of how fast
// prompts are processed, so the next large one is not refused for it.
func TestR4APromptThatWasHeldUpTeachesNoSpeed(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 4)))
	w.teach(time.Second)
	before := w.c.mu.fleet[0].Speed("m").PromptTokensPerS()
	large := w.ask()
	large.PromptTokens = 400_000
	large.Deadline = w.now.Add(time.Hour)
	big := w.granted(w.accept(large))
	for range 5 {
		a := w.granted(w.accept(w.ask()))
		w.pass(20 * time.Second)
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now, Usage: Usage{OutputTokens: 10}})
		w.c.End(w.now, a.ticket, Completed, "")
	}
	require.InEpsilon(t, before, w.c.mu.fleet[0].Speed("m").PromptTokensPerS(), 0.01)
	w.c.Finish(w.now, big, AttemptResult{Kind: ResultClientGone})
}
