package admission

import (
	"fmt"
	"time"
)

// Arithmetic is what a refusal by forecast was reckoned from (R4, R14). Times
// are in seconds, work is in slot-seconds.
type Arithmetic struct {
	Replicas    int     `json:"replicas"` // that could serve it
	Slots       int     `json:"slots"`    // of theirs
	Running     int     `json:"running"`  // requests on them
	Ahead       int     `json:"ahead"`    // requests that wait and go before it
	AheadWork   float64 `json:"ahead_work"`
	UrgentSlots float64 `json:"urgent_slots"` // kept busy by more urgent classes lately
	WaitS       float64 `json:"wait_s"`       // as expected
	Margin      float64 `json:"margin"`       // factor on it, learned so that the share Keep of promises is kept
	Keep        float64 `json:"keep"`
	Booked      int     `json:"booked"`       // places of others who were refused before
	ReturnShare float64 `json:"return_share"` // of them that are expected to come
	BookedS     float64 `json:"booked_s"`     // what they add to the wait, with what is kept in reserve for them
	LoadS       float64 `json:"load_s"`
	PromptS     float64 `json:"prompt_s"`
	AnswerS     float64 `json:"answer_s"` // where the deadline bounds the whole answer
	SlackS      float64 `json:"slack_s"`  // what these may take longer
	TotalS      float64 `json:"total_s"`
	LeftS       float64 `json:"left_s"` // until the deadline
	RetryAfterS float64 `json:"retry_after_s"`
	Place       string  `json:"place"` // booked, kept (it came back early), none

	early   time.Duration // how much sooner than told it came back
	expired bool          // it was accepted and turned away later
	dared   bool          // it was accepted so that it is found out how long it takes
}

// The values of Arithmetic.Place.
const (
	placeBooked = "booked"
	placeKept   = "kept"
	placeNone   = "none"
)

// reckon notes how a refusal was reckoned.
func (c *core) reckon(now time.Time, t *Ticket, f *forecast, r *Refusal) *Arithmetic {
	a := use(&c.supplies.arithmetic)
	*a = Arithmetic{
		Ahead: f.ahead, AheadWork: f.work, UrgentSlots: f.urgent, WaitS: f.mean.Seconds(),
		Margin: t.class.margin.factor(), Keep: c.cfg.Keep, Booked: f.booked, ReturnShare: f.share, BookedS: f.before.Seconds(),
		LoadS: f.load.Seconds(), PromptS: f.prompt.Seconds(), SlackS: f.slack.Seconds(),
		TotalS: f.total().Seconds(), LeftS: t.ask.Deadline.Sub(now).Seconds(), Place: placeNone,
	}
	if f.whole {
		a.AnswerS = f.rest.Seconds()
	}
	rows := c.rows(now, t.lane)
	a.Replicas = len(rows)
	for i := range rows {
		a.Slots += int(rows[i].total)
		a.Running += int(rows[i].runs)
	}
	if r != nil {
		a.RetryAfterS = r.RetryAfter.Seconds()
		a.expired, a.dared = r.Reason == ReasonDeadlineExpired, t.dares
		if !r.NoRetry {
			a.Place = placeBooked
		}
	}
	return a
}

// Explain says the decision's arithmetic in words, where it has any.
func (d *Decision) Explain() {
	if a := d.Arithmetic; a != nil {
		d.Explanation = a.words(d.WouldRefuse)
	}
}

func (a *Arithmetic) words(observed bool) []string {
	var w []string
	say := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	switch {
	case a.expired && a.dared:
		say("It had been accepted to find out how long it takes by now, but no slot was free for that in time; this is how it would fare if it were asked anew.")
	case a.expired:
		say("It had been accepted, but what went before it took longer than forecast; this is how it would fare if it were asked anew.")
	}
	say("%s with %s could serve it; %s.", several(a.Replicas, "replica"), several(a.Slots, "slot"), ran(a.Running))
	if a.Ahead == 0 {
		say("Nobody who waited went before it.")
	} else {
		say("%s that waited went before it, %.1f slot-seconds of work.", several(a.Ahead, "request"), a.AheadWork)
	}
	if a.UrgentSlots >= 0.05 {
		say("More urgent classes have lately kept %.1f slots busy, which are not counted on.", a.UrgentSlots)
	}
	if a.WaitS > 0 {
		say("A slot was expected for it in %s; times %.2f, the margin that keeps %.0f%% of the promises, that is %s.",
			span(a.WaitS), a.Margin, 100*a.Keep, span(a.WaitS*a.Margin))
	}
	if a.BookedS > 0 {
		say("%s told when to come back before it, and about %.0f%% are expected to: so that there is room for them, another %s counts.",
			passive(a.Booked, "client"), 100*a.ReturnShare, span(a.BookedS))
	}
	if a.LoadS > 0 {
		say("Its model had to be loaded first: %s.", span(a.LoadS))
	}
	say("Its prompt takes %s%s; with %s that it may take longer the sum is %s.", span(a.PromptS), a.answer(), span(a.SlackS), span(a.TotalS))
	say("Its deadline was %s away.", span(a.LeftS))
	if observed {
		say("It was not refused, since admission only observes.")
		return w
	}
	switch a.Place {
	case placeBooked:
		say("A place is booked for it: in %s it will be accepted, as far as can be foreseen.", span(a.RetryAfterS))
	case placeKept:
		say("It came back %s before the time it was told; its place then is kept.", span(a.early.Seconds()))
	default:
		say("No place is booked for it: %s.", a.whyNone())
	}
	return w
}

func (a *Arithmetic) answer() string {
	if a.AnswerS == 0 {
		return ""
	}
	return fmt.Sprintf(" and its answer %s", span(a.AnswerS))
}

func (a *Arithmetic) whyNone() string {
	switch own := a.LoadS + a.PromptS + a.AnswerS + a.SlackS; {
	case own > a.LeftS:
		return fmt.Sprintf("even on an idle replica it takes %s", span(own))
	case a.RetryAfterS > bookSpan.Seconds():
		return fmt.Sprintf("it would be accepted in %s, and clients that wait for Retry-After do so for a minute at most", span(a.RetryAfterS))
	}
	return "there are too many already"
}

func span(s float64) string { return round(seconds(s)).String() }

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func passive(n int, who string) string {
	if n == 1 {
		return "1 " + who + " was"
	}
	return several(n, who) + " were"
}

func ran(n int) string {
	switch n {
	case 0:
		return "nothing ran on them"
	case 1:
		return "1 request ran on them"
	}
	return fmt.Sprintf("%d requests ran on them", n)
}
