package bench

import (
	"compress/gzip"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// handMade is a raw log small enough to work out every number by hand. Trial 1:
//
//	a1  key a  on time, first token after 1 s
//	a2  key a  on time, after 3 s
//	a3  key b  late, after 12 s
//	a4  key b  refused after 2 ms, told 5 s; a4.r1 comes then: on time, after 2 s
//	a5  key b  turned away from the queue after 8 s, told 2 s; a5.r1 comes then: refused after 1 ms
//	a6  key a  failed
//	a7  key b  left after 20 s: late
//
// Trial 2 has one answer on time, after 0.5 s, one refusal by a status alone
// after 4 ms, and no word of replicas.
const handMade = `
{"target":"switchyard","trial":1,"id":"a1","arrival_s":0,"class":"standard","key":"a","session":"","turn":0,"prompt_tokens":100,"max_tokens":9,"deadline_s":10,"status":200,"code":"","retry_after_s":null,"retried_of":"","first_token_s":1,"end_s":2,"output_tokens":9,"cached_tokens":0,"replica":"r","attempts":1,"error":"","on_time":true}
{"target":"switchyard","trial":1,"id":"a2","arrival_s":1,"class":"standard","key":"a","prompt_tokens":100,"deadline_s":10,"status":200,"first_token_s":4,"end_s":5,"cached_tokens":50,"on_time":true}
{"target":"switchyard","trial":1,"id":"a3","arrival_s":2,"class":"batch","key":"b","weight":2,"prompt_tokens":100,"deadline_s":10,"status":200,"first_token_s":14,"end_s":15,"on_time":false}
{"target":"switchyard","trial":1,"id":"a4","arrival_s":3,"class":"batch","key":"b","weight":2,"prompt_tokens":100,"deadline_s":10,"status":429,"code":"deadline_unmeetable","retry_after_s":5,"end_s":3.002,"on_time":false}
{"target":"switchyard","trial":1,"id":"a5","arrival_s":4,"class":"batch","key":"b","weight":2,"prompt_tokens":100,"deadline_s":10,"status":429,"code":"deadline_expired","retry_after_s":2,"end_s":12,"on_time":false}
{"target":"switchyard","trial":1,"id":"a6","arrival_s":5,"class":"standard","key":"a","prompt_tokens":100,"deadline_s":10,"status":502,"code":"upstream_failed","end_s":6,"on_time":false}
{"target":"switchyard","trial":1,"id":"a7","arrival_s":6,"class":"batch","key":"b","weight":2,"prompt_tokens":100,"deadline_s":10,"status":0,"end_s":26,"error":"left","on_time":false}
{"target":"switchyard","trial":1,"id":"a4.r1","arrival_s":8.002,"class":"batch","key":"b","weight":2,"prompt_tokens":100,"deadline_s":10,"status":200,"retried_of":"a4","first_token_s":10.002,"end_s":11,"on_time":true}
{"target":"switchyard","trial":1,"id":"a5.r1","arrival_s":14,"class":"batch","key":"b","weight":2,"prompt_tokens":100,"deadline_s":10,"status":429,"code":"deadline_unmeetable","retried_of":"a5","end_s":14.001,"on_time":false}
{"target":"switchyard","trial":1,"replica":"r","stats":{"slots":2,"max_in_hand":2,"queued_max":0,"prompt_tokens":400,"cached_tokens":150,"tokens_generated":60,"tokens_wasted":3}}
{"target":"switchyard","trial":1,"replica":"s","stats":{"slots":2,"max_in_hand":1,"queued_max":0,"prompt_tokens":200,"cached_tokens":0,"tokens_generated":40,"tokens_wasted":4,"zombie_seconds":1.5}}

{"target":"switchyard","trial":2,"id":"a1","arrival_s":0,"class":"standard","key":"a","prompt_tokens":100,"deadline_s":10,"status":200,"first_token_s":0.5,"end_s":1,"cached_tokens":20,"on_time":true}
{"target":"switchyard","trial":2,"id":"a2","arrival_s":1,"class":"standard","key":"a","prompt_tokens":100,"deadline_s":10,"status":503,"end_s":1.004,"on_time":false}
`

// handMadeDir has the log as two files, one of them packed.
func handMadeDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hand")
	require.NoError(t, os.Mkdir(dir, 0o755))
	plain, packed, _ := strings.Cut(handMade, "\n\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "one.jsonl"), []byte(plain), 0o600))
	f, err := os.Create(filepath.Join(dir, "two.jsonl.gz"))
	require.NoError(t, err)
	w := gzip.NewWriter(f)
	_, err = w.Write([]byte(packed))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return dir
}

// Every number here was worked out by hand from the comment above.
func TestTablesOfAHandMadeLog(t *testing.T) {
	r, err := read(handMadeDir(t))
	require.NoError(t, err)
	require.Equal(t, "hand", r.name, "the directory's name, where there is no scenario")
	want := map[string][][]string{
		"hand/summary": {
			{"target", "sent", "on time", "late", "refused", "failed", "time to first token p50 (s)", "p90 (s)", "p99 (s)", "refusal time p99 (ms)", "wasted tokens", "cache hit share", "fairness", "promises kept", "Retry-After honesty"},
			// kept: 3 of the 7 that were not refused at once, and 1 of 1.
			// Fairness: of 3 on-time answers a's fair part is 1, b's 2; they had
			// 2 and 1: (2 + 0.5)² / (2 · (4 + 0.25)).
			{"switchyard", "5.5 (2 to 9)", "2 (1 to 3)", "1 (0 to 2)", "2 (1 to 3)", "0.5 (0 to 1)", "1.250 (0.500 to 2.000)", "6.250 (0.500 to 12.000)", "6.250 (0.500 to 12.000)", "3.00 (2.00 to 4.00)", "7", "17.5% (10.0% to 25.0%)", "0.735", "71.4% (42.9% to 100.0%)", "50.0%"},
		},
		"hand/class": {
			{"target", "class", "sent", "on time", "late", "refused", "failed", "time to first token p50 (s)", "p90 (s)", "p99 (s)"},
			{"switchyard", "batch", "6", "1", "2", "3", "0", "2.000", "12.000", "12.000"},
			{"switchyard", "standard", "2.5 (2 to 3)", "1.5 (1 to 2)", "0", "0.5 (0 to 1)", "0.5 (0 to 1)", "0.750 (0.500 to 1.000)", "1.750 (0.500 to 3.000)", "1.750 (0.500 to 3.000)"},
		},
		"hand/key": {
			{"target", "key", "sent", "on time", "late", "refused", "failed", "time to first token p50 (s)", "p90 (s)", "p99 (s)"},
			{"switchyard", "a", "2.5 (2 to 3)", "1.5 (1 to 2)", "0", "0.5 (0 to 1)", "0.5 (0 to 1)", "0.750 (0.500 to 1.000)", "1.750 (0.500 to 3.000)", "1.750 (0.500 to 3.000)"},
			{"switchyard", "b", "6", "1", "2", "3", "0", "2.000", "12.000", "12.000"},
		},
		"hand/reasons": {
			{"target", "code", "requests"},
			{"switchyard", "deadline_expired", "0.5 (0 to 1)"},
			{"switchyard", "deadline_unmeetable", "1 (0 to 2)"},
			{"switchyard", "status 503", "0.5 (0 to 1)"},
			{"switchyard", "upstream_failed", "0.5 (0 to 1)"},
		},
		"hand/replicas": {
			{"target", "replicas", "slots", "most in hand on one, over its slots", "times over slots", "longest queue inside", "tokens made", "wasted", "zombie time (s)"},
			{"switchyard", "2", "4", "0", "0", "0", "100", "7", "1.50"},
		},
	}
	require.Len(t, r.tables, len(want))
	for _, table := range r.tables {
		require.Equal(t, want[table.ID], append([][]string{table.Head}, table.Rows...), table.ID)
	}
}

func TestRowsAreInTheSameOrderAlways(t *testing.T) {
	l := &logs{trials: map[run]map[int]*tally{}}
	for _, target := range []string{"switchyard-no-slots", "haproxy", "switchyard", "switchyard-oracle", "round-robin", "least-connections"} {
		for _, load := range []float64{2, 0.5} {
			l.request(&Record{Target: target, Load: load, Trial: 1, ID: "x"})
		}
	}
	l.sort()
	var rows []string
	for _, row := range l.summary().Rows {
		rows = append(rows, row[0]+" "+row[1])
	}
	require.Equal(t, []string{
		"round-robin 0.5×", "least-connections 0.5×", "haproxy 0.5×", "switchyard 0.5×", "switchyard-oracle 0.5×", "switchyard-no-slots 0.5×",
		"round-robin 2×", "least-connections 2×", "haproxy 2×", "switchyard 2×", "switchyard-oracle 2×", "switchyard-no-slots 2×",
	}, rows)
}

// Each request is in exactly one column.
func TestOutcomes(t *testing.T) {
	at := func(s float64) *float64 { return &s }
	for name, c := range map[string]struct {
		r    Record
		want outcome
	}{
		"on time":                  {Record{Status: 200, FirstTokenS: at(10), DeadlineS: 10}, onTime},
		"a little late":            {Record{Status: 200, FirstTokenS: at(10.001), DeadlineS: 10}, late},
		"no token, whole":          {Record{Status: 200, DeadlineS: 10}, late},
		"broke after first token":  {Record{Status: 200, FirstTokenS: at(1), DeadlineS: 10, Error: "cut"}, failed},
		"429":                      {Record{Status: 429}, refused},
		"503":                      {Record{Status: 503, Code: "no_replica"}, refused},
		"502":                      {Record{Status: 502}, failed},
		"400":                      {Record{Status: 400}, failed},
		"no answer":                {Record{Error: "reset"}, failed},
		"left at the deadline":     {Record{Error: ErrLeft, EndS: 10, DeadlineS: 10}, late},
		"left, one does not know":  {Record{Error: ErrLeft, EndS: 9, DeadlineS: 10}, failed},
		"late arrival, still good": {Record{Status: 200, ArrivalS: 5, FirstTokenS: at(14), DeadlineS: 10}, onTime},
	} {
		t.Run(name, func(t *testing.T) {
			c.r.Judge()
			require.Equal(t, c.want, c.r.outcome())
		})
	}
}

// Retry-After was the truth for whom it was kept: neither those that come early
// nor those that come when their place has lapsed say anything about it.
func TestRetryAfterHonesty(t *testing.T) {
	for name, c := range map[string]struct {
		at      float64
		refused bool
		want    float64
	}{
		"as told":             {15, false, 1},
		"as told, refused":    {15, true, 0},
		"a moment early":      {14.96, false, 1},
		"early":               {14.9, true, math.NaN()},
		"a second late":       {16, true, 0},
		"later":               {16.1, true, math.NaN()},
		"of another, unknown": {15, true, math.NaN()},
	} {
		tl := &tally{told: map[string]float64{"x": 15}, returns: []comeback{{"x", c.at, c.refused}}}
		if strings.HasPrefix(name, "of another") {
			tl.returns[0].of = "y"
		}
		if math.IsNaN(c.want) {
			require.True(t, math.IsNaN(tl.honest()), name)
		} else {
			require.Equal(t, c.want, tl.honest(), name)
		}
	}
}

func TestQuantiles(t *testing.T) {
	require.True(t, math.IsNaN(quantile(nil, 0.5)))
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	require.Equal(t, 50., quantile(hundred, 0.5))
	require.Equal(t, 99., quantile(hundred, 0.99))
	require.Equal(t, 1., quantile(hundred, 0))
	require.Equal(t, 100., quantile(hundred, 1))
	// It is the least value that at least that share of all does not exceed.
	rapid.Check(t, func(rt *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 10), 1, 50).Draw(rt, "values")
		q := rapid.Float64Range(0.01, 1).Draw(rt, "q")
		got := quantile(slices.Clone(values), q)
		below := func(v float64) (n int) {
			for _, x := range values {
				if x <= v {
					n++
				}
			}
			return n
		}
		enough := q*float64(len(values)) - 1e-9
		require.GreaterOrEqual(rt, float64(below(got)), enough)
		for _, x := range values {
			if x < got {
				require.Less(rt, float64(below(x)), enough)
			}
		}
	})
}

