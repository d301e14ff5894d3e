package bench

import (
	"time"

	"go.yaml.in/yaml/v4"

	"switchyard/simserver"
)

// Scenario is what is run: replicas, who may ask, and what is asked. It is
// complete and checked: names are there, counts expanded, files read.
type Scenario struct {
	Name     string    `yaml:"name"`
	Note     string    `yaml:"note"` // what it shows, in a sentence or two
	Seed     uint64    `yaml:"seed"`
	Trials   int       `yaml:"trials"`
	Replicas []Replica `yaml:"replicas"`
	Classes  []Class   `yaml:"classes"` // most urgent first; none: those of the configuration
	Keys     Keys      `yaml:"keys"`
	Traffic  []Source  `yaml:"traffic"`
	Gateway  yaml.Node `yaml:"gateway"` // any part of the gateway's configuration; zero: nothing
	Targets  []string  `yaml:"targets"`
	// Loads are factors on every source's rate: each target is run at each, so
	// that the tables have a row per target and load. None: once, as it stands.
	Loads []float64 `yaml:"loads"`

	Load float64 `yaml:"-"` // which of Loads this one is (see At); 0: none
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
