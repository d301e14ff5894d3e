package bench

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Source is one stream of requests, open loop: it never waits for an answer
// before it sends what does not depend on it.
type Source struct {
	Kind string `yaml:"kind"` // poisson, burst, conversations, trace

	// Who asks.
	Class    string        `yaml:"class"`
	Key      string        `yaml:"key"`
	Model    string        `yaml:"model"`
	Stream   *bool         `yaml:"stream"`   // default true
	Deadline time.Duration `yaml:"deadline"` // stated by the client; 0: none
	Patience time.Duration `yaml:"patience"` // the client leaves after so long without a first token; 0: never

	// When. From and Until are counted from the trial's start; no first try is
	// sent at Until or later.
	From     time.Duration `yaml:"from"`
	Until    time.Duration `yaml:"until"`
	Rate     float64       `yaml:"rate"` // requests per second, or new conversations; 0 for these: all within one think time
	Requests int           `yaml:"requests"`
	Peak     float64       `yaml:"peak"` // burst: the rate during For, once in Every, first at From+Every-For
	Every    time.Duration `yaml:"every"`
	For      time.Duration `yaml:"for"`
	Users    int           `yaml:"users"` // conversations, one each
	Turns    int           `yaml:"turns"`
	Think    time.Duration `yaml:"think"` // mean of an exponential pause between an answer and the next turn
	File     string        `yaml:"file"`  // trace
	Format   string        `yaml:"format"`
	Speed    float64       `yaml:"speed"` // 10: the trace's times pass ten times as fast
	Limit    int           `yaml:"limit"` // so many requests of the trace

	// What is asked.
	PromptTokens Dist   `yaml:"prompt_tokens"` // the request's own words: beside Prefix, and per turn
	MaxTokens    int    `yaml:"max_tokens"`    // 0: nothing is said, in a trace: the answer's length
	OutputTokens Dist   `yaml:"output_tokens"` // default: the first replica's
	Prefix       Prefix `yaml:"prefix"`

	// What clients do when they are refused.
	Retry   string `yaml:"retry"`
	Retries *int   `yaml:"retries"`

	due   time.Duration // the deadline that counts: stated, or the class's
	trace []traced
}

// Prefix is a system prompt that requests share.
type Prefix struct {
	Tokens   int     `yaml:"tokens"`   // 0: there is none
	Variants int     `yaml:"variants"` // there are so many of them; default 1
	Skew     float64 `yaml:"skew"`     // the k-th is asked for in proportion to k^-Skew; 0: all alike
}

// Traffic gives a trial's requests in order of time. It is used by one
// goroutine, or under one lock.
type Traffic struct {
	queue   upcoming
	sources []*source
	open    int
	random  *rand.Rand
	pcg     *rand.PCG
}

// source is a Source in a trial.
type source struct {
	*Source
	traffic *Traffic
	name    string // begins its requests' IDs
	seed    uint64
	sent    int
	at      time.Duration // when its latest one came
	zipf    []float64     // share of the prefixes up to each
}

// NewTraffic begins a trial, counted from 1.
func (s *Scenario) NewTraffic(trial int) *Traffic {
	pcg := rand.NewPCG(0, 0)
	t := &Traffic{pcg: pcg, random: rand.New(pcg)} //nolint:gosec // traffic, not secrets
	for i := range s.Traffic {
		x := &source{Source: &s.Traffic[i], traffic: t, name: string(rune('a' + i%26))}
		if i >= 26 {
			x.name += fmt.Sprint(i / 26)
		}
		x.seed = blend(blend(blend(s.Seed, uint64(trial)), uint64(i)), 1)
		x.zipf = x.Prefix.shares()
		t.sources = append(t.sources, x)
		x.next()
	}
	return t
}

// Peek tells when the next request that is known is due; false: none is known
// now, see Open.
func (t *Traffic) Peek() (time.Duration, bool) {
	if len(t.queue) == 0 {
		return 0, false
	}
	return t.queue[0].At, true
}

// Next gives that request, nil if none is known.
func (t *Traffic) Next() *Request {
	if len(t.queue) == 0 {
		return nil
	}
	r := heap.Pop(&t.queue).(*Request)
	t.open++
	if r.Retry == 0 && r.Turn <= 1 {
		r.source.next()
	}
	return r
}

// Ended tells what became of a request, exactly once: a refused client's return
// and a conversation's next turn are then known.
func (t *Traffic) Ended(r *Request, o *Record) {
	t.open--
	if again := r.again(o); again != nil {
		heap.Push(&t.queue, again)
		return
	}
	if r.talk != nil && r.Turn < r.source.Turns {
		heap.Push(&t.queue, r.talk.next(r, durationOf(o.EndS)))
	}
}

// Open is the number of requests that were given out and have not Ended: while
// it is above 0, more may come.
func (t *Traffic) Open() int { return t.open }

// Total is how many requests the trial will have without the returns of refused
// clients, exactly or, for sources that end by time, about.
func (t *Traffic) Total() int {
	n := 0
	for _, x := range t.sources {
		n += x.total()
	}
	return n
}

func (x *Source) total() int {
	switch x.Kind {
	case "conversations":
		return x.Users * x.Turns
	case "trace":
		return len(x.trace)
	}
	n := x.Requests
	if x.Until > 0 {
		mean := x.Rate
		if x.Kind == "burst" {
			mean += (x.Peak - x.Rate) * x.For.Seconds() / x.Every.Seconds()
		}
		if most := int(mean * (x.Until - x.From).Seconds()); n == 0 || most < n {
			n = most
		}
	}
	return n
}

