package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Dist is a distribution of token counts. The zero value is none.
type Dist struct {
	kind string // fixed, uniform, lognormal, pareto
	a, b float64
	most float64 // no draw is above it; 0: no bound
}

const (
	distForms = "fixed:N, uniform:LO,HI, lognormal:MEDIAN,SIGMA or pareto:LEAST,ALPHA, the last two also with ,MOST"
	mostDraw  = 10_000_000 // tokens: beyond any context
)

// Fixed is always n.
func Fixed(n int) Dist { return Dist{kind: "fixed", a: float64(n)} }

// ParseDist reads fixed:N (or N alone), uniform:LO,HI, lognormal:MEDIAN,SIGMA and
// pareto:LEAST,ALPHA; the last two may end in ,MOST.
func ParseDist(text string) (Dist, error) {
	kind, args, named := strings.Cut(text, ":")
	if !named {
		kind, args = "fixed", text
	}
	var v []float64
	for part := range strings.SplitSeq(args, ",") {
		x, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(x >= 0 && x <= mostDraw) {
			return Dist{}, fmt.Errorf("%q: want %s", text, distForms)
		}
		v = append(v, x)
	}
	d, n := Dist{kind: kind, a: v[0]}, len(v)
	if n > 1 {
		d.b = v[1]
	}
	ok := false
	switch kind {
	case "fixed":
		ok = n == 1 && d.a >= 1 && d.a == math.Trunc(d.a)
	case "uniform":
		ok = n == 2 && d.a >= 1 && d.b >= d.a
	case "lognormal", "pareto":
		if n == 3 {
			d.most = v[2]
		}
		ok = (n == 2 || n == 3 && d.most >= d.a) && d.a >= 1 && (kind == "lognormal" || d.b > 0)
	}
	if !ok {
		return Dist{}, fmt.Errorf("%q: want %s", text, distForms)
	}
	return d, nil
}

// UnmarshalText is ParseDist.
func (d *Dist) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDist(string(text))
	return err
}

// draw gives one value, at least 1.
func (d Dist) draw(r *rand.Rand) int {
	x := d.a
	switch d.kind {
	case "uniform":
		x += math.Floor(r.Float64() * (d.b - d.a + 1))
	case "lognormal":
		x *= math.Exp(d.b * r.NormFloat64())
	case "pareto":
		x /= math.Pow(1-r.Float64(), 1/d.b)
	}
	if d.most > 0 {
		x = min(x, d.most)
	}
	return max(1, int(math.Round(min(x, mostDraw))))
}
