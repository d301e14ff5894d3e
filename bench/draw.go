package bench

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// drawing is an SVG picture under way. Colours are classes of the page's style
// sheet, so that light and dark are its business alone.
type drawing struct {
	strings.Builder
	w, h float64
}

func newDrawing(w, h float64, label string) *drawing {
	d := &drawing{w: w, h: h}
	fmt.Fprintf(d, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`+"\n", w, h, html.EscapeString(label))
	return d
}

func (d *drawing) end() string {
	d.WriteString("</svg>\n")
	return d.String()
}

// px writes a coordinate: a tenth of a unit is finer than can be seen.
func px(x float64) string { return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) }

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(d, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, px(x1), px(y1), px(x2), px(y2))
}

// rect draws a box; a title is what a pointer over it is shown.
func (d *drawing) rect(class string, x, y, w, h float64, title string) {
	fmt.Fprintf(d, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`+"\n", class, px(x), px(y), px(w), px(h), html.EscapeString(title))
}

func (d *drawing) dot(class string, x, y float64, title string) {
	fmt.Fprintf(d, `<circle class="%s" cx="%s" cy="%s" r="3.5"><title>%s</title></circle>`+"\n", class, px(x), px(y), html.EscapeString(title))
}

func (d *drawing) text(class string, x, y float64, s string) {
	fmt.Fprintf(d, `<text class="%s" x="%s" y="%s">%s</text>`+"\n", class, px(x), px(y), html.EscapeString(s))
}

// path draws a line through points, or the area below it.
func (d *drawing) path(class string, points [][2]float64, title string) {
	fmt.Fprintf(d, `<path class="%s" d="`, class)
	step := "M"
	for _, p := range points {
		d.WriteString(step + px(p[0]) + " " + px(p[1]))
		step = "L"
	}
	fmt.Fprintf(d, `"><title>%s</title></path>`+"\n", html.EscapeString(title))
}

// scale maps values to coordinates.
type scale struct {
	lo, hi   float64 // values
	from, to float64 // coordinates
	log      bool
}

func (s scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(max(v, s.lo))
	}
	return s.from + (s.to-s.from)*(v-lo)/(hi-lo)
}

// ticks are round values over the scale, about n of them.
func (s scale) ticks(n int) []float64 {
	if s.log {
		return s.decades(n)
	}
	step := math.Pow(10, math.Floor(math.Log10((s.hi-s.lo)/float64(n))))
	for _, f := range []float64{1, 2, 5, 10} {
		if (s.hi-s.lo)/(step*f) <= float64(n) {
			step *= f
			break
		}
	}
	var all []float64
	for v := math.Ceil(s.lo/step-1e-9) * step; v <= s.hi+step*1e-9; v += step {
		all = append(all, math.Abs(math.Round(v/step)*step)) // no scale here has negative values, and 0 must not be -0
	}
	return all
}

// decades are powers of ten, and their doubles and halves where there is room.
func (s scale) decades(n int) []float64 {
	factors := []float64{1, 2, 5}
	if math.Log10(s.hi/s.lo)*3 > float64(n) {
		factors = []float64{1}
	}
	var all []float64
	for e := math.Floor(math.Log10(s.lo)); e <= math.Log10(s.hi); e++ {
		for _, f := range factors {
			if v := f * math.Pow(10, e); v >= s.lo*(1-1e-9) && v <= s.hi*(1+1e-9) {
				all = append(all, v)
			}
		}
	}
	return all
}

// roundUp is a round number not below v, for the end of a scale.
func roundUp(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8, 10} {
		if step*f >= v*(1-1e-9) {
			return step * f
		}
	}
	return v
}

// short writes a tick's value.
func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// secondsShort writes a time on a tick.
func secondsShort(v float64) string {
	if v > 0 && v < 0.9995 {
		return short(v*1000) + " ms"
	}
	return short(v) + " s"
}

// frame draws the axes of a plot: a grid with values at the left and below.
func (d *drawing) frame(x, y scale, xText, yText func(float64) string) {
	for _, v := range y.ticks(5) {
		d.line("grid", x.from, y.at(v), x.to, y.at(v))
		d.text("tick end", x.from-6, y.at(v)+4, yText(v))
	}
	for _, v := range x.ticks(8) {
		d.line("grid", x.at(v), y.from, x.at(v), y.to)
		d.text("tick mid", x.at(v), y.from+16, xText(v))
	}
	d.line("axis", x.from, y.from, x.to, y.from)
}
