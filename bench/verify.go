package bench

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Verify computes everything that is published of a directory with raw logs, or
// of each of its directories that has some, and gives every difference: to its
// report.md, to the tables of its report.html where there is one, and to the
// tables of this scenario in the other files named. The error is for what could
// not be read.
func Verify(dir string, published ...string) (differences []string, err error) {
	dirs, err := withLogs(dir)
	if err != nil {
		return nil, err
	}
	found := make([]int, len(published))
	for _, d := range dirs {
		r, err := read(d)
		if err != nil {
			return nil, err
		}
		diff, err := r.verifyOwn(d)
		if err != nil {
			return nil, err
		}
		differences = append(differences, diff...)
		for i, path := range published {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("reading what is published: %w", err)
			}
			diff, n := r.compare(path, findTables(text, markdownRow))
			found[i] += n
			differences = append(differences, diff...)
		}
	}
	for i, path := range published {
		if found[i] == 0 {
			differences = append(differences, fmt.Sprintf("%s: no table of these scenarios: want some, each after its mark <!-- bench SCENARIO/NAME -->", path))
		}
	}
	return differences, nil
}

// verifyOwn compares with the reports in the directory itself.
func (r *report) verifyOwn(dir string) ([]string, error) {
	path := filepath.Join(dir, markdownFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading what is published (bench report writes it): %w", err)
	}
	diff, _ := r.compare(path, findTables(text, markdownRow))
	if diff == nil {
		diff = firstLine(path, text, r.markdown())
	}
	diff = append(diff, r.missing(path, text)...)
	path = filepath.Join(dir, htmlFile)
	text, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return diff, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what is published: %w", err)
	}
	more, _ := r.compare(path, findTables(text, htmlRow))
	return append(append(diff, more...), r.missing(path, text)...), nil
}

// missing names the tables that a report should have and has not.
func (r *report) missing(path string, text []byte) []string {
	var all []string
	for _, t := range r.tables {
		if !bytes.Contains(text, []byte("<!-- bench "+t.ID+" -->")) {
			all = append(all, fmt.Sprintf("%s: %s: the table is missing", path, t.ID))
		}
	}
	return all
}

// firstLine finds the first line outside of tables in which a report differs.
func firstLine(path string, published, computed []byte) []string {
	p, c := strings.Split(string(published), "\n"), strings.Split(string(computed), "\n")
	for i := range max(len(p), len(c)) {
		switch {
		case i >= len(p):
			return []string{fmt.Sprintf("%s:%d: it ends here, the raw logs give more: %q", path, i, c[i])}
		case i >= len(c):
			return []string{fmt.Sprintf("%s:%d: published %q, the raw logs give nothing more", path, i+1, p[i])}
		case p[i] != c[i]:
			return []string{fmt.Sprintf("%s:%d: published %q, the raw logs and the files beside them give %q", path, i+1, p[i], c[i])}
		}
	}
	return nil
}

// foundTable is a published table: the rows after its mark.
type foundTable struct {
	id   string
	rows []foundRow
}

type foundRow struct {
	line  int
	cells []string
}

var mark = regexp.MustCompile(`<!-- bench (\S+) -->`)

// findTables reads the tables that stand behind marks; row reads a line of
// one, and says whether it has ended.
func findTables(text []byte, row func(line string) (cells []string, in bool)) []foundTable {
	var all []foundTable
	open := false
	for i, line := range strings.Split(string(text), "\n") {
		if m := mark.FindStringSubmatch(line); m != nil {
			all = append(all, foundTable{id: m[1]})
			open = true
			continue
		}
		if !open {
			continue
		}
		cells, in := row(line)
		open = in
		if cells != nil {
			t := &all[len(all)-1]
			t.rows = append(t.rows, foundRow{i + 1, cells})
		}
	}
	return all
}

func markdownRow(line string) ([]string, bool) {
	line = strings.TrimSpace(line)
	inner, ok := strings.CutPrefix(line, "|")
	if !ok {
		return nil, line == ""
	}
	cells := strings.Split(strings.TrimSuffix(inner, "|"), "|")
	rule := true
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
		rule = rule && strings.Trim(cells[i], "-:") == ""
	}
	if rule {
		return nil, true
	}
	return cells, true
}

var (
	htmlCell = regexp.MustCompile(`<t[dh][^>]*>(.*?)</t[dh]>`)
	htmlTag  = regexp.MustCompile(`<[^>]*>`)
)

func htmlRow(line string) (cells []string, in bool) {
	for _, m := range htmlCell.FindAllStringSubmatch(line, -1) {
		cells = append(cells, html.UnescapeString(htmlTag.ReplaceAllString(m[1], "")))
	}
	return cells, !strings.Contains(line, "</table>")
}

// compare gives the differences between published tables and the computed ones
// of the same name, and how many there were of this scenario.
func (r *report) compare(path string, published []foundTable) (diff []string, found int) {
	for _, p := range published {
		if !strings.HasPrefix(p.id, r.name+"/") {
			continue
		}
		found++
		known := false
		for i := range r.tables {
			if r.tables[i].ID == p.id {
				known = true
				diff = append(diff, r.tables[i].compare(path, p.rows)...)
			}
		}
		if !known {
			diff = append(diff, fmt.Sprintf("%s: %s: published, but the raw logs give no such table", path, p.id))
		}
	}
	return diff, found
}

func (t *Table) compare(path string, published []foundRow) []string {
	var diff []string
	computed := append([][]string{t.Head}, t.Rows...)
	if len(published) != len(computed) {
		diff = append(diff, fmt.Sprintf("%s: %s: published with %d rows, the raw logs give %d", path, t.ID, max(0, len(published)-1), len(t.Rows)))
	}
	for i, row := range published[:min(len(published), len(computed))] {
		want := computed[i]
		if len(row.cells) != len(want) {
			diff = append(diff, fmt.Sprintf("%s:%d: %s: published with %d columns, the raw logs give %d", path, row.line, t.ID, len(row.cells), len(want)))
			continue
		}
		for j, cell := range row.cells {
			if cell != want[j] {
				diff = append(diff, fmt.Sprintf("%s:%d: %s: %s, %s: published %q, the raw logs give %q",
					path, row.line, t.ID, strings.Join(want[:t.left], ", "), t.Head[j], cell, want[j]))
			}
		}
	}
	return diff
}
