package admission

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// limited is a world with one replica and a key k that has limits.
func limited(t *testing.T, slots int, l Limits) *world {
	cfg := testConfig(rep("a", slots))
	cfg.Limits = map[string]Limits{"k": l}
	return newWorld(t, cfg)
}

// try lets a key ask; a refused request is ended.
func (w *world) try(key string, a Ask) (*Ticket, *Refusal) {
	w.t.Helper()
	t := w.c.Arrive(w.now, Arrival{ID: key, Class: "standard", Key: key, At: w.now})
	ref := w.c.Admit(w.now, t, a)
	if ref != nil {
		w.c.End(w.now, t, Refused, ref.Reason)
	}
	return t, ref
}

func (w *world) must(key string, a Ask) *Ticket {
	w.t.Helper()
	t, ref := w.try(key, a)
	require.Nil(w.t, ref, "%+v", ref)
	return t
}

// complete ends a request whose attempt is under way.
func (w *world) complete(t *Ticket, u Usage) {
	w.t.Helper()
	w.c.Finish(w.now, t.current, AttemptResult{Kind: ResultOK, FirstTokenAt: w.now, Usage: u})
	w.c.End(w.now, t, Completed, "")
}

// patientAsk has an hour, so that nothing but limits refuses it.
func (w *world) patientAsk(prompt, most int) Ask {
	a := w.ask()
	a.PromptTokens, a.MaxTokens, a.Deadline = prompt, most, w.now.Add(time.Hour)
	return a
}

// R12: a minute's worth at once and not one more; then one a second, at the
// very moment that Retry-After names, and not a microsecond sooner.
func TestR12RequestsPerMinuteToTheRequestAndTheMoment(t *testing.T) {
	w := limited(t, 1000, Limits{RequestsPerMinute: 60})
	for i := range 60 {
		tk := w.must("k", w.patientAsk(10, 10))
		require.Equal(t, Allowance{Limit: 60, Remaining: 59 - i, Reset: time.Duration(i+1) * time.Second}, tk.Quota().Requests)
		require.Zero(t, tk.Quota().Tokens)
	}
	for _, step := range []time.Duration{0, 300 * time.Millisecond, 699999 * time.Microsecond} {
		w.now = w.now.Add(step)
		tk, ref := w.try("k", w.patientAsk(10, 10))
		require.Equal(t, ReasonRateRequests, ref.Reason)
		require.False(t, ref.NoRetry)
		require.Zero(t, tk.Quota().Requests.Remaining)
	}
	_, ref := w.try("k", w.patientAsk(10, 10))
	require.Equal(t, time.Microsecond, ref.RetryAfter)
	w.now = w.now.Add(ref.RetryAfter)
	w.must("k", w.patientAsk(10, 10))
	_, ref = w.try("k", w.patientAsk(10, 10))
	require.Equal(t, time.Second, ref.RetryAfter)

	w.must("other", w.patientAsk(10, 10)) // a key without limits
	w.must("anonymous", w.patientAsk(10, 10))
	w.now = w.now.Add(time.Hour)
	for range 60 { // no more than a minute's worth, however long it was idle
		w.must("k", w.patientAsk(10, 10))
	}
	_, ref = w.try("k", w.patientAsk(10, 10))
	require.Equal(t, time.Second, ref.RetryAfter)
	require.EqualValues(t, 6, w.snap().Totals.Refused)
}

