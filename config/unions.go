package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Slots is how many requests a replica runs at once, by model; "*" is any
// model without an entry of its own. nil: auto.
type Slots map[string]int

const maxSlots = 4096

func (s *Slots) wanted() string {
	return fmt.Sprintf(`auto, a whole number from 1 to %d, or {MODEL: N, "*": N}`, maxSlots)
}

func (s *Slots) decode(d *decoder, path string, n *yaml.Node) {
	*s = nil
	switch {
	case isWord(n, "auto"):
	case n.Kind == yaml.MappingNode && len(n.Content) > 0:
		m := Slots{}
		d.pairs(path, n, func(model string, _, value *yaml.Node) { m[model] = s.number(d, join(path, model), value) })
		*s = m
	default:
		if x := s.number(d, path, n); x > 0 {
			*s = Slots{"*": x}
		}
	}
}

// number decodes one number of slots; 0 when it is none, which is reported.
func (s *Slots) number(d *decoder, path string, n *yaml.Node) int {
	x, err := parseInt(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil:
		d.add(path, "%s is wrong here: want %s", describe(n), s.wanted())
		return 0
	case !slotsHold(x):
		d.add(path, "%d is out of range: want %s", x, s.wanted())
		return 0
	}
	return x
}

func slotsHold(n int) bool { return n >= 1 && n <= maxSlots }

// check finds wrong model names, and wrong numbers in slots that code has set.
func (s *Slots) check(r *report, path string) {
	for _, model := range slices.Sorted(maps.Keys(*s)) {
		if n := (*s)[model]; !slotsHold(n) {
			r.add(path, "%d is out of range: want %s", n, s.wanted())
		}
		if _, err := forms["model"].parse(model); err != nil {
			r.add(path, "%s: want %s", err, forms["model"].want)
		}
	}
}

// String writes the slots as in the file.
func (s Slots) String() string {
	if s == nil {
		return "auto"
	}
	if n, ok := s["*"]; ok && len(s) == 1 {
		return strconv.Itoa(n)
	}
	var parts []string
	for _, model := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, fmt.Sprintf("%q: %d", model, s[model]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// ModelNames are the models a replica serves; ["*"] is any name. nil: auto,
// what the replica says.
type ModelNames []string

func (m *ModelNames) wanted() string { return `auto, a list of names, or ["*"] for any name` }

func (m *ModelNames) decode(d *decoder, path string, n *yaml.Node) {
	*m = nil
	switch {
	case isWord(n, "auto"):
	case n.Kind != yaml.SequenceNode || len(n.Content) == 0:
		d.add(path, "%s is wrong here: want %s", describe(n), m.wanted())
	default:
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			d.mark(at, item)
			if item.Kind != yaml.ScalarNode || item.ShortTag() != "!!str" {
				d.add(at, "%s is wrong here: want a model's name, in quotes if it looks like something else", describe(item))
				continue
			}
			*m = append(*m, item.Value)
		}
	}
}

func (m *ModelNames) check(r *report, path string) {
	checkNames(r, path, *m)
	if len(*m) > 1 && slices.Contains(*m, "*") {
		r.add(path, `"*" is any name already: want %s`, m.wanted())
	}
}

// String writes the names as in the file.
func (m ModelNames) String() string {
	if m == nil {
		return "auto"
	}
	return "[" + strings.Join(m, ", ") + "]"
}

// GPUMode is where the readings of a replica's GPU come from.
type GPUMode string

// The modes.
const (
	GPUAuto     GPUMode = "auto"     // NVML where it is there and the replica is on this host
	GPUNone     GPUMode = "none"     // no readings
	GPUNVML     GPUMode = "nvml"     // the device named by ID, on this host
	GPUExporter GPUMode = "exporter" // the device named by ID, from a Prometheus exporter at URL
)

// GPU says which GPU a replica runs on.
type GPU struct {
	Mode GPUMode
	ID   string // index in decimal, or UUID ("GPU-…", "MIG-…")
	URL  string // of the exporter's metrics
}

func (g *GPU) wanted() string {
	return `auto, none, {nvml: 0}, {nvml: "GPU-…"} or {exporter: "http://HOST:9400/metrics", gpu: 0}`
}

func (g *GPU) decode(d *decoder, path string, n *yaml.Node) {
	*g = GPU{Mode: GPUAuto}
	switch {
	case isWord(n, "auto"):
	case isWord(n, "none"):
		g.Mode = GPUNone
	case n.Kind == yaml.MappingNode && len(n.Content) > 0:
		g.source(d, path, n)
	default:
		d.add(path, "%s is wrong here: want %s", describe(n), g.wanted())
	}
}

// source decodes the two mappings that name a device.
func (g *GPU) source(d *decoder, path string, n *yaml.Node) {
	given := map[string]bool{}
	d.pairs(path, n, func(key string, at, value *yaml.Node) {
		given[key] = true
		switch key {
		case "nvml", "gpu":
			g.ID = value.Value
			if value.Kind != yaml.ScalarNode || !deviceID(value) {
				d.add(join(path, key), `%s is no device: want its index such as 0, or its UUID such as "GPU-…"`, describe(value))
			}
		case "exporter":
			g.URL = value.Value
			if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" || !metricsURL(value.Value) {
				d.add(join(path, key), "this is no URL of metrics: want one such as http://HOST:9400/metrics")
			}
		default:
			d.addAt(mark{d.file, at.Line, at.Column}, join(path, key), unknown(key, []string{"nvml", "exporter", "gpu"}))
		}
	})
	switch {
	case given["nvml"] && !given["exporter"] && !given["gpu"]:
		g.Mode = GPUNVML
	case given["exporter"] && !given["nvml"]:
		g.Mode = GPUExporter
		if !given["gpu"] {
			g.ID = "0"
		}
	case d.ok(path):
		d.add(path, "these keys do not go together: want %s", g.wanted())
	}
}

// deviceID accepts an index or a UUID.
func deviceID(n *yaml.Node) bool {
	if n.ShortTag() == "!!int" {
		i, err := parseInt(n.Value)
		return err == nil && i >= 0 && i < 1024
	}
	return n.ShortTag() == "!!str" && len(n.Value) > 4 && (strings.HasPrefix(n.Value, "GPU-") || strings.HasPrefix(n.Value, "MIG-"))
}

// String writes the source as in the file.
func (g GPU) String() string {
	id := g.ID
	if _, err := strconv.Atoi(id); err != nil {
		id = strconv.Quote(id)
	}
	switch g.Mode {
	case GPUNVML:
		return "{nvml: " + id + "}"
	case GPUExporter:
		return fmt.Sprintf("{exporter: %q, gpu: %s}", g.URL, id)
	default:
		return string(g.Mode)
	}
}

func isWord(n *yaml.Node, word string) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && n.Value == word
}
