package admission

import (
	"cmp"
	"slices"
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// snapshot copies the whole state.
func (c *core) snapshot(now time.Time) *Snapshot {
	s := &Snapshot{
		At: now, Draining: c.stopping, UptimeS: now.Sub(c.began).Seconds(), Version: c.cfg.Version,
		Totals: c.totals, Promises: c.promise,
	}
	for _, b := range c.classes {
		s.Classes = append(s.Classes, c.classState(now, b))
	}
	for _, r := range c.fleet {
		s.Replicas = append(s.Replicas, replicaState(now, r))
		s.Serving = s.Serving || r.Available(now) && !r.Facts.Loading
	}
	s.Serving = s.Serving && !c.stopping
	return s
}

func (c *core) classState(now time.Time, b *classBook) ClassState {
	cs := ClassState{
		Name: b.name, Queued: c.q.ClassLen(b.index), QueuedBytes: c.q.ClassBytes(b.index), Running: b.running,
		Arrived: b.arrived, Kept: b.kept, Broken: b.broken, WouldRefuse: b.observed,
	}
	if b.returns.first.unit > 0 {
		cs.ReturnShare = b.returns.first.share(0)
	}
	for _, bk := range c.bookings.books {
		if bk.class == b {
			cs.Booked += bk.n
		}
	}
	for _, aside := range [...]map[*Ticket]struct{}{c.bound, c.waitlist} {
		for t := range aside {
			if t.class == b {
				cs.Queued++
				cs.QueuedBytes += t.ask.Bytes
			}
		}
	}
	if b.latest == (lane{}) {
		return cs // nothing was asked for yet, so nobody waits
	}
	probe := &Ticket{class: b, key: b.latestKey, lane: b.latest, ask: Ask{Width: 1, Deadline: now.Add(c.cfg.Classes[b.index].Deadline)}}
	probe.item.Seq = c.seq + 1
	f := c.forecast(now, probe)
	cs.ForecastWaitS = f.wait.Seconds()
	return cs
}

func replicaState(now time.Time, r *replica.Replica) ReplicaState {
	v := r.Breaker.View(now)
	rs := ReplicaState{
		Name: r.Config.Name, URL: r.Config.URL, Engine: string(r.Engine()), EngineVersion: r.Facts.Version,
		Up: r.Up, Loading: r.Facts.Loading, Err: r.Err, Draining: r.Draining, Tier: r.Config.Tier,
		Breaker:  BreakerState{State: v.State.String(), Allowance: v.Share, Reason: v.Reason},
		HeldOffS: max(0, r.HoldUntil.Sub(now).Seconds()), AnyModel: r.Facts.AnyModel, ModelsRead: r.Facts.ModelsRead,
		PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, OutputTokens: r.OutputTokens,
		Slow: r.Slow, Misconfigured: r.Flagged, Attempts: r.Attempts, AttemptsFailed: r.Failed, ConsecutiveFailed: v.Consecutive,
	}
	if g := r.GPU; g.Source != "" {
		rs.GPU = &g
	}
	if v.State == breaker.Open {
		rs.Breaker.OpenS = max(0, now.Sub(v.Opened).Seconds())
		rs.Breaker.NextTrialS = max(0, v.NextTrial.Sub(now).Seconds())
	}
	r.Speeds(func(_ string, s *replica.Speed) {
		rs.PromptTokensPerS = max(rs.PromptTokensPerS, s.PromptTokensPerS())
		rs.DecodeTokensPerS = max(rs.DecodeTokensPerS, s.DecodeTokensPerS())
	})
	rs.Models, rs.Slots = modelStates(r)
	return rs
}

// busyByClass tells whose work holds a replica's busy slots.
func (c *core) busyByClass(r *replica.Replica) []int {
	n := make([]int, len(c.classes))
	r.Pools(func(_ string, p *replica.Slots) {
		if rs := c.running[p]; rs != nil {
			for i := range rs.list {
				n[rs.list[i].a.ticket.class.index] += rs.list[i].width
			}
		}
	})
	return n
}

// modelStates lists a replica's models, and sums its ledgers: where slots are
// per model, those of the models it has.
func modelStates(r *replica.Replica) ([]ModelState, SlotState) {
	models := []ModelState{}
	sum := SlotState{}
	counted := map[*replica.Slots]bool{} // several names may share one
	if !r.PerModel() {
		sum = slotState(r.Pool(""))
	}
	for _, m := range r.Facts.Models {
		ms := ModelState{Name: m.Name, Resident: m.Resident, Context: r.ContextOf(m.Name), OnCPU: m.OnCPU}
		if r.PerModel() {
			p := r.Pool(m.Name)
			s := slotState(p)
			ms.Slots = &s
			if !counted[p] {
				counted[p] = true
				sum.add(s)
			}
		}
		models = append(models, ms)
	}
	if r.PerModel() && len(models) == 0 {
		r.Pools(func(_ string, p *replica.Slots) { sum.add(slotState(p)) })
	}
	slices.SortFunc(models, func(a, b ModelState) int { return cmp.Compare(a.Name, b.Name) })
	return models, sum
}

func slotState(p *replica.Slots) SlotState {
	return SlotState{Total: p.Total, Free: p.Free(), Busy: p.Busy, Zombie: p.Zombie, Foreign: p.Foreign}
}

func (s *SlotState) add(o SlotState) {
	s.Total += o.Total
	s.Free += o.Free
	s.Busy += o.Busy
	s.Zombie += o.Zombie
	s.Foreign += o.Foreign
}
