package config

import (
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
)

// field is one key of the schema, as the tags of its struct field say.
type field struct {
	name    string
	index   int
	in      *interval
	zero    string
	oneof   []string
	form    *form
	need    bool
	restart bool
}

// section is a mapping of the schema: the keys of one struct.
type section []field

func (s section) find(name string) *field {
	for i := range s {
		if s[i].name == name {
			return &s[i]
		}
	}
	return nil
}

func (s section) names() []string {
	names := make([]string, len(s))
	for i := range s {
		names[i] = s[i].name
	}
	return names
}

var sections sync.Map // reflect.Type → section

// sectionOf reads the tags of a struct type, once.
func sectionOf(t reflect.Type) section {
	if s, ok := sections.Load(t); ok {
		return s.(section)
	}
	var s section
	for i := range t.NumField() {
		sf := t.Field(i)
		name, ok := sf.Tag.Lookup("yaml")
		if !ok {
			continue
		}
		f := field{name: name, index: i, zero: sf.Tag.Get("zero")}
		f.need = sf.Tag.Get("need") != ""
		f.restart = sf.Tag.Get("reload") == "restart"
		if tag := sf.Tag.Get("in"); tag != "" {
			in := parseInterval(tag, sf.Type)
			f.in = &in
		}
		if tag := sf.Tag.Get("oneof"); tag != "" {
			f.oneof = strings.Split(tag, "|")
		}
		if tag := sf.Tag.Get("form"); tag != "" {
			shape := forms[tag]
			f.form = &shape
		}
		s = append(s, f)
	}
	sections.Store(t, s)
	return s
}

// isSection reports whether a type is a mapping with fixed keys.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(unionType)
}

// places gives every key path of the schema under a type, [] for the elements
// of a list: what an unknown key may have been meant as, and what the
// reference must explain.
func places(prefix string, t reflect.Type) []string {
	if t.Kind() == reflect.Slice && isSection(t.Elem()) {
		return places(prefix+"[]", t.Elem())
	}
	if !isSection(t) {
		return []string{prefix}
	}
	var all []string
	for _, f := range sectionOf(t) {
		all = append(all, places(join(prefix, f.name), t.Field(f.index).Type)...)
	}
	return all
}

// join puts a key behind a path. A key that would not stand well on one line
// is quoted.
func join(path, key string) string {
	if key == "" || len(key) > 80 || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		key = quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// wanted says in words what values the key takes.
func (f *field) wanted(t reflect.Type) string {
	var want, example string
	switch {
	case reflect.PointerTo(t).Implements(unionType):
		return reflect.New(t).Interface().(union).wanted()
	case f.oneof != nil:
		return "one of " + strings.Join(f.oneof, ", ")
	case t == durationType:
		want, example = "a duration", ", such as 10s"
	case t == sizeType:
		want, example = "a size", ", such as 64MiB"
	case t.Kind() == reflect.Int:
		want = "a whole number"
	case t.Kind() == reflect.Float64:
		want = "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice && isSection(t.Elem()):
		return "a list of mappings, one - for each"
	case t.Kind() == reflect.Slice:
		return "a list such as [a, b]"
	case t.Kind() == reflect.Map:
		return "a mapping of names to lists"
	case t.Kind() == reflect.Struct:
		return "a mapping with the keys " + strings.Join(sectionOf(t).names(), ", ")
	case f.form != nil:
		return f.form.want
	default:
		return "a text"
	}
	if f.in != nil {
		want += " " + f.in.String()
	}
	if f.zero != "" {
		want += ", or " + f.zero
	}
	return want + example
}
