package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/affinity"
	"switchyard/replica"
)

// affine is a world with affinity on, whose replicas process 1,000 prompt tokens
// a second and hold a slot for two seconds after them.
func affine(t *testing.T, replicas ...replica.Config) *world {
	cfg := testConfig(replicas...)
	cfg.Affinity = true
	w := newWorld(t, cfg)
	for _, r := range w.c.mu.fleet {
		w.learn(r, "m", replica.Sample{
			PromptTokens: 100, Prompt: 100 * time.Millisecond, OutputTokens: 101, Decode: 2 * time.Second, Hold: 2100 * time.Millisecond,
		})
	}
	return w
}

// talk is the chain of the first n turns of a conversation, of 1,000 tokens each.
func talk(name string, n int) (chain []affinity.Part) {
	h := uint64(14695981039346656037)
	for i := range n {
		for _, c := range fmt.Sprint(name, i) {
			h = (h ^ uint64(c)) * 1099511628211
		}
		chain = append(chain, affinity.Part{Hash: h, Tokens: 1000})
	}
	return chain
}

// turn is a request with a chain, whose answer has 100 tokens.
func (w *world) turn(chain []affinity.Part) Ask {
	a := w.ask()
	a.Chain, a.PromptTokens, a.Deadline = chain, 1000*len(chain), w.now.Add(30*time.Second)
	return a
}

// first reports the first token of an attempt after d.
func (w *world) first(a *Assignment, d time.Duration) {
	w.pass(d)
	w.c.FirstToken(w.now, a)
}

// converse serves a turn to its end and gives the replica it went to.
func (w *world) converse(chain []affinity.Part) *Assignment {
	w.t.Helper()
	a := w.granted(w.accept(w.turn(chain)))
	w.done(a, chain, Usage{})
	return a
}

// done ends an attempt well, its answer saying what u says. It takes as long as
// was expected.
func (w *world) done(a *Assignment, chain []affinity.Part, u Usage) Decision {
	w.t.Helper()
	w.pass(time.Duration(1000*len(chain)-a.CachedTokens) * time.Millisecond)
	u.PromptTokens, u.OutputTokens = 1000*len(chain), 101
	w.c.FirstToken(w.now, a)
	at := w.now
	w.pass(2 * time.Second)
	w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: at, Usage: u})
	return w.c.End(w.now, a.ticket, Completed, "")
}

// R6: the next turn goes where the one before was, wherever there is room, and
// what was expected in the cache is said.
func TestR6TheNextTurnGoesBack(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2), rep("c", 2))
	home := map[string]string{}
	for n := range 4 {
		for _, name := range []string{"x", "y", "z"} {
			a := w.granted(w.accept(w.turn(talk(name, n+1))))
			if n == 0 {
				require.Equal(t, AffinityMiss, a.Affinity)
				home[name] = a.Replica
			} else {
				require.Equal(t, home[name], a.Replica)
				require.Equal(t, AffinityHit, a.Affinity)
				require.Equal(t, 1000*n, a.CachedTokens)
			}
			d := w.done(a, talk(name, n+1), Usage{CachedTokens: 1000 * n, CacheSaid: true})
			require.Len(t, d.Candidates, 3)
			for _, k := range d.Candidates {
				want := 0
				if k.Replica == home[name] {
					want = 1000 * n
				}
				require.Equal(t, want, k.CachedTokens)
				require.InDelta(t, float64(1000*(n+1)-want)/1000, k.ForecastS, 0.01, "cached tokens take no time")
			}
		}
	}
	require.Len(t, map[string]bool{home["x"]: true, home["y"]: true, home["z"]: true}, 3, "new ones spread")

	a := w.granted(w.accept(w.ask()))
	require.Equal(t, AffinityNone, a.Affinity, "nothing is known of its prompt")
}

