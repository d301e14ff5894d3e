package model

import (
	"fmt"
	"math"
	"math/rand/v2"
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

func (d Dist) draw(r *rand.Rand) int {
	v := d.median
	if d.sigma > 0 {
		v *= math.Exp(d.sigma * r.NormFloat64())
	}
	return max(1, int(math.Round(min(v, math.MaxInt32))))
}
