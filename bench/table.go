package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Table is one of the report's tables. Its cells are the text that is
// published: the median over the trials and, where they differ, their range.
type Table struct {
	ID    string // SCENARIO/NAME: by it a published table is found again
	Title string
	Head  []string
	Rows  [][]string
	left  int // so many columns are names, not numbers
}

// metric is a column that is computed per trial.
type metric struct {
	head   string
	value  func(*tally) float64 // NaN: it does not apply
	format func(float64) string
}

// summary are the columns of the first table.
var summary = []metric{
	{"sent", func(t *tally) float64 { return float64(t.sent) }, count},
	{"on time", func(t *tally) float64 { return float64(t.by[onTime]) }, count},
	{"late", func(t *tally) float64 { return float64(t.by[late]) }, count},
	{"refused", func(t *tally) float64 { return float64(t.by[refused]) }, count},
	{"failed", func(t *tally) float64 { return float64(t.by[failed]) }, count},
	{"time to first token p50 (s)", func(t *tally) float64 { return quantile(t.ttft, 0.5) }, digits(3)},
	{"p90 (s)", func(t *tally) float64 { return quantile(t.ttft, 0.9) }, digits(3)},
	{"p99 (s)", func(t *tally) float64 { return quantile(t.ttft, 0.99) }, digits(3)},
	{"refusal time p99 (ms)", func(t *tally) float64 { return 1000 * quantile(t.refusal, 0.99) }, digits(2)},
	{"wasted tokens", (*tally).wasted, count},
	{"cache hit share", (*tally).hits, percent},
	{"fairness", (*tally).fairness, digits(3)},
	{"promises kept", (*tally).kept, percent},
	{"Retry-After honesty", (*tally).honest, percent},
}