func TestAffinitySwitchedOff(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2))
	off := w.c.mu.cfg
	off.Affinity = false
	w.converse(talk("x", 1))
	running := w.granted(w.accept(w.turn(talk("x", 2))))
	w.c.Reconfigure(w.now, off)
	w.done(running, talk("x", 2), Usage{CacheSaid: true})
	a := w.granted(w.accept(w.turn(talk("x", 3))))
	require.Equal(t, AffinityNone, a.Affinity)
	w.done(a, talk("x", 3), Usage{})

	on := off
	on.Affinity = true
	w.c.Reconfigure(w.now, on)
	require.Equal(t, AffinityMiss, w.converse(talk("x", 3)).Affinity, "nothing of before is known any more")
}

// R6, R15: what is known survives a reload, and goes with the replica.
func TestR6ReloadKeepsWhatIsCached(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2))
	home := w.converse(talk("x", 2)).Replica
	cfg := w.c.mu.cfg
	cfg.Replicas = append([]replica.Config{rep("c", 2)}, cfg.Replicas...)
	w.c.Reconfigure(w.now, cfg)
	w.report("c", facts("m"))
	a := w.converse(talk("x", 3))
	require.Equal(t, home, a.Replica)
	require.Equal(t, 2000, a.CachedTokens)

	for i := range cfg.Replicas {
		if cfg.Replicas[i].Name == home {
			cfg.Replicas = append(cfg.Replicas[:i:i], cfg.Replicas[i+1:]...)
			break
		}
	}
	w.c.Reconfigure(w.now, cfg)
	require.Equal(t, AffinityMiss, w.converse(talk("x", 4)).Affinity)
}

// R6: a restart empties a cache.
func TestR6RestartForgets(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2))
	home := w.converse(talk("x", 2)).Replica
	w.pass(time.Second)
	w.report(home, replica.Facts{Gone: true, Err: "refused"})
	w.report(home, facts("m"))
	require.Equal(t, AffinityMiss, w.granted(w.accept(w.turn(talk("x", 3)))).Affinity)
}

// full takes all of a replica's slots with work that ends in about d.
func (w *world) full(name string, n int, d time.Duration) (out []*Assignment) {
	w.t.Helper()
	for range n {
		ask := w.ask()
		ask.Pin, ask.PromptTokens, ask.MaxTokens = name, 1, 1+int(d.Seconds()*50)
		w.c.mu.output = map[outputKey]*lengths{}
		out = append(out, w.granted(w.accept(ask)))
	}
	return out
}

// R6, and R2's exception: a request waits for the busy replica that has its
// prompt while the first token would come sooner there, and others take the free
// slot meanwhile.
func TestR6WaitsWhereItsPromptIs(t *testing.T) {
	w := affine(t, rep("a", 1), rep("b", 1))
	home := w.converse(talk("x", 5)).Replica
	busy := w.full(home, 1, 2*time.Second)[0]
	tk := w.accept(w.turn(talk("x", 6))) // 6 s anywhere else, here 1 s after 2 s
	w.waits(tk)
	require.InDelta(t, 3, tk.record.forecastS, 0.01)
	for _, k := range tk.record.candidates {
		want := 6.0
		if k.Replica == home {
			want = 3
		}
		require.InDelta(t, want, k.ForecastS, 0.01)
	}
	require.Equal(t, 1, w.snap().Classes[1].Queued)

	other := w.granted(w.accept(w.ask()))
	require.NotEqual(t, home, other.Replica, "the slot that is free is for others")
	w.serve(other, time.Second)
	w.waits(tk)
	w.serve(busy, time.Second)
	a := w.granted(tk)
	require.Equal(t, home, a.Replica)
	require.Equal(t, 5000, a.CachedTokens)
	require.InDelta(t, 2, a.Queued.Seconds(), 0.01)
}