// draws gives random numbers that depend on nothing but the two numbers.
func (t *Traffic) draws(seed, purpose uint64) *rand.Rand {
	t.pcg.Seed(seed, purpose)
	return t.random
}

// The purposes for which one request draws.
const (
	forGap uint64 = iota + 1
	forPrompt
	forPrefix
	forOutput
	forThink
	forReturn // and the try's number beyond it
)

// next plans the source's next request that depends on no outcome.
func (x *source) next() {
	var r *Request
	switch i := x.sent; {
	case x.Kind == "trace":
		if i == len(x.trace) {
			return
		}
		r = x.replay(i)
	case x.Kind == "conversations":
		if i == x.Users {
			return
		}
		r = x.conversation(i)
	default:
		if i == x.Requests && x.Requests > 0 {
			return
		}
		r = x.single(i)
	}
	if r.At >= endOfTime || x.Until > 0 && r.At >= x.Until {
		return
	}
	x.sent++
	heap.Push(&x.traffic.queue, r)
}

// request begins the i-th request of a source.
func (x *source) request(i int) *Request {
	id := fmt.Sprintf("%s%d", x.name, i+1)
	return &Request{
		ID: id, Origin: id, Class: x.Class, Key: x.Key, Model: x.Model, Stream: x.Stream == nil || *x.Stream,
		Deadline: x.due, Stated: x.Deadline > 0, Patience: x.Patience, MaxTokens: x.MaxTokens,
		SDK: x.Retry == RetrySDK, source: x, seed: blend(x.seed, uint64(i)),
	}
}

// single is a request on its own.
func (x *source) single(i int) *Request {
	r := x.request(i)
	x.advance(x.traffic.draws(r.seed, forGap).ExpFloat64())
	r.At = x.at
	x.prefix(r)
	r.ask(x.PromptTokens.draw(x.traffic.draws(r.seed, forPrompt)))
	r.answer(x.OutputTokens.draw(x.traffic.draws(r.seed, forOutput)))
	return r
}

// ask adds the request's own words.
func (r *Request) ask(tokens int) {
	r.Prompt = append(r.Prompt, Part{Role: RoleUser, Seed: blend(r.seed, uint64(r.Turn)), Tokens: tokens})
	r.PromptTokens = tokensOf(r.Prompt)
}

func (r *Request) answer(tokens int) {
	r.OutputTokens = tokens
	if r.MaxTokens > 0 {
		r.OutputTokens = min(tokens, r.MaxTokens)
	}
}

// prefix puts the shared system prompt in front, where there is one.
func (x *source) prefix(r *Request) {
	if x.Prefix.Tokens == 0 {
		return
	}
	u, k := x.traffic.draws(r.seed, forPrefix).Float64(), 0
	for k < len(x.zipf)-1 && u >= x.zipf[k] {
		k++
	}
	// The same for all trials and sources: a prompt that is in use is in use.
	r.Prompt = append(r.Prompt, Part{Role: RoleSystem, Seed: blend(uint64(x.Prefix.Tokens), uint64(k)), Tokens: x.Prefix.Tokens})
}

// endOfTime is beyond any trial; no source goes on so long.
const endOfTime = 10_000 * time.Hour

// advance moves the source's clock on to when its rate has brought the given
// number of requests: exponential pieces make a Poisson stream, whatever the
// rate does meanwhile.
func (x *source) advance(requests float64) {
	x.at = max(x.at, x.From)
	if x.Kind != "burst" {
		x.at += durationOf(requests / x.Rate)
		return
	}
	round := x.Rate*(x.Every-x.For).Seconds() + x.Peak*x.For.Seconds()
	whole := math.Floor(requests / round)
	x.at += durationOf(whole * x.Every.Seconds())
	for requests -= whole * round; x.at < endOfTime; {
		rate, change := x.rateAt(x.at - x.From)
		left := change - (x.at - x.From)
		if step := durationOf(requests / rate); step <= left {
			x.at += step
			return
		}
		requests -= left.Seconds() * rate
		x.at += left
	}
}

// rateAt is a burst source's rate, and when it changes next.
func (x *source) rateAt(t time.Duration) (rate float64, change time.Duration) {
	round := t / x.Every * x.Every
	if begins := round + x.Every - x.For; t < begins {
		return x.Rate, begins
	}
	return x.Peak, round + x.Every
}

// shares are the cumulated shares of the variants.
func (p Prefix) shares() []float64 {
	shares, sum := make([]float64, p.Variants), 0.0
	for k := range shares {
		sum += zipf(k+1, p.Skew)
		shares[k] = sum
	}
	for k := range shares {
		shares[k] /= sum
	}
	return shares
}

// upcoming is a heap of requests by time; at one moment, by ID.
type upcoming []*Request

func (u upcoming) Len() int      { return len(u) }
func (u upcoming) Swap(i, j int) { u[i], u[j] = u[j], u[i] }
func (u *upcoming) Push(x any)   { *u = append(*u, x.(*Request)) }
func (u upcoming) Less(i, j int) bool {
	if u[i].At != u[j].At {
		return u[i].At < u[j].At
	}
	return strings.Compare(u[i].ID, u[j].ID) < 0
}

func (u *upcoming) Pop() any {
	last := len(*u) - 1
	r := (*u)[last]
	(*u)[last] = nil
	*u = (*u)[:last]
	return r
}
