// Package gpu reads the GPUs that replicas run on: those of this host through
// NVML, others through the Prometheus text of dcgm-exporter or
// nvidia_gpu_exporter. It finds out which GPU a replica of this host runs on,
// and hands what it read on as replica.GPUFacts. It decides nothing: what a hot
// card or a dead one means for requests is the controller's business.
//
// A host without NVIDIA's library, a binary without cgo, a user without
// permission: each is told in words and changes nothing else. A driver that
// hangs costs the goroutine that asked it, nothing more.
package gpu

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"switchyard/replica"
)

// Mode is where the readings of a replica's GPU come from.
type Mode string

// The modes; any other is None.
const (
	None     Mode = "none"
	Auto     Mode = "auto"     // NVML, where the replica's process is found on a GPU of this host
	NVML     Mode = "nvml"     // the device named by ID, on this host
	Exporter Mode = "exporter" // the device named by ID, from the exporter at Metrics
)

// Target is a replica whose GPU is to be read.
type Target struct {
	Name    string
	URL     *url.URL // the replica's; Auto finds its process by it
	Mode    Mode
	ID      string // index in decimal, or UUID
	Metrics string // URL of the exporter's metrics
}

func (t Target) equal(o Target) bool {
	return t.Name == o.Name && t.URL.String() == o.URL.String() && t.Mode == o.Mode && t.ID == o.ID && t.Metrics == o.Metrics
}

// Options is what a Reader needs besides its targets.
type Options struct {
	Interval time.Duration // between the beginnings of two readings
	Timeout  time.Duration // of one request to an exporter
	// Sink takes readings. It is called from several goroutines, even for one
	// replica: a fatal error does not wait for the reading under way. It must
	// not block for long, nor call the Reader.
	Sink func(name string, f replica.GPUFacts)
	// Works reports whether a replica has work of ours in hand, and Tokens how
	// many output tokens it has made. Energy per token is counted with them.
	Works  func(name string) bool
	Tokens func(name string) int64

	Library string // NVML's file; empty: libnvidia-ml.so.1, as the system finds it
}

// Reader reads GPUs: one goroutine for NVML and one for each exporter, with one
// more while it asks. All its methods may be called from any goroutine.
type Reader struct {
	opts Options
	open func() (library, error)
	proc host

	change sync.Mutex // held through Reconfigure and Close
	loops  map[string]*loop
	ended  bool
}

// New returns a Reader without targets.
func New(o Options) *Reader {
	return &Reader{
		opts: o, proc: host{proc: "/proc"}, loops: map[string]*loop{},
		open: func() (library, error) { return openLibrary(o.Library) },
	}
}

// Reconfigure makes the targets the only ones and sets the pace. A source of
// readings about which nothing changed is not disturbed. When it returns, no
// more readings come of replicas that are not among the targets.
func (r *Reader) Reconfigure(interval, timeout time.Duration, targets []Target) {
	r.change.Lock()
	defer r.change.Unlock()
	if r.ended {
		return
	}
	repaced := interval != r.opts.Interval || timeout != r.opts.Timeout
	r.opts.Interval, r.opts.Timeout = interval, timeout
	by := map[string][]Target{}
	for _, t := range targets {
		by[sourceOf(t)] = append(by[sourceOf(t)], t)
	}
	for key, l := range r.loops {
		if repaced || !slices.EqualFunc(l.targets, by[key], Target.equal) {
			l.end()
			delete(r.loops, key)
		}
	}
	for key, ts := range by {
		if key == "" {
			for _, t := range ts {
				r.opts.Sink(t.Name, none("switched off by the configuration"))
			}
		} else if r.loops[key] == nil {
			r.loops[key] = newLoop(r, key, ts)
		}
	}
}

// sourceOf names where a target's readings come from: an exporter's URL, or
// NVML; empty: nowhere.
func sourceOf(t Target) string {
	switch t.Mode {
	case Auto, NVML:
		return "nvml"
	case Exporter:
		return t.Metrics
	default:
		return ""
	}
}

// Close ends all reading. A driver that hangs is not waited for.
func (r *Reader) Close() {
	r.change.Lock()
	defer r.change.Unlock()
	r.ended = true
	for key, l := range r.loops {
		l.end()
		delete(r.loops, key)
	}
}

func none(why string) replica.GPUFacts {
	return replica.GPUFacts{At: time.Now(), Source: replica.SourceNone, Note: why}
}

// Describe puts a binding into one line for the operator.
func Describe(f replica.GPUFacts) string {
	if f.Source == replica.SourceNone || len(f.GPUs) == 0 {
		return "gpu: none (" + f.Note + ")"
	}
	var each []string
	for _, g := range f.GPUs {
		text := strings.TrimSpace(g.ID + " " + g.Name)
		if g.UUID != "" && g.UUID != g.ID {
			text += " " + g.UUID
		}
		if g.Err != "" {
			text += " (" + g.Err + ")"
		}
		each = append(each, text)
	}
	return fmt.Sprintf("gpu: %s, %s", strings.Join(each, " and "), f.Note)
}
