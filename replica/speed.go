package replica

import (
	"math"
	"math/bits"
	"time"
)

// Speed is what has been learned of one model on one replica. All figures are
// exponentially weighted means that start at the first sample; zero: unknown.
//
// Prompt processing is bound by the GPU's arithmetic, so its time goes with the
// inverse of the SM clock, while decoding waits for memory and hardly feels it
// (Patel et al., Splitwise, ISCA 2024; Maliakel et al., arXiv:2501.08219). So
// prompt times are learned as at the full clock and predicted at the present
// one: a throttled card is forecast as slow before it has answered slowly, and
// as fast again once it runs freely. Where the rule is off, the mean follows
// what is measured, as always.
type Speed struct {
	figures           // where the model runs now
	elsewhere figures // as they were on the GPU while it is on the CPU, and the other way round
	onCPU     bool
	Seen      time.Time // when a token last came: the model was in memory then
	samples   int       // in all
	load      mean      // seconds a load took
	late      float64   // see Late
	lateBy    float64   // e^late − 1
	pace      float64   // share of the full SM clock now; 0 like 1: full
	usual     float64   // seconds per output token when it was last as usual
	slow      int       // samples in a row far from that
	collapsed bool      // and so many that it is believed
}

// figures are what depends on where a model runs.
type figures struct {
	promptPerToken mean    // seconds per uncached prompt token, at the full SM clock
	start          float64 // seconds that even the smallest prompt takes, at the full SM clock
	large          float64 // tokens of a large prompt, lately
	decodePerToken mean    // seconds per output token of one stream
	first          mean    // seconds from sending to the first token, loading left out, at the full SM clock
	hold           mean    // seconds a slot was held
}

// Sample is one finished attempt as a teacher. Zero fields teach nothing.
type Sample struct {
	PromptTokens int           // uncached ones
	OutputTokens int           //
	Load         time.Duration // as the engine says
	Joined       bool          // the load had been begun for somebody else: Load is only the rest of it
	Prompt       time.Duration // prompt processing: the engine's word, or the clock's
	Decode       time.Duration // first to last token
	First        time.Duration // sending to first token
	Hold         time.Duration // how long the slot was held
}

// minPromptSample keeps tiny prompts from teaching a prompt speed: below it
// the fixed cost of a request outweighs the tokens.
const minPromptSample = 16

// Loaded takes in how long a load took, by the clock.
func (s *Speed) Loaded(d time.Duration) {
	if d > loadNoise {
		s.load.add(d.Seconds())
	}
}

// Learn takes a sample in.
func (s *Speed) Learn(x Sample) {
	s.samples++
	s.watch(x)
	if x.Prompt > 0 && x.PromptTokens > 0 {
		s.learnPrompt(x.Prompt.Seconds()*s.clock(), float64(x.PromptTokens))
	}
	if x.Decode > 0 && x.OutputTokens > 1 {
		s.decodePerToken.add(x.decode())
	}
	if x.First > 0 {
		s.first.add(max(0, x.First-x.Load).Seconds() * s.clock())
	}
	if x.Hold > 0 {
		s.hold.add(max(0, x.Hold-x.Load).Seconds())
	}
	if !x.Joined {
		s.Loaded(x.Load)
	}
}

// learnPrompt learns the time of a prompt as a start and so much for each token.
// Where conversations find their prompts in the cache most prompts are a handful
// of new tokens, whose time is mostly the start; what a token takes is told by
// the large ones, however rare they are. So a sample counts for it as much as it
// is large, and one far larger than all before replaces what they said.
func (f *figures) learnPrompt(seconds, tokens float64) {
	const muchLarger, small = 4, 0.25
	if tokens > muchLarger*f.large {
		f.promptPerToken.n = 0
	}
	if tokens >= minPromptSample {
		f.large = max(tokens, 0.98*f.large)
		f.promptPerToken.weigh(max(0, seconds-f.start)/tokens, tokens/f.large)
	}
	if p := f.promptPerToken; p.known() && tokens <= small*f.large {
		f.start += meanWeight * (min(max(0, seconds-p.v*tokens), p.v*f.large) - f.start)
	}
}

