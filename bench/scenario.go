package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"switchyard/admission"
	"switchyard/simserver"
)

// Scenario is what is run: replicas, who may ask, and what is asked. As Load
// and Parse give it, it is checked and complete, except for the traces that its
// traffic replays: see ReadTraces.
type Scenario struct {
	Name     string    `yaml:"name"`
	Note     string    `yaml:"note"` // what it shows, in a sentence or two
	Seed     uint64    `yaml:"seed"`
	Trials   int       `yaml:"trials"`
	Virtual  bool      `yaml:"virtual"` // meant for the virtual runner
	Replicas []Replica `yaml:"replicas"`
	Classes  []Class   `yaml:"classes"` // most urgent first
	Keys     Keys      `yaml:"keys"`
	Traffic  []Source  `yaml:"traffic"`
	Gateway  yaml.Node `yaml:"gateway"` // any part of the gateway's configuration; zero: nothing
	Targets  []string  `yaml:"targets"`
	// Loads are factors on every source's rate: each target is run at each, so
	// that the tables have a row per target and load. None: once, as it stands.
	Loads []float64 `yaml:"loads"`

	Load float64 `yaml:"-"` // which of Loads this one is (see At); 0: none

	text yaml.Node // as it was read, comments and all
}

// Replica is one server of the fleet: a simulated one, or a real one by its
// URL.
type Replica struct {
	simserver.Spec `yaml:",inline"`
	URL            string `yaml:"url"`   // a real one; of the Spec only name, engine, model and slots count then
	Count          int    `yaml:"count"` // so many alike, NAME-1 …; 1 after loading
}

// Class is one priority class.
type Class struct {
	Name     string        `yaml:"name"`
	Deadline time.Duration `yaml:"deadline"` // for the first token
	MinShare *float64      `yaml:"min_share,omitempty"`
}

// Keys are the API keys: a list, or a mapping as in the configuration.
type Keys struct {
	Required bool      `yaml:"required"`
	List     []KeySpec `yaml:"list"`
}

// KeySpec is one API key as the configuration has it. The bench is its own
// client, so its keys are its own: a sha256 that is given is replaced by that
// of KeySecret(name).
type KeySpec struct {
	Name              string   `yaml:"name"`
	SHA256            string   `yaml:"sha256,omitempty"`
	Weight            float64  `yaml:"weight,omitempty"`
	Class             string   `yaml:"class,omitempty"`
	MaxClass          string   `yaml:"max_class,omitempty"`
	RequestsPerMinute int      `yaml:"requests_per_minute,omitempty"`
	TokensPerMinute   int      `yaml:"tokens_per_minute,omitempty"`
	MaxRunning        int      `yaml:"max_running,omitempty"`
	MaxQueued         int      `yaml:"max_queued,omitempty"`
	Models            []string `yaml:"models,omitempty"`
}

// KeySecret is the secret that the bench's clients use for a key.
func KeySecret(name string) string { return "bench-" + name }

// Load reads a scenario: the file at that path, or a shipped one by its name.
func Load(name string) (*Scenario, error) {
	if data, ok := shipped(name); ok {
		return Parse(name+".yaml", data)
	}
	const most = 4 << 20 // keeps a wrong path from filling the memory
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Problem{File: name, Msg: "no such file, and no such scenario is shipped: want a path, or one of " + strings.Join(Shipped(), ", ")}
	case err != nil:
		return nil, &Problem{File: name, Msg: err.Error()}
	case info.Size() > most:
		return nil, &Problem{File: name, Msg: "larger than 4 MiB: want a scenario"}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, &Problem{File: name, Msg: err.Error()}
	}
	s, err := Parse(name, data)
	if err != nil {
		return nil, err
	}
	for i := range s.Traffic { // beside the scenario, wherever it is run from
		if f := &s.Traffic[i].File; *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(filepath.Dir(name), *f)
		}
	}
	return s, nil
}

