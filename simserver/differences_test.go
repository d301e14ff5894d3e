package simserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// differences says in what an answer is not like another: status, headers,
// framing, names and types of the JSON, ends, errors.
func differences(x exchange, want, got asked) (all []string) {
	differ := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if want.status != got.status {
		differ("status %s, not %s: %s", got.status, want.status, got.body)
		return all
	}
	if want.transfer != got.transfer {
		differ("transfer %q, not %q", got.transfer, want.transfer)
	}
	for _, d := range headerDifferences(want.header, got.header) {
		differ("%s", d)
	}
	if x.status[0] >= '4' {
		return append(all, errorDifferences(want.body, got.body)...)
	}
	w, g := shapes(want.body), shapes(got.body)
	if x.setup == "runner dies" { // after how many tokens is chance
		w, g = slices.Compact(w), slices.Compact(g)
	}
	if !slices.Equal(w, g) {
		differ("shape\n%s\nnot\n%s", strings.Join(g, "\n"), strings.Join(w, "\n"))
	}
	for _, pattern := range facts {
		w, g := pattern.FindAllString(want.body, -1), pattern.FindAllString(got.body, -1)
		slices.Sort(w) // the order of fields is free, and which slot is taken
		slices.Sort(g)
		if x.setup == "runner dies" {
			w, g = slices.Compact(w), slices.Compact(g)
		}
		if !slices.Equal(w, g) {
			differ("facts %v, not %v", g, w)
		}
	}
	if x.setup == "again" && cachedAllButOne.MatchString(want.body) != cachedAllButOne.MatchString(got.body) {
		differ("another part of the prompt came from the cache: %s", got.body)
	}
	return all
}

// facts are the values of a body that must be as recorded, where it has them.
var facts = []*regexp.Regexp{
	regexp.MustCompile(`"(?:finish_reason|done_reason|stop_reason|stop_type)":"[a-z_]+"`),
	regexp.MustCompile(`"(?:completion_tokens|eval_count|predicted_n|tokens_predicted|output_tokens)":\d+`),
	regexp.MustCompile(`"(?:is_sleeping|is_processing)":\w+`),
	regexp.MustCompile(`"(?:object|type|role)":"[a-z_.]+"`),
}

var cachedAllButOne = regexp.MustCompile(`"prompt_n":1[,}]`)

// headerDifferences leaves out the two that hold no choice of the server's.
func headerDifferences(want, got http.Header) (all []string) {
	free := func(name string) bool { return name == "Date" || name == "Content-Length" }
	for name := range want {
		w, g := strings.Join(want.Values(name), ","), strings.Join(got.Values(name), ",")
		if _, ok := got[name]; !ok && !free(name) {
			all = append(all, "no header "+name)
		} else if w != g && !free(name) && name != "Process-Start-Time-Unix" {
			all = append(all, fmt.Sprintf("header %s: %s, not %s", name, g, w))
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok && !free(name) {
			all = append(all, "header "+name+", which the real server does not send")
		}
	}
	return all
}

// shape is a JSON value with its names and types only; a list is the shapes
// that its elements have.
func shape(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case map[string]any:
		var fields []string
		for k, f := range v {
			fields = append(fields, k+":"+shape(f))
		}
		slices.Sort(fields)
		return "{" + strings.Join(fields, ",") + "}"
	case []any:
		var list []string
		for _, e := range v {
			list = append(list, shape(e))
		}
		slices.Sort(list)
		return "[" + strings.Join(slices.Compact(list), "|") + "]"
	}
	return fmt.Sprintf("%T", v)
}

// shapes is the shape of a body, whatever its framing: event by event, line by
// line, or metric by metric.
func shapes(body string) (list []string) {
	decode := func(s string) string {
		var v any
		if json.Unmarshal([]byte(s), &v) != nil {
			return s // text as it is
		}
		return shape(v)
	}
	trimmed := strings.Trim(body, "\n")
	switch {
	case strings.HasPrefix(trimmed, "# HELP "):
		for line := range strings.SplitSeq(trimmed, "\n") {
			if !strings.HasPrefix(line, "# ") {
				line = line[:strings.LastIndexByte(line, ' ')]
			}
			list = append(list, line)
		}
		return list
	case !strings.HasPrefix(trimmed, "data: ") && !strings.HasPrefix(trimmed, "event: "):
		for line := range strings.SplitSeq(trimmed, "\n") {
			list = append(list, decode(line))
		}
		return list
	}
	for event := range strings.SplitSeq(trimmed, "\n\n") {
		var s strings.Builder
		for line := range strings.SplitSeq(event, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				s.WriteString("data: " + decode(data))
			} else {
				s.WriteString(line + " ")
			}
		}
		list = append(list, s.String())
	}
	return list
}

var digits = regexp.MustCompile(`\d+`)

// messageOf is an error's text without what may differ: numbers, and where a
// parser was when it gave up.
func messageOf(body string) string {
	if i := strings.Index(body, "[json.exception.parse_error.101]"); i >= 0 {
		body = body[:i]
	}
	return strings.TrimSpace(digits.ReplaceAllString(body, "N"))
}

// errorDifferences compares two error bodies field by field.
func errorDifferences(want, got string) (all []string) {
	var w, g any
	if json.Unmarshal([]byte(want), &w) != nil || json.Unmarshal([]byte(got), &g) != nil {
		if strings.TrimSpace(want) != strings.TrimSpace(got) {
			all = append(all, fmt.Sprintf("error %q, not %q", got, want))
		}
		return all
	}
	if shape(w) != shape(g) {
		return append(all, fmt.Sprintf("shape %s, not %s", shape(g), shape(w)))
	}
	var walk func(a, b any)
	walk = func(a, b any) {
		switch a := a.(type) {
		case map[string]any:
			for k, v := range a {
				walk(v, b.(map[string]any)[k])
			}
		case string:
			if messageOf(a) != messageOf(b.(string)) {
				all = append(all, fmt.Sprintf("error %q, not %q", b, a))
			}
		}
	}
	walk(w, g)
	return all
}
