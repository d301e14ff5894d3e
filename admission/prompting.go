package admission

import (
	"slices"
	"time"

	"switchyard/replica"
)

// keepsOrder reports whether an engine processes prompts one after another, as
// they come: of vLLM that is known. llama.cpp and Ollama fill their batches by
// slots, so a newcomer may come first; of other servers, many machines even,
// nothing is known.
func keepsOrder(r *replica.Replica) bool { return r.Engine() == replica.EngineVLLM }

// prompts notes an attempt that has been sent.
func (r *run) prompts() {
	if l := &r.a.lease; r.first > 0 && keepsOrder(l.rep) {
		l.prompting = true
		l.pool.Prompting.Until = max(l.pool.Prompting.Until, r.first)
	}
}

// prompted notes that an attempt's prompt is no longer being processed.
func (l *lease) prompted() {
	if !l.prompting {
		return
	}
	l.prompting = false
	until := &l.pool.Prompting.Until
	*until = 0
	for i := range l.runs.list {
		if r := &l.runs.list[i]; r.a.lease.prompting {
			*until = max(*until, r.first)
		}
	}
}

// prompting reports whether any replica has prompts ahead of a newcomer.
func (c *core) prompting(now time.Time, members []*member) bool {
	at := now.Sub(c.began)
	return slices.ContainsFunc(members, func(m *member) bool { return m.pool.Prompting.Until > at })
}

// between is how many tokens of prompts that were sent before are still to be
// processed, if each comes when it was expected to.
func (rs *runs) between(at time.Duration) (tokens int) {
	for i := range rs.list {
		if r := &rs.list[i]; r.a.lease.prompting && r.prompt > 0 {
			tokens += int(float64(r.tokens) * min(1, max(0, float64(r.first-at)/float64(r.prompt))))
		}
	}
	return tokens
}

// burden is how much more than itself the processing of a prompt counts in the
// choice of a replica where all are at prompts; where some are, in proportion. It
// holds up whoever comes before the engine is idle again, and that is the more
// the busier the fleet is. Without it a request goes where its own first token is
// a little sooner, is computed anew there, and makes a busy fleet busier still.
const burden = 4