// R6: it does not wait where that would take longer.
func TestR6DoesNotWaitLongerThanItPays(t *testing.T) {
	for _, tt := range []struct {
		name     string
		turns    int
		runs     time.Duration
		deadline time.Duration
		waits    bool
	}{
		{"it pays", 5, 2 * time.Second, 30 * time.Second, true},
		{"too little is cached", 1, 2 * time.Second, 30 * time.Second, false},
		{"too long a wait", 5, 20 * time.Second, 30 * time.Second, false},
		{"should it not end in time, the other replica would be too late", 5, 2 * time.Second, 7 * time.Second, false},
	} {
		w := affine(t, rep("a", 1), rep("b", 1))
		home := w.converse(talk("x", tt.turns)).Replica
		w.full(home, 1, tt.runs)
		ask := w.turn(talk("x", tt.turns+1))
		ask.Deadline = w.now.Add(tt.deadline)
		tk := w.accept(ask)
		if tt.waits {
			w.waits(tk)
		} else {
			require.NotEqual(t, home, w.granted(tk).Replica, tt.name)
		}
	}
}

// R6: the wait is bounded: what takes longer than forecast is given up when the
// other replica would have been as soon, and not waited for again.
func TestR6TheWaitIsBounded(t *testing.T) {
	w := affine(t, rep("a", 1), rep("b", 1))
	home := w.converse(talk("x", 5)).Replica
	w.full(home, 1, 2*time.Second)
	tk := w.accept(w.turn(talk("x", 6)))
	w.pass(4900 * time.Millisecond) // five of six seconds are cached
	w.waits(tk)
	w.pass(200 * time.Millisecond)
	require.NotEqual(t, home, w.granted(tk).Replica)
	require.Empty(t, w.c.mu.waitlist)
}

// R6: those who wait for one replica know how many wait before them.
func TestR6TheLineAtOneReplicaIsCounted(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 4))
	ask := w.turn(talk("x", 5))
	ask.Pin = "a"
	w.done(w.granted(w.accept(ask)), talk("x", 5), Usage{})
	w.full("a", 1, 2*time.Second)
	w.full("a", 1, 4*time.Second)
	var waiting, elsewhere int
	for range 4 {
		tk := w.accept(w.turn(talk("x", 6)))
		select {
		case g := <-tk.C():
			require.Equal(t, "b", g.Assignment.Replica)
			elsewhere++
		default:
			waiting++
		}
	}
	require.Equal(t, 2, waiting, "after 2 and after 4 seconds")
	require.Equal(t, 2, elsewhere)
}

// R6: another replica that is as good and gets room is taken.
func TestR6TheFirstGoodReplicaIsTaken(t *testing.T) {
	w := affine(t, rep("a", 1), rep("b", 1), rep("c", 1))
	for _, name := range []string{"a", "b"} { // both have it
		ask := w.turn(talk("x", 5))
		ask.Pin = name
		w.done(w.granted(w.accept(ask)), talk("x", 5), Usage{})
	}
	w.full("a", 1, 2*time.Second)
	second := w.full("b", 1, 3*time.Second)[0]
	tk := w.accept(w.turn(talk("x", 6)))
	w.waits(tk)
	require.Equal(t, "a", tk.listed.at.rep.Config.Name)
	w.serve(second, time.Second)
	require.Equal(t, "b", w.granted(tk).Replica)
}

