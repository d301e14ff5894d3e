package bench

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func published(t *testing.T) (dir, md string) {
	t.Helper()
	dir = handMadeDir(t)
	_, err := Report(dir)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, markdownFile))
	require.NoError(t, err)
	return dir, string(text)
}

func TestVerifyAgrees(t *testing.T) {
	dir, _ := published(t)
	for _, d := range []string{dir, filepath.Dir(dir)} { // the directory, and one with such directories
		diff, err := Verify(d)
		require.NoError(t, err)
		require.Empty(t, diff)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, htmlFile)))
	diff, err := Verify(dir)
	require.NoError(t, err)
	require.Empty(t, diff, "the page need not be kept")
}

var digit = regexp.MustCompile(`[0-9]`)

// A changed digit, any one, in report.md or in a table of report.html, is found
// and named.
func TestVerifyFindsEveryChangedDigit(t *testing.T) {
	dir, md := published(t)
	path := filepath.Join(dir, markdownFile)
	page, err := os.ReadFile(filepath.Join(dir, htmlFile))
	require.NoError(t, err)
	spans := func(text string, in func(line string) bool) (at []int) {
		start := 0
		for line := range strings.SplitAfterSeq(text, "\n") {
			if in(line) {
				for _, m := range digit.FindAllStringIndex(line, -1) {
					at = append(at, start+m[0])
				}
			}
			start += len(line)
		}
		return at
	}
	change := func(text string, at int) string {
		return text[:at] + string('0'+(text[at]-'0'+3)%10) + text[at+1:]
	}
	all := spans(md, func(string) bool { return true })
	require.Greater(t, len(all), 150)
	for _, at := range all {
		require.NoError(t, os.WriteFile(path, []byte(change(md, at)), 0o600))
		diff, err := Verify(dir)
		require.NoError(t, err)
		require.NotEmpty(t, diff)
		line := 1 + strings.Count(md[:at], "\n")
		require.True(t, strings.HasPrefix(diff[0], fmt.Sprintf("%s:%d: ", path, line)), "%s, changed on line %d", diff[0], line)
	}
	require.NoError(t, os.WriteFile(path, []byte(md), 0o600))
	// Tags have digits of their own: those of cells alone count.
	cells := spans(string(page), func(line string) bool { return strings.Contains(line, "<td") && !strings.Contains(line, "<h2") })
	require.Greater(t, len(cells), 150)
	for _, at := range cells {
		require.NoError(t, os.WriteFile(filepath.Join(dir, htmlFile), []byte(change(string(page), at)), 0o600))
		diff, err := Verify(dir)
		require.NoError(t, err)
		require.Len(t, diff, 1)
		require.Contains(t, diff[0], htmlFile)
	}
}

// The words name the cell, what is published and what the logs give.
func TestVerifyNamesTheCell(t *testing.T) {
	dir, md := published(t)
	path := filepath.Join(dir, markdownFile)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(md, "| 2 (1 to 3) |", "| 3 (1 to 3) |", 1)), 0o600))
	diff, err := Verify(dir)
	require.NoError(t, err)
	require.Equal(t, []string{path + `:10: hand/summary: switchyard, on time: published "3 (1 to 3)", the raw logs give "2 (1 to 3)"`}, diff)
}

