package simserver

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.yaml.in/yaml/v4"
)

// Spec is one replica as a fleet file says it: the options in snake_case.
type Spec struct {
	Name          string      `yaml:"name"`
	Listen        string      `yaml:"listen"`
	Engine        string      `yaml:"engine"`
	Model         names       `yaml:"model"`
	Slots         int         `yaml:"slots"`
	Prefill       float64     `yaml:"prefill"`
	Decode        float64     `yaml:"decode"`
	BatchSlowdown float64     `yaml:"batch_slowdown"`
	CacheTokens   *int        `yaml:"cache_tokens"`
	Queue         int         `yaml:"queue"`
	Context       int         `yaml:"context"`
	LoadTime      duration    `yaml:"load_time"`
	MaxLoaded     int         `yaml:"max_loaded"`
	SleepIdle     duration    `yaml:"sleep_idle"`
	OutputTokens  string      `yaml:"output_tokens"`
	Notice        *duration   `yaml:"notice"`
	GPUShare      string      `yaml:"gpu_share"`
	TimeScale     float64     `yaml:"time_scale"`
	Seed          uint64      `yaml:"seed"`
	APIKey        string      `yaml:"api_key"`
	Embeddings    bool        `yaml:"embeddings"`
	Reranking     bool        `yaml:"reranking"`
	Faults        []timedSpec `yaml:"faults"`
}

// timedSpec is a fault with the time at which it begins.
type timedSpec struct {
	At        duration `yaml:"at"`
	wireFault `yaml:",inline"`
}

// names is one name or a list of them.
type names []string

func (n *names) UnmarshalYAML(node *yaml.Node) error {
	var one string
	if node.Kind == yaml.ScalarNode {
		if err := node.Decode(&one); err != nil {
			return err
		}
		*n = names{one}
		return nil
	}
	return node.Decode((*[]string)(n))
}

// Options gives the replica's options.
func (s *Spec) Options() Options {
	o := Options{
		Name: s.Name, Listen: s.Listen, Engine: s.Engine, Models: s.Model, Slots: s.Slots,
		Prefill: s.Prefill, Decode: s.Decode, BatchSlowdown: s.BatchSlowdown,
		Queue: s.Queue, Context: s.Context, LoadTime: time.Duration(s.LoadTime),
		MaxLoaded: s.MaxLoaded, SleepIdle: time.Duration(s.SleepIdle),
		OutputTokens: s.OutputTokens, GPUShare: s.GPUShare, TimeScale: s.TimeScale, Seed: s.Seed,
		APIKey: s.APIKey, Embeddings: s.Embeddings, Reranking: s.Reranking,
	}
	o.CacheTokens = OrNone(s.CacheTokens)
	o.Notice = OrNone((*time.Duration)(s.Notice))
	for _, f := range s.Faults {
		o.Faults = append(o.Faults, TimedFault{At: time.Duration(f.At), Fault: f.fault()})
	}
	return o
}

// stated is what a zero says something about only if it is there: to Options it
// means the default.
type stated struct {
	Slots     *int     `yaml:"slots"`
	Context   *int     `yaml:"context"`
	Prefill   *float64 `yaml:"prefill"`
	Decode    *float64 `yaml:"decode"`
	TimeScale *float64 `yaml:"time_scale"`
}

func (s *stated) check() error {
	zero := func(what, want string, is bool) error {
		if is {
			return fmt.Errorf("%s 0: want %s, or nothing for the default", what, want)
		}
		return nil
	}
	return errors.Join(
		zero("slots", "at least 1", s.Slots != nil && *s.Slots == 0),
		zero("context", "at least 1 token", s.Context != nil && *s.Context == 0),
		zero("prefill", "tokens per second above 0", s.Prefill != nil && *s.Prefill == 0),
		zero("decode", "tokens per second above 0", s.Decode != nil && *s.Decode == 0),
		zero("time_scale", "a factor above 0, as 10 for ten times faster", s.TimeScale != nil && *s.TimeScale == 0),
	)
}

// OrNone turns a setting that may be absent into an option for which zero means
// the default and a negative value none: a zero that was said becomes -1.
func OrNone[T int | time.Duration](v *T) T {
	switch {
	case v == nil:
		return 0
	case *v == 0:
		return -1
	}
	return *v
}

// LoadFleet reads a fleet file: replicas: with a list of options. All mistakes
// are reported, each with its line where it has one.
func LoadFleet(path string) ([]Options, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the fleet file: %w", err)
	}
	var file struct {
		Replicas []Spec `yaml:"replicas"`
	}
	if err := yaml.Load(data, &file, yaml.WithKnownFields()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var said struct {
		Replicas []stated `yaml:"replicas"`
	}
	if err := yaml.Load(data, &said); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Replicas) == 0 {
		return nil, fmt.Errorf("%s: replicas: none: want a list of at least one", path)
	}
	var all []Options
	var wrong []error
	seen := make(map[string]bool)
	for i := range file.Replicas {
		o := file.Replicas[i].Options()
		err := errors.Join(o.Check(), said.Replicas[i].check())
		if err == nil && o.Name != "" && seen[o.Name] {
			err = fmt.Errorf("name %q: it is taken by an earlier replica", o.Name)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: replicas[%d] %s: %w", path, i, o.Name, err))
		}
		seen[o.Name] = true
		all = append(all, o)
	}
	return all, errors.Join(wrong...)
}

// Fleet is several replicas that were started together.
type Fleet []*Server

// StartFleet starts all replicas, or none.
func StartFleet(all []Options) (Fleet, error) {
	var fleet Fleet
	shares := make(map[string]*share)
	for _, o := range all {
		if o.GPUShare != "" {
			if shares[o.GPUShare] == nil {
				shares[o.GPUShare] = &share{}
			}
			o.share = shares[o.GPUShare]
		}
		s, err := Start(o)
		if err != nil {
			fleet.Close()
			return nil, err
		}
		fleet = append(fleet, s)
	}
	return fleet, nil
}

// Close ends all replicas.
func (f Fleet) Close() {
	for _, s := range f {
		s.Close()
	}
}
