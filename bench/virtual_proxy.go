package bench

import "switchyard/simserver/model"

// proxyFront is a plain proxy in a virtual run: it has no queue, no limits and
// no memory. It sends each request on at once and passes on what comes.
type proxyFront struct {
	w      *world
	choose func(*journey) int // the server's place in the fleet
	turn   int
}

func (p *proxyFront) arrive(j *journey) {
	a := &attempt{j: j, on: p.w.fleet[p.choose(j)]}
	j.rec.Replica, j.rec.Attempts = a.on.name, 1
	if rej := a.on.submit(a); rej != nil {
		if status := rejected(rej); status != 0 {
			j.end(status, "", "")
		} else {
			j.end(502, "", "the proxy could not reach the replica")
		}
		return
	}
	j.now = a
	a.on.open++
}

// newProxyFront sends each request to the server with the fewest connections, or
// to each in turn.
func newProxyFront(w *world, least bool) *proxyFront {
	p := &proxyFront{w: w}
	p.choose = func(*journey) int {
		at := pick(p.turn, least, len(w.fleet), func(i int) int { return w.fleet[i].open })
		p.turn++
		return at
	}
	return p
}

func (p *proxyFront) happened(a *attempt, first bool) {
	j := a.j
	switch {
	case a.over: // its client has left
	case first:
		if j.r.Stream {
			j.token()
		}
	case a.work.End != model.Running:
		p.ended(a)
	}
}

// ended passes on how an answer has ended.
func (p *proxyFront) ended(a *attempt) {
	j := a.j
	a.over, j.now = true, nil
	a.on.open--
	switch {
	case a.work.End == model.EndDone:
		j.whole(a)
		j.end(200, "", "")
	case a.begun && j.r.Stream:
		j.rec.OutputTokens = a.work.Generated()
		j.end(200, "", "the stream broke off")
	case a.work.End == model.EndEmpty:
		j.end(200, "", "the answer was empty")
	case a.headed():
		j.end(200, "", "the answer broke off before its first token")
	case a.work.End == model.EndDied:
		j.end(500, "", "")
	default:
		j.end(502, "", "the replica broke off")
	}
}

func (p *proxyFront) leave(j *journey) {
	a := j.now
	a.over, j.now = true, nil
	a.on.open--
	a.on.leave(a)
	j.end(0, "", ErrLeft)
}

func (p *proxyFront) settle() bool         { return false }
func (p *proxyFront) idle() bool           { return true }
func (p *proxyFront) violations() []string { return nil }
