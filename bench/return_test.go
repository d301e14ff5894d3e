package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What clients do that are refused, and when they are back.
func TestReturns(t *testing.T) {
	refusedAt := func(after *float64) Record { return Record{Status: 429, EndS: 100, RetryAfterS: after} }
	for name, c := range map[string]struct {
		policy   string
		retry    int
		o        Record
		lo, hi   float64 // when the next try comes, after the end
		comeBack bool
	}{
		"none":                      {policy: "none", o: refusedAt(new(3.0))},
		"told":                      {policy: "told", o: refusedAt(new(3.25)), lo: 3.25, hi: 3.25, comeBack: true},
		"told, long":                {policy: "told", o: refusedAt(new(300.0)), lo: 300, hi: 300, comeBack: true},
		"told nothing":              {policy: "told", o: refusedAt(nil)},
		"told not to":               {policy: "told", o: Record{Status: 429, RetryAfterS: new(3.0), NoRetry: true}},
		"told for the fourth time":  {policy: "told", retry: 3, o: refusedAt(new(3.0))},
		"told by 503":               {policy: "told", o: Record{Status: 503, EndS: 100, RetryAfterS: new(1.0)}, lo: 1, hi: 1, comeBack: true},
		"told, but failed":          {policy: "told", o: Record{Status: 502, RetryAfterS: new(1.0)}},
		"at once":                   {policy: "at-once", o: refusedAt(new(3.0)), lo: 0, hi: 0.1, comeBack: true},
		"at once, for the last":     {policy: "at-once", retry: 10, o: refusedAt(nil)},
		"sdk follows":               {policy: "sdk", o: refusedAt(new(42.5)), lo: 42.5, hi: 42.5, comeBack: true},
		"sdk follows a minute":      {policy: "sdk", o: refusedAt(new(60.0)), lo: 60, hi: 60, comeBack: true},
		"sdk ignores more":          {policy: "sdk", o: refusedAt(new(61.0)), lo: 0.375, hi: 0.5, comeBack: true},
		"sdk backs off":             {policy: "sdk", retry: 1, o: refusedAt(nil), lo: 0.75, hi: 1, comeBack: true},
		"sdk gives up":              {policy: "sdk", retry: 2, o: refusedAt(nil)},
		"sdk on 500":                {policy: "sdk", o: Record{Status: 500, EndS: 100}, lo: 0.375, hi: 0.5, comeBack: true},
		"sdk on 408":                {policy: "sdk", o: Record{Status: 408, EndS: 100}, lo: 0.375, hi: 0.5, comeBack: true},
		"sdk on a reset":            {policy: "sdk", o: Record{Error: "reset", EndS: 100}, lo: 0.375, hi: 0.5, comeBack: true},
		"sdk on 400":                {policy: "sdk", o: Record{Status: 400}},
		"sdk told not to":           {policy: "sdk", o: Record{Status: 429, NoRetry: true, RetryAfterS: new(3.0)}},
		"sdk after a first token":   {policy: "sdk", o: Record{Status: 200, FirstTokenS: new(1.0), Error: "cut"}},
		"sdk whose user left":       {policy: "sdk", o: Record{Error: ErrLeft}},
		"sdk with an answer":        {policy: "sdk", o: Record{Status: 200, FirstTokenS: new(1.0)}},
		"at once, but answered":     {policy: "at-once", o: Record{Status: 200, FirstTokenS: new(1.0)}},
		"told, the turn of another": {policy: "told", o: Record{Status: 404}},
	} {
		t.Run(name, func(t *testing.T) {
			s := scenarioOf(t, "- {kind: poisson, rate: 1, requests: 1, retry: "+c.policy+"}")
			traffic := s.NewTraffic(1)
			r := traffic.Next()
			r.Retry = c.retry
			traffic.Ended(r, &c.o)
			at, ok := traffic.Peek()
			require.Equal(t, c.comeBack, ok)
			require.Zero(t, traffic.Open())
			if !ok {
				return
			}
			require.GreaterOrEqual(t, at, durationOf(100+c.lo))
			require.LessOrEqual(t, at, durationOf(100+c.hi))
			again := traffic.Next()
			require.Equal(t, r.ID, again.RetriedOf)
			require.Equal(t, r.Origin, again.Origin)
			require.NotEqual(t, r.ID, again.ID)
			require.Equal(t, c.retry+1, again.Retry)
			require.Equal(t, c.policy == "sdk", again.SDK)
			require.Equal(t, r.Prompt, again.Prompt)
			require.Equal(t, r.Deadline, again.Deadline, "counted anew")
		})
	}
}

func TestReturnsAsOftenAsTheScenarioSays(t *testing.T) {
	s := scenarioOf(t, "- {kind: poisson, rate: 1, requests: 1, retry: at-once, retries: 4}")
	all := play(s.NewTraffic(1), anyOrder(), func(r *Request) *Record {
		o := r.New()
		o.Status, o.EndS = 429, o.ArrivalS
		return &o
	})
	require.Len(t, all, 5)
}

// A turn that is refused is asked again before the next one is.
func TestConversationsComeBack(t *testing.T) {
	s := scenarioOf(t, "- {kind: conversations, users: 1, turns: 2, think: 5s, retry: told}")
	refusals := 0
	all := play(s.NewTraffic(1), anyOrder(), func(r *Request) *Record {
		o := r.New()
		o.EndS = o.ArrivalS
		if refusals++; refusals <= 2 {
			o.Status, o.RetryAfterS = 429, new(1.0)
			return &o
		}
		return answered(1)(r)
	})
	var ids []string
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	require.Equal(t, []string{"a1.t1", "a1.t1.r1", "a1.t1.r2", "a1.t2"}, ids)
	require.Equal(t, 2*time.Second, all[2].At-all[0].At)
	require.Empty(t, all[3].RetriedOf)
	require.Zero(t, all[3].Retry)
}
