package bench

import (
	"slices"

	"switchyard/replica"
	"switchyard/simserver/model"
)

// cardClock is the highest SM clock of the cards under simulated servers, in MHz.
const cardClock = 2000

// readGPU hands on what the card under the server would say. `slow` is a clock
// that heat holds down; under a server that fell to its CPU the card does nothing
// (Ollama says more, in its list of models). The card of a server without faults
// has nothing to tell.
func (p *probed) readGPU() {
	s, now := p.s, p.g.w.now
	if p.g.blind || !s.faulty {
		return
	}
	card := replica.GPU{ID: "0", Utilization: new(0.0), SMClockMHz: cardClock, MaxSMClockMHz: cardClock}
	fault := s.model.Fault(now)
	working := func(v model.ModelView) bool { return v.Running > 0 }
	if fault.Kind != model.FaultCPU && slices.ContainsFunc(s.model.Models(now), working) {
		card.Utilization = new(1.0)
	}
	if fault.Kind == model.FaultSlow && (fault.Rate == 0 || fault.Rate == 1) && fault.Factor > 1 {
		card.SMClockMHz, card.Throttle = cardClock/fault.Factor, replica.ThrottleHeat
	}
	p.g.ctl.ReportGPU(now, s.name, replica.GPUFacts{
		At: now, Source: replica.SourceNVML, Note: "simulated", GPUs: []replica.GPU{card},
	})
}
