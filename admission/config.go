package admission

import (
	"time"

	"switchyard/breaker"
	"switchyard/replica"
)

// Config is everything the controller is told from outside. Reconfigure
// replaces it whole without dropping a request.
type Config struct {
	Version      string
	Classes      []Class // most urgent first; at least one
	DefaultClass string
	Replicas     []replica.Config
	Queue        QueueLimits
	Limits       map[string]Limits // by key name; a key that is absent has none
	Keep         float64           // share of promises to keep, 0…1; 0: 0.95
	Enabled      bool              // false: every request is accepted and none turned away for its deadline
	Observe      bool              // as if not enabled, but what would have been refused is counted
	Affinity     bool              // requests go where their prompts are cached, where that is faster
	Retry        Retry
	Breaker      breaker.Config
	ProbeEvery   time.Duration // health.interval: when a replica that is out may be seen to be back
}

// Class is one priority class.
type Class struct {
	Name     string
	Deadline time.Duration // for the first token, where the client states none
	MinShare float64       // of slot time, 0…1: below it the class goes first
}

// QueueLimits bounds what waits.
type QueueLimits struct {
	MaxRequests int
	MaxBytes    int64
}

// Retry says how attempts that failed before the commit point are repeated (R7).
type Retry struct {
	MaxAttempts      int           // attempts of one request, the first included
	Budget           float64       // retries allowed as a share of the last minute's requests, beside the fleet's slots
	FirstTokenFloor  time.Duration // least first-token timeout
	FirstTokenFactor float64       // first-token timeout as a multiple of the forecast
	LoadTimeout      time.Duration // instead, while the model is not resident or nothing is known
}

func (c *Config) class(name string) (int, bool) {
	for i := range c.Classes {
		if c.Classes[i].Name == name {
			return i, true
		}
	}
	return 0, false
}

// classOr is the index of name, or of the default class.
func (c *Config) classOr(name string) int {
	if i, ok := c.class(name); ok {
		return i
	}
	i, _ := c.class(c.DefaultClass)
	return i
}
