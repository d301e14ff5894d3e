package bench

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Problem is one mistake in a scenario.
type Problem struct {
	File string
	Line int    // from 1; 0: the file as a whole
	Key  string // such as traffic[0].rate
	Msg  string // what is wrong and what would be right
}

// Error gives FILE:LINE: key: what is wrong and what would be right.
func (p *Problem) Error() string {
	at := p.File
	if p.Line > 0 {
		at = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	if p.Key != "" {
		at += ": " + p.Key
	}
	return at + ": " + p.Msg
}

// decoder fills structs from YAML nodes and goes on after each mistake, so that
// all are told at once.
type decoder struct {
	file     string
	lines    map[string]int // where each key that was given stands
	problems []*Problem
}

// add notes a mistake at a key, or at the nearest key around it.
func (d *decoder) add(path, format string, args ...any) {
	line, ok := 0, false
	for at := path; !ok && at != ""; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
		line, ok = d.lines[at]
	}
	d.problems = append(d.problems, &Problem{File: d.file, Line: line, Key: path, Msg: fmt.Sprintf(format, args...)})
}

func (d *decoder) given(path string) bool { _, ok := d.lines[path]; return ok }

// bad reports whether a key, or one below it, is wrong already.
func (d *decoder) bad(path string) bool {
	return slices.ContainsFunc(d.problems, func(p *Problem) bool { return strings.HasPrefix(p.Key, path) })
}

func (d *decoder) err() error {
	slices.SortStableFunc(d.problems, func(a, b *Problem) int { return cmp.Compare(a.Line, b.Line) })
	errs := make([]error, len(d.problems))
	for i, p := range d.problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	nodeType     = reflect.TypeFor[yaml.Node]()
	keysType     = reflect.TypeFor[Keys]()
	ownYAML      = reflect.TypeFor[yaml.Unmarshaler]()
	ownText      = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value decodes n into v.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value) {
	t := v.Type()
	switch {
	case n.Kind == yaml.AliasNode:
		d.add(path, "anchors and aliases are not read here: want the value itself")
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		d.add(path, "it has no value: want %s, or no such key", wanted(t))
	case t == nodeType:
		v.Set(reflect.ValueOf(*n))
	case t == durationType:
		x, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || x < 0 {
			d.add(path, "%s: want %s", show(n), wanted(t))
		}
		v.SetInt(int64(max(x, 0)))
	case reflect.PointerTo(t).Implements(ownYAML), reflect.PointerTo(t).Implements(ownText):
		d.scalar(path, n, v)
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		d.value(path, n, v.Elem())
	case t == keysType && n.Kind == yaml.SequenceNode:
		d.list(path, n, v.FieldByName("List"))
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		d.mapping(path, n, v)
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		d.list(path, n, v)
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Slice, n.Kind != yaml.ScalarNode:
		d.add(path, "%s: want %s", show(n), wanted(t))
	default:
		d.scalar(path, n, v)
	}
}

// scalar leaves the conversion to the YAML package, or to the type itself.
func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value) {
	err := n.Decode(v.Addr().Interface())
	if err == nil {
		return
	}
	v.SetZero()
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		var own error // the type's own words, without the YAML package's around them
		if n.Kind == yaml.ScalarNode {
			own = v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Value))
			v.SetZero()
		}
		if own != nil {
			d.add(path, "%v", own)
			return
		}
	}
	d.add(path, "%s: want %s", show(n), wanted(v.Type()))
}

func (d *decoder) list(path string, n *yaml.Node, v reflect.Value) {
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.lines[at] = item.Line
		d.value(at, item, v.Index(i))
	}
}

func (d *decoder) mapping(path string, n *yaml.Node, v reflect.Value) {
	fields := make(map[string]reflect.Value)
	names := fieldsOf(v, fields, nil)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		field, known := fields[key.Value]
		switch again := d.given(at); {
		case again:
			d.add(at, "it stands here twice, the second time on line %d: want it once", key.Line)
		case !known:
			d.lines[at] = key.Line
			d.add(at, "unknown key: the nearest known key is %s, of %s", nearest(key.Value, names), strings.Join(names, ", "))
		default:
			d.lines[at] = key.Line
			d.value(at, value, field)
		}
	}
}

// fieldsOf gives a struct's fields by their keys, inlined ones among them.
func fieldsOf(v reflect.Value, fields map[string]reflect.Value, names []string) []string {
	for i := range v.NumField() {
		name, inline, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch {
		case inline == "inline":
			names = fieldsOf(v.Field(i), fields, names)
		case name != "" && name != "-":
			fields[name] = v.Field(i)
			names = append(names, name)
		}
	}
	return names
}

// wanted says in words what a type takes.
func wanted(t reflect.Type) string {
	switch {
	case t == durationType:
		return "a duration such as 500ms or 10s"
	case t == reflect.TypeFor[Dist]():
		return distForms
	case t == keysType:
		return "a list of keys, or a mapping with required and list"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	default:
		return "a mapping"
	}
}

func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	if len(n.Value) > 60 {
		return fmt.Sprintf("%q…", n.Value[:60])
	}
	return fmt.Sprintf("%q", n.Value)
}

// nearest gives the name with the fewest insertions, deletions and
// replacements between it and the word.
func nearest(word string, names []string) string {
	word = word[:min(len(word), 64)]
	return slices.MinFunc(names, func(a, b string) int { return cmp.Compare(edits(word, a), edits(word, b)) })
}

func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
