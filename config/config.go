// Package config is the configuration: its YAML schema with defaults, the
// checks that report every mistake at once with file, line and key, and what a
// reload changes. It reads a file when asked to and nothing else: no
// environment, no network, no clock.
//
// The schema is the Config struct. A field's tags say everything about its
// key, so that a new key is one line here and one row in
// docs/configuration.md (a test keeps the two in step):
//
//	yaml:"name"       the key
//	in:"[1,4096]"     the allowed interval, in the notation of the key's type
//	zero:"auto"       a word that stands for the zero value
//	oneof:"a|b"       the allowed words
//	form:"url"        the shape of a text, see forms
//	need:"yes"        it must be given
//	reload:"restart"  a reload cannot change it
//	later:"limits per key"  accepted, but not acted upon yet: part of that feature
//
// What one key alone cannot tell (unique names, references, addresses) is a
// rule in rules.go.
package config

import "time"

// Config is the whole configuration, checked and complete.
type Config struct {
	Listen       string              `yaml:"listen" form:"address" need:"yes" reload:"restart"`
	Admin        Admin               `yaml:"admin"`
	TLS          TLS                 `yaml:"tls"`
	Replicas     []Replica           `yaml:"replicas"`
	Models       map[string][]string `yaml:"models" form:"model"` // public name → candidates, best first
	Classes      []Class             `yaml:"classes" need:"yes"`  // most urgent first
	DefaultClass string              `yaml:"default_class" need:"yes"`
	Keys         Keys                `yaml:"keys"`
	Queue        Queue               `yaml:"queue"`
	Admission    Admission           `yaml:"admission"`
	Retry        Retry               `yaml:"retry"`
	Breaker      Breaker             `yaml:"breaker"`
	Health       Health              `yaml:"health"`
	Affinity     Affinity            `yaml:"affinity"`
	Limits       Limits              `yaml:"limits"`
	CORS         CORS                `yaml:"cors"`
	Log          Log                 `yaml:"log"`

	marks marks // where each key that was given stands
}

// Admin is the listener of dashboard, metrics and admin API.
type Admin struct {
	Listen   string `yaml:"listen" form:"address" need:"yes" reload:"restart"`
	TokenEnv string `yaml:"token_env" form:"env" reload:"restart"`
}

// TLS turns HTTPS on for the data plane when both files are named.
type TLS struct {
	Cert string `yaml:"cert" reload:"restart"`
	Key  string `yaml:"key" reload:"restart"`
}

// Replica is one inference server.
type Replica struct {
	Name        string     `yaml:"name" form:"replica"`       // default host:port of the URL
	URL         string     `yaml:"url" form:"url" need:"yes"` // without trailing slash and /v1
	Engine      string     `yaml:"engine" oneof:"auto|ollama|llamacpp|vllm|openai"`
	Slots       Slots      `yaml:"slots"`
	Models      ModelNames `yaml:"models"`
	Tier        int        `yaml:"tier" in:"[0,1000]"`
	APIKeyEnv   string     `yaml:"api_key_env" form:"env"`
	CAFile      string     `yaml:"ca_file"`
	CacheTokens int        `yaml:"cache_tokens" zero:"auto" in:"[1,1000000000]"` // 0: auto
	GPU         GPU        `yaml:"gpu"`
}

// Class is one priority class.
type Class struct {
	Name     string        `yaml:"name" form:"class" need:"yes"`
	Deadline time.Duration `yaml:"deadline" in:"(0,24h]" need:"yes"`
	MinShare float64       `yaml:"min_share" in:"[0,1)"` // default 0.05, the most urgent class 0
}

// Keys are the API keys.
type Keys struct {
	Required bool  `yaml:"required"`
	List     []Key `yaml:"list"`
}

// Key is one API key, known by its hash. Limits of 0 are no limits.
type Key struct {
	Name              string   `yaml:"name" form:"key" need:"yes"`
	SHA256            string   `yaml:"sha256" form:"sha256" need:"yes"`
	Weight            float64  `yaml:"weight" in:"(0,1000]" later:"fair shares between keys"`
	Class             string   `yaml:"class"`     // empty: default_class
	MaxClass          string   `yaml:"max_class"` // empty: any
	RequestsPerMinute int      `yaml:"requests_per_minute" in:"[0,1000000000]"`
	TokensPerMinute   int      `yaml:"tokens_per_minute" in:"[0,1000000000]"`
	MaxRunning        int      `yaml:"max_running" in:"[0,)"`
	MaxQueued         int      `yaml:"max_queued" in:"[0,)"`
	Models            []string `yaml:"models" form:"model" need:"yes"` // "*": any
}

// Queue bounds the queue.
type Queue struct {
	MaxRequests int           `yaml:"max_requests" in:"[1,1000000]"`
	MaxBytes    Size          `yaml:"max_bytes" in:"(0,)"`
	Heartbeat   time.Duration `yaml:"heartbeat" zero:"off" in:"(0,1h]"` // 0: off
}

// Admission is how promises are made.
type Admission struct {
	Enabled bool    `yaml:"enabled"`
	Keep    float64 `yaml:"keep" in:"(0,1)"`
	Mode    string  `yaml:"mode" oneof:"enforce|observe"`
}

// Retry is what happens when an attempt fails.
type Retry struct {
	MaxAttempts      int           `yaml:"max_attempts" in:"[1,100]"`
	Budget           float64       `yaml:"budget" in:"[0,1]"`
	FirstTokenFloor  time.Duration `yaml:"first_token_floor" in:"(0,24h]"`
	FirstTokenFactor float64       `yaml:"first_token_factor" in:"[1,1000]"`
	LoadTimeout      time.Duration `yaml:"load_timeout" in:"(0,24h]"`
	StallTimeout     time.Duration `yaml:"stall_timeout" in:"(0,24h]"`
	Buffer           Size          `yaml:"buffer" in:"(0,)"`
}

