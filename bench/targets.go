package bench

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"switchyard/admission"
)

// Kind is what stands between the clients and the replicas.
type Kind uint8

// The kinds of target.
const (
	RoundRobin       Kind = iota // a plain proxy: each request to the next replica, at once
	LeastConnections             // a plain proxy: each request to the replica with the fewest under way, at once
	Gateway                      // this gateway, whole or without a part
	Oracle                       // this gateway, told the true service times; virtual only
	Pinned                       // a plain proxy: each conversation to a replica of its own, for good; virtual only
	External                     // any other gateway, by its URL; live only
)

// Target is one thing that is measured.
type Target struct {
	Name    string // as in the raw log: for url:NAME=URL the NAME
	Kind    Kind
	Without string // of Gateway: the part that is left out; "": none
	URL     string // of External
}

// parts are what can be left out of the gateway.
var parts = []string{"admission", "affinity", "slots", "order", "gpu"}

// ParseTarget reads a target's name as scenarios and --target give it.
func ParseTarget(s string) (Target, error) {
	switch s {
	case "round-robin":
		return Target{Name: s, Kind: RoundRobin}, nil
	case "least-connections":
		return Target{Name: s, Kind: LeastConnections}, nil
	case "switchyard":
		return Target{Name: s, Kind: Gateway}, nil
	case "pinned":
		return Target{Name: s, Kind: Pinned}, nil
	case "switchyard-oracle":
		return Target{Name: s, Kind: Oracle}, nil
	}
	if part, ok := strings.CutPrefix(s, "switchyard-no-"); ok && slices.Contains(parts, part) {
		return Target{Name: s, Kind: Gateway, Without: part}, nil
	}
	if rest, ok := strings.CutPrefix(s, "url:"); ok {
		name, raw, _ := strings.Cut(rest, "=")
		u, err := url.Parse(raw)
		if err == nil && name != "" && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") {
			return Target{Name: name, Kind: External, URL: strings.TrimSuffix(raw, "/")}, nil
		}
		return Target{}, fmt.Errorf("target %q: want url:NAME=URL, as in url:haproxy=http://127.0.0.1:8080", s)
	}
	return Target{}, fmt.Errorf("target %q: want round-robin, least-connections, pinned, switchyard, switchyard-no-NAME with NAME one of %s, switchyard-oracle, or url:NAME=URL",
		s, strings.Join(parts, ", "))
}

// Virtual reports whether the target can be run under a made-up clock.
func (t Target) Virtual() bool { return t.Kind != External }

// Live reports whether the target can be run over real sockets. Nothing switches
// off that a real gateway hears its engines say where their models are.
func (t Target) Live() bool { return t.Kind != Oracle && t.Kind != Pinned && t.Without != "gpu" }

// VirtualOptions is what a virtual run needs beside the scenario.
type VirtualOptions struct {
	// Wire turns a configuration file of the gateway into the controller's.
	Wire func(yaml []byte) (admission.Config, error)
	// Progress, if not nil, is told now and then how many requests of about how
	// many have ended.
	Progress func(done, total int)

	rehearsal *Traffic // for Pinned: the same traffic, to be played beforehand
}

// LiveOptions is what a live run needs beside the scenario.
type LiveOptions struct {
	Binary   string                // this program: the gateway is a child of its own
	Progress func(done, total int) // as in VirtualOptions; calls do not overlap
}