// R6: whatever happens to the replica or the request while it waits, nothing is
// lost and the books balance.
func TestR6WhatCanHappenToOneThatWaits(t *testing.T) {
	for name, happen := range map[string]func(w *world, tk *Ticket, home string, busy *Assignment){
		"its client leaves": func(w *world, tk *Ticket, _ string, _ *Assignment) {
			w.c.Leave(w.now, tk)
			w.c.End(w.now, tk, Cancelled, "")
		},
		"the replica is gone": func(w *world, tk *Ticket, home string, _ *Assignment) {
			w.report(home, replica.Facts{Gone: true})
			require.NotEqual(w.t, home, w.granted(tk).Replica)
		},
		"the replica is drained": func(w *world, tk *Ticket, home string, _ *Assignment) {
			w.c.DrainReplica(w.now, home, true)
			require.NotEqual(w.t, home, w.granted(tk).Replica)
		},
		"the replica is removed": func(w *world, tk *Ticket, home string, _ *Assignment) {
			cfg := w.c.mu.cfg
			cfg.Replicas = []replica.Config{rep(map[string]string{"a": "b", "b": "a"}[home], 1)}
			w.c.Reconfigure(w.now, cfg)
			require.NotEqual(w.t, home, w.granted(tk).Replica)
		},
		"its class is gone": func(w *world, tk *Ticket, home string, busy *Assignment) {
			cfg := w.c.mu.cfg
			cfg.Classes, cfg.DefaultClass = cfg.Classes[2:], "batch"
			w.c.Reconfigure(w.now, cfg)
			w.waits(tk)
			w.serve(busy, time.Second)
			require.Equal(w.t, home, w.granted(tk).Replica)
		},
		"affinity is switched off": func(w *world, tk *Ticket, home string, _ *Assignment) {
			cfg := w.c.mu.cfg
			cfg.Affinity = false
			w.c.Reconfigure(w.now, cfg)
			require.NotEqual(w.t, home, w.granted(tk).Replica)
		},
		"the gateway stops": func(w *world, tk *Ticket, home string, busy *Assignment) {
			w.c.Stop(w.now, time.Minute)
			w.serve(busy, time.Second)
			require.Equal(w.t, home, w.granted(tk).Replica)
		},
		"the gateway stops at once": func(w *world, tk *Ticket, _ string, _ *Assignment) {
			w.c.Stop(w.now, time.Millisecond)
			require.Equal(w.t, ReasonDraining, w.refused(tk).Reason)
		},
		"the attempt it waits for fails": func(w *world, tk *Ticket, home string, busy *Assignment) {
			w.c.Finish(w.now, busy, AttemptResult{Kind: ResultClientGone, Running: true})
			require.NotEqual(w.t, home, w.granted(tk).Replica, "nobody knows when a zombie ends")
			w.c.Released(w.now, busy, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := affine(t, rep("a", 1), rep("b", 1))
			home := w.converse(talk("x", 5)).Replica
			busy := w.full(home, 1, 2*time.Second)[0]
			tk := w.accept(w.turn(talk("x", 6)))
			w.waits(tk)
			require.Len(t, w.c.mu.waitlist, 1)
			happen(w, tk, home, busy)
			require.Empty(t, w.c.mu.waitlist)
			require.Empty(t, tk.C())
			for _, rs := range w.c.mu.running {
				require.Zero(t, rs.listed)
			}
			w.snap()
		})
	}
}

// R6: a hot prefix spreads by itself, and a shared system prompt pins nobody.
func TestR6HotPrefixesSpread(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2), rep("c", 2), rep("d", 2))
	served := map[string]int{}
	var running []*Assignment
	var waiting []*Ticket
	collect := func() {
		still := waiting[:0]
		for _, tk := range waiting {
			select {
			case g := <-tk.C():
				require.NotNil(t, g.Assignment)
				served[g.Assignment.Replica]++
				running = append(running, g.Assignment)
			default:
				still = append(still, tk)
			}
		}
		waiting = still
	}
	for i := range 400 { // three requests a second; the fleet serves four
		chain := append(talk("system prompt", 4), talk(fmt.Sprint("user", i), 1)...)
		waiting = append(waiting, w.accept(w.turn(chain)))
		collect()
		for range 33 {
			w.pass(10 * time.Millisecond)
			kept := running[:0]
			for _, a := range running {
				age := w.now.Sub(a.lease.begun)
				prompt := time.Duration(a.ticket.ask.PromptTokens-a.CachedTokens) * time.Millisecond / 10
				if age > prompt {
					w.c.FirstToken(w.now, a)
				}
				if age < prompt+2*time.Second {
					kept = append(kept, a)
					continue
				}
				at := w.now.Add(-2 * time.Second)
				w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: at, Usage: Usage{
					PromptTokens: 5000, CachedTokens: a.CachedTokens, CacheSaid: true, OutputTokens: 101, Prompt: at.Sub(a.lease.begun), Decode: 2 * time.Second,
				}})
				w.c.End(w.now, a.ticket, Completed, "")
			}
			running = kept
			collect()
		}
	}
	require.Len(t, served, 4)
	for name, n := range served {
		require.Greater(t, n, 60, name)
	}
}

