package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"os"

	"switchyard/admission"
	"switchyard/breaker"
	"switchyard/config"
	"switchyard/gateway"
	"switchyard/replica"
	"switchyard/replica/gpu"
	"switchyard/replica/probe"
)

// controllerConfig is what the controller needs of the configuration.
func controllerConfig(c *config.Config) admission.Config {
	v, _ := built()
	out := admission.Config{
		Version:      v,
		DefaultClass: c.DefaultClass,
		Queue:        admission.QueueLimits{MaxRequests: c.Queue.MaxRequests, MaxBytes: int64(c.Queue.MaxBytes)},
		Keep:         c.Admission.Keep,
		Enabled:      c.Admission.Enabled,
		Affinity:     c.Affinity.Enabled,
		Observe:      c.Admission.Mode == config.Observe,
		Retry: admission.Retry{
			MaxAttempts: c.Retry.MaxAttempts, Budget: c.Retry.Budget, FirstTokenFloor: c.Retry.FirstTokenFloor,
			FirstTokenFactor: c.Retry.FirstTokenFactor, LoadTimeout: c.Retry.LoadTimeout,
		},
		Breaker:    breaker.Config(c.Breaker),
		ProbeEvery: c.Health.Interval,
	}
	for _, cl := range c.Classes {
		out.Classes = append(out.Classes, admission.Class{Name: cl.Name, Deadline: cl.Deadline, MinShare: cl.MinShare})
	}
	out.Limits = limitsOf(c.Keys.List)
	for _, r := range c.Replicas {
		out.Replicas = append(out.Replicas, replica.Config{
			Name: r.Name, URL: r.URL, Engine: replica.Engine(r.Engine), Slots: r.Slots, Models: r.Models, Tier: r.Tier,
			CacheTokens: r.CacheTokens, PinSlots: c.Affinity.PinSlots,
		})
	}
	return out
}

// limitsOf gives the limits of the keys that have any.
func limitsOf(keys []config.Key) map[string]admission.Limits {
	limits := map[string]admission.Limits{}
	for _, k := range keys {
		l := admission.Limits{
			RequestsPerMinute: k.RequestsPerMinute, TokensPerMinute: k.TokensPerMinute, MaxRunning: k.MaxRunning, MaxQueued: k.MaxQueued,
		}
		if l != (admission.Limits{}) {
			limits[k.Name] = l
		}
	}
	return limits
}

// site is a configuration with what it refers to outside of itself: variables,
// certificates, addresses.
type site struct {
	cfg     *config.Config
	secrets config.Secrets
	urls    map[string]*url.URL
	roots   map[string]*x509.CertPool
}

// lookUp resolves what the configuration refers to.
func lookUp(c *config.Config) (*site, error) {
	s := &site{cfg: c, urls: map[string]*url.URL{}, roots: map[string]*x509.CertPool{}}
	var err error
	if s.secrets, err = c.Secrets(os.LookupEnv); err != nil {
		return nil, err
	}
	for _, r := range c.Replicas {
		if s.urls[r.Name], err = url.Parse(r.URL); err != nil {
			return nil, fmt.Errorf("replica %s: %w", r.Name, err)
		}
		if r.CAFile == "" {
			continue
		}
		pem, err := os.ReadFile(r.CAFile)
		if err != nil {
			return nil, usageError{fmt.Errorf("replica %s: reading ca_file: %w", r.Name, err)}
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, usageError{fmt.Errorf("replica %s: ca_file %s has no certificate in PEM form", r.Name, r.CAFile)}
		}
		s.roots[r.Name] = pool
	}
	return s, nil
}

// settings is what the data plane needs of the configuration.
func (s *site) settings(instance string, serverTLS *tls.Config, log *slog.Logger) gateway.Settings {
	c := s.cfg
	out := gateway.Settings{
		Instance: instance, DefaultClass: c.DefaultClass, KeysRequired: c.Keys.Required, Origins: c.CORS.Origins,
		QueueBytes: int64(c.Queue.MaxBytes), RetryBuffer: int64(c.Retry.Buffer), StallTimeout: c.Retry.StallTimeout,
		Heartbeat: c.Queue.Heartbeat, TLS: serverTLS, Log: log, SessionHeader: c.Affinity.SessionHeader,
		Limits: gateway.Limits{
			MaxBody: int64(c.Limits.MaxBody), MaxDeadline: c.Limits.MaxDeadline, ReadHeaderTimeout: c.Limits.ReadHeaderTimeout,
			ReadBodyTimeout: c.Limits.ReadBodyTimeout, WriteTimeout: c.Limits.WriteTimeout,
			DrainTimeout: c.Limits.DrainTimeout, OllamaAdmin: c.Limits.OllamaAdmin,
		},
	}
	for _, cl := range c.Classes {
		out.Classes = append(out.Classes, gateway.Class{Name: cl.Name, Deadline: cl.Deadline})
	}
	for _, k := range c.Keys.List {
		key := gateway.Key{Name: k.Name, Class: k.Class, MaxClass: k.MaxClass, Models: k.Models}
		sum, _ := hex.DecodeString(k.SHA256) // its form was checked
		copy(key.Hash[:], sum)
		out.Keys = append(out.Keys, key)
	}
	for name, candidates := range c.Models {
		out.Aliases = append(out.Aliases, gateway.Alias{Name: name, Candidates: candidates})
	}
	for _, r := range c.Replicas {
		out.Replicas = append(out.Replicas, gateway.Replica{
			Name: r.Name, URL: s.urls[r.Name], TLS: s.clientTLS(r.Name), APIKey: gateway.Secret(s.secrets.Replicas[r.Name].Reveal()),
		})
	}
	return out
}

func (s *site) clientTLS(name string) *tls.Config {
	if s.urls[name].Scheme != "https" {
		return nil
	}
	return &tls.Config{RootCAs: s.roots[name], ServerName: s.urls[name].Hostname(), MinVersion: tls.VersionTLS12}
}

// targets is what the prober asks.
func (s *site) targets() []probe.Target {
	var out []probe.Target
	for _, r := range s.cfg.Replicas {
		out = append(out, probe.Target{
			Name: r.Name, URL: s.urls[r.Name], Engine: replica.Engine(r.Engine),
			Key: probe.Secret(s.secrets.Replicas[r.Name].Reveal()), Roots: s.roots[r.Name],
		})
	}
	return out
}

// gpus is whose GPUs are read, and where.
func (s *site) gpus() []gpu.Target {
	var out []gpu.Target
	for _, r := range s.cfg.Replicas {
		out = append(out, gpu.Target{Name: r.Name, URL: s.urls[r.Name], Mode: gpu.Mode(r.GPU.Mode), ID: r.GPU.ID, Metrics: r.GPU.URL})
	}
	return out
}