// Doubt is how many times too long what was learned so far may be: the first
// answers of a server that warms up, or on a machine that starts, say little of
// the later ones. It is 1 from the third sample on.
func (s *Speed) Doubt() int {
	switch s.samples {
	case 1:
		return 4
	case 2:
		return 2
	}
	return 1
}

func (x *Sample) decode() float64 { return x.Decode.Seconds() / float64(x.OutputTokens-1) }

func (s *Speed) clock() float64 {
	if s.pace > 0 {
		return s.pace
	}
	return 1
}

// A collapse is collapseRun answers in a row that took over collapseFactor
// times the usual per token: more than a full batch does to a stream, and less
// than the loss of a GPU.
const (
	collapseFactor = 4
	collapseRun    = 3
	usualSamples   = 8 // from so many on a mean counts as usual
)

// watch looks for a collapse of the decode speed, and for its end. Either way
// what was learned before is about another machine: the next sample replaces
// it, where it would otherwise move it by an eighth.
func (s *Speed) watch(x Sample) {
	if x.Decode <= 0 || x.OutputTokens <= 1 {
		return
	}
	d := x.decode()
	switch {
	case s.collapsed && d < s.usual*collapseFactor/2:
		s.collapsed = false
		s.renew()
	case s.collapsed:
	case s.decodePerToken.n < usualSamples || d <= collapseFactor*s.usual:
		s.usual, s.slow = s.decodePerToken.v, 0
	default:
		if s.slow++; s.slow == collapseRun {
			s.collapsed, s.slow = true, 0
			s.renew()
		}
	}
}

// renew makes every figure an assumption that its next sample replaces.
func (f *figures) renew() {
	for _, m := range []*mean{&f.promptPerToken, &f.decodePerToken, &f.first, &f.hold} {
		m.n = 0
	}
}

// Collapsed reports whether it decodes far slower than it used to.
func (s *Speed) Collapsed() bool { return s.collapsed }

// UsualTokensPerS is the decode speed before it collapsed.
func (s *Speed) UsualTokensPerS() float64 { return rate(mean{v: s.usual}) }

// cpuFactor is what a model that fell off the GPU is assumed to have become
// slower by until it has answered from there: about what a GPU's memory is
// faster by. One answer settles it.
const cpuFactor = 10

// Place says where the model runs now. What was learned of it on the other
// device is put aside for when it comes back.
func (s *Speed) Place(onCPU bool) {
	if s.onCPU == onCPU {
		return
	}
	s.onCPU, s.collapsed, s.slow = onCPU, false, 0
	s.figures, s.elsewhere = s.elsewhere, s.figures
	if onCPU && s.figures == (figures{}) {
		s.figures = s.elsewhere
		for _, m := range []*mean{&s.promptPerToken, &s.decodePerToken, &s.first, &s.hold} {
			m.v *= cpuFactor
		}
		s.start *= cpuFactor
		s.renew()
	}
}

// loadNoise is below what a real load takes: Ollama reports a few
// milliseconds of load_duration for a resident model.
const loadNoise = 200 * time.Millisecond

// FirstToken predicts prompt processing for that many uncached tokens.
// known is false while nothing has been learned.
func (s *Speed) FirstToken(tokens int) (d time.Duration, known bool) {
	l := s.Line()
	return l.At(tokens), l.Known
}

// Line is prompt processing by the number of uncached tokens: what FirstToken
// predicts by, for who asks it of many replicas.
type Line struct {
	Start, PerToken float64 // seconds at the full SM clock
	Clock           float64 // share of it now
	Known           bool
}

// Line holds until the next thing learned.
func (s *Speed) Line() Line {
	switch {
	case s.promptPerToken.known():
		return Line{s.start, s.promptPerToken.v, s.clock(), true}
	case s.first.known():
		return Line{Start: s.first.v, Clock: s.clock(), Known: true}
	}
	return Line{Clock: 1}
}

