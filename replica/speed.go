package replica

import (
	"math"
	"time"
)

// Speed is what has been learned of one model on one replica. All figures are
// exponentially weighted means that start at the first sample; zero: unknown.
type Speed struct {
	promptPerToken mean // seconds per uncached prompt token
	decodePerToken mean // seconds per output token of one stream
	first          mean // seconds from sending to the first token, loading left out
	hold           mean // seconds a slot was held
	load           mean // seconds a load took
	late           float64
}

// Sample is one finished attempt as a teacher. Zero fields teach nothing.
type Sample struct {
	PromptTokens int           // uncached ones
	OutputTokens int           //
	Load         time.Duration // as the engine says
	Prompt       time.Duration // prompt processing: the engine's word, or the clock's
	Decode       time.Duration // first to last token
	First        time.Duration // sending to first token
	Hold         time.Duration // how long the slot was held
}

// minPromptSample keeps tiny prompts from teaching a prompt speed: below it
// the fixed cost of a request outweighs the tokens.
const minPromptSample = 16

// Learn takes a sample in.
func (s *Speed) Learn(x Sample) {
	if x.Prompt > 0 && x.PromptTokens >= minPromptSample {
		s.promptPerToken.add(x.Prompt.Seconds() / float64(x.PromptTokens))
	}
	if x.Decode > 0 && x.OutputTokens > 1 {
		s.decodePerToken.add(x.Decode.Seconds() / float64(x.OutputTokens-1))
	}
	if x.First > 0 {
		s.first.add(max(0, x.First-x.Load).Seconds())
	}
	if x.Hold > 0 {
		s.hold.add(max(0, x.Hold-x.Load).Seconds())
	}
	if x.Load > loadNoise {
		s.load.add(x.Load.Seconds())
	}
}

// loadNoise is below what a real load takes: Ollama reports a few
// milliseconds of load_duration for a resident model.
const loadNoise = 200 * time.Millisecond

// FirstToken predicts prompt processing for that many uncached tokens.
// known is false while nothing has been learned.
func (s *Speed) FirstToken(tokens int) (d time.Duration, known bool) {
	switch {
	case s.promptPerToken.n > 0:
		return seconds(s.promptPerToken.v * float64(tokens)), true
	case s.first.n > 0:
		return seconds(s.first.v), true
	}
	return 0, false
}

// Service predicts how long a slot is held, loading left out.
func (s *Speed) Service(promptTokens, outputTokens int) (d time.Duration, known bool) {
	if s.promptPerToken.n > 0 && s.decodePerToken.n > 0 && outputTokens > 0 {
		return seconds(s.promptPerToken.v*float64(promptTokens) + s.decodePerToken.v*float64(outputTokens)), true
	}
	if s.hold.n > 0 {
		return seconds(s.hold.v), true
	}
	return 0, false
}

// Load predicts the time to load the model; known is false before the first load seen.
func (s *Speed) Load() (d time.Duration, known bool) { return seconds(s.load.v), s.load.n > 0 }

// Late is what to add to a predicted time to the first token so that about
// nineteen in twenty come no later.
func (s *Speed) Late(predicted time.Duration) time.Duration {
	return seconds(predicted.Seconds() * math.Expm1(s.late))
}

// Timed takes in when a first token came that had been predicted, both counted
// from sending. It follows the 0.95 quantile of the logarithm of their ratio:
// up by 0.95 of a step when the token came later, down by 0.05 of one when not.
func (s *Speed) Timed(predicted, actual time.Duration) {
	const step, most = 0.05, 1.5
	up := -0.05
	if actual > predicted+s.Late(predicted) {
		up = 0.95
	}
	s.late = min(max(s.late+step*up, 0), most)
}

// Decode is the seconds per output token of one stream; 0 unknown.
func (s *Speed) Decode() float64 { return s.decodePerToken.v }

// PromptTokensPerS is the measured prompt speed; 0 unknown.
func (s *Speed) PromptTokensPerS() float64 { return rate(s.promptPerToken) }

// DecodeTokensPerS is the measured decode speed of one stream; 0 unknown.
func (s *Speed) DecodeTokensPerS() float64 { return rate(s.decodePerToken) }

// Known reports whether anything has been learned.
func (s *Speed) Known() bool { return s.hold.n > 0 || s.first.n > 0 }

// meanWeight is the weight of a new sample: the mean follows a change of
// speed within some 20 samples and smooths over single outliers.
const meanWeight = 0.125

type mean struct {
	v float64
	n int
}

func (m *mean) add(x float64) {
	m.n++
	w := max(meanWeight, 1/float64(m.n))
	m.v += w * (x - m.v)
}

func rate(m mean) float64 {
	if m.v <= 0 {
		return 0
	}
	return 1 / m.v
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
