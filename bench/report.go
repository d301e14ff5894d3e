package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// report is everything that is published of a directory.
type report struct {
	name   string
	note   string
	meta   Meta
	logs   *logs
	tables []Table
}

// read computes a directory's report. Every number in it is from the raw logs;
// the name, the note and how it was run come from the files beside them.
func read(dir string) (*report, error) {
	r := &report{}
	var err error
	if r.logs, err = readLogs(dir); err != nil {
		return nil, err
	}
	if r.meta, err = ReadMeta(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, scenarioFile)
	if data, err := os.ReadFile(path); err == nil {
		s, err := Parse(path, data)
		if err != nil {
			return nil, err
		}
		r.name, r.note = s.Name, strings.Join(strings.Fields(s.Note), " ")
	}
	if r.name == "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("naming the report of %s: %w", dir, err)
		}
		r.name = plainCell(filepath.Base(abs))
	}
	r.tables = r.logs.tables(r.name)
	return r, nil
}

// Report writes report.md and report.html into a directory with raw logs, or
// into each of its directories that has some, and gives the first table of each.
func Report(dir string) ([]Table, error) {
	dirs, err := withLogs(dir)
	if err != nil {
		return nil, err
	}
	var first []Table
	for _, d := range dirs {
		r, err := read(d)
		if err != nil {
			return nil, err
		}
		page, err := r.html()
		if err != nil {
			return nil, err
		}
		err = errors.Join(os.WriteFile(filepath.Join(d, markdownFile), r.markdown(), 0o644), os.WriteFile(filepath.Join(d, htmlFile), page, 0o644))
		if err != nil {
			return nil, fmt.Errorf("writing the report: %w", err)
		}
		first = append(first, r.tables[0])
	}
	return first, nil
}

// withLogs gives dir if it has raw logs, else those of its directories that do.
func withLogs(dir string) ([]string, error) {
	files, err := rawFiles(dir)
	if err != nil || len(files) > 0 {
		return []string{dir}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading raw logs: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		sub := filepath.Join(dir, e.Name())
		if files, err := rawFiles(sub); err == nil && len(files) > 0 {
			dirs = append(dirs, sub)
		}
	}
	if dirs == nil {
		return nil, fmt.Errorf("neither %s nor a directory in it has raw logs: want one with files *.jsonl or *.jsonl.gz from bench run", dir)
	}
	return dirs, nil
}

// markdown is report.md.
func (r *report) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Bench: %s\n\n", r.name)
	if r.note != "" {
		fmt.Fprintf(&b, "%s\n\n", r.note)
	}
	for _, line := range r.facts() {
		fmt.Fprintf(&b, "%s\n\n", line)
	}
	if broken := r.broken(); broken != nil {
		b.WriteString("## Broken rules\n\n")
		for _, v := range broken {
			fmt.Fprintf(&b, "- %s\n", v)
		}
		b.WriteString("\n")
	}
	for _, t := range r.tables {
		fmt.Fprintf(&b, "## %s\n\n", t.Title)
		b.WriteString(t.Markdown())
		b.WriteString("\n")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// facts says how the numbers came to be.
func (r *report) facts() []string {
	m, trials := r.meta, r.logs.trialCount()
	var how string
	if len(m.Runs) > 0 {
		how = fmt.Sprintf("%s, seed %d, by switchyard %s (%s, %s, %d CPUs): `%s`.", m.runners(), m.Seed, m.Version, m.Go, m.Platform, m.CPUs, strings.Join(m.Commands, "`, then `"))
	}
	what := "Computed from the raw logs beside this file; `switchyard bench verify` computes it again."
	if trials > 1 {
		what += fmt.Sprintf(" Medians over %d trials, in brackets the least and the most where they differ.", trials)
	}
	if how == "" {
		return []string{what}
	}
	return []string{how, what}
}

// runners says how the runs were made, and of which targets where both ways.
func (m *Meta) runners() string {
	how := make(map[string][]string)
	for _, r := range m.Runs {
		if !slices.Contains(how[r.Runner], r.Target) {
			how[r.Runner] = append(how[r.Runner], r.Target)
		}
	}
	switch {
	case how["virtual"] == nil:
		return "A live run"
	case how["live"] == nil:
		return "A virtual run"
	}
	return fmt.Sprintf("A live run (%s) and a virtual one (%s)", strings.Join(how["live"], ", "), strings.Join(how["virtual"], ", "))
}

func (l *logs) trialCount() int {
	n := 0
	for _, trials := range l.trials {
		n = max(n, len(trials))
	}
	return n
}

// broken lists the rules that runs broke.
func (r *report) broken() []string {
	var all []string
	for _, m := range r.meta.Runs {
		for _, v := range m.Violations {
			all = append(all, fmt.Sprintf("%s: %s", m.Name(), v))
		}
	}
	return all
}

// Name says which run it was.
func (m RunMeta) Name() string {
	if m.Load != 0 {
		return fmt.Sprintf("%s at %g×, trial %d", m.Target, m.Load, m.Trial)
	}
	return fmt.Sprintf("%s, trial %d", m.Target, m.Trial)
}

// Markdown is the table with the mark by which verify finds it.
func (t *Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "<!-- bench %s -->\n", t.ID)
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.Head)
	rule := make([]string, len(t.Head))
	for i := range rule {
		rule[i] = "---:"
		if i < t.left {
			rule[i] = "---"
		}
	}
	line(rule)
	for _, row := range t.Rows {
		line(row)
	}
	return b.String()
}

// Text is the table for a terminal: the medians alone, and no column in which
// there is nothing.
func (t *Table) Text() string {
	rows := append([][]string{t.Head}, t.Rows...)
	brief := make([][]string, len(rows))
	for j := range t.Head {
		if !slices.ContainsFunc(t.Rows, func(row []string) bool { return row[j] != "–" }) {
			continue
		}
		for i, row := range rows {
			text := strings.Replace(row[j], "time to first token", "first token", 1)
			if i > 0 {
				text, _, _ = strings.Cut(text, " (")
			}
			brief[i] = append(brief[i], text)
		}
	}
	return align(brief, t.left)
}

// align sets rows in columns, the first few to the left.
func align(rows [][]string, left int) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], len([]rune(c)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(c)))
			if i < left {
				line.WriteString(c + pad + "  ")
			} else {
				line.WriteString(pad + c + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
