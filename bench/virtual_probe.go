package bench

import (
	"time"

	"switchyard/replica"
	"switchyard/simserver/model"
)

// probed is what the gateway's probes know of a server.
type probed struct {
	alarm  alarm
	g      *gatewayFront
	s      *server
	models []replica.Model
	word   time.Time  // when a llama.cpp last said what it has in hand
	dead   []*attempt // zombies there
}

// watch begins to probe a server: once at the start, since no client is let in
// before the gateway has found its replicas, then every interval.
func (g *gatewayFront) watch(s *server) {
	p := &s.probed
	p.g, p.s, p.alarm.who = g, s, p
	p.readGPU()
	p.look()
	g.w.plan.set(&p.alarm, g.w.now.Add(time.Duration(g.w.random.Float64()*float64(g.cfg.ProbeEvery))))
}

// wake is the next round.
func (p *probed) wake() {
	w := p.g.w
	p.readGPU()
	if p.s.silent() {
		p.report(replica.Facts{At: w.now.Add(-p.g.times.Probe), Err: "no answer"})
	} else {
		p.look()
	}
	gap := p.g.cfg.ProbeEvery + time.Duration(w.random.Float64()*float64(p.g.cfg.ProbeEvery/10))
	if p.s.cfg.Kind == model.LlamaCpp {
		gap = max(gap, llamaGap) // it must be left alone for so long to notice who has left
	}
	w.plan.set(&p.alarm, w.now.Add(gap))
}

// llamaGap is the shortest silence between two rounds to a llama.cpp.
const llamaGap = 2 * time.Second

// silent reports whether the server answers nothing at all.
func (s *server) silent() bool {
	f := s.model.Fault(s.w.now)
	return f.Kind == model.FaultHang && (f.Rate == 0 || f.Rate == 1)
}

// look asks the server what a real probe would ask.
func (p *probed) look() {
	s, now := p.s, p.g.w.now
	fault := s.model.Fault(now)
	f := replica.Facts{At: now, Up: true, Engine: replica.Engine(s.cfg.Kind), InHand: -1, Waiting: -1, Progress: -1}
	all := fault.Rate == 0 || fault.Rate == 1
	switch {
	case fault.Kind == model.FaultCrash, fault.Kind == model.FaultRefuse, fault.Kind == model.FaultReset && all:
		p.report(replica.Facts{At: now, Gone: true, Err: "connection refused"})
		return
	case s.cfg.Kind != model.Ollama && s.model.Loading(now) && all:
		f.Loading = true
		if s.cfg.Kind == model.LlamaCpp {
			f.InHand, f.Waiting = 0, 0
		}
		p.report(f)
		return
	}
	views := s.model.Models(now)
	switch s.cfg.Kind {
	case model.LlamaCpp:
		p.llamaCpp(&f, views[0])
	case model.VLLM:
		st := s.model.Stats(now)
		f.InHand, f.Waiting, f.Progress = views[0].Running, views[0].Queued, st.PromptTokens+st.TokensGenerated
	}
	f.Models, f.ModelsRead = p.list(views, s.cfg.Kind == model.Ollama && fault.Kind == model.FaultCPU && !p.g.blind), true
	if s.cfg.Kind != model.Ollama {
		f.Context = s.cfg.Context
	}
	p.report(f)
}

// llamaCpp reads /slots, which is a result like any other to the engine.
func (p *probed) llamaCpp(f *replica.Facts, v model.ModelView) {
	s, now := p.s, p.g.w.now
	f.AnyModel, f.Slots, f.InHand = true, s.cfg.Slots, v.Running
	if v.Running == s.cfg.Slots {
		f.Waiting = v.Queued
	} else {
		f.Waiting = 0
	}
	st := s.model.Stats(now)
	f.Progress = st.PromptTokens + st.TokensGenerated
	for _, slot := range s.model.Slots(now, "") {
		if t := slot.Task; t != nil && t.Processed < t.Prompt {
			f.Progress += t.Processed
		}
	}
	s.model.Polled(now)
}

// list is the model list; it is made anew only when it has changed. onCPU is what
// Ollama's size_vram tells.
func (p *probed) list(views []model.ModelView, onCPU bool) []replica.Model {
	names := p.s.cfg.Models
	if p.s.cfg.Kind == model.Ollama {
		names = nil
		for _, v := range views {
			names = append(names, v.Name)
		}
	}
	same := len(p.models) == len(names)
	for i := range p.models {
		same = same && p.models[i].Resident == resident(views, i) && p.models[i].OnCPU == (onCPU && p.models[i].Resident)
	}
	if same {
		return p.models
	}
	p.models = make([]replica.Model, len(names))
	for i, name := range names {
		here := resident(views, i)
		p.models[i] = replica.Model{Name: name, Resident: here, Context: views[min(i, len(views)-1)].Context, OnCPU: onCPU && here}
	}
	return p.models
}

// resident reports whether a model is in memory; names beyond the models are
// further names of the first.
func resident(views []model.ModelView, i int) bool {
	if i >= len(views) {
		return views[0].Resident
	}
	return views[i].Resident
}

// report hands the findings over.
func (p *probed) report(f replica.Facts) {
	p.g.ctl.Report(p.g.w.now, p.s.name, f)
	switch {
	case f.Gone:
		p.g.heard(p.s, true)
	case f.Up && f.InHand >= 0 && p.s.cfg.Kind == model.LlamaCpp:
		p.word = f.At
		p.g.heard(p.s, false)
	}
	p.s.pump()
}