// R6: requests with the same beginning that come while the first of them is
// being processed spread, for there is nothing to be found yet.
func TestR6ABurstOfOnePrefixSpreads(t *testing.T) {
	w := affine(t, rep("a", 4), rep("b", 4))
	went := map[string]int{}
	for range 4 {
		went[w.granted(w.accept(w.turn(talk("x", 4)))).Replica]++
	}
	require.Equal(t, map[string]int{"a": 2, "b": 2}, went)
}

// R6: an attempt that came to nothing leaves nothing in the cache, one whose
// client left after the first token does.
func TestR6WhatIsProcessedIsCached(t *testing.T) {
	for _, tt := range []struct {
		name   string
		result AttemptResult
		first  bool
		cached bool
	}{
		{"whole", AttemptResult{Kind: ResultOK}, false, true},
		{"the client left early", AttemptResult{Kind: ResultClientGone}, false, false},
		{"the client left after the first token", AttemptResult{Kind: ResultClientGone}, true, true},
		{"it broke after the first token", AttemptResult{Kind: ResultBroken, Committed: true}, true, true},
		{"connection refused", AttemptResult{Kind: ResultConnect, NothingSent: true}, false, false},
		{"an error", AttemptResult{Kind: ResultStatus, Status: 400}, false, false},
	} {
		w := affine(t, rep("a", 2))
		a := w.granted(w.accept(w.turn(talk("x", 2))))
		if tt.first {
			w.first(a, time.Second)
			tt.result.FirstTokenAt = w.now
		}
		w.c.Finish(w.now, a, tt.result)
		require.Equal(t, tt.cached, w.granted(w.accept(w.turn(talk("x", 3)))).CachedTokens > 0, tt.name)
	}
}

// R6: replicas that report less than was expected are believed to be smaller.
func TestR6ReportsCorrect(t *testing.T) {
	cfg := rep("a", 2)
	cfg.CacheTokens = 20_000
	w := affine(t, cfg)
	id := w.c.mu.fleet[0].Caches("m")
	for i := range 5 {
		w.converse(talk(fmt.Sprint("x", i), 4))
	}
	require.Equal(t, 4000, id.HeldNow(talk("x0", 4)))
	for range 8 {
		a := w.granted(w.accept(w.turn(talk("x4", 4))))
		require.NotZero(t, a.CachedTokens)
		w.done(a, talk("x4", 4), Usage{CacheSaid: true}) // 0 where thousands were expected
	}
	require.Zero(t, id.HeldNow(talk("x0", 4)))
	require.NotZero(t, id.HeldNow(talk("x4", 1)))

	w.done(w.granted(w.accept(w.turn(talk("y", 1)))), talk("y", 1), Usage{}) // says nothing
	require.NotZero(t, id.HeldNow(talk("x4", 1)))
}

// R6, R4: speeds are those of uncached tokens. Where an engine does not say how
// many were cached, only what is sure teaches one: a time as long as for all of
// them or, of those expected in the cache, none.
func TestR6SpeedsAreThoseOfUncachedTokens(t *testing.T) {
	for _, tt := range []struct {
		name   string
		usage  Usage
		prompt time.Duration
		perS   float64
	}{
		{"said", Usage{CachedTokens: 4000, CacheSaid: true}, time.Second, 1000},
		{"said to be none", Usage{CacheSaid: true}, 10 * time.Second, 500},
		{"unsaid, a hit by its time", Usage{}, 1200 * time.Millisecond, 980},
		{"unsaid, a miss by its time", Usage{}, 5 * time.Second, 1000},
		{"unsaid, neither", Usage{}, 3 * time.Second, 1000},
	} {
		w := affine(t, rep("a", 1))
		w.converse(talk("x", 4))
		w.c.mu.fleet[0].Speed("m").Learn(replica.Sample{PromptTokens: 1000, Prompt: time.Second})
		a := w.granted(w.accept(w.turn(talk("x", 5))))
		require.Equal(t, 4000, a.CachedTokens)
		for range 60 {
			u := tt.usage
			u.PromptTokens, u.Prompt = 5000, tt.prompt
			cached, sure := w.c.mu.cachedTokens(a, u)
			if sure {
				w.c.mu.fleet[0].Speed("m").Learn(replica.Sample{PromptTokens: 5000 - cached, Prompt: tt.prompt})
			}
			if tt.name != "said to be none" {
				break
			}
		}
		require.InEpsilon(t, tt.perS, w.c.mu.fleet[0].Speed("m").PromptTokensPerS(), 0.15, tt.name)
	}
}

