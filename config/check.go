package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Validate checks the whole configuration, whoever made it, and brings URLs,
// addresses and origins into their normal form. Load, Parse and With have done
// so already. The error joins a Problem for each mistake.
func (c *Config) Validate() error {
	r := &report{marks: c.marks}
	c.check(r)
	return r.err()
}

// check adds to a report what decoding alone does not find.
func (c *Config) check(r *report) {
	r.section("", reflect.ValueOf(c).Elem())
	c.settle()
	for _, rule := range rules {
		rule(c, r)
	}
}

// section checks each key of a mapping by its tags.
func (r *report) section(path string, v reflect.Value) {
	for _, f := range sectionOf(v.Type()) {
		r.value(join(path, f.name), v.Field(f.index), &f)
	}
}

// value checks one value by the tags of its key.
func (r *report) value(path string, v reflect.Value, f *field) {
	if r.exact[path] {
		return
	}
	if u, ok := v.Addr().Interface().(interface{ check(*report, string) }); ok {
		if r.ok(path) {
			u.check(r, path)
		}
		return
	}
	zeroGiven := f.in != nil && r.marks.has(path) // its interval tells
	if f.need && !zeroGiven && (v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0) {
		what := "missing"
		if v.Kind() == reflect.Slice && r.marks.has(path) {
			what = "empty"
		}
		r.add(path, "%s: want %s", what, f.wanted(v.Type()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if isSection(v.Type()) {
			r.section(path, v)
		}
	case reflect.Map:
		r.aliases(path, v)
	case reflect.Slice:
		for i := range v.Len() {
			at := fmt.Sprintf("%s[%d]", path, i)
			r.value(at, v.Index(i), f.element())
		}
	case reflect.String:
		r.text(path, v, f)
	default:
		r.number(path, v, f)
	}
}

// text checks a string's words or shape. Empty means not given, except in a
// list, where only the shape tells.
func (r *report) text(path string, v reflect.Value, f *field) {
	s := v.String()
	switch {
	case f.oneof != nil && !slices.Contains(f.oneof, s):
		want := f.wanted(v.Type())
		if best, apart := nearest(s, f.oneof); apart <= 2 && s != "" {
			want += " (the nearest is " + best + ")"
		}
		r.add(path, "%s is not known: want %s", quote(s), want)
	case f.form != nil && (s != "" || strings.HasSuffix(path, "]")):
		normal, err := f.form.parse(s)
		if err != nil {
			r.add(path, "%s: want %s", err, f.form.want)
			return
		}
		v.SetString(normal)
	}
}

// number checks that a number, duration or size lies in its interval.
func (r *report) number(path string, v reflect.Value, f *field) {
	if f.in == nil || f.zero != "" && v.IsZero() {
		return
	}
	x := 0.0
	if v.CanInt() {
		x = float64(v.Int())
	} else {
		x = v.Float()
	}
	if !f.in.holds(x) {
		r.add(path, "%s is out of range: want %s", show(v), f.wanted(v.Type()))
	}
}

// aliases checks a mapping of names to lists of names.
func (r *report) aliases(path string, v reflect.Value) {
	m := v.Interface().(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		at := join(path, name)
		_, err := forms["model"].parse(name)
		switch {
		case !r.ok(at):
		case err != nil:
			r.add(at, "%s: want %s", err, forms["model"].want)
		case len(m[name]) == 0:
			r.add(at, "no candidates: want a list of models such as [qwen3:8b, qwen3:4b]")
		default:
			checkNames(r, at, m[name])
		}
	}
}

// checkNames checks a list of model names.
func checkNames(r *report, path string, names []string) {
	seen := map[string]bool{}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if _, err := forms["model"].parse(name); err != nil {
			r.add(at, "%s: want %s", err, forms["model"].want)
		}
		if seen[name] {
			r.add(at, "%s stands in this list already: want each name once", quote(name))
		}
		seen[name] = true
	}
}