// R12: tokens are reserved by estimate and settled by what was used.
func TestR12TokensAreSettledByTheRealUsage(t *testing.T) {
	usage := Usage{PromptTokens: 120, CachedTokens: 100, OutputTokens: 30}
	for name, tc := range map[string]struct {
		result AttemptResult
		out    Outcome
		used   int  // tokens
		free   bool // of the request, too
	}{
		"an answer that tells":              {AttemptResult{Kind: ResultOK, Usage: usage}, Completed, 150, false},
		"more than was expected":            {AttemptResult{Kind: ResultOK, Usage: Usage{PromptTokens: 2000, OutputTokens: 500}}, Completed, 2500, false},
		"an answer that tells nothing":      {AttemptResult{Kind: ResultOK}, Completed, 300, false},
		"a stream that was counted":         {AttemptResult{Kind: ResultOK, Usage: Usage{OutputTokens: 7}}, Completed, 107, false},
		"a stream that broke":               {AttemptResult{Kind: ResultBroken, Committed: true, Usage: Usage{OutputTokens: 7}}, Failed, 107, false},
		"a client that left in the middle":  {AttemptResult{Kind: ResultClientGone, Committed: true, Usage: Usage{OutputTokens: 7}}, Cancelled, 107, false},
		"a client that left before a token": {AttemptResult{Kind: ResultClientGone}, Cancelled, 100, false},
		"a client that left before it went": {AttemptResult{Kind: ResultClientGone, NothingSent: true}, Cancelled, 0, true},
		"a failure":                         {AttemptResult{Kind: ResultStatus, Status: 500}, Failed, 0, false},
		"the client's own mistake":          {AttemptResult{Kind: ResultStatus, Status: 422}, Completed, 0, false},
		"a replica that is not there":       {AttemptResult{Kind: ResultConnect, NothingSent: true}, Failed, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := limited(t, 4, Limits{RequestsPerMinute: 10, TokensPerMinute: 1000})
			cfg := w.c.mu.cfg
			cfg.Retry.MaxAttempts = 1
			w.c.Reconfigure(w.now, cfg)
			tk := w.must("k", w.patientAsk(100, 200))
			require.Equal(t, Quota{Allowance{10, 9, 6 * time.Second}, Allowance{1000, 700, 18 * time.Second}}, tk.Quota())
			w.c.Finish(w.now, w.granted(tk), tc.result)
			w.c.End(w.now, tk, tc.out, "")
			q := w.c.mu.quota(w.now, tk.tab.of)
			require.Equal(t, max(0, 1000-tc.used), q.Tokens.Remaining)
			require.Equal(t, time.Duration(tc.used)*60*time.Millisecond, q.Tokens.Reset)
			require.Equal(t, tc.free, q.Requests.Remaining == 10)
		})
	}
}

// R12, R13: who is refused, leaves while it waits, or is turned away from the
// queue has used nothing.
func TestR12NothingIsChargedForNothing(t *testing.T) {
	w := limited(t, 1, Limits{RequestsPerMinute: 10, TokensPerMinute: 10_000})
	left := func() Quota { return w.c.mu.quota(w.now, w.c.mu.account("k")) }
	running := w.granted(w.must("anonymous", w.ask()))
	w.teach(4 * time.Second)
	full := left()

	late := w.ask()
	late.Deadline = w.now.Add(time.Millisecond)
	_, ref := w.try("k", late)
	require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
	require.Equal(t, full, left())

	waits := w.must("k", w.ask())
	require.Equal(t, 9, left().Requests.Remaining)
	w.c.Leave(w.now, waits)
	w.c.End(w.now, waits, Cancelled, "")
	require.Equal(t, full, left())

	expires := w.must("k", w.ask())
	w.pass(11 * time.Second)
	require.Equal(t, ReasonDeadlineExpired, w.refused(expires).Reason)
	w.c.End(w.now, expires, Refused, ReasonDeadlineExpired)
	require.Equal(t, full, left())

	unknown := w.ask()
	unknown.Models = []string{"nobody's"}
	_, ref = w.try("k", unknown)
	require.Equal(t, ReasonModelNotFound, ref.Reason)
	require.Equal(t, full, left())
	w.serve(running, 0)
	require.True(t, w.snap().Totals.Balanced())
}

// R12: limits hold where admission only watches, and where it is off.
func TestR12LimitsHoldWithoutAdmission(t *testing.T) {
	for _, change := range []func(*Config){func(c *Config) { c.Enabled = false }, func(c *Config) { c.Observe = true }} {
		cfg := testConfig(rep("a", 4))
		cfg.Limits = map[string]Limits{"k": {RequestsPerMinute: 1}}
		change(&cfg)
		w := newWorld(t, cfg)
		w.must("k", w.ask())
		_, ref := w.try("k", w.ask())
		require.Equal(t, ReasonRateRequests, ref.Reason)
	}
}