// Jain's index: between 1/n and 1; 1 where all have their fair part; and the
// fair parts add up to what there is, none above what was asked.
func TestFairness(t *testing.T) {
	of := func(keys ...keyCounts) *tally {
		tl := &tally{keys: map[string]*keyCounts{}}
		for i := range keys {
			tl.keys[fmt.Sprint(i)] = &keys[i]
			tl.by[onTime] += keys[i].by[onTime]
		}
		return tl
	}
	key := func(weight float64, asked, got int) keyCounts {
		k := keyCounts{weight: weight, first: asked}
		k.by[onTime] = got
		return k
	}
	require.InDelta(t, 1, of(key(1, 100, 10), key(1, 100, 10)).fairness(), 1e-9)
	require.InDelta(t, 0.5, of(key(1, 100, 20), key(1, 100, 0)).fairness(), 1e-9)
	require.InDelta(t, 1, of(key(3, 100, 30), key(1, 100, 10)).fairness(), 1e-9, "by weight")
	require.InDelta(t, 1, of(key(1, 5, 5), key(1, 100, 35)).fairness(), 1e-9, "who asks for little has it all")
	require.True(t, math.IsNaN(of(key(1, 5, 5)).fairness()), "one key is no comparison")
	rapid.Check(t, func(rt *rapid.T) {
		var keys []keyCounts
		for range rapid.IntRange(2, 6).Draw(rt, "keys") {
			asked := rapid.IntRange(1, 50).Draw(rt, "asked")
			keys = append(keys, key(rapid.Float64Range(0.1, 5).Draw(rt, "weight"), asked, rapid.IntRange(0, asked).Draw(rt, "got")))
		}
		tl := of(keys...)
		names := []string{"0", "1", "2", "3", "4", "5"}[:len(keys)]
		sum := 0.0
		for i, part := range tl.fairParts(names) {
			require.LessOrEqual(rt, part, float64(keys[i].first)+1e-9)
			sum += part
		}
		require.InDelta(rt, float64(tl.by[onTime]), sum, 1e-6)
		if tl.by[onTime] > 0 {
			f := tl.fairness()
			require.True(rt, f > 1/float64(len(keys))-1e-9 && f < 1+1e-9, "%v", f)
		}
	})
}
