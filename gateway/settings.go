package gateway

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net/url"
	"time"

	"switchyard/gateway/upstream"
)

// Secret is a credential. It never prints; convert it to use it.
type Secret string

// String hides the secret from every kind of formatting.
func (Secret) String() string { return "[secret]" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return "[secret]" }

// LogValue hides the secret from structured logs.
func (Secret) LogValue() slog.Value { return slog.StringValue("[secret]") }

// Settings is what the data plane is configured with. The command line builds
// it from the checked configuration; a zero field takes the default that the
// configuration documents.
type Settings struct {
	Instance     string  // tells this gateway from others in Via
	Classes      []Class // most urgent first; at least one
	DefaultClass string
	Keys         []Key
	KeysRequired bool
	Aliases      []Alias
	Replicas     []Replica
	Origins      []string // CORS: allowed origins, "*" any; empty: no CORS
	QueueBytes   int64    // bounds the bodies that are still coming, too
	Limits       Limits
	RetryBuffer  int64         // how much of an answer is held back for a retry
	StallTimeout time.Duration // longest silence between two tokens
	Heartbeat    time.Duration // SSE comments while queued; 0 off

	// SessionHeader names a conversation where its body does not; empty: none does.
	SessionHeader string

	TLS *tls.Config // of the listener; nil: plain
	Log *slog.Logger
}

// Class is a priority class.
type Class struct {
	Name     string
	Deadline time.Duration
}

// Key is an API key, known only by its hash.
type Key struct {
	Name     string
	Hash     [32]byte // SHA-256 over the key's bytes
	Class    string   // class where the client names none; empty: the default
	MaxClass string   // most urgent class allowed; empty: any
	Models   []string // names allowed; empty or "*": any
}

// Alias is a public model name and what may stand behind it, best first.
type Alias struct {
	Name       string
	Candidates []string
}

// Replica is how to reach a replica.
type Replica struct {
	Name   string
	URL    *url.URL // its path, if any, is a prefix
	TLS    *tls.Config
	APIKey Secret // bearer token for the replica
}

// Limits bounds what clients may do.
type Limits struct {
	MaxBody           int64
	MaxDeadline       time.Duration
	ReadHeaderTimeout time.Duration
	ReadBodyTimeout   time.Duration
	WriteTimeout      time.Duration
	DrainTimeout      time.Duration
	OllamaAdmin       bool
}

func (s Settings) withDefaults() Settings {
	if len(s.Classes) == 0 {
		s.Classes = []Class{{"interactive", 10 * time.Second}, {"standard", time.Minute}, {"batch", 15 * time.Minute}}
		s.DefaultClass = cmp.Or(s.DefaultClass, "standard")
	}
	s.DefaultClass = cmp.Or(s.DefaultClass, s.Classes[0].Name)
	s.Instance = cmp.Or(s.Instance, "gateway")
	s.QueueBytes = cmp.Or(s.QueueBytes, 512<<20)
	s.RetryBuffer = cmp.Or(s.RetryBuffer, 4<<20)
	s.StallTimeout = cmp.Or(s.StallTimeout, time.Minute)
	l := &s.Limits
	l.MaxBody = cmp.Or(l.MaxBody, 64<<20)
	l.MaxDeadline = cmp.Or(l.MaxDeadline, 30*time.Minute)
	l.ReadHeaderTimeout = cmp.Or(l.ReadHeaderTimeout, 10*time.Second)
	l.ReadBodyTimeout = cmp.Or(l.ReadBodyTimeout, time.Minute)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, time.Minute)
	l.DrainTimeout = cmp.Or(l.DrainTimeout, time.Minute)
	if s.Log == nil {
		s.Log = slog.Default()
	}
	return s
}

// view is the settings in force with what is derived from them. It is never
// changed after newView: a reload puts another in its place.
type view struct {
	Settings
	ranks   map[string]int // class name → place, 0 most urgent
	aliases map[string][]string
	byHash  map[[8]byte][]int // places in Keys, by the first bytes of their hashes
	links   map[string]*link  // by replica name
	retired map[string]*link  // of the view before, for attempts granted just before a reload
	via     string            // pseudonym in Via
	viaLine string            // its entry there
}

// link is the connection to a replica.
type link struct {
	client *upstream.Client
	key    Secret
	url    string
	tls    *tls.Config
}

// newView derives a view; clients of replicas that did not change are kept
// with their pooled connections.
func newView(s Settings, old *view) *view {
	v := &view{
		Settings: s.withDefaults(),
		ranks:    map[string]int{},
		aliases:  map[string][]string{},
		links:    map[string]*link{},
		retired:  map[string]*link{},
		byHash:   make(map[[8]byte][]int, len(s.Keys)),
	}
	v.via = "switchyard-" + v.Instance
	v.viaLine = "1.1 " + v.via
	for i, c := range v.Classes {
		v.ranks[c.Name] = i
	}
	for i := range v.Keys {
		start := [8]byte(v.Keys[i].Hash[:8])
		v.byHash[start] = append(v.byHash[start], i)
	}
	for _, a := range v.Aliases {
		v.aliases[a.Name] = a.Candidates
	}
	for _, r := range v.Replicas {
		v.links[r.Name] = newLink(r, old)
	}
	if old == nil {
		return v
	}
	for name, l := range old.links {
		if v.links[name] == nil {
			v.retired[name] = l
		}
	}
	return v
}

func newLink(r Replica, old *view) *link {
	l := &link{key: r.APIKey, url: r.URL.String(), tls: r.TLS}
	if old != nil {
		if was := old.links[r.Name]; was != nil && was.url == l.url && was.tls == nil && l.tls == nil {
			l.client = was.client
			return l
		}
	}
	l.client = upstream.New(upstream.Options{Base: r.URL, TLS: r.TLS})
	return l
}

// link finds the replica's connection, also just after it was removed.
func (v *view) link(name string) *link {
	if l := v.links[name]; l != nil {
		return l
	}
	return v.retired[name]
}

// closeUnused closes the idle connections of clients that next does not use.
func (v *view) closeUnused(next *view) {
	for name, l := range v.links {
		if now := next.links[name]; now == nil || now.client != l.client {
			l.client.Close()
		}
	}
}

// rank is the class's place, 0 the most urgent.
func (v *view) rank(class string) int { return v.ranks[class] }

// deadline is how long the class may wait for its first token.
func (v *view) deadline(class string) time.Duration { return v.Classes[v.rank(class)].Deadline }
