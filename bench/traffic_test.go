package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func scenarioOf(t *testing.T, traffic string) *Scenario {
	t.Helper()
	return parse(t, "seed: 5\nreplicas: [{output_tokens: 'lognormal:100,0.5'}]\nclasses: [{name: standard, deadline: 10s}]\ntraffic:\n"+traffic)
}

// play gives all requests of a trial, each ended as end says, in order of time.
// Ends of requests that overlap are told in an order drawn from orders.
func play(traffic *Traffic, orders *rand.Rand, end func(*Request) *Record) []Request {
	type ending struct {
		r *Request
		o *Record
	}
	var all []Request
	var open []ending
	for {
		at, ok := traffic.Peek()
		if !ok && len(open) == 0 {
			return all
		}
		// Every ending before the next request has to be told; which of them
		// first is anyone's guess.
		due := -1
		for _, i := range orders.Perm(len(open)) {
			if !ok || durationOf(open[i].o.EndS) <= at {
				due = i
				break
			}
		}
		if due >= 0 {
			e := open[due]
			open = slices.Delete(open, due, due+1)
			traffic.Ended(e.r, e.o)
			continue
		}
		r := traffic.Next()
		all = append(all, *r)
		open = append(open, ending{r, end(r)})
	}
}

func anyOrder() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), 0)) }

// answered ends a request well, after so many seconds.
func answered(after float64) func(*Request) *Record {
	return func(r *Request) *Record {
		o := r.New()
		o.Status, o.EndS = 200, o.ArrivalS+after
		o.FirstTokenS = &o.EndS
		return &o
	}
}

func clean(all []Request) []Request {
	slices.SortFunc(all, func(a, b Request) int { return strings.Compare(a.ID, b.ID) })
	for i := range all {
		all[i].source, all[i].talk = nil, nil
	}
	return all
}

const mixed = `
- {kind: poisson, rate: 20, requests: 50, prefix: {tokens: 500, variants: 3, skew: 1}, retry: sdk}
- {kind: burst, rate: 2, peak: 30, every: 10s, for: 2s, until: 30s, retry: told}
- {kind: conversations, users: 6, turns: 4, think: 3s, retry: at-once}
`

// The same scenario, seed and trial give the same requests; another trial and
// another seed give others.
func TestTrafficIsDeterministic(t *testing.T) {
	s := scenarioOf(t, mixed)
	first := clean(play(s.NewTraffic(1), anyOrder(), answered(1)))
	require.Equal(t, first, clean(play(s.NewTraffic(1), anyOrder(), answered(1))))
	require.NotEqual(t, first[0].At, clean(play(s.NewTraffic(2), anyOrder(), answered(1)))[0].At)
	s.Seed++
	require.NotEqual(t, first[0].At, clean(play(s.NewTraffic(1), anyOrder(), answered(1)))[0].At)
}

// What is asked is the same for every target: outcomes, and the order in which
// they become known, change only when what depends on them is asked.
func TestTrafficIsTheSameWhateverBecomesOfIt(t *testing.T) {
	s := scenarioOf(t, mixed)
	plain := make(map[string]Request)
	for _, r := range play(s.NewTraffic(1), anyOrder(), answered(0.5)) {
		plain[r.ID] = r
	}
	rapid.Check(t, func(rt *rapid.T) {
		orders := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "orders"), 0))
		rough := play(s.NewTraffic(1), orders, func(r *Request) *Record {
			o := r.New()
			o.EndS = o.ArrivalS + 5*orders.Float64()
			switch orders.IntN(3) {
			case 0:
				o.Status, o.FirstTokenS = 200, &o.EndS
			case 1:
				o.Status, o.RetryAfterS = 429, new(3*orders.Float64())
			default:
				o.Error = "reset"
			}
			return &o
		})
		seen := make(map[string]bool)
		for _, r := range rough {
			require.False(rt, seen[r.ID], "IDs are unique")
			seen[r.ID] = true
			first, ok := plain[r.Origin]
			require.True(rt, ok, "%s comes of %s", r.ID, r.Origin)
			require.Equal(rt, first.Prompt, r.Prompt)
			require.Equal(rt, first.OutputTokens, r.OutputTokens)
			if r.Turn <= 1 && r.Retry == 0 {
				require.Equal(rt, first.At, r.At)
			}
		}
		for id := range plain {
			require.True(rt, seen[id], "%s is asked in any case", id)
		}
	})
}

