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

// plainly is the choice among replicas without rows: it asks each replica for all
// that matters, every time, and passes over the fleet until it knows who is best.
type plainly struct {
	*core
	now     time.Time
	t       *Ticket
	members []*member
}

type plainCandidate struct {
	m               *member
	own, work, cost time.Duration
	tokens          int
	known           bool
}

func (p *plainly) load(m *member) float64 {
	return float64(m.pool.Held()+m.pool.Foreign) / float64(max(1, m.pool.Total))
}

func (p *plainly) candidates() (all []plainCandidate) {
	at := p.now.Sub(p.began)
	pressed := 0.0
	for i := range p.members {
		m := p.members[(p.turn+i)%len(p.members)]
		if m.pool.Prompting.Until > at {
			pressed++
		}
		r := m.rep
		outranked := false
		for _, o := range p.members {
			if p.roomOn(p.now, o) && !p.loadsTooLong(p.now, o, p.t) && (o.rep.Config.Tier < r.Config.Tier || o.rep.Config.Tier == r.Config.Tier && o.rep.Flagged == "" && r.Flagged != "") {
				outranked = true
			}
		}
		if outranked || !p.roomOn(p.now, m) || p.loadsTooLong(p.now, m, p.t) {
			continue
		}
		x := plainCandidate{m: m, tokens: uncached(p.t, p.usableOn(m))}
		x.own = m.loading(at, p.t.lane.model) + m.pool.Prompting.Ahead(at)
		x.work, x.known = m.speed.FirstToken(x.tokens)
		x.own += x.work
		all = append(all, x)
	}
	pace := float64(unknownPromptPerToken)
	for i, x := range all {
		if q := float64(x.own) / float64(max(x.tokens, 1)); x.known && (q < pace || i == 0) {
			pace = q
		}
	}
	for i := range all {
		x := &all[i]
		if !x.known {
			x.work = time.Duration(pace * float64(x.tokens))
			x.own += x.work
		}
		x.cost = x.own + time.Duration(burden*pressed/float64(len(p.members))*float64(x.work))
	}
	return all
}

// choose is the replica, and the busy one that is better.
func (p *plainly) choose() (best, instead *member) {
	p.look(p.t)
	all := p.candidates()
	var least plainCandidate
	for i, x := range all {
		if i == 0 || x.cost < least.cost {
			least = x
		}
	}
	var chosen plainCandidate
	for _, x := range all {
		switch {
		case x.cost > least.cost+alike(least.own):
		case p.t.ask.Hint && p.usableOn(x.m) > 0:
			return x.m, nil
		case chosen.m == nil || p.load(x.m) < p.load(chosen.m):
			chosen = x
		}
	}
	if chosen.m == nil {
		return nil, nil
	}
	return chosen.m, p.better(chosen)
}

func (p *plainly) better(free plainCandidate) (best *member) {
	if p.found == 0 || p.t.ask.Width > 1 || p.usableOn(free.m) >= p.found {
		return nil
	}
	held, total := 0, 0
	for _, m := range p.members {
		held += m.pool.Held() + m.pool.Foreign
		total += m.pool.Total
	}
	worth := 1 + max(0, 2*min(1, float64(held)/float64(max(total, 1)))-1)
	var soonest time.Duration
	for _, m := range p.members {
		if p.cachedOn(m) == 0 || !p.worthy(p.now, m, free.m) {
			continue
		}
		wait, ok := p.nextEnd(p.now, m)
		e := p.estimateBehind(p.now, m, p.t, p.cachedOn(m), m.pool.Prompting.Ahead(p.now.Add(wait).Sub(p.began)))
		own := e.load + e.prompt
		saves := time.Duration(worth * float64(free.own-own))
		if !ok || !e.known || saves <= alike(own) || wait+alike(wait) >= saves || best != nil && wait+own >= soonest {
			continue
		}
		if p.now.Add(wait).Before(p.patience(p.now, p.t, candidate{m: free.m, own: free.own}, saves)) {
			best, soonest = m, wait+own
		}
	}
	return best
}

