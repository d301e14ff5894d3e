package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// The pictures' measures, in units of the viewBox.
const (
	wide    = 760.0
	names   = 190.0 // room for what a bar is called
	barStep = 26.0
	bar     = 17.0
)

// figure is one picture, or a row of them, with its words.
type figure struct {
	Title, Words string
	Legend       []legend
	Pictures     []string
	Small        bool // several small ones, side by side
}

type legend struct{ Class, Text string }

// colours gives each target its class of the style sheet: this gateway and the
// plain proxies always the same ones.
func (l *logs) colours() map[string]string {
	fixed := map[string]string{"switchyard": "t0", "round-robin": "t1", "least-connections": "t2", "switchyard-oracle": "t3"}
	classes, next := make(map[string]string), 4
	for _, r := range l.runs {
		if classes[r.target] != "" {
			continue
		}
		if c := fixed[r.target]; c != "" {
			classes[r.target] = c
			continue
		}
		classes[r.target] = fmt.Sprintf("t%d", min(next, 9))
		next++
	}
	return classes
}

func (l *logs) targets() []string {
	var all []string
	for _, r := range l.runs {
		if !slices.Contains(all, r.target) {
			all = append(all, r.target)
		}
	}
	return all
}

func (l *logs) legend() []legend {
	colours := l.colours()
	var all []legend
	for _, t := range l.targets() {
		all = append(all, legend{colours[t], t})
	}
	return all
}

// figures draws everything that there is something to draw of.
func (l *logs) figures() []figure {
	shown := l.shown()
	all := []figure{l.overLoad(), l.outcomeBars(), l.distributions(shown), l.overTime(shown)}
	all = append(all,
		l.bars("Prompt cache", "The share of prompt tokens that replicas found in their caches; the whiskers span the trials.", (*tally).hits),
		l.bars("Fairness between keys", "Jain's index over the keys' on-time answers, each as a part of its fair share of all of them: 1 where every key has its share; the whiskers span the trials.", (*tally).fairness))
	return slices.DeleteFunc(all, func(f figure) bool { return len(f.Pictures) == 0 })
}

// shown are the runs whose times are drawn: all, or those at one load, the one
// next to twice the scenario's own.
func (l *logs) shown() []run {
	best := slices.MinFunc(l.runs, func(a, b run) int { return cmp.Compare(math.Abs(a.load-2), math.Abs(b.load-2)) }).load
	return slices.DeleteFunc(slices.Clone(l.runs), func(r run) bool { return r.load != best })
}

// atLoad says which load is shown.
func (l *logs) atLoad(shown []run) string {
	if !l.loads() {
		return ""
	}
	return fmt.Sprintf(" Here at load %g×.", shown[0].load)
}

// outcomeBars shows what became of the requests, a bar a run.
func (l *logs) outcomeBars() figure {
	const most = 30
	if l.loads() || len(l.runs) > most {
		return figure{}
	}
	scaleTo := 0.0
	for _, r := range l.runs {
		scaleTo = max(scaleTo, l.stat(r, func(t *tally) float64 { return float64(t.sent) }).median)
	}
	x := scale{lo: 0, hi: max(scaleTo, 1), from: names, to: wide - 10}
	d := newDrawing(wide, barStep*float64(len(l.runs))+8, "outcomes by target")
	for i, r := range l.runs {
		y := 4 + barStep*float64(i)
		d.text("name end", names-10, y+13, strings.Join(l.names(r), " "))
		from := 0.0
		for o := range outcomes {
			n := l.stat(r, func(t *tally) float64 { return float64(t.by[o]) }).median
			if n == 0 {
				continue
			}
			left, right := x.at(from), x.at(from+n)
			d.rect(fmt.Sprintf("o%d", o), left, y, right-left, bar, fmt.Sprintf("%s: %s %s", r.target, count(n), outcomes[o]))
			if text := count(n); right-left > 8*float64(len(text))+6 {
				d.text(fmt.Sprintf("mid in%d", o), (left+right)/2, y+13, text)
			}
			from += n
		}
	}
	f := figure{Title: "What became of the requests", Words: "Each bar is all requests that were sent, the returns of refused clients among them.", Pictures: []string{d.end()}}
	for o, text := range outcomes {
		f.Legend = append(f.Legend, legend{fmt.Sprintf("o%d", o), text})
	}
	return f
}

