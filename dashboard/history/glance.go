package history

import (
	"encoding/json"
	"math"
)

// glanceSteps closed steps and the one in the making are the last minute.
const glanceSteps = 12

// rateSteps of them are what rates are made of: a crash shows within seconds.
const rateSteps = 2

// Glance is the last minute in a few numbers.
type Glance struct {
	OfferedPerS   Number `json:"offered_per_s"` // rates: of the last 10 to 15 s
	ServedPerS    Number `json:"served_per_s"`
	RefusedPerS   Number `json:"refused_per_s"`
	FailedPerS    Number `json:"failed_per_s"`
	OutputPerS    Number `json:"output_tokens_per_s"`
	FirstP50S     Number `json:"first_p50_s"` // the rest: of the last minute
	FirstP99S     Number `json:"first_p99_s"`
	Kept          int64  `json:"kept"`
	Broken        int64  `json:"broken"`
	OutputTokens  int64  `json:"output_tokens"`
	WastedTokens  int64  `json:"wasted_tokens"`         // of those: of attempts that failed, and for clients who had left
	WastedTotal   int64  `json:"wasted_tokens_total"`   // since the history began
	HistoryBeganS int64  `json:"history_began_seconds"` // Unix time; 0 not yet
}

// Number is a float64 that JSON writes with four digits, and as null where it
// is not known.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	digits := 4 - 1 - math.Floor(math.Log10(math.Max(math.Abs(float64(n)), 1e-3)))
	scale := math.Pow(10, digits)
	return json.Marshal(math.Round(float64(n)*scale) / scale)
}

// Glance sums up the steps lately closed and the one in the making.
func (h *History) Glance() Glance {
	g := Glance{WastedTotal: h.wasted, OfferedPerS: Number(math.NaN()), FirstP50S: Number(math.NaN()), FirstP99S: Number(math.NaN())}
	if h.begun.IsZero() {
		return g
	}
	g.HistoryBeganS = h.begun.Unix()
	var first quantiles
	var rate step
	secs := 0.0
	steps := append(h.recent[:], h.rings[Minutes15].now)
	for i, st := range steps {
		if st == nil {
			continue
		}
		first.merge(&st.first)
		g.Kept += st.kept
		g.Broken += st.broken
		g.OutputTokens += st.output
		g.WastedTokens += st.wasted
		if i >= len(steps)-1-rateSteps {
			secs += st.seconds()
			rate.arrived += st.arrived
			rate.completed += st.completed
			rate.refused += st.refused
			rate.failed += st.failed
			rate.output += st.output
		}
	}
	per := func(n int64) Number { return Number(float64(n) / secs) }
	g.OfferedPerS, g.ServedPerS, g.RefusedPerS, g.FailedPerS = per(rate.arrived), per(rate.completed), per(rate.refused), per(rate.failed)
	g.OutputPerS = per(rate.output)
	g.FirstP50S, g.FirstP99S = Number(first.at(0.5)), Number(first.at(0.99))
	return g
}
