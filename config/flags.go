package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// Flags are the settings of the command line that win over the file.
type Flags struct {
	Listen      string
	AdminListen string
	Replicas    []string // as ParseReplicaFlag reads them
}

// With gives the configuration with the flags laid over it, checked again as a
// whole; c stays as it is. A replica of the command line takes the place of
// the file's with the same name or the same URL; others are added.
func (c *Config) With(f Flags) (*Config, error) {
	next := c.clone()
	r := &report{marks: next.marks}
	if f.Listen != "" {
		next.Listen = f.Listen
		next.marks["listen"] = mark{file: "--listen"}
	}
	if f.AdminListen != "" {
		next.Admin.Listen = f.AdminListen
		next.marks["admin.listen"] = mark{file: "--admin-listen"}
	}
	for _, text := range f.Replicas {
		x, problems := parseReplica(text)
		if problems != nil {
			r.problems = append(r.problems, problems...)
			continue
		}
		next.place(x, mark{file: flagLabel(text)})
	}
	next.check(r)
	if err := r.err(); err != nil {
		return nil, err
	}
	return next, nil
}

// clone copies what With and Reload may change.
func (c *Config) clone() *Config {
	next := *c
	next.Replicas = slices.Clone(c.Replicas)
	next.marks = maps.Clone(c.marks)
	if next.marks == nil {
		next.marks = marks{}
	}
	return &next
}

// place puts a replica of the command line in. One that repeats another flag
// is added, so that the check reports it.
func (c *Config) place(x Replica, at mark) {
	i := slices.IndexFunc(c.Replicas, func(r Replica) bool {
		return r.Name == x.Name || sameServer(r.URL) == sameServer(x.URL)
	})
	if i < 0 || c.marks.of(fmt.Sprintf("replicas[%d]", i)).line == 0 {
		i = len(c.Replicas)
		c.Replicas = append(c.Replicas, x)
	} else {
		c.Replicas[i] = x
	}
	path := fmt.Sprintf("replicas[%d]", i)
	c.marks.forget(path)
	c.marks[path] = at
}

// flagOptions are the replica's keys that a flag may set.
var flagOptions = []string{"engine", "slots", "models", "tier", "api_key_env", "ca_file", "cache_tokens"}

// ParseReplicaFlag reads a replica of the command line: URL or NAME=URL, then
// options such as engine=llamacpp,slots=4,models=a|b. The error joins a Problem
// for each mistake.
func ParseReplicaFlag(text string) (Replica, error) {
	x, problems := parseReplica(text)
	return x, (&report{problems: problems}).err()
}

func parseReplica(text string) (Replica, []*Problem) {
	d := &decoder{report: report{marks: marks{}}, file: flagLabel(text)}
	d.marks[""] = mark{file: d.file}
	parts := strings.Split(text, ",")
	n := &yaml.Node{Kind: yaml.MappingNode}
	set := func(key, value string) {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, flagValue(key, value))
	}
	name, base, named := strings.Cut(parts[0], "=")
	switch {
	case !named || strings.Contains(name, "://"):
		set("url", parts[0])
	case name == "":
		d.add("name", "nothing stands before the =: want NAME=URL, or the URL alone")
	default:
		set("name", name)
		set("url", base)
	}
	given := map[string]bool{}
	for _, option := range parts[1:] {
		key, value, ok := strings.Cut(option, "=")
		switch {
		case given[key]:
			d.add(key, "given twice: want it once")
		case !slices.Contains(flagOptions, key):
			best, _ := nearest(key, flagOptions)
			d.add(join("", key), "unknown option: the nearest is %s; a flag takes %s", best, strings.Join(flagOptions, ", "))
		case !ok || value == "":
			d.add(key, "no value: want %s=VALUE", key)
		default:
			set(key, value)
			given[key] = true
		}
	}
	var x Replica
	x.setDefaults()
	v := reflect.ValueOf(&x).Elem()
	d.section("", n, v)
	d.report.section("", v)
	if x.Name == "" {
		x.Name = hostPort(x.URL)
	}
	return x, d.problems
}

// flagValue makes the node that the file would have. Names and paths are texts
// whatever they look like.
func flagValue(key, value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
	_, err := parseInt(value)
	switch {
	case key == "models" && value != "auto":
		n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for name := range strings.SplitSeq(value, "|") {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name})
		}
	case err == nil && slices.Contains([]string{"slots", "tier", "cache_tokens"}, key):
		n.Tag = "!!int"
	}
	return n
}

// flagLabel is how errors call the flag. One that may hold a password is not
// shown.
func flagLabel(text string) string {
	switch {
	case text == "", strings.Contains(text, "@"):
		return "--replica"
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "--replica " + quote(text)
	}
	return "--replica " + text
}