// R12: a retry is the same request, and costs nothing more.
func TestR12ARetryIsNotChargedAgain(t *testing.T) {
	cfg := testConfig(rep("a", 4), rep("b", 4))
	cfg.Limits = map[string]Limits{"k": {RequestsPerMinute: 10, TokensPerMinute: 1000}}
	w := newWorld(t, cfg)
	tk := w.must("k", w.patientAsk(100, 200))
	next := w.c.Finish(w.now, w.granted(tk), AttemptResult{Kind: ResultStatus, Status: 500})
	require.Equal(t, ActWait, next.Action)
	w.granted(tk)
	w.complete(tk, Usage{PromptTokens: 90, OutputTokens: 10})
	require.Equal(t, Quota{Allowance{10, 9, 6 * time.Second}, Allowance{1000, 900, 6 * time.Second}}, w.c.mu.quota(w.now, tk.tab.of))
}

// R12: what no wait can help is told so; a guess alone keeps nobody out.
func TestR12RequestsLargerThanTheBucket(t *testing.T) {
	w := limited(t, 8, Limits{TokensPerMinute: 200})
	_, ref := w.try("k", w.patientAsk(201, 1))
	require.Equal(t, ReasonRateTokens, ref.Reason)
	require.True(t, ref.NoRetry)
	require.Contains(t, ref.Message, "no wait can help")

	tk := w.must("k", w.patientAsk(150, 0)) // 256 are guessed
	_, ref = w.try("k", w.patientAsk(1, 1))
	require.Equal(t, 600*time.Millisecond, ref.RetryAfter)
	require.Contains(t, ref.Message, "0 left")
	w.granted(tk)
	w.complete(tk, Usage{PromptTokens: 150, OutputTokens: 400})
	_, ref = w.try("k", w.patientAsk(1, 1)) // 550 used of 200: 352 to be paid back first
	require.Equal(t, 352*300*time.Millisecond, ref.RetryAfter)

	embed := w.patientAsk(200, 0)
	embed.NoOutput = true
	w.now = w.now.Add(time.Hour)
	require.Zero(t, w.must("k", embed).Quota().Tokens.Remaining)
}

// R12: of several limits, the one that keeps it out longest is told.
func TestR12TheLongestWaitIsTold(t *testing.T) {
	w := limited(t, 8, Limits{RequestsPerMinute: 1, TokensPerMinute: 1000})
	w.must("k", w.patientAsk(500, 500))
	_, ref := w.try("k", w.patientAsk(1, 1))
	require.Equal(t, ReasonRateRequests, ref.Reason)
	require.Equal(t, time.Minute, ref.RetryAfter)
	w.now = w.now.Add(50 * time.Second)
	_, ref = w.try("k", w.patientAsk(500, 500))
	require.Equal(t, time.Duration(10)*time.Second, ref.RetryAfter)

	w = limited(t, 8, Limits{RequestsPerMinute: 10, TokensPerMinute: 100})
	w.must("k", w.patientAsk(50, 50))
	_, ref = w.try("k", w.patientAsk(30, 20))
	require.Equal(t, ReasonRateTokens, ref.Reason)
	require.Equal(t, 30*time.Second, ref.RetryAfter)
	w.now = w.now.Add(ref.RetryAfter)
	w.must("k", w.patientAsk(30, 20))
}