// overLoad shows on-time answers over the load that was offered.
func (l *logs) overLoad() figure {
	if !l.loads() {
		return figure{}
	}
	offered := func(t *tally) float64 { return float64(t.first) / (t.to - t.from) }
	served := func(t *tally) float64 { return float64(t.by[onTime]) / (t.to - t.from) }
	highest, best := 0.0, 0.0
	for _, r := range l.runs {
		highest, best = max(highest, l.stat(r, offered).most), max(best, l.stat(r, served).most)
	}
	x := scale{lo: 0, hi: roundUp(highest), from: 56, to: wide - 14}
	y := scale{lo: 0, hi: roundUp(best), from: 300, to: 12}
	d := newDrawing(wide, 340, "on-time answers over offered load")
	d.frame(x, y, short, short)
	d.text("tick mid", (x.from+x.to)/2, 336, "offered, requests per second")
	end := min(x.hi, y.hi)
	d.line("guide", x.at(0), y.at(0), x.at(end), y.at(end))
	colours := l.colours()
	for _, target := range slices.Backward(l.targets()) { // the first on top
		var points [][2]float64
		for _, r := range l.runs {
			if r.target != target {
				continue
			}
			at, s := x.at(l.stat(r, offered).median), l.stat(r, served)
			points = append(points, [2]float64{at, y.at(s.median)})
			d.line("whisker "+colours[target], at, y.at(s.least), at, y.at(s.most))
		}
		d.path("line "+colours[target], points, target)
		for i, r := range slices.DeleteFunc(slices.Clone(l.runs), func(r run) bool { return r.target != target }) {
			s := l.stat(r, served)
			d.dot("dot "+colours[target], points[i][0], points[i][1], fmt.Sprintf("%s at %g×: %.3g on time per second", target, r.load, s.median))
		}
	}
	return figure{
		Title: "On time over offered load", Words: "On-time answers per second: medians, the whiskers span the trials. On the dashed line everything would be on time.",
		Legend: l.legend(), Pictures: []string{d.end()},
	}
}

// distributions shows by when which share of all requests had a first token.
func (l *logs) distributions(shown []run) figure {
	least, most, due := math.Inf(1), 0.0, make(map[float64]bool)
	times, sent := make(map[run][]float64), make(map[run]int)
	for _, r := range shown {
		for _, trial := range slices.Sorted(maps.Keys(l.trials[r])) {
			t := l.trials[r][trial]
			times[r] = append(times[r], t.ttft...)
			sent[r] += t.sent
			maps.Copy(due, t.due)
		}
		slices.Sort(times[r])
		if n := len(times[r]); n > 0 {
			least, most = min(least, times[r][0]), max(most, times[r][n-1])
		}
	}
	if most == 0 {
		return figure{}
	}
	for deadline := range due {
		most = max(most, deadline)
	}
	x := scale{lo: max(least, most/1e5, 1e-6) * 0.9, hi: most * 1.1, from: 56, to: wide - 14, log: true}
	y := scale{lo: 0, hi: 1, from: 300, to: 12}
	d := newDrawing(wide, 340, "distribution of the time to first token")
	d.frame(x, y, secondsShort, func(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) })
	d.text("tick mid", (x.from+x.to)/2, 336, "time to first token")
	for _, deadline := range slices.Sorted(maps.Keys(due)) {
		d.line("guide", x.at(deadline), y.from, x.at(deadline), y.to)
		d.text("tick end", x.at(deadline)-4, y.to+10, "due "+secondsShort(deadline))
	}
	colours := l.colours()
	for _, r := range slices.Backward(shown) { // the first on top
		d.path("line "+colours[r.target], steps(times[r], sent[r], x, y), r.target)
	}
	return figure{
		Title:  "Time to first token",
		Words:  "The share of all requests sent whose first token had come by then, trials together, whole answers only; what is refused or fails never comes." + l.atLoad(shown),
		Legend: l.legend(), Pictures: []string{d.end()},
	}
}

// steps is a distribution as a line, with as many points as can be seen.
func steps(sorted []float64, of int, x, y scale) [][2]float64 {
	const most = 400
	points := [][2]float64{{x.from, y.at(0)}}
	n := len(sorted)
	for k := range min(n, most) {
		i := k
		if n > most {
			i = k * (n - 1) / (most - 1)
		}
		points = append(points, [2]float64{x.at(sorted[i]), y.at(float64(i+1) / float64(of))})
	}
	if n > 0 {
		points = append(points, [2]float64{x.to, y.at(float64(n) / float64(of))})
	}
	return points
}

// bars shows one metric, a bar a run.
func (l *logs) bars(title, words string, value func(*tally) float64) figure {
	var runs []run
	highest := 0.0
	for _, r := range l.runs {
		if s := l.stat(r, value); !math.IsNaN(s.median) {
			runs = append(runs, r)
			highest = max(highest, s.most)
		}
	}
	const most = 60
	if highest == 0 || len(runs) > most {
		return figure{}
	}
	x := scale{lo: 0, hi: 1, from: names, to: wide - 60}
	d := newDrawing(wide, barStep*float64(len(runs))+30, title)
	foot := barStep*float64(len(runs)) + 4
	for _, v := range x.ticks(5) {
		d.line("grid", x.at(v), 0, x.at(v), foot)
		d.text("tick mid", x.at(v), foot+16, short(v))
	}
	colours := l.colours()
	for i, r := range runs {
		y, s := 4+barStep*float64(i), l.stat(r, value)
		d.text("name end", names-10, y+13, strings.Join(l.names(r), " "))
		d.rect("fill "+colours[r.target], x.from, y, x.at(s.median)-x.from, bar, fmt.Sprintf("%s: %.3f", r.target, s.median))
		if s.least != s.most {
			d.line("axis", x.at(s.least), y+bar/2, x.at(s.most), y+bar/2)
		}
		d.text("value", x.at(max(s.median, s.most))+6, y+13, fmt.Sprintf("%.3f", s.median))
	}
	return figure{Title: title, Words: words, Pictures: []string{d.end()}}
}
