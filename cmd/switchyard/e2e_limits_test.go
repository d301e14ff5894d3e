package main

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/config"
	"switchyard/gateway"
	"switchyard/simserver"
)

// secretOf is the secret of a key in these tests.
func secretOf(name string) string { return "secret-of-" + name }

// keyed makes a key's secret known.
func keyed(k config.Key) config.Key {
	sum := sha256.Sum256([]byte(secretOf(k.Name)))
	k.SHA256, k.Weight, k.Models = hex.EncodeToString(sum[:]), 1, []string{"*"}
	return k
}

// sdk is a client that behaves as OpenAI's SDKs do with 429: it waits
// retry-after-ms, or else Retry-After, and asks again, at most twice.
type sdk struct {
	r       *rig
	key     string
	refused int           // answers that told it to wait
	waited  time.Duration // as told
}

func (s *sdk) ask(t *testing.T, q query) reply {
	t.Helper()
	for try := 0; ; try++ {
		req := openAI.request(t.Context(), s.r.base, q)
		req.Header.Set("Authorization", "Bearer "+secretOf(s.key))
		got := openAI.send(s.r.client, req, q)
		if got.status != http.StatusTooManyRequests || try == 2 {
			return got
		}
		ms, err := strconv.Atoi(got.header.Get("Retry-After-Ms"))
		require.NoError(t, err, "%s", got)
		s.refused++
		wait := time.Duration(ms) * time.Millisecond
		s.waited += wait
		<-time.After(wait)
	}
}

func fast(name string) simserver.Options {
	return simserver.Options{Name: name, Engine: "openai", Models: []string{simModel}, Slots: 4, Prefill: 1e6, Decode: 10000, OutputTokens: "fixed:5"}
}

// R12, R13: a client that backs off as told is never told twice: over its limit
// it gets exactly its rate, and each refusal is followed by an answer. What was
// refused never touches a replica, and other keys are not concerned.
func TestR12AClientThatBacksOffAsTold(t *testing.T) {
	const burst, more = 120, 6
	r := newRig(t, setup{replicas: []simserver.Options{fast("a")}, tune: func(c *config.Config) {
		c.Keys.List = []config.Key{keyed(config.Key{Name: "team", RequestsPerMinute: burst}), keyed(config.Key{Name: "free"})}
	}})
	done := r.books()
	began := time.Now()
	team, free := &sdk{r: r, key: "team"}, &sdk{r: r, key: "free"}
	for i := range burst + more {
		got := team.ask(t, query{prompt: prompt(i, 5), tokens: 5})
		got.mustBe(t, "whole")
		require.Equal(t, strconv.Itoa(burst), got.header.Get("X-Ratelimit-Limit-Requests"))
		free.ask(t, query{prompt: prompt(i, 5), tokens: 5}).mustBe(t, "whole")
	}
	took := time.Since(began)
	require.LessOrEqual(t, team.refused, more)
	require.Positive(t, team.refused)
	require.GreaterOrEqual(t, took, more*time.Minute/burst, "faster than its rate")
	require.Zero(t, free.refused)
	t.Logf("%d refused, %s waited in %s", team.refused, team.waited, took)
	r.untilEnded(2*(burst+more) + team.refused)
	r.untilFree()
	done()
	require.Equal(t, 2*(burst+more), r.fleet[0].Stats().Requests)
	require.EqualValues(t, team.refused, r.state().Totals.Refused)
	require.Equal(t, team.refused, r.notes.count(func(x gateway.Record) bool { return x.Reason == "rate_limited_requests" && x.Attempts == 0 }))
}

// R12: tokens are reserved for the answer to be expected, and given back when
// it was shorter.
func TestR12TokensAreGivenBack(t *testing.T) {
	r := newRig(t, setup{replicas: []simserver.Options{fast("a")}, tune: func(c *config.Config) {
		c.Keys.List = []config.Key{keyed(config.Key{Name: "team", TokensPerMinute: 300})}
	}})
	team := &sdk{r: r, key: "team"}
	left := func(h http.Header) int {
		n, err := strconv.Atoi(h.Get("X-Ratelimit-Remaining-Tokens"))
		require.NoError(t, err)
		return n
	}
	first := team.ask(t, query{prompt: prompt(1, 5), tokens: 200})
	first.mustBe(t, "whole")
	require.Less(t, left(first.header), 110, "200 tokens of answer may come, as far as it is known")
	r.untilEnded(1)
	second := team.ask(t, query{prompt: prompt(2, 5), tokens: 5})
	second.mustBe(t, "whole")
	require.Zero(t, team.refused)
	require.Greater(t, left(second.header), 240, "5 had come")
}

// R12, R2: with max_queued a crowd of one key waits for max_running, in order
// and without a refusal, while the other slots serve others.
func TestR12MaxRunningHoldsAtTheReplica(t *testing.T) {
	slow := fast("a")
	slow.Decode, slow.OutputTokens = 50, "fixed:10"
	r := newRig(t, setup{replicas: []simserver.Options{slow}, tune: func(c *config.Config) {
		c.Keys.List = []config.Key{keyed(config.Key{Name: "team", MaxRunning: 2, MaxQueued: 50})}
	}})
	done := r.books()
	var crowd sync.WaitGroup
	replies := make([]reply, 8)
	for i := range replies {
		crowd.Go(func() {
			req := openAI.request(t.Context(), r.base, query{prompt: prompt(i, 5), tokens: 10})
			req.Header.Set("Authorization", "Bearer "+secretOf("team"))
			replies[i] = openAI.send(r.client, req, query{})
		})
	}
	crowd.Wait()
	for _, x := range replies {
		x.mustBe(t, "whole")
	}
	r.untilFree()
	done()
	require.Equal(t, 2, r.fleet[0].Stats().MaxInHand, "of 4 slots")
}

// R12, R15: what was used stays used through a reload, and new limits hold at
// once.
func TestR12CountersSurviveAReload(t *testing.T) {
	r := newRig(t, setup{replicas: []simserver.Options{fast("a")}, tune: func(c *config.Config) {
		c.Keys.List = []config.Key{keyed(config.Key{Name: "team", RequestsPerMinute: 4})}
	}})
	once := func(key string) reply {
		req := openAI.request(t.Context(), r.base, query{prompt: "x", tokens: 1})
		req.Header.Set("X-Api-Key", secretOf(key))
		return openAI.send(r.client, req, query{})
	}
	reload := func(keys ...config.Key) {
		r.app.read = func() (*config.Config, error) {
			next := *r.app.site.cfg
			next.Keys.List = slices.Clone(keys)
			return &next, nil
		}
		require.NoError(t, r.app.reload())
	}
	for range 3 {
		once("team").mustBe(t, "whole")
	}
	reload(keyed(config.Key{Name: "team", RequestsPerMinute: 4}), keyed(config.Key{Name: "late", RequestsPerMinute: 1}))
	once("team").mustBe(t, "whole")
	got := once("team")
	require.Equal(t, "rate_limited_requests", got.header.Get("X-Switchyard-Reason"))
	once("late").mustBe(t, "whole")
	require.Equal(t, http.StatusTooManyRequests, once("late").status)
	reload(keyed(config.Key{Name: "late"}))
	once("late").mustBe(t, "whole")
}