func (l *Line) seconds(tokens int) float64 { return (l.Start + l.PerToken*float64(tokens)) / l.Clock }

// At is the time for so many tokens.
func (l *Line) At(tokens int) time.Duration { return seconds(l.seconds(tokens)) }

// Terms is all that a whole request is predicted by, as Line is for its prompt.
type Terms struct {
	Line
	Decode  float64       // seconds per output token of one stream; 0 unknown
	hold    time.Duration // that a slot is held, whatever the tokens
	lateBy  float64       // as Speed's
	doubt   uint8         // log₂ of Speed.Doubt
	byToken bool          // holding goes by tokens
	held    bool          // hold is known
}

// Terms hold until the next thing learned.
func (s *Speed) Terms() Terms {
	return Terms{
		Line: s.Line(), Decode: s.decodePerToken.v, hold: seconds(s.hold.v), lateBy: s.lateBy, doubt: uint8(bits.Len(uint(s.Doubt())) - 1),
		byToken: s.promptPerToken.known() && s.decodePerToken.known(), held: s.hold.known(),
	}
}

// Predict gives the time to the first token of an answer, loading left out, and
// what then remains of it. known is false while nothing has been learned.
func (s *Terms) Predict(promptTokens, outputTokens int) (first, rest time.Duration, known bool) {
	prompt := s.seconds(promptTokens)
	first = seconds(prompt)
	whole := s.hold
	switch {
	case s.byToken && outputTokens > 0:
		whole = seconds(prompt + s.Decode*float64(outputTokens-1))
	case !s.held:
		return first, 0, s.Known
	}
	if !s.Known { // a whole answer's time says nothing of its first token
		return 0, whole, true
	}
	return min(first, whole), max(0, whole-first), true
}

// Late is Speed's.
func (s *Terms) Late(predicted time.Duration) time.Duration {
	return time.Duration(float64(predicted) * s.lateBy)
}

// Doubted is a time of which only the part is taken that Doubt leaves.
func (s *Terms) Doubted(d time.Duration) time.Duration { return d >> s.doubt }

// Load predicts the time to load the model; known is false before the first load seen.
func (s *Speed) Load() (d time.Duration, known bool) { return seconds(s.load.v), s.load.n > 0 }

// Late is what to add to a predicted time to the first token so that about
// nineteen in twenty come no later.
func (s *Speed) Late(predicted time.Duration) time.Duration {
	return time.Duration(float64(predicted) * s.lateBy)
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
	s.lateBy = math.Expm1(s.late)
}

// Decode is the seconds per output token of one stream; 0 unknown.
func (s *Speed) Decode() float64 { return s.decodePerToken.v }

// PromptTokensPerS is the measured prompt speed; 0 unknown.
func (s *Speed) PromptTokensPerS() float64 { return rate(s.promptPerToken) * s.clock() }

// DecodeTokensPerS is the measured decode speed of one stream; 0 unknown.
func (s *Speed) DecodeTokensPerS() float64 { return rate(s.decodePerToken) }

// Known reports whether anything has been learned.
func (s *Speed) Known() bool { return s.hold.known() || s.first.known() }

// meanWeight is the weight of a new sample: the mean follows a change of
// speed within some 20 samples and smooths over single outliers.
const meanWeight = 0.125

type mean struct {
	v float64
	n int // samples; 0 with a v: an assumption
}

func (m mean) known() bool { return m.n > 0 || m.v > 0 }

func (m *mean) add(x float64) { m.weigh(x, 1) }

// weigh takes in a sample that counts for a part of one; the first counts whole.
func (m *mean) weigh(x, part float64) {
	if m.n++; m.n > 1 {
		part *= max(meanWeight, 1/float64(m.n))
	} else {
		part = 1
	}
	m.v += part * (x - m.v)
}

func rate(m mean) float64 {
	if m.v <= 0 {
		return 0
	}
	return 1 / m.v
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
