package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
)

// limitedRig has one replica and a key, the secret of which is key-k.
func limitedRig(t *testing.T, tr *troupe, f face, l admission.Limits) *rig {
	return newRig(t, tr, func(o *rigging) {
		o.replicas, o.engine = 1, f.engine
		o.settings.Keys = []Key{{Name: "k", Hash: sha256.Sum256([]byte("key-k"))}}
		o.limits = map[string]admission.Limits{"k": l}
	})
}

const keyK = "Authorization: Bearer key-k"

// R12, R13: in every format a key's limits are told with each answer, and what
// is over them is refused in the client's own words, with the exact time to
// come back, and never reaches a replica.
func TestR12LimitsInEveryFormat(t *testing.T) {
	for _, f := range faces {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", f.name, stream), func(t *testing.T) {
				// The replica has limits of its own, which are no client's business.
				tr := newTroupe(t, f.good(stream, "X-RateLimit-Remaining-Requests: 4711", "Anthropic-RateLimit-Tokens-Remaining: 4711"))
				r := limitedRig(t, tr, f, admission.Limits{RequestsPerMinute: 2, TokensPerMinute: 100_000})
				for n := range 2 {
					got := r.post(f.path, f.body(stream), keyK)
					require.Equal(t, http.StatusOK, got.status)
					require.Equal(t, f.want(stream), got.body)
					requireQuota(t, got.header, "Requests", 2, 1-n)
					require.Equal(t, "100000", got.header.Get("X-Ratelimit-Limit-Tokens"))
				}
				got := r.post(f.path, f.body(stream), keyK)
				require.Equal(t, http.StatusTooManyRequests, got.status)
				require.Equal(t, "rate_limited_requests", got.header.Get("X-Switchyard-Reason"))
				require.True(t, json.Valid([]byte(got.body)), got.body)
				require.Contains(t, got.body, "has used its 2 requests per minute")
				requireQuota(t, got.header, "Requests", 2, 0)
				ms, err := strconv.Atoi(got.header.Get("Retry-After-Ms"))
				require.NoError(t, err)
				require.InDelta(t, 25_000, ms, 5_000)
				require.Equal(t, strconv.Itoa((ms+999)/1000), got.header.Get("Retry-After"))
				require.Empty(t, got.header.Get("X-Should-Retry"))
				if f.name == "anthropic" {
					require.Equal(t, "0", got.header.Get("Anthropic-Ratelimit-Requests-Remaining"))
					full, err := time.Parse(time.RFC3339, got.header.Get("Anthropic-Ratelimit-Requests-Reset"))
					require.NoError(t, err)
					require.InDelta(t, 60, time.Until(full).Seconds(), 6)
				} else {
					require.Empty(t, got.header.Get("Anthropic-Ratelimit-Requests-Remaining"))
				}

				free := r.post(f.path, f.body(stream)) // without a key there are none
				require.Equal(t, http.StatusOK, free.status)
				require.Empty(t, free.header.Get("X-Ratelimit-Limit-Requests"))
				require.Len(t, r.troupe.calls(), 3)
				for _, c := range r.troupe.calls() {
					require.NotContains(t, fmt.Sprint(c.request.Header), "key-k")
				}
				require.EqualValues(t, 1, r.totals().Refused)
			})
		}
	}
}

// requireQuota checks one limit as it is told.
func requireQuota(t *testing.T, h http.Header, what string, limit, left int) {
	t.Helper()
	require.Equal(t, strconv.Itoa(limit), h.Get("X-Ratelimit-Limit-"+what))
	require.Equal(t, strconv.Itoa(left), h.Get("X-Ratelimit-Remaining-"+what))
	reset, err := time.ParseDuration(h.Get("X-Ratelimit-Reset-" + what))
	require.NoError(t, err)
	full := time.Duration(limit-left) * time.Minute / time.Duration(limit)
	require.InDelta(t, full.Seconds(), reset.Seconds(), 6)
}

// R12: the reset is written as OpenAI writes it.
func TestR12ResetsAreDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 6 * time.Minute: "6m0s", 120 * time.Millisecond: "120ms", 8640 * time.Millisecond: "8.64s",
		1500*time.Millisecond + 1: "1.501s", 1: "1ms",
	} {
		h := http.Header{}
		openAIQuota(h, "Tokens", admission.Allowance{Limit: 5, Remaining: 3, Reset: d})
		require.Equal(t, http.Header{"X-Ratelimit-Limit-Tokens": {"5"}, "X-Ratelimit-Remaining-Tokens": {"3"}, "X-Ratelimit-Reset-Tokens": {want}}, h)
	}
}

// R12: answers that are refused for other reasons tell the limits, too, and
// charge nothing.
func TestR12OtherRefusalsChargeNothing(t *testing.T) {
	f := faces[0]
	r := limitedRig(t, newTroupe(t, f.good(false)), f, admission.Limits{RequestsPerMinute: 5, TokensPerMinute: 50})
	for range 7 {
		got := r.post(f.path, `{"model":`, keyK)
		require.Equal(t, http.StatusBadRequest, got.status)
		requireQuota(t, got.header, "Requests", 5, 5)
	}
	long := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"%0400d"}]}`, 7)
	got := r.post(f.path, long, keyK)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "rate_limited_tokens", got.header.Get("X-Switchyard-Reason"))
	require.Equal(t, "false", got.header.Get("X-Should-Retry"), "no wait can help")
	requireQuota(t, got.header, "Tokens", 50, 50)
	require.Empty(t, r.troupe.calls())
}

// R12: more than may run at once is refused, and taken again when one ends.
func TestR12TooManyRunning(t *testing.T) {
	f := faces[0]
	hold := make(chan struct{})
	tr := newTroupe(t, func(k *call) {
		<-hold
		f.good(false)(k)
	})
	r := limitedRig(t, tr, f, admission.Limits{MaxRunning: 1})
	c := r.connect(f.path, f.body(false), keyK)
	require.True(t, soon(func() bool { return len(tr.calls()) == 1 }))
	got := r.post(f.path, f.body(false), keyK)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "too_many_running", got.header.Get("X-Switchyard-Reason"))
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.Empty(t, got.header.Get("X-Ratelimit-Limit-Requests"))
	close(hold)
	require.True(t, soon(func() bool { return r.totals().Completed == 1 }))
	c.Close()
	require.Equal(t, http.StatusOK, r.post(f.path, f.body(false), keyK).status)
}

// BenchmarkFindKey is finding the key of a request among many (R12: 10,000
// keys cost nothing noticeable).
func BenchmarkFindKey(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprint("keys=", n), func(b *testing.B) {
			v := viewOf(func(s *Settings) {
				for i := range n {
					s.Keys = append(s.Keys, Key{Name: fmt.Sprint(i), Hash: sha256.Sum256(fmt.Append(nil, "key-", i))})
				}
			})
			h := wish("Authorization: Bearer key-0")
			for b.Loop() {
				if v.findKey(h) == nil {
					b.Fatal("not found")
				}
			}
		})
	}
}
