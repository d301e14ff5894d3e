package replica

import "time"

// Prompting is what an engine has to do before it comes to one more prompt. All
// prompts that it has been sent go through the same batches, so a free slot is
// not a free engine: who is sent a long prompt while three others are being
// processed has his first token after theirs. It is zero where that is not known of
// an engine.
type Prompting struct {
	Until time.Duration // when all that were sent are expected to be done, on the owner's clock
	Usual time.Duration // what was ahead of those sent lately, on average
}

// Ahead is how long the prompts that were sent before still take.
func (p *Prompting) Ahead(at time.Duration) time.Duration { return max(0, p.Until-at) }

// Met learns what is usually ahead.
func (p *Prompting) Met(ahead time.Duration) { p.Usual += (ahead - p.Usual) / 8 }
