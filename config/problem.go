package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Problem is one mistake in a configuration. Load, Parse, With, Validate and
// Secrets return all they find, joined with errors.Join, in the order of the
// file.
type Problem struct {
	File   string // the file, or the flag, that has it
	Line   int    // from 1; 0 when it has no line
	Column int    // from 1; 0 when it has no line
	Key    string // such as replicas[0].slots; empty for the file as a whole
	Msg    string // what is wrong and what would be right
	Err    error  // what the operating system said, when it did
}

// Error gives FILE:LINE: key: what is wrong and what would be right.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Msg)
	return b.String()
}

// Unwrap gives the cause.
func (p *Problem) Unwrap() error { return p.Err }

// mark is where a key stands: in a file, or on the command line (Line 0).
type mark struct {
	file         string
	line, column int
}

// marks are the places of all keys that were given, by key path.
type marks map[string]mark

func (m marks) has(path string) bool { _, ok := m[path]; return ok }

// of finds the place of a key, or of the nearest thing around it.
func (m marks) of(path string) mark {
	for {
		if at, ok := m[path]; ok || path == "" {
			return at
		}
		path = parent(path)
	}
}

// forget removes what is known of the places below a path.
func (m marks) forget(path string) {
	maps.DeleteFunc(m, func(p string, _ mark) bool {
		return strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[")
	})
}

// parent gives the path around a path: a.b[0] → a.b → a → "".
func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// report collects problems.
type report struct {
	marks    marks
	problems []*Problem
	exact    map[string]bool // paths with a problem of their own
	around   map[string]bool // these and all paths around them
}

// add notes a problem of the key at path.
func (r *report) add(path, format string, args ...any) {
	r.addAt(r.marks.of(path), path, fmt.Sprintf(format, args...))
}

func (r *report) addAt(at mark, path, msg string) {
	r.problems = append(r.problems, &Problem{File: at.file, Line: at.line, Column: at.column, Key: path, Msg: msg})
	if r.exact == nil {
		r.exact, r.around = map[string]bool{}, map[string]bool{}
	}
	r.exact[path] = true
	for ; path != ""; path = parent(path) {
		r.around[path] = true
	}
}

// ok reports whether nothing is wrong yet with the key at path or anything
// below it. Checks ask it so that one mistake is not reported twice.
func (r *report) ok(path string) bool { return !r.around[path] && !r.exact[""] }

// err gives all problems in the order of the file.
func (r *report) err() error {
	slices.SortStableFunc(r.problems, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	errs := make([]error, len(r.problems))
	for i, p := range r.problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// nearest gives the word most like the one given, and how many edits apart
// they are.
func nearest(word string, known []string) (string, int) {
	best, least := "", 1<<30
	for _, k := range known {
		if d := edits(word, k); d < least {
			best, least = k, d
		}
	}
	return best, least
}

// edits counts the insertions, deletions, replacements and swaps of neighbours
// that turn a into b. Beyond 64 bytes nothing is alike any more.
func edits(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	var before, last []int
	for i := range len(a) + 1 {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := range b {
			if i == 0 {
				row[j+1] = j + 1
				continue
			}
			same := 1
			if a[i-1] == b[j] {
				same = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+same)
			if i > 1 && j > 0 && a[i-1] == b[j-1] && a[i-2] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
