package admission

import "math"

// lengths is what has been learned of how long answers are: a histogram whose
// buckets grow by a quarter of an octave and whose old samples fade, so that it
// follows a change within some lengthsMemory answers. Each bucket knows the sum
// of its samples, so means are exact whatever the buckets' width.
type lengths struct {
	weight, sum [lengthBuckets]float64
	// above[i] are the weight, sum and squares of the buckets from i on.
	aboveWeight, aboveSum, aboveSquare [lengthBuckets + 1]float64
	above                              [lengthBuckets + 1]struct{ mean, spread float64 } // likewise, for rest: it is asked hundreds of times for one forecast
	last                               int                                               // above which there is next to nothing
	unit                               float64                                           // weight of the next sample
	n                                  int
	stale                              bool // above is out of date
}

const (
	lengthBuckets = 72  // up to 2^18 tokens
	lengthsMemory = 256 // answers
)

func lengthBucket(tokens float64) int {
	if tokens < 1 {
		return 0
	}
	const fraction = 1<<52 - 1
	b := math.Float64bits(tokens) // tokens = 2^exp × (1 + frac)
	exp, frac := int(b>>52)-1023, b&fraction
	short := (frac-quarter)>>63 + (frac-half)>>63 + (frac-threeQuarters)>>63 // no branches to be guessed wrong
	return min(4*exp+3-int(short), lengthBuckets-1)
}

// Quarters of an octave, as fractions beyond a power of two, in units of 2^-52.
const (
	quarter       = 0x306fe0a31b715 // 2^(1/4) − 1
	half          = 0x6a09e667f3bcd
	threeQuarters = 0xae89f995ad3ad
)

// add takes the length of an answer in.
func (l *lengths) add(tokens int) {
	if l.unit == 0 {
		l.unit = 1
	}
	l.n++
	l.unit *= 1 + 1.0/lengthsMemory
	i := lengthBucket(float64(tokens))
	l.weight[i] += l.unit
	l.sum[i] += l.unit * float64(tokens)
	l.stale = true
	if l.unit > 1e9 {
		for i := range l.weight {
			l.weight[i] /= l.unit
			l.sum[i] /= l.unit
		}
		l.unit = 1
	}
}

func (l *lengths) tails() {
	if l.stale {
		l.sumUp()
	}
}

func (l *lengths) sumUp() {
	l.stale = false
	for i := lengthBuckets - 1; i >= 0; i-- {
		l.aboveWeight[i] = l.aboveWeight[i+1] + l.weight[i]
		l.aboveSum[i] = l.aboveSum[i+1] + l.sum[i]
		l.aboveSquare[i], l.above[i] = l.aboveSquare[i+1], l.above[i+1]
		if l.weight[i] > 0 {
			l.aboveSquare[i] += l.sum[i] * l.sum[i] / l.weight[i]
			w, s, q := l.aboveWeight[i], l.aboveSum[i], l.aboveSquare[i]
			l.above[i].mean, l.above[i].spread = s/w, math.Sqrt(max(0, q/w-s/w*(s/w)))
		}
	}
	for l.last = lengthBuckets; l.last > 0 && l.aboveWeight[l.last] <= 1e-9*l.aboveWeight[0]; {
		l.last--
	}
}

// varied is the squared coefficient of variation.
func (l *lengths) varied() float64 {
	l.tails()
	w, s := l.aboveWeight[0], l.aboveSum[0]
	return max(0, l.aboveSquare[0]*w/(s*s)-1)
}

// mean is the expected length of an answer that has at most limit tokens.
func (l *lengths) mean(limit int) float64 {
	l.tails()
	if limit <= 0 {
		return l.aboveSum[0] / l.aboveWeight[0]
	}
	i := lengthBucket(float64(limit))
	over := l.aboveWeight[i+1]
	below := l.aboveSum[0] - l.aboveSum[i+1]
	if w := l.weight[i]; w > 0 && l.sum[i] > w*float64(limit) {
		below += w*float64(limit) - l.sum[i]
	}
	return (below + over*float64(limit)) / l.aboveWeight[0]
}

// rest is how many more tokens an answer is expected to have that has had so
// many already, at most limit in all (0: no limit), and how far off that may be:
// one standard deviation. Of one that is longer than all that were seen, both
// are a quarter of what it has had.
func (l *lengths) rest(had float64, limit int) (more, spread float64) {
	l.tails()
	i := lengthBucket(had)
	i += 1 - int(math.Float64bits(l.weight[i]*had-l.sum[i])>>63) // unless those of its own bucket are longer
	more, spread = had/4, had/4
	if i <= l.last {
		more, spread = l.above[i].mean-had, l.above[i].spread
	}
	if limit > 0 && more > float64(limit)-had {
		more = max(0, float64(limit)-had)
	}
	return more, min(spread, more)
}

// quantile is the length, at most limit (0: no limit), that a share q of the
// answers do not exceed, to the width of a bucket.
func (l *lengths) quantile(q float64, limit int) float64 {
	l.tails()
	left := (1 - q) * l.aboveWeight[0]
	v := 0.0
	for i := lengthBuckets - 1; i >= 0; i-- {
		if l.aboveWeight[i] > left {
			v = l.sum[i] / l.weight[i]
			break
		}
	}
	if limit > 0 {
		v = min(v, float64(limit))
	}
	return v
}

// dispersion is the mean square of the lengths over the square of their mean.
func (l *lengths) dispersion() float64 {
	l.tails()
	return max(1, l.aboveSquare[0]*l.aboveWeight[0]/(l.aboveSum[0]*l.aboveSum[0]))
}