// weighs checks that a request is weighed as if each replica were asked for all that
// matters.
func (p *plainly) weighs(rt *rapid.T) {
	best, members := p.weigh(p.now, p.t)
	var least estimate
	own, work := time.Duration(0), 0.0
	for i, m := range members {
		ask := func(cached int) estimate {
			e := p.estimateBehind(p.now, m, p.t, cached, m.pool.Prompting.Usual)
			d := time.Duration(m.speed.Doubt())
			e.prompt, e.rest, e.slack = e.prompt/d, e.rest/d, e.slack/d
			return e
		}
		e := ask(p.cachedOn(m))
		if i == 0 || e.own() < least.own() {
			least = e
		}
		if o := e.load + e.prompt + e.slack; i == 0 || o < own {
			own = o
		}
		e = ask(p.likely(p.found))
		work += (e.prompt + e.rest).Seconds() * float64(need(m.pool, p.t)) / float64(len(members))
	}
	require.Equal(rt, least, best)
	require.Equal(rt, own, p.t.own)
	require.InDelta(rt, work, p.t.work, 1e-9*(1+work))
}

// choosesPlainly checks that a request would be sent where it would without rows, and that
// the rows that are kept are what the replicas are.
func (m *machine) choosesPlainly(rt *rapid.T, t *Ticket) {
	c := &m.c.mu.core
	members := c.usable(m.now, t.lane)
	rows := c.rows(m.now, t.lane)
	require.Len(rt, rows, len(members))
	for i, r := range rows {
		is := members[i].row(m.now, t.lane.model)
		if !r.steady { // then it is asked
			r.room, r.steady = is.room, is.steady
		}
		require.Equal(rt, is, r, "%s", members[i].rep.Config.Name)
	}
	p := plainly{core: c, now: m.now, t: t, members: members}
	p.weighs(rt)
	require.Equal(rt, slices.ContainsFunc(members, func(m *member) bool { return c.roomOn(p.now, m) }), c.anyRoom(m.now, t.lane))
	require.Equal(rt, slices.ContainsFunc(members, func(m *member) bool {
		return m.rep.FreeIn(p.now, m.pool) >= need(m.pool, t) && !c.loadsTooLong(p.now, m, t)
	}), c.startsAtOnce(m.now, t, members))
	best, instead := p.choose()
	turn := c.turn
	got, b := c.choose(m.now, t)
	c.turn = turn
	require.Same(rt, best, got)
	require.Same(rt, instead, b.m)
}

// asks are tickets that look at the fleet as requests of all kinds would.
func (m *machine) asks() (ts []*Ticket) {
	for i, model := range []string{"m", "n"} {
		for _, turns := range []int{0, 1, 5} {
			t := &Ticket{key: "k", class: m.c.mu.classes[0], ask: m.ask(), lane: lane{model: model, engines: "ollama,openai,vllm,llamacpp", tier: 9}}
			if turns > 0 {
				t.ask.Chain, t.ask.PromptTokens, t.ask.Hint = talk("x", turns), 1000*turns, turns == 1 && i == 1
			}
			ts = append(ts, t)
		}
	}
	return ts
}

func (m *machine) draw(rt *rapid.T) *replica.Replica {
	return m.c.mu.fleet[rapid.IntRange(0, len(m.c.mu.fleet)-1).Draw(rt, "replica")]
}

