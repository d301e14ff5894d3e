package admission

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/replica"
)

// machine drives a controller with random events and checks after each what
// must always hold: the books (R13), the slots (R1), no idle slot (R2).
type machine struct {
	*world
	waiting []*Ticket
	running []*Assignment
	zombies []*Assignment
}

// collect takes the grants that have been given and ends what was refused.
func (m *machine) collect() {
	still := m.waiting[:0]
	for _, t := range m.waiting {
		select {
		case g := <-t.C():
			if g.Assignment != nil {
				m.running = append(m.running, g.Assignment)
			} else {
				m.c.End(m.now, t, Refused, g.Refusal.Reason)
			}
		default:
			still = append(still, t)
		}
	}
	m.waiting = still
}

func (m *machine) check(rap *rapid.T) {
	m.collect()
	s := m.c.Snapshot(m.now)
	require.True(rap, s.Totals.Balanced(), "R13: %+v", s.Totals)
	require.EqualValues(rap, len(m.waiting), s.Totals.Queued)
	require.EqualValues(rap, len(m.running), s.Totals.Running)
	for _, r := range s.Replicas {
		require.LessOrEqual(rap, r.Slots.Busy+r.Slots.Zombie, max(r.Slots.Total, r.Slots.Busy+r.Slots.Zombie-r.Slots.Free), "R1")
		require.LessOrEqual(rap, r.Slots.Busy+r.Slots.Zombie, 4, "R1: %s", r.Name)
	}
	if len(m.c.mu.bound) > 0 {
		return // a debt is being paid
	}
	for _, t := range m.waiting {
		if p := &t.listed; p.at != nil { // R6: for the replica that has its prompt, and not for ever
			require.Zero(rap, p.at.rep.FreeIn(m.now, p.at.pool), "%s waits for %s, which has room", t.id, p.at.rep.Config.Name)
			require.True(rap, p.until.After(m.now))
			require.False(rap, p.until.After(p.first))
			continue
		}
		kept := slices.Clone(m.c.mu.usable(m.now, t.lane))
		rt := m.c.mu.route(t.lane)
		rt.look(m.now)
		require.Equal(rap, rt.usable, kept, "what is kept of the fleet is what it is")
		for _, r := range kept {
			require.Zero(rap, r.rep.FreeIn(m.now, r.pool), "R2: %s has room and %s waits", r.rep.Config.Name, t.id)
		}
	}
}

func drop[T any](rt *rapid.T, s *[]T, what string) T {
	i := rapid.IntRange(0, len(*s)-1).Draw(rt, what)
	x := (*s)[i]
	*s = append((*s)[:i], (*s)[i+1:]...)
	return x
}