// R12, R15: a reload keeps what was used, and a limit that is taken away and
// comes back what runs.
func TestR12CountersSurviveAReload(t *testing.T) {
	w := limited(t, 8, Limits{RequestsPerMinute: 10, TokensPerMinute: 1000, MaxRunning: 2})
	one, two := w.must("k", w.patientAsk(100, 100)), w.must("k", w.patientAsk(100, 100))
	cfg := w.c.mu.cfg
	with := func(l map[string]Limits) {
		cfg.Limits = l
		w.c.Reconfigure(w.now, cfg)
	}
	want := Quota{Allowance{10, 8, 12 * time.Second}, Allowance{1000, 600, 24 * time.Second}}
	with(map[string]Limits{"k": {RequestsPerMinute: 10, TokensPerMinute: 1000, MaxRunning: 2}, "new": {MaxRunning: 1}})
	require.Equal(t, want, w.c.mu.quota(w.now, one.tab.of))
	_, ref := w.try("k", w.patientAsk(100, 100))
	require.Equal(t, ReasonTooManyRunning, ref.Reason)

	with(map[string]Limits{"k": {RequestsPerMinute: 2}}) // lowered: it is empty
	_, ref = w.try("k", w.patientAsk(100, 100))
	require.Equal(t, 30*time.Second, ref.RetryAfter)
	with(map[string]Limits{"k": {RequestsPerMinute: 1}}) // and owes no more than that
	_, ref = w.try("k", w.patientAsk(100, 100))
	require.Equal(t, time.Minute, ref.RetryAfter)

	with(nil)
	three := w.must("k", w.patientAsk(100, 100))
	with(map[string]Limits{"k": {RequestsPerMinute: 10, TokensPerMinute: 1000, MaxRunning: 3}})
	_, ref = w.try("k", w.patientAsk(100, 100))
	require.Equal(t, ReasonTooManyRunning, ref.Reason, "the third, which came while there was no limit, runs still")

	with(nil)
	require.Len(t, w.c.mu.accounts, 1, "kept while something of it runs")
	for _, tk := range []*Ticket{one, two, three} {
		w.granted(tk)
		w.complete(tk, Usage{})
	}
	with(nil)
	require.Empty(t, w.c.mu.accounts)
}

// R12: without max_queued, one more than may run is refused; Retry-After is
// when one of its key's is expected to end.
func TestR12MaxRunningAloneRefuses(t *testing.T) {
	w := limited(t, 8, Limits{MaxRunning: 2})
	w.teach(20 * time.Second)
	one := w.must("k", w.patientAsk(100, 100))
	w.must("k", w.patientAsk(100, 100))
	w.pass(5 * time.Second)
	tk, ref := w.try("k", w.patientAsk(100, 100))
	require.Equal(t, ReasonTooManyRunning, ref.Reason)
	require.InDelta(t, 15, ref.RetryAfter.Seconds(), 1)
	require.Zero(t, tk.Quota())
	w.must("anonymous", w.patientAsk(100, 100))
	w.granted(one)
	w.complete(one, Usage{})
	w.granted(w.must("k", w.patientAsk(100, 100)))
}

// R12, R2: with max_queued, so many wait for their own key while others pass
// them by; each starts when one of its key's ends.
func TestR12MaxQueuedWaitsForMaxRunning(t *testing.T) {
	w := limited(t, 8, Limits{MaxRunning: 1, MaxQueued: 2})
	w.teach(10 * time.Second)
	first := w.must("k", w.patientAsk(100, 100))
	a := w.granted(first)
	second, third := w.must("k", w.patientAsk(100, 100)), w.must("k", w.patientAsk(100, 100))
	w.waits(second)
	w.waits(third)
	require.InDelta(t, 11, second.record.forecastS, 1.5)
	require.InDelta(t, 21, third.record.forecastS, 1.5)
	_, ref := w.try("k", w.patientAsk(100, 100))
	require.Equal(t, ReasonTooManyRunning, ref.Reason)
	require.Contains(t, ref.Message, "2 requests waiting")
	require.InDelta(t, 10, ref.RetryAfter.Seconds(), 2)

	other := w.must("anonymous", w.patientAsk(100, 100))
	require.Zero(t, other.record.forecastS-other.own.Seconds(), "what waits for its own key is not ahead")
	w.granted(other)
	require.Equal(t, 2, w.snap().Classes[1].Queued)

	short := w.ask()
	short.Deadline = w.now.Add(12 * time.Second)
	w.c.Leave(w.now, third)
	w.c.End(w.now, third, Cancelled, "")
	_, ref = w.try("k", short) // its key is the bottleneck, and it is told so (R4)
	require.Equal(t, ReasonDeadlineUnmeetable, ref.Reason)
	w.serve(a, 10*time.Second)
	w.granted(second)
	w.waits(w.must("k", w.patientAsk(100, 100)))
}

