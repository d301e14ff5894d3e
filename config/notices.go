package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

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
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		for i, candidate := range c.Models[name] {
			if behind, alias := c.Models[candidate]; alias && !slices.Contains(behind, candidate) {
				lines = append(lines, fmt.Sprintf("models.%s[%d]: %s is itself an alias here, and candidates are asked for as they stand: it must be a model of that name, else name %s", name, i, quote(candidate), strings.Join(behind, ", ")))
			}
		}
	}
	return lines
}
