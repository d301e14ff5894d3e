package model

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Dist is a distribution of output lengths.
type Dist struct {
	median float64
	sigma  float64 // 0: always the median
}

// Fixed is always n.
func Fixed(n int) Dist { return Dist{median: float64(n)} }

// LogNormal has the given median; sigma is the deviation of the logarithm.
func LogNormal(median, sigma float64) Dist { return Dist{median: median, sigma: sigma} }

// ParseDist reads "fixed:N" and "lognormal:MEDIAN,SIGMA".
func ParseDist(s string) (Dist, error) {
	kind, args, _ := strings.Cut(s, ":")
	switch kind {
	case "fixed":
		if n, err := strconv.Atoi(args); err == nil && n > 0 {
			return Fixed(n), nil
		}
	case "lognormal":
		m, sg, _ := strings.Cut(args, ",")
		median, err1 := strconv.ParseFloat(m, 64)
		sigma, err2 := strconv.ParseFloat(sg, 64)
		if err1 == nil && err2 == nil && median >= 1 && sigma >= 0 && !math.IsInf(median+sigma, 0) {
			return LogNormal(median, sigma), nil
		}
	}
	return Dist{}, fmt.Errorf("output tokens %q: want fixed:N or lognormal:MEDIAN,SIGMA, as in fixed:200 or lognormal:200,0.8", s)
}

// String is the form that ParseDist reads.
func (d Dist) String() string {
	if d.sigma == 0 {
		return fmt.Sprintf("fixed:%g", d.median)
	}
	return fmt.Sprintf("lognormal:%g,%g", d.median, d.sigma)
}

// Draw gives the length that belongs to a number: the same for the same one.
func (d Dist) Draw(number uint64) int {
	v := d.median
	if d.sigma > 0 {
		// Box and Muller: two even numbers make one of the normal distribution.
		u1, u2 := unit(mix(number, 1)), unit(mix(number, 2))
		v *= math.Exp(d.sigma * math.Sqrt(-2*math.Log(1-u1)) * math.Cos(2*math.Pi*u2))
	}
	return max(1, int(math.Round(min(v, math.MaxInt32))))
}

// mix makes one number of two that has nothing to do with either: the
// finaliser of splitmix64.
func mix(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// unit is a number from 0 up to 1.
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }
