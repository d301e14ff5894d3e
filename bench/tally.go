package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// run is which rows a line of the raw log belongs to.
type run struct {
	target string
	load   float64
}

// tally is everything that one trial of a run comes to.
type tally struct {
	counts           // of all its lines
	first    int     // lines that are not the return of a refused client
	from, to float64 // arrival of the first and the last
	refusal  []float64
	expired  int // refused, but only after having been accepted
	codes    map[string]int
	classes  map[string]*counts
	keys     map[string]*keyCounts
	told     map[string]float64 // refused, by ID: when it was told to come back
	returns  []comeback
	prompt   int // tokens, by the lines
	cached   int
	replicas []ReplicaRecord
	passed   []passage
	due      map[float64]bool // deadlines
}

// counts are the columns that are told for parts of the traffic, too.
type counts struct {
	sent int
	by   [len(outcomes)]int
	ttft []float64 // seconds, of whole answers
}

type keyCounts struct {
	counts
	weight float64
	first  int
}

// comeback is the return of a refused client.
type comeback struct {
	of      string
	at      float64
	refused bool
}

// passage is what the plots need of a request.
type passage struct {
	arrival, settled float64 // until settled it was waiting: a first token, or the end
	out              outcome
}

// logs are a directory's raw logs, added up.
type logs struct {
	runs   []run // in the order in which they appeared
	trials map[run]map[int]*tally
}

// readLogs adds up all raw logs in a directory.
func readLogs(dir string) (*logs, error) {
	files, err := rawFiles(dir)
	if err != nil {
		return nil, err
	}
	l := &logs{trials: make(map[run]map[int]*tally)}
	for _, path := range files {
		if err := readRaw(path, l.request, l.replica); err != nil {
			return nil, err
		}
	}
	if len(l.runs) == 0 {
		return nil, fmt.Errorf("%s has no raw logs: want a directory with files *.jsonl or *.jsonl.gz from bench run", dir)
	}
	l.sort()
	return l, nil
}

// sort puts the runs in the order of the tables' rows.
func (l *logs) sort() {
	slices.SortFunc(l.runs, func(a, b run) int {
		return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(rank(a.target), rank(b.target)), strings.Compare(a.target, b.target))
	})
}

// rank puts plain proxies first, then foreign gateways, then this one, the
// oracle, and this one without its parts.
func rank(target string) int {
	switch {
	case target == "round-robin":
		return 0
	case target == "least-connections":
		return 1
	case target == "switchyard-oracle":
		return 4
	case target == "switchyard":
		return 3
	case strings.HasPrefix(target, "switchyard-no-"):
		return 5
	}
	return 2
}

func (l *logs) tally(r run, trial int) *tally {
	if l.trials[r] == nil {
		l.trials[r] = make(map[int]*tally)
		l.runs = append(l.runs, r)
	}
	t := l.trials[r][trial]
	if t == nil {
		t = &tally{
			from: math.Inf(1), codes: make(map[string]int), classes: make(map[string]*counts),
			keys: make(map[string]*keyCounts), told: make(map[string]float64), due: make(map[float64]bool),
		}
		l.trials[r][trial] = t
	}
	return t
}

func (l *logs) replica(r *ReplicaRecord) {
	t := l.tally(run{r.Target, r.Load}, r.Trial)
	t.replicas = append(t.replicas, *r)
}

func (l *logs) request(r *Record) {
	t := l.tally(run{r.Target, r.Load}, r.Trial)
	out := r.outcome()
	if t.classes[r.Class] == nil {
		t.classes[r.Class] = &counts{}
	}
	key := t.keys[r.Key]
	if key == nil {
		key = &keyCounts{weight: r.Weight}
		if key.weight == 0 {
			key.weight = 1
		}
		t.keys[r.Key] = key
	}
	for _, c := range []*counts{&t.counts, t.classes[r.Class], &key.counts} {
		c.add(r, out)
	}
	if r.RetriedOf == "" {
		t.first++
		key.first++
	} else {
		t.returns = append(t.returns, comeback{r.RetriedOf, r.ArrivalS, out == refused})
	}
	t.from, t.to = min(t.from, r.ArrivalS), max(t.to, r.ArrivalS)
	t.due[r.DeadlineS] = true
	t.prompt += r.PromptTokens
	t.cached += r.CachedTokens
	if out == refused {
		t.refuse(r)
	}
	if out == refused || out == failed {
		t.codes[r.why()]++
	}
	settled := r.EndS
	if r.FirstTokenS != nil {
		settled = *r.FirstTokenS
	}
	t.passed = append(t.passed, passage{r.ArrivalS, settled, out})
}

func (c *counts) add(r *Record, out outcome) {
	c.sent++
	c.by[out]++
	if r.FirstTokenS != nil && (out == onTime || out == late) {
		c.ttft = append(c.ttft, *r.FirstTokenS-r.ArrivalS)
	}
}

func (t *tally) refuse(r *Record) {
	if r.Code == "deadline_expired" {
		t.expired++
	} else {
		t.refusal = append(t.refusal, r.EndS-r.ArrivalS)
	}
	if r.RetryAfterS != nil {
		t.told[r.ID] = r.EndS + *r.RetryAfterS
	}
}

// why names a refusal or a failure.
func (r *Record) why() string {
	switch {
	case r.Code != "":
		return r.Code
	case r.Status >= 300:
		return fmt.Sprintf("status %d", r.Status)
	case r.Error != "":
		return r.Error
	}
	return "no answer"
}

// kept is the share of accepted requests that were answered whole and in time.
// Accepted is what was not refused on arrival.
func (t *tally) kept() float64 {
	return share(t.by[onTime], t.sent-t.by[refused]+t.expired)
}

// honest is the share of clients who came back when they had been told, and
// were not refused again. Early is not when they had been told; a second late
// is: then a place that was kept for them lapses (R14).
func (t *tally) honest() float64 {
	const early, tardy = 0.05, 1
	came, taken := 0, 0
	for _, c := range t.returns {
		at, ok := t.told[c.of]
		if !ok || c.at < at-early || c.at > at+tardy {
			continue
		}
		came++
		if !c.refused {
			taken++
		}
	}
	return share(taken, came)
}

// hits is the share of prompt tokens found in a cache: by the replicas' own
// counts where there are some, else by what clients were told.
func (t *tally) hits() float64 {
	prompt, cached := t.prompt, t.cached
	if len(t.replicas) > 0 {
		prompt, cached = 0, 0
		for _, r := range t.replicas {
			prompt += r.Stats.PromptTokens
			cached += r.Stats.CachedTokens
		}
	}
	return share(cached, prompt)
}

func (t *tally) wasted() float64 {
	if len(t.replicas) == 0 {
		return math.NaN()
	}
	n := 0
	for _, r := range t.replicas {
		n += r.Stats.TokensWasted
	}
	return float64(n)
}

// fairness is Jain's index over the keys' on-time answers, each as a share of
// what would have been its fair part of all of them: the max-min fair division
// by weight, in which no key gets more than it asked for (Jain, Chiu, Hawe:
// DEC-TR-301, 1984). 1: everyone had its part.
func (t *tally) fairness() float64 {
	if len(t.keys) < 2 || t.by[onTime] == 0 {
		return math.NaN()
	}
	var names []string
	for name, k := range t.keys {
		if k.first > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names) // sums of floats depend on their order
	fair := t.fairParts(names)
	sum, squares := 0.0, 0.0
	for i, name := range names {
		x := float64(t.keys[name].by[onTime]) / fair[i]
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(names)) * squares)
}

// fairParts fills the keys up together, in proportion to their weights, until
// each has what it asked for or nothing is left.
func (t *tally) fairParts(names []string) []float64 {
	fair := make([]float64, len(names))
	left := float64(t.by[onTime])
	thirsty := make([]int, len(names))
	for i := range thirsty {
		thirsty[i] = i
	}
	asked := func(i int) float64 { return float64(t.keys[names[i]].first) }
	weight := func(i int) float64 { return t.keys[names[i]].weight }
	// Those who are full first come first.
	slices.SortFunc(thirsty, func(a, b int) int { return cmp.Compare(asked(a)/weight(a), asked(b)/weight(b)) })
	for n, i := range thirsty {
		sum := 0.0
		for _, j := range thirsty[n:] {
			sum += weight(j)
		}
		fair[i] = min(asked(i), left*weight(i)/sum)
		left -= fair[i]
	}
	return fair
}

func share(part, of int) float64 {
	if of == 0 {
		return math.NaN()
	}
	return float64(part) / float64(of)
}

// quantile is the smallest value that at least the share q of all does not
// exceed (nearest rank); NaN of none. It sorts in place.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[min(len(values)-1, max(0, int(math.Ceil(q*float64(len(values))-1e-9))-1))]
}
