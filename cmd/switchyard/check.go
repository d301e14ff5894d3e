package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"strings"

	"switchyard/config"
)

// checkCmd checks a configuration.
type checkCmd struct {
	File string `arg:"" env:"SWITCHYARD_CONFIG" help:"The configuration file; SWITCHYARD_CONFIG names the default one." placeholder:"FILE"`
}

// Run checks the file and sums up what it configures.
func (cmd *checkCmd) Run(c *console) error {
	cfg, err := config.Load(cmd.File)
	if err != nil {
		return err
	}
	c.printf("%s: well\n", cmd.File)
	for _, line := range summary(cfg) {
		c.printf("  %s\n", line)
	}
	for _, line := range notices(cfg) {
		c.printf("note: %s\n", line)
	}
	return nil
}

// notices is what is worth a word though it is no mistake.
func notices(cfg *config.Config) []string {
	lines := cfg.Warnings()
	if _, err := cfg.Secrets(os.LookupEnv); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			lines = append(lines, line+" (not here now; serve will not start without it)")
		}
	}
	if len(cfg.Replicas) == 0 {
		lines = append(lines, "replicas: there is none; serve will not start without one (or give it --replica URL)")
	}
	return append(lines, unreadable(cfg)...)
}

// unreadable names the certificate files that cannot be used as they are now.
func unreadable(cfg *config.Config) (lines []string) {
	note := func(key string, err error) {
		if err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v (not here now; serve will not start without it)", key, err))
		}
	}
	if cfg.TLS.Cert != "" {
		_, err := tls.LoadX509KeyPair(cfg.TLS.Cert, cfg.TLS.Key)
		note("tls", err)
	}
	for i, r := range cfg.Replicas {
		if r.CAFile != "" {
			_, err := os.Stat(r.CAFile)
			note(fmt.Sprintf("replicas[%d].ca_file", i), err)
		}
	}
	return lines
}

// summary says in a few lines what is configured.
func summary(cfg *config.Config) []string {
	scheme := "http"
	if cfg.TLS.Cert != "" {
		scheme = "https"
	}
	lines := []string{
		fmt.Sprintf("data plane  %s://%s", scheme, cfg.Listen),
		fmt.Sprintf("admin       http://%s", cfg.Admin.Listen),
		fmt.Sprintf("replicas    %d", len(cfg.Replicas)),
	}
	for _, r := range cfg.Replicas {
		lines = append(lines, fmt.Sprintf("            %s %s (engine %s, slots %v, models %v)", r.Name, r.URL, r.Engine, r.Slots, r.Models))
	}
	var classes []string
	for _, class := range cfg.Classes {
		text := fmt.Sprintf("%s %v", class.Name, config.FormatDuration(class.Deadline))
		if class.Name == cfg.DefaultClass {
			text += " (default)"
		}
		classes = append(classes, text)
	}
	keys := "optional"
	if cfg.Keys.Required {
		keys = "required"
	}
	return append(lines,
		"classes     "+strings.Join(classes, ", "),
		fmt.Sprintf("aliases     %d", len(cfg.Models)),
		fmt.Sprintf("keys        %d, %s", len(cfg.Keys.List), keys),
	)
}
