package bench

import (
	"fmt"
	"slices"
	"time"

	"switchyard/admission"
)

// audit follows the books of a virtual gateway (R13): what ended how, counted
// once more.
type audit struct {
	own   admission.Totals
	looks int
	wrong []string
}

// auditEvery is how many requests end between two looks at the books.
const auditEvery = 4096

func (a *audit) ended(o admission.Outcome) {
	switch o {
	case admission.Completed:
		a.own.Completed++
	case admission.Refused:
		a.own.Refused++
	case admission.Failed:
		a.own.Failed++
	case admission.Cancelled:
		a.own.Cancelled++
	}
}

// look checks now and then that the books balance while requests are under way.
func (a *audit) look(c *admission.Controller, now time.Time) {
	if a.looks++; a.looks%auditEvery == 0 && len(a.wrong) == 0 {
		if t := c.Snapshot(now).Totals; !t.Balanced() {
			a.wrong = append(a.wrong, fmt.Sprintf("R13: the books do not balance after %d requests: %+v", a.looks, t))
		}
	}
}

// close checks the books of a trial that is over.
func (a *audit) close(s *admission.Snapshot) []string {
	return append(a.wrong, checkBooks(s, a.own)...)
}

// checkBooks compares the gateway's books at the end of a trial with what the
// clients have seen. Of own, Arrived is not looked at: it is the others' sum.
func checkBooks(s *admission.Snapshot, own admission.Totals) (wrong []string) {
	t := s.Totals
	if !t.Balanced() {
		wrong = append(wrong, fmt.Sprintf("R13: the books do not balance: %+v", t))
	}
	if t.Queued != 0 || t.Running != 0 {
		wrong = append(wrong, fmt.Sprintf("R13: %d requests are queued and %d run when all have ended", t.Queued, t.Running))
	}
	own.Arrived = own.Completed + own.Refused + own.Failed + own.Cancelled
	own.Queued, own.Running = t.Queued, t.Running
	if t != own {
		wrong = append(wrong, fmt.Sprintf("R13: the books say %+v, the clients saw %+v", t, own))
	}
	for _, r := range s.Replicas {
		if n := r.Slots.Busy + r.Slots.Zombie; n != 0 {
			wrong = append(wrong, fmt.Sprintf("R1: %d slots of %s are held when all requests have ended", n, r.Name))
		}
	}
	return wrong
}

// checkFleet compares what the replicas have counted with what the target has
// promised: no replica has had more in hand than its slots (R1), and nothing
// was computed for nobody unless an attempt was given up or a client left.
func checkFleet(t Target, trial *Trial) (wrong []string) {
	if t.Kind != Gateway && t.Kind != Oracle {
		return nil // only the gateway promises that
	}
	excused := slices.ContainsFunc(trial.Records, func(r Record) bool {
		atOnce := r.Code == string(admission.ReasonDeadlineUnmeetable) || r.Code == string(admission.ReasonQueueFull)
		return r.Attempts > 1 || r.Error != "" || r.Status/100 != 2 && !atOnce
	})
	for _, r := range trial.Replicas {
		st := r.Stats
		if t.Without != "slots" && st.MaxInHand > st.Slots {
			wrong = append(wrong, fmt.Sprintf("R1: %s has had %d requests in hand on %d slots", r.Replica, st.MaxInHand, st.Slots))
		}
		if st.TokensWasted > 0 && !excused {
			wrong = append(wrong, fmt.Sprintf("waste: %s has made %d tokens for nobody though no attempt was given up and no client left", r.Replica, st.TokensWasted))
		}
	}
	return wrong
}