func count(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

func digits(n int) func(float64) string {
	return func(x float64) string { return strconv.FormatFloat(x, 'f', n, 64) }
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + "%" }

// stat is a value over the trials.
type stat struct{ median, least, most float64 }

// over gives the median of the trials' values and their range; trials to which
// it does not apply are left out.
func over(values []float64) stat {
	values = slices.DeleteFunc(values, math.IsNaN)
	if len(values) == 0 {
		return stat{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(values)
	n := len(values)
	return stat{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}
}

// cell writes a stat as the tables have it.
func (s stat) cell(format func(float64) string) string {
	if math.IsNaN(s.median) {
		return "–"
	}
	text := format(s.median)
	if lo, hi := format(s.least), format(s.most); lo != hi {
		text += " (" + lo + " to " + hi + ")"
	}
	return text
}

// stat is one metric of a run over its trials.
func (l *logs) stat(r run, value func(*tally) float64) stat {
	var values []float64
	for _, trial := range slices.Sorted(maps.Keys(l.trials[r])) {
		values = append(values, value(l.trials[r][trial]))
	}
	return over(values)
}

// loads reports whether the runs differ in load.
func (l *logs) loads() bool { return l.runs[0].load != l.runs[len(l.runs)-1].load }

// names begins a row: its target, and its load where that differs.
func (l *logs) names(r run) []string {
	if l.loads() {
		return []string{plainCell(r.target), fmt.Sprintf("%g×", r.load)}
	}
	return []string{plainCell(r.target)}
}

func (l *logs) head(rest ...string) []string {
	if l.loads() {
		return append([]string{"target", "load"}, rest...)
	}
	return append([]string{"target"}, rest...)
}

// tables computes everything that is published.
func (l *logs) tables(scenario string) []Table {
	all := []Table{l.summary(), l.parts("class", "By class", l.classes()), l.parts("key", "By key", l.keys()), l.reasons(), l.fleet()}
	all = slices.DeleteFunc(all, func(t Table) bool { return len(t.Rows) == 0 })
	for i := range all {
		all[i].ID = scenario + "/" + all[i].ID
	}
	return all
}

func (l *logs) summary() Table {
	t := Table{ID: "summary", Title: "What became of the requests", Head: l.head(), left: len(l.head())}
	for _, m := range summary {
		t.Head = append(t.Head, m.head)
	}
	for _, r := range l.runs {
		row := l.names(r)
		for _, m := range summary {
			row = append(row, l.stat(r, m.value).cell(m.format))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// part picks one part of the traffic; nil: it had none.
type part struct {
	name string
	of   func(*tally) *counts
}

func (l *logs) classes() []part {
	names := make(map[string]bool)
	l.each(func(t *tally) {
		for name := range t.classes {
			names[name] = true
		}
	})
	var all []part
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all = append(all, part{name, func(t *tally) *counts { return t.classes[name] }})
	}
	return all
}

func (l *logs) keys() []part {
	names := make(map[string]bool)
	l.each(func(t *tally) {
		for name := range t.keys {
			names[name] = true
		}
	})
	var all []part
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all = append(all, part{orWord(name, "anonymous"), func(t *tally) *counts {
			if t.keys[name] == nil {
				return nil
			}
			return &t.keys[name].counts
		}})
	}
	return all
}

func (l *logs) each(f func(*tally)) {
	for _, trials := range l.trials {
		for _, t := range trials {
			f(t)
		}
	}
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

// parts is a table with a row for each part of each run; none where there is
// only one part.
func (l *logs) parts(what, title string, parts []part) Table {
	t := Table{ID: what, Title: title, Head: l.head(what, "sent"), left: len(l.head()) + 1}
	if len(parts) < 2 {
		return t
	}
	t.Head = append(t.Head, outcomes[:]...)
	t.Head = append(t.Head, "time to first token p50 (s)", "p90 (s)", "p99 (s)")
	for _, r := range l.runs {
		for _, p := range parts {
			number := func(f func(*counts) float64) stat {
				return l.stat(r, func(t *tally) float64 {
					if c := p.of(t); c != nil {
						return f(c)
					}
					return math.NaN()
				})
			}
			row := append(l.names(r), plainCell(p.name), number(func(c *counts) float64 { return float64(c.sent) }).cell(count))
			for o := range outcomes {
				row = append(row, number(func(c *counts) float64 { return float64(c.by[o]) }).cell(count))
			}
			for _, q := range []float64{0.5, 0.9, 0.99} {
				row = append(row, number(func(c *counts) float64 { return quantile(c.ttft, q) }).cell(digits(3)))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// reasons says why requests were refused or failed.
func (l *logs) reasons() Table {
	t := Table{ID: "reasons", Title: "Why requests were refused or failed", Head: l.head("code", "requests"), left: len(l.head()) + 1}
	for _, r := range l.runs {
		codes := make(map[string]bool)
		for _, trial := range l.trials[r] {
			for code := range trial.codes {
				codes[code] = true
			}
		}
		for _, code := range slices.Sorted(maps.Keys(codes)) {
			n := l.stat(r, func(t *tally) float64 { return float64(t.codes[code]) })
			t.Rows = append(t.Rows, append(l.names(r), plainCell(code), n.cell(count)))
		}
	}
	return t
}

// plainCell keeps a text from breaking its table.
func plainCell(s string) string {
	s = strings.Join(strings.Fields(strings.NewReplacer("|", "/", "<", "(", ">", ")", "`", "'").Replace(s)), " ")
	if r := []rune(s); len(r) > 80 {
		s = string(r[:80]) + "…"
	}
	return s
}

// fleet is what the replicas themselves counted.
func (l *logs) fleet() Table {
	t := Table{ID: "replicas", Title: "What the replicas counted", left: len(l.head())}
	t.Head = l.head("replicas", "slots", "most in hand on one, over its slots", "times over slots", "longest queue inside", "tokens made", "wasted", "zombie time (s)")
	sum := func(f func(ReplicaRecord) float64) func(*tally) float64 {
		return func(t *tally) float64 {
			if len(t.replicas) == 0 {
				return math.NaN()
			}
			s := 0.0
			for _, r := range t.replicas {
				s += f(r)
			}
			return s
		}
	}
	most := func(f func(ReplicaRecord) float64) func(*tally) float64 {
		return func(t *tally) float64 {
			m := math.NaN()
			for _, r := range t.replicas {
				if x := f(r); !(x <= m) {
					m = x
				}
			}
			return m
		}
	}
	columns := []metric{
		{"", sum(func(ReplicaRecord) float64 { return 1 }), count},
		{"", sum(func(r ReplicaRecord) float64 { return float64(r.Stats.Slots) }), count},
		{"", most(func(r ReplicaRecord) float64 { return float64(r.Stats.MaxInHand - r.Stats.Slots) }), signed},
		{"", sum(func(r ReplicaRecord) float64 { return float64(r.Stats.OverSlotsEvents) }), count},
		{"", most(func(r ReplicaRecord) float64 { return float64(r.Stats.QueuedMax) }), count},
		{"", sum(func(r ReplicaRecord) float64 { return float64(r.Stats.TokensGenerated) }), count},
		{"", sum(func(r ReplicaRecord) float64 { return float64(r.Stats.TokensWasted) }), count},
		{"", sum(func(r ReplicaRecord) float64 { return r.Stats.ZombieSeconds }), digits(2)},
	}
	for _, r := range l.runs {
		row := l.names(r)
		for _, m := range columns {
			row = append(row, l.stat(r, m.value).cell(m.format))
		}
		if slices.ContainsFunc(row[t.left:], func(c string) bool { return c != "–" }) {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func signed(x float64) string {
	if x > 0 {
		return "+" + count(x)
	}
	return count(x)
}
