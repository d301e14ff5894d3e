package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Diff is what a reload changes.
type Diff struct {
	Replicas Named
	Classes  Named
	Keys     Named
	Settings []string // other keys that change, such as limits.max_body
	Restart  []string // keys that differ but need a restart: they stay as they were
}

// Named is what changes in a list of things with names.
type Named struct {
	Added   []string
	Removed []string
	Changed []NamedChange
	Moved   bool // those that stay are in another order
}

// NamedChange is one thing that changes.
type NamedChange struct {
	Name string
	Keys []string // such as slots, models
}

// Reload gives the configuration to go on with when new has been read while
// old is running: new, but with old's values where only a restart changes
// them. Both stay as they are. A new file that is wrong never comes this far:
// Load refuses it, and old stays (R15).
func Reload(old, new *Config) (*Config, Diff) {
	d := Changes(old, new)
	next := new.clone()
	keepRestart(reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem())
	return next, d
}

// keepRestart copies the fields that a reload cannot change.
func keepRestart(from, to reflect.Value) {
	for _, f := range sectionOf(to.Type()) {
		switch a, b := from.Field(f.index), to.Field(f.index); {
		case f.restart:
			b.Set(a)
		case isSection(b.Type()):
			keepRestart(a, b)
		}
	}
}

// Changes compares two configurations.
func Changes(old, new *Config) Diff {
	d := Diff{
		Replicas: named(old.Replicas, new.Replicas, func(r Replica) string { return r.Name }),
		Classes:  named(old.Classes, new.Classes, func(c Class) string { return c.Name }),
		Keys:     named(old.Keys.List, new.Keys.List, func(k Key) string { return k.Name }),
	}
	d.compare("", reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem())
	return d
}

// compare notes the keys outside the named lists that differ.
func (d *Diff) compare(path string, a, b reflect.Value) {
	for _, f := range sectionOf(a.Type()) {
		at, x, y := join(path, f.name), a.Field(f.index), b.Field(f.index)
		switch {
		case isSection(x.Type()):
			d.compare(at, x, y)
		case x.Kind() == reflect.Slice && isSection(x.Type().Elem()), same(x, y):
		case f.restart:
			d.Restart = append(d.Restart, at)
		default:
			d.Settings = append(d.Settings, at)
		}
	}
}

// same compares two values; nothing and an empty list or mapping are the same.
func same(a, b reflect.Value) bool {
	if k := a.Kind(); (k == reflect.Slice || k == reflect.Map) && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// named compares two lists by the names of their elements.
func named[T any](old, new []T, name func(T) string) Named {
	before, after := make(map[string]T, len(old)), make(map[string]bool, len(new))
	for _, x := range old {
		before[name(x)] = x
	}
	for _, y := range new {
		after[name(y)] = true
	}
	var n Named
	var stayOld, stayNew []string
	for _, x := range old {
		if after[name(x)] {
			stayOld = append(stayOld, name(x))
		} else {
			n.Removed = append(n.Removed, name(x))
		}
	}
	for _, y := range new {
		x, stays := before[name(y)]
		if !stays {
			n.Added = append(n.Added, name(y))
			continue
		}
		stayNew = append(stayNew, name(y))
		if keys := keysThatDiffer(reflect.ValueOf(x), reflect.ValueOf(y)); keys != nil {
			n.Changed = append(n.Changed, NamedChange{name(y), keys})
		}
	}
	n.Moved = !slices.Equal(stayOld, stayNew)
	return n
}

func keysThatDiffer(a, b reflect.Value) (keys []string) {
	for _, f := range sectionOf(a.Type()) {
		if !same(a.Field(f.index), b.Field(f.index)) {
			keys = append(keys, f.name)
		}
	}
	return keys
}

// Empty reports whether nothing is named.
func (n Named) Empty() bool {
	return len(n.Added) == 0 && len(n.Removed) == 0 && len(n.Changed) == 0 && !n.Moved
}

// Empty reports whether the reload changes nothing and lacks nothing.
func (d Diff) Empty() bool {
	return d.Replicas.Empty() && d.Classes.Empty() && d.Keys.Empty() && len(d.Settings) == 0 && len(d.Restart) == 0
}

// String says what is applied, in one line.
func (d Diff) String() string {
	var parts []string
	for _, l := range []struct {
		what string
		n    Named
	}{{"replica", d.Replicas}, {"class", d.Classes}, {"key", d.Keys}} {
		for _, x := range l.n.Added {
			parts = append(parts, l.what+" "+x+" added")
		}
		for _, x := range l.n.Removed {
			parts = append(parts, l.what+" "+x+" removed")
		}
		for _, x := range l.n.Changed {
			parts = append(parts, fmt.Sprintf("%s %s changed (%s)", l.what, x.Name, strings.Join(x.Keys, ", ")))
		}
		if l.n.Moved && l.what == "class" {
			parts = append(parts, "classes in another order")
		}
	}
	for _, key := range d.Settings {
		parts = append(parts, key+" changed")
	}
	return cmp.Or(strings.Join(parts, "; "), "nothing changed")
}
