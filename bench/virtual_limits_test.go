package bench

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// of makes a request one of a key's.
func of(key string, r *Request) *Request {
	r.Key = key
	return r
}

// R12 in a virtual run: to the request, and to the moment.
func TestVirtualGatewayLimitsRequests(t *testing.T) {
	s := small(spec("a", "openai", 8))
	s.Keys.List = []KeySpec{{Name: "team", RequestsPerMinute: 3}, {Name: "narrow", Models: []string{"other"}}}
	almost := 20*time.Second - time.Microsecond
	trial := try(t, s, "switchyard", newScript(
		of("team", request("1", 0, 10)), of("team", request("2", 0, 10)), of("team", request("3", 0, 10)),
		of("team", request("4", 0, 10)), of("", request("5", 0, 10)), of("narrow", request("6", 0, 10)),
		of("team", request("7", almost, 10)), of("team", request("8", 20*time.Second, 10)), of("team", request("9", 20*time.Second, 10)),
		of("team", request("10", 50*time.Second, 10)),
	))
	require.Empty(t, trial.Violations)
	refused := map[string]float64{}
	for _, r := range trial.Records {
		switch {
		case r.ID == "6":
			require.Equal(t, 403, r.Status)
			require.Equal(t, "forbidden", r.Code)
		case r.Status != 200:
			require.Equal(t, 429, r.Status, r.ID)
			require.Equal(t, "rate_limited_requests", r.Code)
			require.Zero(t, r.Attempts)
			refused[r.ID] = *r.RetryAfterS
		}
	}
	require.Equal(t, map[string]float64{"4": 20, "7": 0.001, "9": 20}, refused)
	require.Equal(t, 6, trial.Replicas[0].Stats.Requests)
}

// R12 in a virtual run: tokens are settled by what was really used.
func TestVirtualGatewaySettlesTokens(t *testing.T) {
	const perMinute = 250
	s := small(spec("a", "openai", 8))
	s.Keys.List = []KeySpec{{Name: "team", TokensPerMinute: perMinute}}
	first, second := request("1", 0, 100), request("2", 2*time.Second, 100)
	first.OutputTokens = 30 // of the 100 it might have had
	trial := try(t, s, "switchyard", newScript(of("team", first), of("team", second)))
	require.Empty(t, trial.Violations)
	require.Equal(t, 200, trial.Records[0].Status)
	require.Equal(t, "", trial.Records[1].Code, "100 of prompt and 30 of answer to be expected fit beside 130")

	third := request("3", 2*time.Second, 100)
	trial = try(t, s, "switchyard", newScript(of("team", first), of("team", second), of("team", third)))
	require.Equal(t, "rate_limited_tokens", trial.Records[2].Code)
	// Used: 130 by the first; reserved: as much for each of the others, but for
	// the tokens of a message's frame, which the gateway does not see.
	reserved := 130.0 - messageTokens
	lacks := 130 + 2*reserved - perMinute
	wait := lacks*60/perMinute - 2
	require.InDelta(t, math.Ceil(1000*wait)/1000, *trial.Records[2].RetryAfterS, 1e-9)
}
