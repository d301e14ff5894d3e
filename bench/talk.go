package bench

import (
	"fmt"
	"time"
)

// talk is one conversation: each turn's prompt is all that was said before and
// something new.
type talk struct{ source *source }

// conversation begins the i-th conversation with its first turn.
func (x *source) conversation(i int) *Request {
	r := x.request(i)
	r.talk = &talk{x}
	r.Session, r.Turn = r.ID, 1
	r.ID += ".t1"
	r.Origin = r.ID
	gap := x.traffic.draws(r.seed, forGap)
	if x.Rate > 0 {
		x.advance(gap.ExpFloat64())
	} else { // evenly over the first pause, so that not all begin at once
		x.at = x.From + time.Duration(float64(x.Think)*float64(i)/float64(x.Users))
	}
	r.At = x.at
	x.prefix(r)
	r.say()
	return r
}

// say adds the turn's own words and draws its answer.
func (r *Request) say() {
	x, turn := r.source, uint64(r.Turn)<<8
	r.ask(x.PromptTokens.draw(x.traffic.draws(r.seed, forPrompt+turn)))
	r.answer(x.OutputTokens.draw(x.traffic.draws(r.seed, forOutput+turn)))
}

// next is the turn after one that has ended. The answer it refers to has its
// intended length even where it failed, so that every target is asked the same.
func (t *talk) next(last *Request, ended time.Duration) *Request {
	x := t.source
	r := *last
	r.Turn++
	r.ID = fmt.Sprintf("%s.t%d", r.Session, r.Turn)
	r.Origin, r.RetriedOf, r.Retry = r.ID, "", 0
	pause := x.traffic.draws(r.seed, forThink+uint64(r.Turn)<<8).ExpFloat64()
	r.At = ended + time.Duration(pause*float64(x.Think))
	// A list of its own: the turn before may still be read by others.
	r.Prompt = append(make([]Part, 0, len(last.Prompt)+2), last.Prompt...)
	r.Prompt = append(r.Prompt, last.answered())
	r.say()
	return &r
}

// answered is a turn's answer as a part of the next turn's prompt.
func (r *Request) answered() Part {
	return Part{Role: RoleAssistant, Seed: blend(r.seed, ^uint64(r.Turn)), Tokens: r.OutputTokens}
}