// R12, R4: a key that may run one request takes one slot from the others' forecast,
// however many of its own wait.
func TestR12AQueueOfOneKeyIsOneSlotToOthers(t *testing.T) {
	w := limited(t, 4, Limits{MaxRunning: 1, MaxQueued: 100})
	w.teach(10 * time.Second)
	w.granted(w.must("k", w.patientAsk(100, 100)))
	for range 3 {
		w.granted(w.must("anonymous", w.patientAsk(100, 100)))
	}
	for range 10 {
		w.waits(w.must("k", w.patientAsk(100, 100)))
	}
	wait := func(tk *Ticket) float64 { return tk.record.forecastS - 1 }
	require.InDelta(t, 10, wait(w.must("anonymous", w.patientAsk(100, 100))), 0.1)
	// All slots are free in 10 s; one is k's for good, and the work of the one
	// before it is spread over the other three.
	require.InDelta(t, 10+10./3, wait(w.must("anonymous", w.patientAsk(100, 100))), 0.1)
}

// R12, R5: one that waits for its own key is turned away in time, like others.
func TestR12WhatWaitsForItsKeyExpires(t *testing.T) {
	w := limited(t, 8, Limits{MaxRunning: 1, MaxQueued: 5})
	w.granted(w.must("k", w.patientAsk(100, 100)))
	tk := w.must("k", w.ask())
	w.waits(tk)
	w.pass(10*time.Second + time.Millisecond)
	require.Equal(t, ReasonDeadlineExpired, w.refused(tk).Reason)
	w.c.End(w.now, tk, Refused, ReasonDeadlineExpired)
	require.Zero(t, w.snap().Totals.Queued)
}

// R12: max_queued alone bounds what waits for a slot, and not what finds one.
func TestR12MaxQueuedAlone(t *testing.T) {
	w := limited(t, 2, Limits{MaxQueued: 1})
	for range 2 {
		w.granted(w.must("k", w.patientAsk(100, 100)))
	}
	w.waits(w.must("k", w.patientAsk(100, 100)))
	_, ref := w.try("k", w.patientAsk(100, 100))
	require.Equal(t, ReasonTooManyRunning, ref.Reason)
	w.waits(w.must("anonymous", w.patientAsk(100, 100)))
}

// ledger is R12's rates told once more, as an independent oracle: exact
// fractions of what there is, instead of whole parts of what is lacking.
type ledger struct {
	size int
	has  *big.Rat
	at   int64 // µs
}

func newLedger(size int) *ledger { return &ledger{size: size, has: big.NewRat(int64(size), 1)} }

func (l *ledger) to(at int64) {
	l.has.Add(l.has, big.NewRat((at-l.at)*int64(l.size), 60e6))
	l.at = at
	l.cap()
}

func (l *ledger) cap() {
	if l.size == 0 {
		l.has.SetInt64(0)
	}
	if most := big.NewRat(int64(l.size), 1); l.has.Cmp(most) > 0 {
		l.has = most
	}
}

func (l *ledger) add(n int) {
	l.has.Add(l.has, big.NewRat(int64(n), 1))
	l.cap()
}

// wait is the first whole microsecond at which n are there.
func (l *ledger) wait(n int) time.Duration {
	lacks := new(big.Rat).Sub(big.NewRat(int64(n), 1), l.has)
	if l.size == 0 || lacks.Sign() <= 0 {
		return 0
	}
	lacks.Mul(lacks, big.NewRat(60e6, int64(l.size)))
	us, rest := new(big.Int).QuoRem(lacks.Num(), lacks.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		us.Add(us, big.NewInt(1))
	}
	return time.Duration(us.Int64()) * time.Microsecond
}

func (l *ledger) left() int {
	if l.has.Sign() < 0 {
		return 0
	}
	return int(new(big.Int).Quo(l.has.Num(), l.has.Denom()).Int64())
}

