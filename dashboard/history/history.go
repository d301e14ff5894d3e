// Package history remembers what the dashboard's charts show: the last 15
// minutes in steps of 5 s and the last 6 hours in steps of a minute, in rings
// of a fixed size. It is told what happens and the time of it, starts nothing
// and reads no clock.
package history

import (
	"math"
	"slices"
	"strconv"
	"time"

	"switchyard/admission"
)

// Span is one of the two rings.
type Span int

// The spans.
const (
	Minutes15 Span = iota
	Hours6
)

// spans are the step and the number of steps of each ring.
var spans = [...]struct {
	name string
	step time.Duration
	len  int
}{{"15m", 5 * time.Second, 180}, {"6h", time.Minute, 360}}

// String gives the name that the interface uses.
func (s Span) String() string { return spans[s].name }

// ParseSpan finds a span by its name.
func ParseSpan(name string) (Span, bool) {
	for i := range spans {
		if spans[i].name == name {
			return Span(i), true
		}
	}
	return 0, false
}

// The values of a point, in their order in JSON. Rates are per second, shares
// 0…1; what was not measured in a step is NaN, in JSON null.
const (
	Arrived   = iota // rates, by the books
	Completed        //
	Refused          //
	Failed           //
	Cancelled        //
	Queued           // most at once
	Running          // most at once
	WaitP50          // seconds in the queue, of requests that were sent to a replica
	WaitP99
	FirstP50 // seconds to the first token
	FirstP99
	PromptTokens // rates; an answer's tokens count when it ends
	OutputTokens
	CacheShare // of prompt tokens
	GPUUse     // mean share of time in use
	GPUMemory  // share in use
	numValues
)

// Names are the values' names in JSON.
var Names = [numValues]string{
	"arrived", "completed", "refused", "failed", "cancelled", "queued", "running", "wait_p50", "wait_p99",
	"first_p50", "first_p99", "prompt_tokens", "output_tokens", "cache_share", "gpu_use", "gpu_memory",
}

// Point is one step's values.
type Point [numValues]float32

// MarshalJSON writes an array of numbers with four significant digits.
func (p Point) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 8*numValues)
	b = append(b, '[')
	for i, v := range p {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, float64(v), 'g', 4, 32)
		}
	}
	return append(b, ']'), nil
}

// Series is a part of a ring: the points of consecutive steps.
type Series struct {
	Span   string   `json:"span"`
	Names  []string `json:"names,omitempty"`
	StepS  float64  `json:"step_s"`
	From   int64    `json:"from"` // Unix seconds at which the first step began
	Points []Point  `json:"points"`
}

// History is both rings and the steps in the making. It is not safe for
// concurrent use.
type History struct {
	rings  [len(spans)]ring
	recent [glanceSteps]*step // the last closed 5 s steps, newest last
	last   *admission.Snapshot
	begun  time.Time // first sample
	wasted int64     // output tokens, since the beginning
}

// ring holds the closed steps; next is the place of the oldest.
type ring struct {
	points []Point
	next   int
	newest int64 // number of the newest step, since 1970
	now    *step
}

// New returns a history without points. Nothing grows afterwards.
func New() *History {
	h := &History{}
	for i := range h.rings {
		h.rings[i].points = make([]Point, 0, spans[i].len)
	}
	return h
}

// Sample takes a state in, several times a step. It returns the steps that have
// ended by then.
func (h *History) Sample(s *admission.Snapshot) []Series {
	if h.last == nil {
		h.begun, h.last = s.At, s
	}
	var closed []Series
	for i := range h.rings {
		r := &h.rings[i]
		n := s.At.UnixNano() / int64(spans[i].step)
		if r.now != nil && n != r.now.number {
			if Span(i) == Minutes15 {
				copy(h.recent[:], h.recent[1:])
				h.recent[glanceSteps-1] = r.now
			}
			closed = append(closed, r.close(Span(i)))
			r.now = nil
		}
		if r.now == nil {
			r.now = &step{number: n, from: h.last.At}
		}
		r.now.sample(s, h.last)
	}
	h.last = s
	return closed
}

// Ended takes a request's end in.
func (h *History) Ended(d *admission.Decision) {
	for _, a := range d.Attempts {
		if a.Result != "ok" {
			h.wasted += int64(a.OutputTokens)
		}
	}
	for i := range h.rings {
		if st := h.rings[i].now; st != nil {
			st.ended(d)
		}
	}
}

// close puts the step in the making into the ring. Steps in which nothing was
// sampled are empty.
func (r *ring) close(s Span) Series {
	n := r.now.number
	if len(r.points) > 0 {
		for gap := min(n-r.newest-1, int64(spans[s].len)); gap > 0; gap-- {
			r.put(empty())
		}
	}
	p := r.now.point()
	r.put(p)
	r.newest = n
	step := spans[s].step
	return Series{Span: s.String(), StepS: step.Seconds(), From: n * int64(step/time.Second), Points: []Point{p}}
}

func (r *ring) put(p Point) {
	if len(r.points) < cap(r.points) {
		r.points = append(r.points, p)
		return
	}
	r.points[r.next] = p
	r.next = (r.next + 1) % len(r.points)
}

func empty() (p Point) {
	for i := range p {
		p[i] = float32(math.NaN())
	}
	return p
}

// Series copies a ring, oldest first.
func (h *History) Series(s Span) Series {
	r := &h.rings[s]
	step := int64(spans[s].step / time.Second)
	points := slices.Concat(r.points[r.next:], r.points[:r.next])
	if points == nil {
		points = []Point{}
	}
	return Series{
		Span: s.String(), Names: Names[:], StepS: float64(step), Points: points,
		From: (r.newest + 1 - int64(len(r.points))) * step,
	}
}