func TestR1R2R13HoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig(rep("a", 1), rep("b", 2), rep("c", 4))
		cfg.Affinity = rapid.Bool().Draw(rt, "affinity")
		cfg.Replicas[1].Engine = rapid.SampledFrom([]replica.Engine{replica.EngineOpenAI, replica.EngineOllama}).Draw(rt, "engine")
		m := &machine{world: newWorld(t, cfg)}
		for _, r := range m.c.mu.fleet {
			r.Speed("m").Learn(replica.Sample{PromptTokens: 100, Prompt: 100 * time.Millisecond, OutputTokens: 101, Decode: 2 * time.Second, Hold: 2100 * time.Millisecond})
		}
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"arrive": func(rt *rapid.T) {
				n++
				ask := m.ask()
				ask.Class = rapid.SampledFrom([]string{"interactive", "standard", "batch"}).Draw(rt, "class")
				ask.Width = rapid.SampledFrom([]int{1, 1, 1, 2, 6}).Draw(rt, "width")
				ask.Deadline = m.now.Add(time.Duration(rapid.IntRange(1, 60).Draw(rt, "deadline")) * time.Second)
				ask.BodyHash = uint64(n % 7)
				if turns := rapid.IntRange(0, 9).Draw(rt, "turns"); turns > 0 {
					ask.Chain, ask.PromptTokens = talk(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "talk"), turns), 1000*turns
				}
				tk := m.c.Arrive(m.now, Arrival{ID: fmt.Sprint("r", n), Class: "standard", At: m.now})
				if ref := m.c.Admit(m.now, tk, ask); ref != nil {
					m.c.End(m.now, tk, Refused, ref.Reason)
					return
				}
				m.waiting = append(m.waiting, tk)
			},
			"leave": func(rt *rapid.T) {
				if len(m.waiting) == 0 {
					return
				}
				tk := drop(rt, &m.waiting, "ticket")
				m.c.Leave(m.now, tk)
				m.c.End(m.now, tk, Cancelled, "")
			},
			"finish": func(rt *rapid.T) {
				if len(m.running) == 0 {
					return
				}
				a := drop(rt, &m.running, "attempt")
				r := AttemptResult{
					Kind:       rapid.SampledFrom([]ResultKind{ResultOK, ResultOK, ResultConnect, ResultStatus, ResultNoToken, ResultEmpty, ResultBroken, ResultClientGone, ResultMoved}).Draw(rt, "kind"),
					Status:     rapid.SampledFrom([]int{500, 503, 429, 400, 404, 408}).Draw(rt, "status"),
					RetryAfter: time.Duration(rapid.IntRange(0, 5).Draw(rt, "after")) * time.Second,
				}
				r.Committed = r.Kind == ResultBroken
				r.Usage = Usage{PromptTokens: a.ticket.ask.PromptTokens, CachedTokens: rapid.IntRange(0, a.ticket.ask.PromptTokens).Draw(rt, "cached"), CacheSaid: rapid.Bool().Draw(rt, "said")}
				r.Running = r.Kind == ResultMoved || rapid.Bool().Draw(rt, "zombie") && r.Kind != ResultOK
				if r.Running {
					m.zombies = append(m.zombies, a)
				}
				if m.c.Finish(m.now, a, r).Action == ActWait {
					m.waiting = append(m.waiting, a.ticket)
					return
				}
				m.c.End(m.now, a.ticket, Failed, "")
			},
			"first token": func(rt *rapid.T) {
				if len(m.running) > 0 {
					m.c.FirstToken(m.now, rapid.SampledFrom(m.running).Draw(rt, "attempt"))
				}
			},
			"release": func(rt *rapid.T) {
				if len(m.zombies) > 0 {
					m.c.Released(m.now, drop(rt, &m.zombies, "zombie"), rapid.Bool().Draw(rt, "responsive"))
				}
			},
			"time": func(rt *rapid.T) {
				m.pass(time.Duration(rapid.IntRange(1, 8000).Draw(rt, "ms")) * time.Millisecond)
			},
			"probe": func(rt *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "replica")
				f := facts("m")
				f.Engine = m.c.mu.byName[name].Engine()
				if rapid.Float64Range(0, 1).Draw(rt, "luck") < 0.2 {
					f = replica.Facts{Gone: true, Err: "connection refused"}
				}
				m.report(name, f)
			},
			"drain": func(rt *rapid.T) {
				m.c.DrainReplica(m.now, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "replica"), rapid.Bool().Draw(rt, "on"))
			},
			"": m.check,
		})
	})
}

// TestR9ResultsOfOldAttemptsAreIgnored: those begun before the breaker opened.
func TestR9ResultsOfOldAttemptsAreIgnored(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 8), rep("b", 8)))
	var onA []*Assignment
	for range 12 {
		if a := w.granted(w.accept(w.ask())); a.Replica == "a" {
			onA = append(onA, a)
		}
	}
	require.GreaterOrEqual(t, len(onA), 6)
	for _, a := range onA[:3] {
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultBroken, Committed: true})
		w.c.End(w.now, a.ticket, Failed, ReasonUpstreamFailed)
	}
	require.Equal(t, "open", w.replica("a").Breaker.State)
	w.pass(5 * time.Second)
	for _, a := range onA[3:] {
		w.c.Finish(w.now, a, AttemptResult{Kind: ResultBroken, Committed: true})
		w.c.End(w.now, a.ticket, Failed, ReasonUpstreamFailed)
	}
	require.Equal(t, "half-open", w.replica("a").Breaker.State)
}
