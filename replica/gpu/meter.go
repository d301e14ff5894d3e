package gpu

import (
	"math"
	"time"

	"switchyard/replica"
)

// meter relates what a GPU takes to the output tokens made with it. Only time
// in which a replica on it had work of ours counts, so that an idle night does
// not make the next token dear; what others do on the GPU meanwhile counts, for
// nobody can tell it apart. Tokens are known when answers end, so the sums run
// over minutes, each weighing less the older it is.
type meter struct {
	at     time.Time
	energy *float64
	worked bool
	tokens int64 // of all its replicas so far

	joules, busy, made float64
	metered            bool // energy or power is given
}

const (
	meterSpan   = 2 * time.Minute // of working time, after which an amount weighs 1/e
	meterTokens = 100             // fewer say nothing
)

// take takes a reading in. tokens is what all replicas on the GPU have made so
// far, works whether one of them has work in hand.
func (m *meter) take(now time.Time, g *replica.GPU, tokens int64, works bool) {
	span := now.Sub(m.at).Seconds()
	made := float64(max(0, tokens-m.tokens))
	if first := m.at.IsZero(); !first && (works || m.worked || made > 0) {
		keep := math.Exp(-span / meterSpan.Seconds())
		m.joules, m.busy, m.made = m.joules*keep, m.busy*keep, m.made*keep+made
		switch {
		case g.EnergyJ != nil && m.energy != nil:
			m.joules += max(0, *g.EnergyJ-*m.energy)
			m.metered = true
		case g.PowerW != nil:
			m.joules += *g.PowerW * span
			m.metered = true
		}
		if g.Utilization != nil {
			m.busy += *g.Utilization * span
		}
	}
	m.at, m.energy, m.worked, m.tokens = now, g.EnergyJ, works, tokens
}

// per1k gives joules and seconds of full utilisation per 1,000 tokens; 0
// unknown.
func (m *meter) per1k() (joules, busy float64) {
	if m.made < meterTokens {
		return 0, 0
	}
	if m.metered {
		joules = 1000 * m.joules / m.made
	}
	return joules, 1000 * m.busy / m.made
}