// Parse reads and checks a scenario; file stands for it in errors, which join a
// Problem for each mistake.
func Parse(file string, data []byte) (*Scenario, error) {
	s := &Scenario{Seed: 1, Trials: 1}
	if err := yaml.Load(data, &s.text); err != nil {
		p := &Problem{File: file, Msg: "not one YAML document: " + err.Error()}
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			p.Line, p.Msg = e.Mark.Line, "this is not YAML: "+e.Message
		}
		return nil, p
	}
	if s.text.Kind != yaml.DocumentNode || s.text.Content[0].Kind != yaml.MappingNode {
		return nil, &Problem{File: file, Msg: "no scenario: want a mapping with replicas and traffic"}
	}
	d := &decoder{file: file, lines: make(map[string]int)}
	d.root(s.text.Content[0], s)
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	s.check(d)
	if err := d.err(); err != nil {
		return nil, err
	}
	s.complete()
	return s, nil
}

// DefaultClass is the class of a request that states none: the configuration's
// default where the scenario's gateway section names one, else standard, else
// the first.
func (s *Scenario) DefaultClass() string {
	var part struct {
		Default string `yaml:"default_class"`
	}
	if s.Gateway.Kind == yaml.MappingNode && s.Gateway.Decode(&part) == nil && part.Default != "" {
		return part.Default
	}
	if s.class("standard") != nil {
		return "standard"
	}
	return s.Classes[0].Name
}

func (s *Scenario) class(name string) *Class {
	i := slices.IndexFunc(s.Classes, func(c Class) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Classes[i]
}

func (s *Scenario) key(name string) *KeySpec {
	i := slices.IndexFunc(s.Keys.List, func(k KeySpec) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Keys.List[i]
}

// At is the scenario at one of its loads: every rate, number of users and speed
// times that factor.
func (s *Scenario) At(load float64) *Scenario {
	c := *s
	c.Load, c.Loads, c.Traffic = load, nil, slices.Clone(s.Traffic)
	for i := range c.Traffic {
		t := &c.Traffic[i]
		t.Rate, t.Peak, t.Speed = t.Rate*load, t.Peak*load, t.Speed*load
		if t.Users > 0 {
			t.Users = max(1, int(float64(t.Users)*load+0.5))
		}
	}
	return &c
}

// Points are the scenario at each of its loads, itself where it has none.
func (s *Scenario) Points() []*Scenario {
	if len(s.Loads) == 0 {
		return []*Scenario{s}
	}
	var all []*Scenario
	for _, load := range s.Loads {
		all = append(all, s.At(load))
	}
	return all
}

// CheckGateway reports what is wrong with the configuration that the scenario's
// gateway section, classes and keys make. wire is VirtualOptions.Wire; its error
// is returned as it is.
func (s *Scenario) CheckGateway(wire func(yaml []byte) (admission.Config, error)) error {
	text, err := gatewayConfig(s, Target{Kind: Gateway}, gatewaySite{replicas: s.nowhere()})
	if err == nil {
		_, err = wire(text)
	}
	return err
}

// GatewayLine is the line on which a key of the gateway section stands, such as
// queue.max_requests, or the nearest key around it; 0: it is not there at all.
func (s *Scenario) GatewayLine(key string) int {
	n, line := &s.Gateway, 0
	for name := range strings.SplitSeq(key, ".") {
		name, _, _ = strings.Cut(name, "[")
		var next *yaml.Node
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				line, next = n.Content[i].Line, n.Content[i+1]
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return line
}

// AsRun is the scenario's text, comments and all, with the seed, trials and
// targets it was run with and the bare names of its traces.
func (s *Scenario) AsRun() ([]byte, error) {
	root := s.text.Content[0]
	for _, set := range []struct {
		key   string
		value any
	}{{"seed", s.Seed}, {"trials", s.Trials}, {"targets", s.Targets}} {
		var n yaml.Node
		if err := n.Encode(set.value); err != nil {
			return nil, fmt.Errorf("writing the scenario's %s: %w", set.key, err)
		}
		if n.Kind == yaml.SequenceNode {
			n.Style = yaml.FlowStyle
		}
		*valueOf(root, set.key) = n
	}
	for i, source := range valueOf(root, "traffic").Content {
		if file := s.Traffic[i].File; file != "" {
			*valueOf(source, "file") = yaml.Node{Kind: yaml.ScalarNode, Value: filepath.Base(file)}
		}
	}
	return yaml.Dump(&s.text, yaml.WithLineWidth(-1), yaml.WithCompactSeqIndent(false))
}

// valueOf finds a key's value in a mapping, and makes the key where it is not.
func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	n := &yaml.Node{}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, n)
	return n
}
