package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// NotYetInForce gives a line for each feature that the file asks for and this
// version accepts but does not act upon yet.
func (c *Config) NotYetInForce() []string {
	asked := map[string][]string{}
	c.later("", reflect.ValueOf(c).Elem(), asked)
	var lines []string
	for feature, keys := range asked {
		lines = append(lines, fmt.Sprintf("%s: not in force in this version, though the file sets %s", feature, strings.Join(keys, ", ")))
	}
	slices.Sort(lines)
	return lines
}

// later collects, by feature, the keys below path that the file sets to more
// than nothing.
func (c *Config) later(path string, v reflect.Value, asked map[string][]string) {
	switch {
	case v.Kind() == reflect.Slice && isSection(v.Type().Elem()):
		for i := range v.Len() {
			c.later(fmt.Sprintf("%s[%d]", path, i), v.Index(i), asked)
		}
	case isSection(v.Type()):
		for _, f := range sectionOf(v.Type()) {
			at, x := join(path, f.name), v.Field(f.index)
			if f.later == "" {
				c.later(at, x, asked)
			} else if c.marks.has(at) && !x.IsZero() {
				asked[f.later] = append(asked[f.later], at)
			}
		}
	}
}

// Warnings gives a line for each thing that is allowed but probably not meant.
func (c *Config) Warnings() []string {
	var lines []string
	if !loopback(c.Listen) && !c.Keys.Required {
		lines = append(lines, fmt.Sprintf("listen %s is open to other machines and keys.required is false: anybody who reaches it can use the replicas", c.Listen))
	}
	if c.Keys.Required && len(c.Keys.List) == 0 {
		lines = append(lines, "keys.required is true and keys.list has no key: every request will be refused (`switchyard key new NAME` makes a key)")
	}
	if c.Queue.MaxBytes < c.Limits.MaxBody {
		lines = append(lines, fmt.Sprintf("queue.max_bytes %v is below limits.max_body %v: a body between the two can never be queued", c.Queue.MaxBytes, c.Limits.MaxBody))
	}
	if c.Health.Interval < 2*time.Second {
		lines = append(lines, fmt.Sprintf("health.interval %s is below 2s: a llama.cpp that is probed that often does not notice clients who left", FormatDuration(c.Health.Interval)))
	}
	return lines
}
