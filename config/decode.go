package config

import (
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// union is a type whose values have several shapes; it decodes itself and says
// in words which shapes there are.
type union interface {
	decode(d *decoder, path string, n *yaml.Node)
	wanted() string
}

var unionType = reflect.TypeFor[union]()

// decoder fills a Config from a node tree. It goes on after each mistake, and
// leaves the default where one was found.
type decoder struct {
	report
	file string
}

// mark notes where the key at path stands.
func (d *decoder) mark(path string, n *yaml.Node) {
	d.marks[path] = mark{d.file, n.Line, n.Column}
}

// value decodes n into v, the value of key f.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value, f *field) {
	if n.Kind == yaml.AliasNode {
		d.add(path, "anchors and aliases are not read here: want the value itself")
		return
	}
	if u, ok := v.Addr().Interface().(union); ok {
		u.decode(d, path, n)
		return
	}
	switch kind := v.Kind(); {
	case kind == reflect.Struct, kind == reflect.Map, kind == reflect.Slice:
		d.collection(path, n, v, f)
	case n.Kind != yaml.ScalarNode:
		d.mismatch(path, n, v.Type(), f)
	case f.zero != "" && n.Value == f.zero:
		v.SetZero()
	default:
		d.scalar(path, n, v, f)
	}
}

// collection decodes a mapping or a list. An empty value is an empty one: a
// section whose keys are all commented out.
func (d *decoder) collection(path string, n *yaml.Node, v reflect.Value, f *field) {
	kind := yaml.MappingNode
	if v.Kind() == reflect.Slice {
		kind = yaml.SequenceNode
	}
	switch {
	case isNull(n):
	case n.Kind != kind:
		d.mismatch(path, n, v.Type(), f)
	case v.Kind() == reflect.Struct:
		d.section(path, n, v)
	case v.Kind() == reflect.Map:
		d.mapping(path, n, v, f)
	default:
		d.list(path, n, v, f)
	}
}

// section decodes a mapping with fixed keys.
func (d *decoder) section(path string, n *yaml.Node, v reflect.Value) {
	known := sectionOf(v.Type())
	d.pairs(path, n, func(key string, at, value *yaml.Node) {
		f := known.find(key)
		if f == nil {
			d.addAt(mark{d.file, at.Line, at.Column}, join(path, key), unknown(key, known.names()))
			return
		}
		d.value(join(path, key), value, v.Field(f.index), f)
	})
}

// mapping decodes a mapping with free keys.
func (d *decoder) mapping(path string, n *yaml.Node, v reflect.Value, f *field) {
	m := reflect.MakeMap(v.Type())
	d.pairs(path, n, func(key string, _, value *yaml.Node) {
		x := reflect.New(v.Type().Elem()).Elem()
		d.value(join(path, key), value, x, f)
		m.SetMapIndex(reflect.ValueOf(key), x)
	})
	v.Set(m)
}

// pairs goes through a mapping's keys in order, each known by its text, and
// reports those that repeat.
func (d *decoder) pairs(path string, n *yaml.Node, each func(key string, at, value *yaml.Node)) {
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		at, value := n.Content[i], n.Content[i+1]
		here := mark{d.file, at.Line, at.Column}
		switch first, again := lines[at.Value]; {
		case at.Kind != yaml.ScalarNode:
			d.addAt(here, path, fmt.Sprintf("%s as a key: want a name", describe(at)))
		case at.ShortTag() == "!!merge":
			d.addAt(here, path, "merge keys (<<) are not read here: want the keys themselves")
		case again:
			d.addAt(here, join(path, at.Value), fmt.Sprintf("this key is on line %d already: want it once", first))
		default:
			lines[at.Value] = at.Line
			d.mark(join(path, at.Value), at)
			if value.Line == at.Line {
				d.mark(join(path, at.Value), value)
			}
			each(at.Value, at, value)
		}
	}
}

// list decodes a sequence, each element over its type's defaults.
func (d *decoder) list(path string, n *yaml.Node, v reflect.Value, f *field) {
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.mark(at, item)
		if e, ok := s.Index(i).Addr().Interface().(interface{ setDefaults() }); ok {
			e.setDefaults()
			if isNull(item) {
				d.mismatch(at, item, v.Type().Elem(), f)
				continue
			}
		}
		d.value(at, item, s.Index(i), f.element())
	}
	v.Set(s)
}

// element is the key's description for one element of its list.
func (f *field) element() *field { return &field{form: f.form} }

// scalar decodes a text, a number, a truth value, a duration or a size.
func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value, f *field) {
	var err error
	kept, plain := v.Interface(), n.ShortTag() != "!!str"
	switch t := v.Type(); {
	case isNull(n):
		d.mismatch(path, n, t, f)
		return
	case t == durationType:
		x, e := parseDuration(n.Value)
		v.SetInt(int64(x))
		err = e
	case t == sizeType:
		x, e := parseSize(n.Value)
		v.SetInt(int64(x))
		err = e
	case t.Kind() == reflect.String && !plain:
		v.SetString(n.Value)
	case t.Kind() == reflect.Bool && n.ShortTag() == "!!bool":
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case t.Kind() == reflect.Int && plain:
		x, e := parseInt(n.Value)
		v.SetInt(int64(x))
		err = wants(e, f.wanted(t))
	case t.Kind() == reflect.Float64 && plain:
		x, e := parseFloat(n.Value)
		v.SetFloat(x)
		err = wants(e, f.wanted(t))
	default:
		d.mismatch(path, n, t, f)
		return
	}
	if err == nil && f.zero != "" && v.IsZero() {
		err = fmt.Errorf("0 is out of range: want %s", f.wanted(v.Type()))
	}
	if err != nil {
		v.Set(reflect.ValueOf(kept))
		d.add(path, "%s", err)
	}
}

// wants adds to an error what would be right.
func wants(err error, want string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: want %s", err, want)
}

// mismatch reports a value of the wrong kind for a key of type t.
func (d *decoder) mismatch(path string, n *yaml.Node, t reflect.Type, f *field) {
	scalar := n.Kind == yaml.ScalarNode && !isNull(n)
	what := describe(n)
	if scalar && f.form != nil && f.form.secret {
		what = "this"
	}
	hint := ""
	if scalar && t.Kind() == reflect.String && (f.form == nil || f.form.fits(n.Value)) {
		hint = ", in quotes if this is meant"
	}
	d.add(path, "%s is wrong here: want %s%s", what, f.wanted(t), hint)
}

// isNull reports a value that is not there: "key:" alone, or ~.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe says what a node is.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case isNull(n):
		return "an empty value"
	}
	switch n.ShortTag() {
	case "!!str":
		return "the text " + quote(n.Value)
	case "!!bool", "!!int", "!!float", "!!timestamp":
		return quote(n.Value)
	default:
		return "a value tagged " + n.ShortTag()
	}
}

// unknown says what an unknown key was probably meant to be: the same key of
// another section, else the most similar one of this section.
func unknown(key string, known []string) string {
	var elsewhere []string
	for _, p := range places("", reflect.TypeFor[Config]()) {
		if strings.HasSuffix(p, "."+key) {
			elsewhere = append(elsewhere, p)
		}
	}
	best, apart := nearest(key, known)
	switch {
	case elsewhere != nil:
		return "unknown key here: the nearest known key is " + strings.Join(elsewhere, " or ")
	case apart <= max(1, len(key)/3):
		return "unknown key: the nearest known key is " + best
	default:
		return fmt.Sprintf("unknown key: the nearest known key is %s, of %s", best, strings.Join(known, ", "))
	}
}