// TestR12ExactAgainstAnOracle: whatever a key asks and uses, it is accepted and
// refused exactly when the oracle says so, and told exactly what it says.
func TestR12ExactAgainstAnOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := Limits{
			RequestsPerMinute: rapid.SampledFrom([]int{0, 1, 7, 60, 600, 999_983}).Draw(rt, "requests"),
			TokensPerMinute:   rapid.SampledFrom([]int{0, 300, 1_000, 99_991, 1_000_000_000}).Draw(rt, "tokens"),
		}
		if l == (Limits{}) {
			l.RequestsPerMinute = 3
		}
		w := limited(t, 4096, l)
		requests, tokens := newLedger(l.RequestsPerMinute), newLedger(l.TokensPerMinute)
		began := w.now
		type open struct {
			t        *Ticket
			reserved int
		}
		var under []open
		ask := func(prompt, most int) (*Ticket, *Refusal) { return w.try("k", w.patientAsk(prompt, most)) }
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(rt *rapid.T) {
				prompt, most := rapid.IntRange(1, 200).Draw(rt, "prompt"), rapid.IntRange(1, 100).Draw(rt, "most")
				n := prompt + min(most, w.c.mu.expectedOutput(&Ticket{key: "k", ask: Ask{MaxTokens: most}}, "m"))
				wait := max(requests.wait(1), tokens.wait(n))
				tk, ref := ask(prompt, most)
				if wait == 0 {
					require.Nil(rt, ref)
					requests.add(-1)
					tokens.add(-n)
					under = append(under, open{tk, n})
				} else {
					require.NotNil(rt, ref)
					require.Equal(rt, wait, ref.RetryAfter)
					require.Equal(rt, requests.wait(1) == wait, ref.Reason == ReasonRateRequests)
				}
				require.Equal(rt, Quota{
					Allowance{l.RequestsPerMinute, requests.left(), requests.wait(l.RequestsPerMinute)},
					Allowance{l.TokensPerMinute, tokens.left(), tokens.wait(l.TokensPerMinute)},
				}, tk.Quota())
			},
			"wait as told": func(rt *rapid.T) {
				wait := max(requests.wait(1), tokens.wait(2))
				if wait == 0 {
					return
				}
				w.now = w.now.Add(wait - time.Microsecond)
				requests.to(w.now.Sub(began).Microseconds())
				tokens.to(w.now.Sub(began).Microseconds())
				_, ref := ask(1, 1)
				require.NotNil(rt, ref, "a microsecond too soon")
				w.now = w.now.Add(time.Microsecond)
				requests.to(w.now.Sub(began).Microseconds())
				tokens.to(w.now.Sub(began).Microseconds())
				tk, ref := ask(1, 1)
				require.Nil(rt, ref, "at the moment that was told")
				requests.add(-1)
				tokens.add(-2)
				under = append(under, open{tk, 2})
			},
			"end": func(rt *rapid.T) {
				if len(under) == 0 {
					return
				}
				o := drop(rt, &under, "request")
				switch rapid.SampledFrom([]string{"ok", "unsent", "slow"}).Draw(rt, "end") {
				case "ok":
					used := Usage{PromptTokens: rapid.IntRange(1, 3000).Draw(rt, "used"), OutputTokens: rapid.IntRange(1, 300).Draw(rt, "made")}
					tokens.add(o.reserved - used.PromptTokens - used.OutputTokens)
					w.complete(o.t, used)
				case "unsent":
					requests.add(1)
					tokens.add(o.reserved)
					w.c.Finish(w.now, o.t.current, AttemptResult{Kind: ResultClientGone, NothingSent: true})
					w.c.End(w.now, o.t, Cancelled, "")
				case "slow":
					w.c.Finish(w.now, o.t.current, AttemptResult{Kind: ResultSlowClient, Usage: Usage{PromptTokens: 5, OutputTokens: 5}})
					tokens.add(o.reserved - 10)
					w.c.End(w.now, o.t, Cancelled, "")
				}
			},
			"time": func(rt *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 20_000_000).Draw(rt, "µs")) * time.Microsecond)
			},
			"": func(rt *rapid.T) {
				requests.to(w.now.Sub(began).Microseconds())
				tokens.to(w.now.Sub(began).Microseconds())
				require.True(rt, w.c.Snapshot(w.now).Totals.Balanced(), "R13")
			},
		})
	})
}