func TestRequestsComeInOrderOfTime(t *testing.T) {
	s := scenarioOf(t, mixed)
	traffic := s.NewTraffic(1)
	last, n := time.Duration(0), 0
	for r := traffic.Next(); r != nil; r = traffic.Next() {
		require.GreaterOrEqual(t, r.At, last)
		require.Equal(t, tokensOf(r.Prompt), r.PromptTokens)
		last = r.At
		n++
		require.Equal(t, n, traffic.Open())
	}
}

func TestPoissonRateAndSizes(t *testing.T) {
	s := scenarioOf(t, "- {kind: poisson, rate: 50, requests: 20000, prompt_tokens: 'uniform:100,300', output_tokens: 'fixed:70', max_tokens: 60, stream: false, deadline: 3s, from: 10s}")
	all := play(s.NewTraffic(1), anyOrder(), answered(0))
	require.Len(t, all, 20000)
	span := (all[len(all)-1].At - 10*time.Second).Seconds()
	require.InEpsilon(t, 50, 20000/span, 0.03)
	tokens := 0
	for _, r := range all {
		require.GreaterOrEqual(t, r.At, 10*time.Second)
		require.Equal(t, 60, r.OutputTokens, "at most what the client allows")
		require.False(t, r.Stream)
		require.True(t, r.Stated)
		require.Equal(t, 3*time.Second, r.Deadline)
		tokens += r.PromptTokens
	}
	require.InEpsilon(t, 200, float64(tokens)/20000, 0.02)
}

func TestSourcesEndByCountOrByTime(t *testing.T) {
	for traffic, most := range map[string]int{
		"- {kind: poisson, rate: 10, requests: 7}":             7,
		"- {kind: poisson, rate: 10, requests: 7, until: 1ms}": 0,
		"- {kind: poisson, rate: 10, until: 100s}":             1200,
	} {
		n := 0
		for _, r := range play(scenarioOf(t, traffic).NewTraffic(1), anyOrder(), answered(0)) {
			require.Less(t, r.At, 100*time.Second)
			n++
		}
		require.LessOrEqual(t, n, most)
		require.GreaterOrEqual(t, n, most*2/3)
	}
	require.Equal(t, 1000+24+50, scenarioOf(t, "- {kind: poisson, rate: 10, until: 100s}\n- {kind: conversations, users: 6, turns: 4}\n- {kind: burst, rate: 1, peak: 11, every: 10s, for: 4s, until: 10s}").NewTraffic(1).Total())
}

func TestBurstsCome(t *testing.T) {
	s := scenarioOf(t, "- {kind: burst, rate: 5, peak: 100, every: 20s, for: 2s, until: 2000s}")
	in, out := 0, 0
	for _, r := range play(s.NewTraffic(1), anyOrder(), answered(0)) {
		if r.At%(20*time.Second) >= 18*time.Second {
			in++
		} else {
			out++
		}
	}
	require.InEpsilon(t, 100*2*100, in, 0.03, "the last two seconds of every twenty")
	require.InEpsilon(t, 5*18*100, out, 0.05)
}

// A rate that falls to next to nothing between bursts is passed over whole.
func TestBurstsWithNothingBetween(t *testing.T) {
	s := scenarioOf(t, "- {kind: burst, rate: 0.000001, peak: 0.000002, every: 2ns, for: 1ns, requests: 3}")
	require.LessOrEqual(t, len(play(s.NewTraffic(1), anyOrder(), answered(0))), 3)
}

func TestConversationsGrow(t *testing.T) {
	s := scenarioOf(t, "- {kind: conversations, users: 4, turns: 5, think: 10s, prefix: {tokens: 700}, prompt_tokens: 'fixed:20', output_tokens: 'fixed:30', rate: 1}")
	byTalk := make(map[string][]Request)
	for _, r := range play(s.NewTraffic(1), anyOrder(), answered(2)) {
		byTalk[r.Session] = append(byTalk[r.Session], r)
	}
	require.Len(t, byTalk, 4)
	pauses := 0.0
	for _, turns := range byTalk {
		require.Len(t, turns, 5)
		require.Equal(t, []Part{turns[0].Prompt[0], turns[0].Prompt[1]}, turns[0].Prompt)
		for i, r := range turns {
			require.Equal(t, i+1, r.Turn)
			require.Equal(t, 700+20+i*(20+30), r.PromptTokens)
			require.Equal(t, RoleUser, r.Prompt[len(r.Prompt)-1].Role)
			if i > 0 {
				before := turns[i-1].Prompt
				require.Equal(t, before, r.Prompt[:len(before)], "all that was said before")
				require.Equal(t, RoleAssistant, r.Prompt[len(before)].Role)
				pause := r.At - turns[i-1].At - 2*time.Second
				require.GreaterOrEqual(t, pause, time.Duration(0), "no turn before the answer")
				pauses += pause.Seconds()
			}
		}
	}
	require.InEpsilon(t, 10, pauses/16, 0.6)
}