// R4: of an engine that never says what it cached, a prompt takes what it takes,
// whatever was expected in the cache: who is turned away in time makes room for
// one who can still be served.
func TestR4AnEngineThatNeverSaysIsTimedByTheClock(t *testing.T) {
	w := affine(t, rep("a", 1))
	for i := range 100 {
		a := w.granted(w.accept(w.turn(talk("x", 2))))
		w.first(a, time.Duration(1200+300*((i+1)%3))*time.Millisecond)
		at := w.now
		w.pass(2 * time.Second)
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: at, Usage: Usage{OutputTokens: 101}})
		w.c.End(w.now, a.ticket, Completed, "")
	}
	a := w.granted(w.accept(w.turn(talk("x", 2))))
	require.Equal(t, 2000, a.CachedTokens)
	expected := a.lease.first.Sub(a.lease.begun)
	require.InEpsilon(t, 1.5, expected.Seconds(), 0.1)
	require.InEpsilon(t, 1.8, (expected + a.lease.rep.Speed("m").Late(expected)).Seconds(), 0.1, "nineteen in twenty come no later")
}

// R6, R4: a deadline that only a cached prompt can meet is promised where it is
// cached, and not elsewhere.
func TestR6PromisesCountOnTheCache(t *testing.T) {
	w := affine(t, rep("a", 1), rep("b", 1))
	home := w.converse(talk("x", 8)).Replica
	ask := w.turn(talk("x", 9))
	ask.Deadline = w.now.Add(3 * time.Second)
	require.Equal(t, home, w.granted(w.accept(ask)).Replica)

	tk := w.arrive()
	ask = w.turn(talk("y", 9))
	ask.Deadline = w.now.Add(3 * time.Second)
	require.Equal(t, ReasonDeadlineUnmeetable, w.c.Admit(w.now, tk, ask).Reason)
}

// R6: replicas that nothing is known of are tried, as if they were as fast as the
// fastest, and a cache on one that is known does not keep new work from them.
func TestR6UnknownReplicasAreTried(t *testing.T) {
	for _, perToken := range []time.Duration{10 * time.Microsecond, 10 * time.Millisecond} {
		cfg := testConfig(rep("a", 4), rep("b", 4), rep("c", 4))
		cfg.Affinity = true
		w := newWorld(t, cfg)
		went := map[string]bool{}
		for i := range 3 {
			a := w.granted(w.accept(w.turn(talk(fmt.Sprint("x", i), 1))))
			went[a.Replica] = true
			w.first(a, 1000*perToken)
			w.c.Finish(w.now, a, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now, Usage: Usage{PromptTokens: 1000, OutputTokens: 2}})
			w.c.End(w.now, a.ticket, Completed, "")
		}
		require.Len(t, went, 3, "%s a token", perToken)
		require.Equal(t, AffinityHit, w.granted(w.accept(w.turn(talk("x0", 2)))).Affinity)
	}
}

// R6: a session's id is a hint among replicas that are as good: it outweighs
// their load, and no difference in time.
func TestR6ASessionIsAHint(t *testing.T) {
	w := affine(t, rep("a", 2), rep("b", 2))
	ask := func() Ask {
		a := w.ask()
		a.Chain, a.Hint = []affinity.Part{{Hash: 77, Tokens: 1}}, true
		return a
	}
	a := w.granted(w.accept(ask()))
	w.done(a, nil, Usage{})
	w.full(a.Replica, 1, 2*time.Second)
	b := w.granted(w.accept(ask()))
	require.Equal(t, a.Replica, b.Replica)
	require.Equal(t, AffinityHit, b.Affinity)
	require.NotEqual(t, a.Replica, w.granted(w.accept(ask())).Replica, "nobody waits for it")
}
