package probe

import "time"

// drowsy decides when an idle llama.cpp is not asked for /slots, so that it
// can fall asleep (--sleep-idle-seconds). Every answer of /slots restarts the
// server's idle time: asked every two seconds it would never sleep. Whether it
// was started with that option cannot be asked, so it is found out: an idle
// server is asked ever more rarely, until it has been seen asleep once. From
// then on it is left alone as soon as it is idle.
//
// None of this holds while the gateway has work there or waits for a word
// (look). What is missed is the beginning of foreign work on an idle server
// that the gateway is not using, a few seconds or minutes of it; a server that
// woke up without us is looked at, for somebody is using it.
type drowsy struct {
	sleeper   bool      // has been seen asleep
	asleep    bool      // was asleep when last seen
	working   bool      // had work in hand when last looked at, or was not looked at yet
	idleSince time.Time // first idle look in a row; zero: none
	gap       time.Duration
	nextLook  time.Time
}

const (
	idleLong  = 2 * time.Minute  // asked every round until it has been idle for this long
	firstGap  = 30 * time.Second // then first after this, then twice as long, …
	widestGap = 15 * time.Minute
)

// woke has the next rounds look: the server is new, or has something to do.
func (d *drowsy) woke() {
	*d = drowsy{sleeper: d.sleeper, working: true}
}

// slept notes that the server is asleep.
func (d *drowsy) slept() {
	*d = drowsy{sleeper: true, asleep: true}
}

// let reports whether the server, awake now, is to be left alone this round.
func (d *drowsy) let(now time.Time) bool {
	if d.asleep {
		d.woke()
	}
	switch {
	case d.working || d.idleSince.IsZero():
		return false
	case d.sleeper:
		return true
	case now.Sub(d.idleSince) < idleLong:
		return false
	}
	return now.Before(d.nextLook)
}

// looked takes in what a look at the slots found; inHand below 0: nothing.
func (d *drowsy) looked(now time.Time, inHand int) {
	if inHand != 0 {
		d.woke()
		return
	}
	d.working, d.asleep = false, false
	if d.idleSince.IsZero() {
		d.idleSince = now
	}
	if now.Sub(d.idleSince) >= idleLong {
		d.gap = min(max(firstGap, 2*d.gap), widestGap)
		d.nextLook = now.Add(d.gap)
	}
}