func TestPrefixesBySkew(t *testing.T) {
	s := scenarioOf(t, "- {kind: poisson, rate: 100, requests: 20000, prefix: {tokens: 64, variants: 4, skew: 1}, prompt_tokens: 'fixed:10'}")
	seen := make(map[uint64]int)
	for _, r := range play(s.NewTraffic(1), anyOrder(), answered(0)) {
		require.Equal(t, Part{RoleSystem, r.Prompt[0].Seed, 64}, r.Prompt[0])
		seen[r.Prompt[0].Seed]++
	}
	var counts []int
	for _, n := range seen {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	require.Len(t, counts, 4)
	sum := 1 + 1./2 + 1./3 + 1./4
	for i, k := range []float64{4, 3, 2, 1} {
		require.InEpsilon(t, 20000/k/sum, counts[i], 0.06)
	}
}

// Requests of a scenario at another load are the same requests, in less time.
func TestLoadsChangeOnlyTimes(t *testing.T) {
	s := scenarioOf(t, "- {kind: poisson, rate: 3, requests: 100}")
	once, twice := clean(play(s.NewTraffic(1), anyOrder(), answered(0))), clean(play(s.At(2).NewTraffic(1), anyOrder(), answered(0)))
	for i := range once {
		require.InDelta(t, once[i].At.Seconds()/2, twice[i].At.Seconds(), 1e-6)
		once[i].At, twice[i].At = 0, 0
	}
	require.Equal(t, once, twice)
}

func TestManySourcesHaveIDsOfTheirOwn(t *testing.T) {
	s := scenarioOf(t, strings.Repeat("- {kind: poisson, rate: 3, requests: 3}\n", 60))
	seen := make(map[string]bool)
	for _, r := range play(s.NewTraffic(1), anyOrder(), answered(0)) {
		require.False(t, seen[r.ID], r.ID)
		seen[r.ID] = true
	}
	require.Len(t, seen, 180)
}

func TestDistributions(t *testing.T) {
	for text, want := range map[string]float64{
		"7": 7, "fixed:40": 40, "uniform:10,20": 15, "lognormal:100,0.5": 100 * 1.1331, "lognormal:100,0": 100, "pareto:100,3": 150,
	} {
		d, err := ParseDist(text)
		require.NoError(t, err)
		r, sum := rand.New(rand.NewPCG(1, 2)), 0
		for range 40_000 {
			sum += d.draw(r)
		}
		require.InEpsilon(t, want, float64(sum)/40_000, 0.02, text)
	}
	for _, text := range []string{"", "fixed:", "fixed:0", "fixed:1.5", "fixed:1,2", "uniform:1", "uniform:5,4", "lognormal:0,1", "lognormal:1", "pareto:1,0", "pareto:10,1,5", "gauss:1,2", "fixed:-1", "fixed:NaN", "fixed:1e99"} {
		_, err := ParseDist(text)
		require.ErrorContains(t, err, "want fixed:N, uniform:LO,HI, lognormal:MEDIAN,SIGMA", text)
	}
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.IntRange(10, 500).Draw(rt, "most")
		d, err := ParseDist(fmt.Sprintf("%s:10,%g,%d", rapid.SampledFrom([]string{"lognormal", "pareto"}).Draw(rt, "kind"), rapid.Float64Range(0.1, 5).Draw(rt, "shape"), most))
		require.NoError(rt, err)
		n := d.draw(rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)))
		require.True(rt, n >= 1 && n <= most, "%d", n)
	})
}

// BenchmarkTraffic: making requests must not be what a virtual run waits for.
func BenchmarkTraffic(b *testing.B) {
	s, err := Load("fleet")
	require.NoError(b, err)
	traffic := s.NewTraffic(1)
	b.ReportAllocs()
	for b.Loop() {
		r := traffic.Next()
		if r == nil {
			traffic = s.NewTraffic(1)
			continue
		}
		o := Record{Status: 200}
		traffic.Ended(r, &o)
	}
}
