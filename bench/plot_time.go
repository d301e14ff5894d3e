package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// bins is into how many pieces a trial's time is cut for its picture.
const bins = 120

// course is a trial over time.
type course struct {
	target  string
	waiting [bins]float64 // the most that waited for a first token at once
	refused [bins]float64
}

// overTime shows how many requests waited for a first token and how many were
// refused, in each target's first trial, all on the same scales.
func (l *logs) overTime(shown []run) figure {
	var courses []*course
	end, tallest, most := 0.0, 0.0, 0.0
	first := func(r run) *tally { return l.trials[r][slices.Min(slices.Collect(maps.Keys(l.trials[r])))] }
	for _, r := range shown {
		end = max(end, first(r).to)
	}
	if end == 0 {
		return figure{}
	}
	for _, r := range shown {
		c := first(r).course(end)
		c.target = r.target
		courses = append(courses, c)
		tallest, most = max(tallest, slices.Max(c.waiting[:])), max(most, slices.Max(c.refused[:]))
	}
	f := figure{
		Title: "Waiting and refusals over time", Small: true,
		Words: fmt.Sprintf("Above, how many requests waited for a first token; below, how many were refused in each of %d pieces of the time while requests came. First trial, the same scales for all.%s", bins, l.atLoad(shown)),
	}
	colours := l.colours()
	for _, c := range courses {
		f.Pictures = append(f.Pictures, c.draw(colours[c.target], end, roundUp(tallest), roundUp(most)))
	}
	return f
}

// course follows a trial up to when its last request came.
func (t *tally) course(end float64) *course {
	c := &course{}
	type step struct {
		at     float64
		change float64
	}
	steps := make([]step, 0, 2*len(t.passed))
	bin := func(at float64) int { return min(bins-1, int(at/end*bins)) }
	for _, p := range t.passed {
		steps = append(steps, step{p.arrival, 1}, step{max(p.settled, p.arrival), -1})
		if p.out == refused && p.settled <= end {
			c.refused[bin(p.settled)]++
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change)) })
	waiting, at := 0.0, 0
	for _, s := range steps {
		if s.at > end {
			break
		}
		for to := bin(s.at); at < to; {
			at++
			c.waiting[at] = waiting
		}
		waiting += s.change
		c.waiting[at] = max(c.waiting[at], waiting)
	}
	for at++; at < bins; at++ {
		c.waiting[at] = waiting
	}
	return c
}

func (c *course) draw(colour string, end, tallest, most float64) string {
	const w, h, split, foot = 370.0, 200.0, 128.0, 176.0
	x := scale{lo: 0, hi: end, from: 40, to: w - 8}
	y := scale{lo: 0, hi: tallest, from: split, to: 26}
	low := scale{lo: 0, hi: most, from: foot, to: split + 10}
	d := newDrawing(w, h, "waiting and refusals over time: "+c.target)
	d.text("name", 4, 14, c.target)
	for _, v := range y.ticks(3) {
		d.line("grid", x.from, y.at(v), x.to, y.at(v))
		d.text("tick end", x.from-5, y.at(v)+4, short(v))
	}
	d.text("tick end", x.from-5, low.to+8, short(most))
	for _, v := range x.ticks(5) {
		d.text("tick mid", x.at(v), foot+16, secondsShort(v))
	}
	each := (x.to - x.from) / bins
	line := [][2]float64{{x.from, split}}
	for i, v := range c.waiting {
		line = append(line, [2]float64{x.from + each*(float64(i)+0.5), y.at(v)})
	}
	line = append(line, [2]float64{x.to, split})
	peak := fmt.Sprintf("%s: at most %s waited", c.target, count(slices.Max(c.waiting[:])))
	d.path("area "+colour, line, peak)
	d.path("line "+colour, line[1:len(line)-1], peak)
	for i, n := range c.refused {
		if n > 0 {
			left := x.from + each*float64(i)
			d.rect("o2", left, low.at(n), each*0.85, foot-low.at(n), strings.TrimSpace(fmt.Sprintf("%s refused", count(n))))
		}
	}
	d.line("axis", x.from, split, x.to, split)
	d.line("axis", x.from, foot, x.to, foot)
	return d.end()
}