// Breaker is when a replica is left alone and how it comes back.
type Breaker struct {
	ConsecutiveFailures int           `yaml:"consecutive_failures" in:"[1,1000]"`
	FailureShare        float64       `yaml:"failure_share" in:"(0,1]"`
	Window              int           `yaml:"window" in:"[1,10000]"`
	Cooldown            time.Duration `yaml:"cooldown" in:"(0,24h]"`
	MaxCooldown         time.Duration `yaml:"max_cooldown" in:"(0,24h]"`
	TrialStart          float64       `yaml:"trial_start" in:"(0,1]"`
	TrialFactor         float64       `yaml:"trial_factor" in:"(1,1000]"`
	ProbeRecovery       bool          `yaml:"probe_recovery"`
}

// Health is how replicas are probed.
type Health struct {
	Interval time.Duration `yaml:"interval" in:"[10ms,1h]"`
	Timeout  time.Duration `yaml:"timeout" in:"[10ms,1h]"`
}

// Affinity is how conversations find their prompt cache.
type Affinity struct {
	Enabled       bool   `yaml:"enabled"`
	SessionHeader string `yaml:"session_header" form:"header"`
	PinSlots      bool   `yaml:"pin_slots"`
}

// Limits bound what a client may do to the gateway.
type Limits struct {
	MaxBody           Size          `yaml:"max_body" in:"(0,)"`
	MaxDeadline       time.Duration `yaml:"max_deadline" in:"(0,24h]"`
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout" in:"(0,24h]" reload:"restart"`
	ReadBodyTimeout   time.Duration `yaml:"read_body_timeout" in:"(0,24h]"`
	WriteTimeout      time.Duration `yaml:"write_timeout" in:"(0,24h]"`
	DrainTimeout      time.Duration `yaml:"drain_timeout" in:"(0,24h]"`
	OllamaAdmin       bool          `yaml:"ollama_admin"`
}

// CORS names the web pages that may call the data plane.
type CORS struct {
	Origins []string `yaml:"origins" form:"origin"`
}

// Log is what is written where.
type Log struct {
	Level     string `yaml:"level" oneof:"debug|info|warn|error" reload:"restart"`
	Format    string `yaml:"format" oneof:"text|json" reload:"restart"`
	Decisions string `yaml:"decisions" reload:"restart"`
}

// Words of the schema that callers compare with.
const (
	EngineAuto = "auto"
	Observe    = "observe" // Admission.Mode: only log what would have been refused
	Anonymous  = "anonymous"
)

// defaultMinShare is what a class that says nothing gets; the most urgent gets
// none, for nothing can starve it.
const defaultMinShare = 0.05

// Default is the configuration of an empty file.
func Default() *Config {
	return &Config{
		Listen: "127.0.0.1:8700",
		Admin:  Admin{Listen: "127.0.0.1:8701"},
		Classes: []Class{
			{Name: "interactive", Deadline: 10 * time.Second},
			{Name: "standard", Deadline: time.Minute, MinShare: defaultMinShare},
			{Name: "batch", Deadline: 15 * time.Minute, MinShare: defaultMinShare},
		},
		DefaultClass: "standard",
		Queue:        Queue{MaxRequests: 2048, MaxBytes: 512 * MiB},
		Admission:    Admission{Enabled: true, Keep: 0.95, Mode: "enforce"},
		Retry: Retry{
			MaxAttempts: 3, Budget: 0.2,
			FirstTokenFloor: 15 * time.Second, FirstTokenFactor: 4,
			LoadTimeout: 5 * time.Minute, StallTimeout: time.Minute, Buffer: 4 * MiB,
		},
		Breaker: Breaker{
			ConsecutiveFailures: 3, FailureShare: 0.5, Window: 20,
			Cooldown: 5 * time.Second, MaxCooldown: 2 * time.Minute,
			TrialStart: 0.05, TrialFactor: 1.6,
		},
		Health:   Health{Interval: 2 * time.Second, Timeout: 2 * time.Second},
		Affinity: Affinity{Enabled: true, SessionHeader: "X-Session-ID"},
		Limits: Limits{
			MaxBody: 64 * MiB, MaxDeadline: 30 * time.Minute,
			ReadHeaderTimeout: 10 * time.Second, ReadBodyTimeout: time.Minute,
			WriteTimeout: time.Minute, DrainTimeout: time.Minute,
		},
		Log: Log{Level: "info", Format: "text"},
	}
}

// setDefaults gives a replica of the list what it does not say.
func (r *Replica) setDefaults() {
	*r = Replica{Engine: EngineAuto, GPU: GPU{Mode: GPUAuto}}
}

// setDefaults gives a class of the list what it does not say; settle corrects
// the most urgent one.
func (c *Class) setDefaults() { *c = Class{MinShare: defaultMinShare} }

// setDefaults gives a key of the list what it does not say.
func (k *Key) setDefaults() { *k = Key{Weight: 1, Models: []string{"*"}} }

// settle fills in defaults that depend on other keys.
func (c *Config) settle() {
	for i := range c.Replicas {
		if r := &c.Replicas[i]; r.Name == "" {
			r.Name = hostPort(r.URL)
		}
	}
	if len(c.Classes) > 0 {
		if _, given := c.marks["classes[0].min_share"]; !given && c.marks.has("classes") {
			c.Classes[0].MinShare = 0
		}
	}
}