// R3, R6: what is kept of replicas side by side changes no choice, whatever has
// happened to them.
func TestR3R6RowsChangeNoChoice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var cfgs []replica.Config
		for i := range rapid.IntRange(2, 9).Draw(rt, "replicas") {
			r := rep(fmt.Sprint("r", i), rapid.IntRange(1, 4).Draw(rt, "slots"))
			r.Engine = rapid.SampledFrom([]replica.Engine{replica.EngineOpenAI, replica.EngineOllama, replica.EngineVLLM, replica.EngineLlamaCpp}).Draw(rt, "engine")
			r.Tier, r.PinSlots = rapid.IntRange(0, 1).Draw(rt, "tier"), rapid.Bool().Draw(rt, "pin")
			cfgs = append(cfgs, r)
		}
		cfg := testConfig(cfgs...)
		cfg.Affinity = true
		m := &machine{world: newWorld(t, cfg)}
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"arrive": func(rt *rapid.T) {
				n++
				ask := m.ask()
				ask.Models = []string{rapid.SampledFrom([]string{"m", "n"}).Draw(rt, "model")}
				ask.Engines = []replica.Engine{replica.EngineOllama, replica.EngineOpenAI, replica.EngineVLLM, replica.EngineLlamaCpp}
				ask.Width = rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(rt, "width")
				if turns := rapid.IntRange(0, 6).Draw(rt, "turns"); turns > 0 {
					ask.Chain, ask.PromptTokens = talk(rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "talk"), turns), 1000*turns
				}
				tk := m.c.Arrive(m.now, Arrival{ID: fmt.Sprint("r", n), Class: "standard", At: m.now})
				if ref := m.c.Admit(m.now, tk, ask); ref != nil {
					m.c.End(m.now, tk, Refused, ref.Reason)
					return
				}
				m.waiting = append(m.waiting, tk)
			},
			"first token": func(rt *rapid.T) {
				if len(m.running) > 0 {
					m.c.FirstToken(m.now, m.running[rapid.IntRange(0, len(m.running)-1).Draw(rt, "attempt")])
				}
			},
			"finish": func(rt *rapid.T) {
				if len(m.running) == 0 {
					return
				}
				a := drop(rt, &m.running, "attempt")
				r := AttemptResult{
					Kind:    rapid.SampledFrom([]ResultKind{ResultOK, ResultOK, ResultOK, ResultConnect, ResultStatus}).Draw(rt, "kind"),
					Status:  rapid.SampledFrom([]int{401, 429, 500, 503}).Draw(rt, "status"),
					Running: rapid.Bool().Draw(rt, "running"), FirstTokenAt: m.now,
					Usage: Usage{PromptTokens: 1000, OutputTokens: 10, Prompt: time.Second, Decode: time.Second},
				}
				next := m.c.Finish(m.now, a, r)
				if r.Running {
					m.zombies = append(m.zombies, a)
				}
				if next.Action == ActWait {
					m.waiting = append(m.waiting, a.ticket)
					return
				}
				m.c.End(m.now, a.ticket, Failed, "")
			},
			"release": func(rt *rapid.T) {
				if len(m.zombies) > 0 {
					m.c.Released(m.now, drop(rt, &m.zombies, "zombie"), rapid.Bool().Draw(rt, "responsive"))
				}
			},
			"probe": func(rt *rapid.T) {
				f := facts("m", "n")
				r := m.draw(rt)
				f.At, f.Engine, f.Up, f.Loading = m.now, r.Engine(), rapid.Bool().Draw(rt, "up"), rapid.Bool().Draw(rt, "loading")
				f.Models[0].Resident, f.Models[1].Resident = rapid.Bool().Draw(rt, "m in memory"), rapid.Bool().Draw(rt, "n in memory")
				f.InHand = rapid.IntRange(-1, 4).Draw(rt, "in hand")
				m.c.Report(m.now, r.Config.Name, f)
			},
			"silent": func(rt *rapid.T) {
				if len(m.running) > 0 {
					m.c.MayMove(m.now, m.running[rapid.IntRange(0, len(m.running)-1).Draw(rt, "attempt")])
				}
			},
			"gpu": func(rt *rapid.T) {
				m.c.ReportGPU(m.now, m.draw(rt).Config.Name, replica.GPUFacts{
					Source: replica.SourceNVML, At: m.now,
					GPUs: []replica.GPU{{ID: "0", SMClockMHz: rapid.SampledFrom([]float64{300, 900, 1800}).Draw(rt, "clock"), MaxSMClockMHz: 1800, Throttle: replica.ThrottleHeat}},
				})
			},
			"drain": func(rt *rapid.T) {
				m.c.DrainReplica(m.now, m.draw(rt).Config.Name, rapid.Bool().Draw(rt, "on"))
			},
			"reload": func(rt *rapid.T) {
				for i := range cfg.Replicas {
					cfg.Replicas[i].Tier = rapid.IntRange(0, 1).Draw(rt, "tier")
				}
				m.c.Reconfigure(m.now, cfg)
			},
			"pass": func(rt *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond)
				m.c.Tick(m.now)
			},
			"": func(rt *rapid.T) {
				m.collect()
				for _, tk := range m.asks() {
					m.choosesPlainly(rt, tk)
				}
			},
		})
	})
}