// A log that is changed does not agree with what was published of it.
func TestVerifyFindsAChangedLog(t *testing.T) {
	dir, _ := published(t)
	path := filepath.Join(dir, "one.jsonl")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"tokens_wasted":3`, `"tokens_wasted":4`, 1)), 0o600))
	diff, err := Verify(dir)
	require.NoError(t, err)
	require.Len(t, diff, 4, "two tables, in Markdown and in HTML")
	require.Contains(t, diff[0], `wasted tokens: published "7", the raw logs give "8"`)
}

func TestVerifyFindsWhatIsMissing(t *testing.T) {
	dir, md := published(t)
	for name, c := range map[string]struct{ text, want string }{
		"a table": {md[:strings.Index(md, "## Why")], "hand/reasons: the table is missing"},
		"a row":   {regexp.MustCompile(`\| switchyard \| upstream_failed .*\n`).ReplaceAllString(md, ""), "hand/reasons: published with 3 rows, the raw logs give 4"},
		"columns": {strings.Replace(md, "| 71.4% (42.9% to 100.0%) | 50.0% |", "| 50.0% |", 1), "hand/summary: published with 14 columns, the raw logs give 15"},
		"a word":  {strings.Replace(md, "Medians", "Means", 1), ":3: published"},
		"the end": {strings.TrimSuffix(md, "\n") + "\n\nAnd 99% of users are happy.\n", "the raw logs give nothing more"},
		"other":   {md + "\n<!-- bench hand/other -->\n| a |\n", "hand/other: published, but the raw logs give no such table"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, markdownFile), []byte(c.text), 0o600))
			diff, err := Verify(dir)
			require.NoError(t, err)
			require.Contains(t, strings.Join(diff, "\n"), c.want)
		})
	}
	require.NoError(t, os.Remove(filepath.Join(dir, markdownFile)))
	_, err := Verify(dir)
	require.ErrorContains(t, err, "bench report writes it")
}

// Marked tables in any other file are compared, too.
func TestVerifyPublishedElsewhere(t *testing.T) {
	dir, md := published(t)
	summary := regexp.MustCompile(`(?s)<!-- bench hand/summary -->.*?\n\n`).FindString(md)
	path := filepath.Join(t.TempDir(), "results.md")
	page := "# Results\n\n" + summary + "Words.\n\n<!-- bench other/summary -->\n\n| target | on time |\n| --- | --- |\n| a | 1 |\n"
	require.NoError(t, os.WriteFile(path, []byte(page), 0o600))
	diff, err := Verify(dir, path)
	require.NoError(t, err)
	require.Empty(t, diff, "tables of other scenarios are none of these logs' business")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(page, "0.735", "0.835", 1)), 0o600))
	diff, err = Verify(dir, path)
	require.NoError(t, err)
	require.Equal(t, []string{path + `:6: hand/summary: switchyard, fairness: published "0.835", the raw logs give "0.735"`}, diff)
	require.NoError(t, os.WriteFile(path, []byte("# Results\n"), 0o600))
	diff, err = Verify(dir, path)
	require.NoError(t, err)
	require.Len(t, diff, 1)
	require.Contains(t, diff[0], "no table of these scenarios")
	_, err = Verify(dir, path+"x")
	require.ErrorContains(t, err, "reading what is published")
}

// The page needs nothing but itself, and is well formed.
func TestPageIsSelfContained(t *testing.T) {
	dir, _ := published(t)
	page, err := os.ReadFile(filepath.Join(dir, htmlFile))
	require.NoError(t, err)
	require.NotRegexp(t, `(?i)<script|<link|<img|src=|url\(|@import|https?:`, string(page))
	require.Contains(t, string(page), "prefers-color-scheme: dark")
	pictures := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(string(page), -1)
	require.Len(t, pictures, 5, "outcomes, times, one course, cache, fairness")
	for _, p := range pictures {
		require.NotContains(t, p, "NaN")
		require.NotContains(t, p, "Inf")
		for dec := xml.NewDecoder(strings.NewReader(p)); ; {
			_, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
	}
	_, err = Report(dir)
	require.NoError(t, err)
	again, err := os.ReadFile(filepath.Join(dir, htmlFile))
	require.NoError(t, err)
	require.Equal(t, string(page), string(again))
}

// What stands in a log cannot become a part of the page.
func TestPageEscapesWhatLogsSay(t *testing.T) {
	dir := t.TempDir()
	log := `{"target":"<b>|x</b>","trial":1,"id":"a","class":"<i>","key":"&","status":500,"error":"<script>|` + "`" + `","end_s":1}` + "\n" +
		`{"target":"<b>|x</b>","trial":1,"id":"b","class":"j","key":"k","status":200,"arrival_s":1,"first_token_s":2,"deadline_s":3,"on_time":true,"end_s":2}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.jsonl"), []byte(log), 0o600))
	_, err := Report(dir)
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(dir, htmlFile))
	require.NoError(t, err)
	require.NotRegexp(t, `<b>|<script|<i>`, string(page))
	diff, err := Verify(dir)
	require.NoError(t, err)
	require.Empty(t, diff)
}

// A run, from traffic to report and back, with everything real but the clock.
func TestVirtualRunIsReportedAndVerified(t *testing.T) {
	s, err := Load("priorities")
	require.NoError(t, err)
	s.Trials, s.Loads = 2, []float64{0.2, 0.5}
	dir := t.TempDir()
	require.NoError(t, WriteScenario(dir, s))
	meta := Meta{Scenario: s.Name, Version: "test", Seed: s.Seed}
	for _, point := range s.Points() {
		for trial := 1; trial <= s.Trials; trial++ {
			for _, name := range []string{"round-robin", "switchyard"} {
				target, err := ParseTarget(name)
				require.NoError(t, err)
				got, err := RunVirtual(context.Background(), point, target, trial, VirtualOptions{Wire: wire})
				require.NoError(t, err)
				require.Empty(t, got.Violations)
				require.NoError(t, WriteTrial(dir, point, name, trial, got))
				meta.Done(RunMeta{Target: name, Load: point.Load, Trial: trial, Runner: "virtual", Requests: len(got.Records)})
			}
		}
	}
	require.NoError(t, meta.Write(dir))
	tables, err := Report(dir)
	require.NoError(t, err)
	require.Equal(t, "priorities/summary", tables[0].ID)
	require.Len(t, tables[0].Rows, 4)
	require.Equal(t, []string{"round-robin", "0.2×"}, tables[0].Rows[0][:2])
	diff, err := Verify(dir)
	require.NoError(t, err)
	require.Empty(t, diff)
	page, err := os.ReadFile(filepath.Join(dir, htmlFile))
	require.NoError(t, err)
	for _, want := range []string{"On time over offered load", "A virtual run, seed 10"} {
		require.True(t, strings.Contains(string(page), want), want)
	}
}

// Logs of different traffic do not get into one directory.
func TestOneDirectoryOneScenario(t *testing.T) {
	dir := t.TempDir()
	s := parse(t, interfaceScenario)
	require.NoError(t, WriteScenario(dir, s))
	s = parse(t, interfaceScenario)
	s.Targets, s.Trials = []string{"switchyard-oracle"}, 4
	require.NoError(t, WriteScenario(dir, s), "other targets and more trials are welcome")
	data, err := os.ReadFile(filepath.Join(dir, scenarioFile))
	require.NoError(t, err)
	require.Equal(t, []string{"switchyard-oracle", "round-robin", "least-connections", "switchyard"}, parse(t, string(data)).Targets)
	s = parse(t, interfaceScenario)
	s.Seed++
	require.ErrorContains(t, WriteScenario(dir, s), "another scenario, or of another seed")
	s = parse(t, strings.Replace(interfaceScenario, "rate: 1.0", "rate: 1.1", 1))
	require.ErrorContains(t, WriteScenario(dir, s), "another scenario, or of another seed")
}

func TestForgetRemovesOneTarget(t *testing.T) {
	dir, s := t.TempDir(), parse(t, interfaceScenario)
	var m Meta
	for _, target := range []string{"switchyard", "switchyard-no-slots"} {
		require.NoError(t, WriteTrial(dir, s, target, 1, &Trial{}))
		m.Done(RunMeta{Target: target, Trial: 1})
	}
	require.NoError(t, m.Forget(dir, "switchyard"))
	require.Equal(t, []RunMeta{{Target: "switchyard-no-slots", Trial: 1}}, m.Runs)
	require.Equal(t, []string{filepath.Join(dir, "raw-switchyard-no-slots-1.jsonl.gz")}, mustFiles(t, dir))
}

// Ticks are round values within their scale, and nothing is drawn outside.
func TestScales(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lo := rapid.Float64Range(0, 100).Draw(rt, "lo")
		s := scale{lo: lo, hi: lo + rapid.Float64Range(1e-3, 1e6).Draw(rt, "range"), from: 10, to: 200}
		if s.log = rapid.Bool().Draw(rt, "log"); s.log {
			s.lo = max(s.lo, 1e-6)
		}
		ticks := s.ticks(6)
		require.LessOrEqual(rt, len(ticks), 16)
		for _, v := range ticks {
			at := s.at(v)
			require.True(rt, at >= 9.9 && at <= 200.1, "%v at %v", v, at)
		}
		v := rapid.Float64Range(0, 1e9).Draw(rt, "v")
		up := roundUp(v)
		require.True(rt, up >= v*(1-1e-9) && (v == 0 || up <= 2*v), "%v for %v", up, v)
	})
}
