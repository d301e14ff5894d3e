package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"switchyard/admission"
	"switchyard/dashboard/history"
)

// view is all that a page shows of one moment: /admin/state and the last
// minute's numbers.
type view struct {
	*admission.Snapshot
	Glance history.Glance `json:"glance"`
}

// field is one member of a JSON object, as bytes; its name has its quotes.
type field struct{ name, value []byte }

// parser takes objects apart.
type parser struct{ d *jsontext.Decoder }

func newParser() parser { return parser{jsontext.NewDecoder(new(bytes.Buffer))} }

// fields are the members of a value that is an object in JSON.
func (p parser) fields(v any) []field {
	object := written(v)
	p.d.Reset(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true))
	read := func() []byte {
		b, err := p.d.ReadValue()
		if err != nil {
			panic(fmt.Sprintf("dashboard: taking a %T apart: %v", v, err)) // we have just written it
		}
		end := p.d.InputOffset()
		return object[end-int64(len(b)) : end]
	}
	if _, err := p.d.ReadToken(); err != nil {
		panic(fmt.Sprintf("dashboard: a %T is no object: %v", v, err))
	}
	all := make([]field, 0, 32)
	for p.d.PeekKind() != '}' {
		all = append(all, field{read(), read()})
	}
	return all
}

// changes are the members of now that are not as before, those that are gone
// as null. Both have their members in the same order, as encoders of one type
// write them.
func changes(before, now []field) (diff []field) {
	i := 0
	for _, f := range now {
		for ; i < len(before) && !bytes.Equal(before[i].name, f.name) && !has(now, before[i].name); i++ {
			diff = append(diff, field{before[i].name, []byte("null")})
		}
		if i < len(before) && bytes.Equal(before[i].name, f.name) {
			if !bytes.Equal(before[i].value, f.value) {
				diff = append(diff, f)
			}
			i++
			continue
		}
		diff = append(diff, f)
	}
	for ; i < len(before); i++ {
		diff = append(diff, field{before[i].name, []byte("null")})
	}
	return diff
}

func has(fs []field, name []byte) bool {
	return slices.ContainsFunc(fs, func(f field) bool { return bytes.Equal(f.name, name) })
}

func writeFields(b *bytes.Buffer, fs []field) {
	for i, f := range fs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(f.name)
		b.WriteByte(':')
		b.Write(f.value)
	}
}

// frame is one moment, taken apart so that the next can be told as what has
// changed. Replicas are known by their names, which are unique.
type frame struct {
	head     []field // all members but replicas
	names    []string
	replicas map[string][]field
}

func newFrame(v view) *frame {
	f := &frame{names: make([]string, len(v.Replicas)), replicas: make(map[string][]field, len(v.Replicas))}
	p := newParser()
	snap := *v.Snapshot
	snap.Replicas = nil
	f.head = slices.DeleteFunc(p.fields(view{&snap, v.Glance}), func(m field) bool { return string(m.name) == `"replicas"` })
	for i := range v.Replicas {
		r := &v.Replicas[i]
		f.names[i], f.replicas[r.Name] = r.Name, p.fields(r)
	}
	return f
}

// whole writes the frame as one object, like /admin/state.
func (f *frame) whole(b *bytes.Buffer) {
	b.WriteByte('{')
	writeFields(b, f.head)
	b.WriteString(`,"replicas":[`)
	for i, name := range f.names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('{')
		writeFields(b, f.replicas[name])
		b.WriteByte('}')
	}
	b.WriteString("]}")
}

// delta writes what has changed since before: {"set": members, "replicas":
// {name: members}, "order": all names, where replicas came or went}. A member
// that is gone is null.
func (f *frame) delta(b *bytes.Buffer, before *frame) {
	b.WriteString(`{"set":{`)
	writeFields(b, changes(before.head, f.head))
	b.WriteString(`},"replicas":{`)
	first := true
	for _, name := range f.names {
		diff := changes(before.replicas[name], f.replicas[name])
		if len(diff) == 0 {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		writeValue(b, name)
		b.WriteString(":{")
		writeFields(b, diff)
		b.WriteByte('}')
	}
	b.WriteByte('}')
	if !slices.Equal(before.names, f.names) {
		b.WriteString(`,"order":`)
		writeValue(b, f.names)
	}
	b.WriteByte('}')
}

func writeValue(b *bytes.Buffer, v any) { b.Write(written(v)) }

// written is a value of ours in JSON, which all of them have.
func written(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("dashboard: writing a %T: %v", v, err))
	}
	return data
}
