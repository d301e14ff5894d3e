package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Meta is meta.json: how a directory's raw logs came to be. The tables need
// nothing of it.
type Meta struct {
	Scenario string    `json:"scenario"`
	Commands []string  `json:"commands"`
	Version  string    `json:"version"`
	Go       string    `json:"go"`
	Platform string    `json:"platform"`
	CPUs     int       `json:"cpus"`
	Seed     uint64    `json:"seed"`
	Runs     []RunMeta `json:"runs"`
}

// RunMeta is one trial of one target.
type RunMeta struct {
	Target     string   `json:"target"`
	Load       float64  `json:"load,omitempty"`
	Trial      int      `json:"trial"`
	Runner     string   `json:"runner"` // live or virtual
	Requests   int      `json:"requests"`
	WallS      float64  `json:"wall_s"` // how long it took, not in the trial's time
	Violations []string `json:"violations,omitempty"`
}

// Files beside the raw logs.
const (
	metaFile     = "meta.json"
	scenarioFile = "scenario.yaml"
	markdownFile = "report.md"
	htmlFile     = "report.html"
)

// ReadMeta reads a directory's meta.json; a zero Meta where there is none.
func ReadMeta(dir string) (Meta, error) {
	var m Meta
	data, err := os.ReadFile(filepath.Join(dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return m, fmt.Errorf("reading %s: %w", filepath.Join(dir, metaFile), err)
	}
	return m, nil
}

// Done takes note of a trial.
func (m *Meta) Done(r RunMeta) { m.Runs = append(m.Runs, r) }

// Forget removes a target's raw logs from a directory, and what is noted of
// them: it is about to be run again, and old trials must not stay beside new.
func (m *Meta) Forget(dir, target string) error {
	m.Runs = slices.DeleteFunc(m.Runs, func(r RunMeta) bool { return r.Target == target })
	files, err := rawFiles(dir)
	for _, path := range files {
		if logOf(filepath.Base(path), target) {
			err = errors.Join(err, os.Remove(path))
		}
	}
	if err != nil {
		return fmt.Errorf("removing the raw logs of an earlier run of %s: %w", target, err)
	}
	return nil
}

// Write writes meta.json.
func (m *Meta) Write(dir string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, metaFile), append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", metaFile, err)
	}
	return nil
}

// WriteScenario writes the scenario as it is run. Where dir has another one
// already, its raw logs are of other traffic, and nothing is written.
func WriteScenario(dir string, s *Scenario) error {
	text, err := s.AsRun()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, scenarioFile)
	if old, err := os.ReadFile(path); err == nil {
		before, err := Parse(path, old)
		if err != nil {
			return fmt.Errorf("%s has a scenario that cannot be read: want another --out: %w", dir, err)
		}
		same := *before
		same.Targets, same.Trials = s.Targets, s.Trials
		beside, err := same.AsRun()
		if err != nil || string(beside) != string(text) {
			return fmt.Errorf("%s has the raw logs of another scenario, or of another seed: want another --out, or that directory removed", dir)
		}
		for _, t := range before.Targets { // it has been run against these, too
			if !slices.Contains(s.Targets, t) {
				s.Targets = append(s.Targets, t)
			}
		}
		if text, err = s.AsRun(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("writing the scenario: %w", err)
	}
	return nil
}
