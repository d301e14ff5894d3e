package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
)

// Secret is a value that never prints: not by fmt, not in JSON, not in logs.
type Secret struct{ value string }

// NewSecret hides a value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal gives the value, for the header it is sent or compared in.
func (s Secret) Reveal() string { return s.value }

// Set reports whether there is a value.
func (s Secret) Set() bool { return s.value != "" }

// String tells only whether there is a value.
func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return "[secret]"
}

// Format keeps every verb of fmt, %#v and %x too, from the value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, s.String()) }

// MarshalJSON tells only whether there is a value.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// LogValue tells only whether there is a value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Secrets are the values of the variables that a configuration names.
type Secrets struct {
	Admin    Secret            // token of the admin listener; not set: none is needed
	Replicas map[string]Secret // bearer token by replica name, of those that have one
}

// Secrets looks up every variable that the configuration names; lookup is
// os.LookupEnv. A variable that is not set is a Problem.
func (c *Config) Secrets(lookup func(string) (string, bool)) (Secrets, error) {
	r := &report{marks: c.marks}
	s := Secrets{Replicas: map[string]Secret{}}
	read := func(path, name string) (found Secret) {
		value, _ := lookup(name)
		switch {
		case name == "":
		case value == "":
			r.add(path, "the environment variable %s is not set: want it set to the token", name)
		case strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
			r.add(path, "the environment variable %s has a space, a line break or another character that no header takes: want the token alone", name)
		default:
			found = Secret{value}
		}
		return found
	}
	s.Admin = read("admin.token_env", c.Admin.TokenEnv)
	for i, x := range c.Replicas {
		if token := read(fmt.Sprintf("replicas[%d].api_key_env", i), x.APIKeyEnv); token.Set() {
			s.Replicas[x.Name] = token
		}
	}
	return s, r.err()
}
