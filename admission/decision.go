package admission

import (
	"time"
)

// Decision is the record of one request: what was forecast, considered,
// chosen, and how it ended. Its JSON names are the interface.
type Decision struct {
	ID          string          `json:"id"`
	Time        time.Time       `json:"time"`
	Class       string          `json:"class"`
	Key         string          `json:"key"`
	Model       string          `json:"model"`
	Outcome     string          `json:"outcome"`
	Reason      Reason          `json:"reason"`
	DeadlineS   float64         `json:"deadline_s"`
	ForecastS   float64         `json:"forecast_s"`
	QueueMs     float64         `json:"queue_ms"`
	Attempts    []AttemptNote   `json:"attempts"`
	Candidates  []CandidateNote `json:"candidates"`
	RetryAfterS float64         `json:"retry_after_s"`
	TotalMs     float64         `json:"total_ms"` // from the end of the headers to the end

	WouldRefuse bool  `json:"would_refuse,omitempty"` // admission.mode: observe
	InTime      *bool `json:"in_time,omitempty"`      // with WouldRefuse: whether its deadline was met; nil: nobody knows, it left

	Arithmetic  *Arithmetic `json:"arithmetic,omitempty"`  // of a refusal by forecast
	Explanation []string    `json:"explanation,omitempty"` // the same in words; Explain writes it
}

// AttemptNote is one attempt in a decision.
type AttemptNote struct {
	Replica      string  `json:"replica"`
	Result       string  `json:"result"`
	Ms           float64 `json:"ms"`
	BegunMs      float64 `json:"begun_ms"`       // from the end of the request's headers, as FirstTokenMs
	FirstTokenMs float64 `json:"first_token_ms"` // 0: none came
	PromptTokens int     `json:"prompt_tokens"`  // 0: its answer did not say
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`
}

// CandidateNote is one replica that was considered.
type CandidateNote struct {
	Replica      string  `json:"replica"`
	ForecastS    float64 `json:"forecast_s"`
	CachedTokens int     `json:"cached_tokens"`
}

// maxCandidates bounds what a decision keeps of a large fleet.
const maxCandidates = 16

// decided makes the record at the end of a request.
func (t *Ticket) decided(now time.Time, class string, o Outcome, r Reason) Decision {
	d := Decision{
		ID: t.id, Time: now, Class: class, Key: t.key, Model: t.ask.Public, Outcome: o.String(), Reason: r,
		ForecastS: t.record.forecastS, QueueMs: milliseconds(t.queued), TotalMs: milliseconds(now.Sub(t.at)),
		Attempts: t.record.attempts, Candidates: t.record.candidates,
		RetryAfterS: t.record.retryAfterS, WouldRefuse: t.record.wouldRefuse, InTime: t.record.inTime,
		Arithmetic: t.record.arithmetic,
	}
	if d.Model == "" {
		d.Model = t.lane.model
	}
	if !t.ask.Deadline.IsZero() {
		d.DeadlineS = t.ask.Deadline.Sub(t.at).Seconds()
	}
	if d.Attempts == nil {
		d.Attempts = []AttemptNote{} // never null in JSON
	}
	if d.Candidates == nil {
		d.Candidates = []CandidateNote{}
	}
	return d
}

func attemptNote(now time.Time, a *Assignment, r AttemptResult, label string) AttemptNote {
	n := AttemptNote{
		Replica: a.Replica, Result: label, Ms: milliseconds(now.Sub(a.lease.begun)), BegunMs: milliseconds(a.lease.begun.Sub(a.ticket.at)),
		PromptTokens: r.Usage.PromptTokens, CachedTokens: r.Usage.CachedTokens, OutputTokens: r.Usage.OutputTokens,
	}
	if !r.FirstTokenAt.IsZero() {
		n.FirstTokenMs = milliseconds(r.FirstTokenAt.Sub(a.ticket.at))
	}
	return n
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
