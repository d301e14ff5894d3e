package bench

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"switchyard/simserver/model"
)

// gatewaySite is where a gateway stands.
type gatewaySite struct {
	replicas      []string // their URLs, in the scenario's order
	listen, admin string   // "": the defaults
}

// nowhere gives each replica an address that nobody goes to.
func (s *Scenario) nowhere() []string {
	at := make([]string, len(s.Replicas))
	for i := range at {
		at[i] = fmt.Sprintf("http://127.0.0.1:%d", 1024+i)
	}
	return at
}

// manySlots is what a replica is said to have where slots are left out: the
// queue moves into the replicas.
const manySlots = 4096

// gatewayConfig writes the gateway's configuration file: the scenario's own
// part, its classes and keys, and the replicas where they are now.
func gatewayConfig(s *Scenario, t Target, at gatewaySite) ([]byte, error) {
	c := map[string]any{}
	if s.Gateway.Kind != 0 {
		if err := s.Gateway.Decode(&c); err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
	}
	if at.listen != "" {
		c["listen"] = at.listen
		section(c, "admin")["listen"] = at.admin
		log := section(c, "log")
		log["level"], log["format"] = "info", "json" // a line of it tells the addresses
	}
	c["replicas"] = configReplicas(s, t, at.replicas)
	if len(s.Classes) > 0 {
		c["classes"] = s.Classes
		if !slices.ContainsFunc(s.Classes, func(k Class) bool { return k.Name == cmp.Or(text(c["default_class"]), "standard") }) {
			c["default_class"] = s.Classes[0].Name
		}
	}
	if len(s.Keys.List) > 0 {
		c["keys"] = configKeys(s)
	}
	switch t.Without {
	case "admission", "affinity":
		section(c, t.Without)["enabled"] = false
	}
	return yaml.Marshal(c)
}

// section is a part of the configuration that is a mapping.
func section(c map[string]any, name string) map[string]any {
	m, _ := c[name].(map[string]any)
	m = maps.Clone(m)
	if m == nil {
		m = map[string]any{}
	}
	c[name] = m
	return m
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func configReplicas(s *Scenario, t Target, at []string) []map[string]any {
	var out []map[string]any
	for i := range s.Replicas {
		r := &s.Replicas[i]
		c := map[string]any{"name": r.Name, "url": at[i]}
		if r.Engine != "" {
			c["engine"] = r.Engine
		}
		if r.Slots > 0 && r.Engine != string(model.LlamaCpp) { // which says itself
			c["slots"] = r.Slots
		}
		if t.Without == "slots" {
			c["slots"] = manySlots
		}
		if r.CacheTokens != nil && *r.CacheTokens > 0 {
			c["cache_tokens"] = *r.CacheTokens
		}
		out = append(out, c)
	}
	return out
}

func configKeys(s *Scenario) map[string]any {
	list := slices.Clone(s.Keys.List)
	for i := range list {
		sum := sha256.Sum256([]byte(KeySecret(list[i].Name)))
		list[i].SHA256 = hex.EncodeToString(sum[:])
	}
	return map[string]any{"required": s.Keys.Required, "list": list}
}

// gatewayTimes are settings of the gateway that its controller does not need to
// know, and that a virtual run acts out itself.
type gatewayTimes struct {
	Stall time.Duration // retry.stall_timeout
	Probe time.Duration // health.timeout
}

func (s *Scenario) gatewayTimes() (gatewayTimes, error) {
	var c struct {
		Retry struct {
			Stall time.Duration `yaml:"stall_timeout"`
		} `yaml:"retry"`
		Health struct {
			Timeout time.Duration `yaml:"timeout"`
		} `yaml:"health"`
	}
	if s.Gateway.Kind != 0 {
		if err := s.Gateway.Decode(&c); err != nil {
			return gatewayTimes{}, fmt.Errorf("gateway: %w", err)
		}
	}
	return gatewayTimes{
		Stall: cmp.Or(c.Retry.Stall, time.Minute), Probe: cmp.Or(c.Health.Timeout, 2*time.Second),
	}, nil
}
