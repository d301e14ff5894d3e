package history

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"switchyard/admission"
	"switchyard/replica"
)

var t0 = time.Unix(1_700_000_000, 0)

// traffic is a made-up gateway: so many requests a second, of which each fourth
// is refused.
func traffic(h *History, from time.Time, seconds int) (closed []Series) {
	for i := range seconds {
		n := int64(i)
		at := from.Add(time.Duration(i) * time.Second)
		closed = append(closed, h.Sample(&admission.Snapshot{
			At: at, Totals: admission.Totals{Arrived: 4 * n, Completed: 3 * n, Refused: n, Queued: n % 5, Running: 8},
			Promises: admission.Promises{Kept: 2 * n, Broken: n},
		})...)
		for range 3 {
			h.Ended(&admission.Decision{Outcome: "completed", QueueMs: 250, Attempts: []admission.AttemptNote{
				{Result: "connect", OutputTokens: 5},
				{Result: "ok", FirstTokenMs: 500, PromptTokens: 100, CachedTokens: 40, OutputTokens: 20},
			}})
		}
		h.Ended(&admission.Decision{Outcome: "refused"})
	}
	return closed
}

func TestPointsTellRatesAndQuantiles(t *testing.T) {
	h := New()
	closed := traffic(h, t0, 31)
	require.Len(t, closed, 6)
	require.Equal(t, "15m", closed[0].Span)
	require.EqualValues(t, t0.Unix(), closed[0].From)
	s := h.Series(Minutes15)
	require.Len(t, s.Points, 6)
	require.EqualValues(t, t0.Unix(), s.From)
	p := s.Points[3]
	require.EqualValues(t, 4, p[Arrived])
	require.EqualValues(t, 3, p[Completed])
	require.EqualValues(t, 1, p[Refused])
	require.EqualValues(t, 0, p[Failed])
	require.EqualValues(t, 4, p[Queued])
	require.EqualValues(t, 8, p[Running])
	require.InEpsilon(t, 0.25, p[WaitP99], 0.04)
	require.InEpsilon(t, 0.5, p[FirstP50], 0.04)
	require.EqualValues(t, 75, p[OutputTokens])
	require.EqualValues(t, 300, p[PromptTokens])
	require.InDelta(t, 0.4, p[CacheShare], 1e-6)
	require.True(t, math.IsNaN(float64(p[GPUUse])))
	g := h.Glance()
	require.InDelta(t, 4, float64(g.OfferedPerS), 0.01)
	require.InDelta(t, 1, float64(g.RefusedPerS), 0.01)
	require.InEpsilon(t, 0.5, float64(g.FirstP50S), 0.04)
	require.EqualValues(t, 60, g.Kept)
	require.EqualValues(t, 30, g.Broken)
	require.EqualValues(t, 31*15, g.WastedTokens)
	require.EqualValues(t, 31*15, g.WastedTotal)
	_, err := json.Marshal(s)
	require.NoError(t, err)
}

// While nobody watches samples are further apart; rates stay right.
func TestSparseSamples(t *testing.T) {
	h := New()
	for i := range 40 {
		h.Sample(&admission.Snapshot{At: t0.Add(time.Duration(2*i) * time.Second), Totals: admission.Totals{Arrived: int64(20 * i)}})
	}
	for i, p := range h.Series(Minutes15).Points[1:] {
		require.InDelta(t, 10, p[Arrived], 1e-3, i)
	}
}

// A pause leaves a gap of empty steps; the rings never grow.
func TestRingsAreBounded(t *testing.T) {
	h := New()
	traffic(h, t0, 60)
	traffic(h, t0.Add(10*time.Minute), 60)
	s := h.Series(Minutes15)
	require.Len(t, s.Points, 12+108+12-1)
	require.True(t, math.IsNaN(float64(s.Points[60][Arrived])))
	b, err := json.Marshal(s.Points[60])
	require.NoError(t, err)
	require.Equal(t, "["+string(slices.Repeat([]byte("null,"), numValues-1))+"null]", string(b))
	for day := range 3 {
		traffic(h, t0.Add(time.Duration(day+1)*24*time.Hour), 4000)
	}
	for i, r := range h.rings {
		require.Len(t, r.points, spans[i].len)
		require.Equal(t, spans[i].len, cap(r.points))
		s := h.Series(Span(i))
		newest := time.Unix(s.From+int64(s.StepS)*int64(spans[i].len-1), 0)
		require.WithinDuration(t, t0.Add(3*24*time.Hour+4000*time.Second), newest, 2*spans[i].step)
	}
}

// GPUs shared by replicas count once.
func TestGPUsCountOnce(t *testing.T) {
	half, full := 0.5, 1.0
	g := &replica.GPUFacts{GPUs: []replica.GPU{{UUID: "a", Utilization: &half, MemoryUsed: 10, MemoryTotal: 40}, {UUID: "b", Utilization: &full, MemoryUsed: 20, MemoryTotal: 20}, {UUID: "c", Err: "lost"}}}
	h := New()
	for i := range 7 {
		h.Sample(&admission.Snapshot{At: t0.Add(time.Duration(i) * time.Second), Replicas: []admission.ReplicaState{{GPU: g}, {GPU: g}, {}}})
	}
	p := h.Series(Minutes15).Points[0]
	require.InDelta(t, 0.75, p[GPUUse], 1e-6)
	require.InDelta(t, 0.5, p[GPUMemory], 1e-6)
}

// A quantile is within 4 % of the true one, from 1 ms to 3 h.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Float64Range(0.001, 10000), 1, 200).Draw(t, "seconds")
		p := rapid.Float64Range(0.01, 1).Draw(t, "p")
		var q, other quantiles
		for i, s := range all {
			if i%2 == 0 {
				q.add(s)
			} else {
				other.add(s)
			}
		}
		q.merge(&other)
		slices.Sort(all)
		want := all[max(1, int(math.Ceil(p*float64(len(all)))))-1]
		if got := q.at(p); math.Abs(got-want) > 0.0401*want {
			t.Fatalf("p%v: %v, true is %v", p*100, got, want)
		}
	})
	var none quantiles
	require.True(t, math.IsNaN(none.at(0.5)))
}

func TestNumbersAreShort(t *testing.T) {
	for want, n := range map[string]Number{"null": Number(math.NaN()), "0": 0, "1234": 1234.4, "0.1235": 0.12345678, "0.001": 0.00100001, "12.35": 12.3456} {
		b, err := json.Marshal(n)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
}