// TestR12CountsHoldWhateverHappens: no key ever runs or queues more than it may,
// nobody else waits while there is room, and the books balance.
func TestR12CountsHoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig(rep("a", 2), rep("b", 3))
		keys := []string{"k1", "k2", "k3", "anonymous"}
		draw := func(what string) int { return rapid.IntRange(0, 3).Draw(rt, what) }
		cfg.Limits = map[string]Limits{}
		for _, k := range keys[:3] {
			cfg.Limits[k] = Limits{MaxRunning: draw("running"), MaxQueued: draw("queued")}
		}
		m := &machine{world: newWorld(t, cfg)}
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"arrive": func(rt *rapid.T) {
				n++
				key := rapid.SampledFrom(keys).Draw(rt, "key")
				ask := m.ask()
				ask.Width = rapid.SampledFrom([]int{1, 1, 1, 2, 4}).Draw(rt, "width")
				ask.Class = rapid.SampledFrom([]string{"interactive", "standard"}).Draw(rt, "class")
				ask.Deadline = m.now.Add(time.Duration(rapid.IntRange(1, 600).Draw(rt, "deadline")) * time.Second)
				tk := m.c.Arrive(m.now, Arrival{ID: fmt.Sprint(key, "-", n), Class: "standard", Key: key, At: m.now})
				if ref := m.c.Admit(m.now, tk, ask); ref != nil {
					m.c.End(m.now, tk, Refused, ref.Reason)
					return
				}
				m.waiting = append(m.waiting, tk)
			},
			"finish": func(rt *rapid.T) {
				if len(m.running) == 0 {
					return
				}
				a := drop(rt, &m.running, "attempt")
				kind := rapid.SampledFrom([]ResultKind{ResultOK, ResultOK, ResultConnect}).Draw(rt, "kind")
				if m.c.Finish(m.now, a, AttemptResult{Kind: kind}).Action == ActWait {
					m.waiting = append(m.waiting, a.ticket)
					return
				}
				m.c.End(m.now, a.ticket, Completed, "")
			},
			"leave": func(rt *rapid.T) {
				if len(m.waiting) > 0 {
					tk := drop(rt, &m.waiting, "ticket")
					m.c.Leave(m.now, tk)
					m.c.End(m.now, tk, Cancelled, "")
				}
			},
			"time": func(rt *rapid.T) {
				m.pass(time.Duration(rapid.IntRange(1, 8000).Draw(rt, "ms")) * time.Millisecond)
			},
			"reload": func(rt *rapid.T) {
				next := m.c.mu.cfg
				next.Limits = map[string]Limits{"k3": cfg.Limits["k3"]}
				for _, k := range keys[:2] { // only ever more, so that what runs is no more than it may
					l := cfg.Limits[k]
					if l.MaxRunning > 0 {
						l.MaxRunning += draw("more")
					}
					next.Limits[k] = l
					cfg.Limits[k] = l
				}
				m.c.Reconfigure(m.now, next)
			},
			"": func(rt *rapid.T) { m.checkCounts(rt, cfg.Limits) },
		})
	})
}

// checkCounts is R12's counts and R2 where no limit forbids.
func (m *machine) checkCounts(rt *rapid.T, limits map[string]Limits) {
	m.collect()
	s := m.c.Snapshot(m.now)
	require.True(rt, s.Totals.Balanced(), "R13: %+v", s.Totals)
	runs := map[string]int{}
	for _, a := range m.running {
		runs[a.ticket.key]++
	}
	for key, l := range limits {
		require.LessOrEqual(rt, runs[key], max(l.MaxRunning, runs[key]*int(count(l.MaxRunning == 0))), "%s runs more than it may", key)
		if a := m.c.mu.accounts[key]; a != nil {
			require.Len(rt, a.running, runs[key])
			queued := 0
			for _, t := range m.waiting {
				queued += int(count(t.key == key))
			}
			require.Equal(rt, queued, a.queued)
		}
	}
	if len(m.c.mu.bound) > 0 {
		return // a debt is being paid
	}
	for _, t := range m.waiting {
		if l := limits[t.key]; l.MaxRunning > 0 && runs[t.key] >= l.MaxRunning {
			continue
		}
		for _, r := range m.c.mu.usable(m.now, t.lane) {
			require.Zero(rt, r.rep.FreeIn(m.now, r.pool), "R2: %s has room and %s waits", r.rep.Config.Name, t.id)
		}
	}
}
