package bench

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"switchyard/simserver/model"
)

// Bounds of what a scenario may ask for: a slip of the finger is not run.
const (
	mostTrials   = 1000
	mostReplicas = 10_000
	mostRequests = 10_000_000
	mostLoad     = 1000
)

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// root decodes the whole document.
func (d *decoder) root(n *yaml.Node, s *Scenario) { d.value("", n, reflect.ValueOf(s).Elem()) }

// want notes a mistake unless ok; what is wrong already is not told again.
func (d *decoder) want(ok bool, path, format string, args ...any) {
	if !ok && !d.bad(path) {
		d.add(path, format, args...)
	}
}

// check notes everything that one key alone cannot tell.
func (s *Scenario) check(d *decoder) {
	d.want(plainName.MatchString(s.Name), "name", "%q: want letters, digits, '.', '_' and '-'", s.Name)
	d.want(s.Trials >= 1 && s.Trials <= mostTrials, "trials", "%d: want 1 to %d", s.Trials, mostTrials)
	d.want(s.Gateway.Kind == 0 || s.Gateway.Kind == yaml.MappingNode, "gateway", "want a mapping: parts of the gateway's configuration")
	d.want(len(s.Loads) <= 50, "loads", "%d of them: want at most 50", len(s.Loads))
	for i, x := range s.Loads {
		d.want(x > 0 && x <= mostLoad && !slices.Contains(s.Loads[:i], x), fmt.Sprintf("loads[%d]", i), "%v: want different factors above 0, at most %d", x, mostLoad)
	}
	for i, name := range s.Targets {
		if _, err := ParseTarget(name); err != nil {
			d.want(false, fmt.Sprintf("targets[%d]", i), "%v", err)
		}
	}
	s.checkReplicas(d)
	s.checkClasses(d)
	s.checkKeys(d)
	d.want(len(s.Traffic) > 0, "traffic", "none: want a list of at least one source")
	for i := range s.Traffic {
		s.checkSource(d, fmt.Sprintf("traffic[%d]", i), &s.Traffic[i])
	}
}

func (s *Scenario) checkReplicas(d *decoder) {
	d.want(len(s.Replicas) > 0, "replicas", "none: want a list of at least one")
	seen, total := make(map[string]bool), 0
	for i := range s.Replicas {
		r, at := &s.Replicas[i], fmt.Sprintf("replicas[%d]", i)
		if r.Name == "" {
			r.Name = fmt.Sprintf("replica-%d", i+1)
		}
		d.want(plainName.MatchString(r.Name) && !seen[r.Name], at+".name", "%q: want a name of its own, of letters, digits, '.', '_' and '-'", r.Name)
		seen[r.Name] = true
		d.want(r.Count >= 0 && r.Count <= mostReplicas, at+".count", "%d: want 1 to %d", r.Count, mostReplicas)
		total += max(1, r.Count)
		if r.URL != "" {
			d.want(r.Count <= 1, at+".count", "a real replica is one: want 1")
			d.want(r.Slots >= 1, at+".slots", "want how many requests the real replica runs at once")
			continue
		}
		if err := r.Options().Check(); err != nil {
			d.want(false, at, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	d.want(total <= mostReplicas, "replicas", "%d with all counts: want at most %d", total, mostReplicas)
}

func (s *Scenario) checkClasses(d *decoder) {
	if len(s.Classes) == 0 && !d.bad("classes") {
		s.Classes = []Class{{Name: "interactive", Deadline: 10 * time.Second}, {Name: "standard", Deadline: time.Minute}, {Name: "batch", Deadline: 15 * time.Minute}}
	}
	for i, c := range s.Classes {
		at := fmt.Sprintf("classes[%d]", i)
		d.want(plainName.MatchString(c.Name) && s.class(c.Name) == &s.Classes[i], at+".name", "%q: want a name of its own, of letters, digits, '.', '_' and '-'", c.Name)
		d.want(c.Deadline > 0 && c.Deadline < endOfTime, at+".deadline", "want when the first token is due, such as 10s")
		d.want(c.MinShare == nil || *c.MinShare >= 0 && *c.MinShare < 1, at+".min_share", "want 0 or more, below 1")
	}
}

func (s *Scenario) checkKeys(d *decoder) {
	list := "keys"
	if d.given("keys.list") {
		list = "keys.list"
	}
	for i, k := range s.Keys.List {
		at := fmt.Sprintf("%s[%d]", list, i)
		d.want(plainName.MatchString(k.Name) && s.key(k.Name) == &s.Keys.List[i], at+".name", "%q: want a name of its own, of letters, digits, '.', '_' and '-'", k.Name)
		d.want(k.Weight >= 0 && k.Weight <= 1000, at+".weight", "%v: want above 0, at most 1000", k.Weight)
		d.want(k.Class == "" || s.class(k.Class) != nil, at+".class", "no class is called %q: want one of %s", k.Class, s.classNames())
		d.want(k.MaxClass == "" || s.class(k.MaxClass) != nil, at+".max_class", "no class is called %q: want one of %s", k.MaxClass, s.classNames())
	}
}

func (s *Scenario) classNames() string {
	var names []string
	for _, c := range s.Classes {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

func (s *Scenario) keyNames() string {
	var names []string
	for _, k := range s.Keys.List {
		names = append(names, k.Name)
	}
	if names == nil {
		return "none, as there are no keys"
	}
	return "one of " + strings.Join(names, ", ")
}

// kinds are the keys that only some kinds of source have.
var kinds = map[string][]string{
	"poisson":       {"rate", "requests", "until", "prompt_tokens", "output_tokens", "prefix"},
	"burst":         {"rate", "peak", "every", "for", "requests", "until", "prompt_tokens", "output_tokens", "prefix"},
	"conversations": {"users", "turns", "think", "rate", "prompt_tokens", "output_tokens", "prefix"},
	"trace":         {"file", "format", "speed", "limit", "until"},
}

func (s *Scenario) checkSource(d *decoder, at string, t *Source) {
	own, ok := kinds[t.Kind]
	if !ok {
		d.want(false, at+".kind", "%q: want poisson, burst, conversations or trace", t.Kind)
		return
	}
	for _, all := range kinds {
		for _, key := range all {
			d.want(slices.Contains(own, key) || !d.given(at+"."+key), at+"."+key, "not for kind %s: it has %s", t.Kind, strings.Join(own, ", "))
		}
	}
	s.checkWho(d, at, t)
	s.checkWhen(d, at, t)
	d.want(t.MaxTokens >= 0 && t.MaxTokens <= mostDraw, at+".max_tokens", "%d: want 0 (nothing is said) to %d", t.MaxTokens, mostDraw)
	p := t.Prefix
	d.want(p == Prefix{} || p.Tokens > 0 && p.Tokens <= mostDraw, at+".prefix.tokens", "%d: want 1 to %d", p.Tokens, mostDraw)
	d.want(p.Variants >= 0 && p.Variants <= 1_000_000, at+".prefix.variants", "%d: want 1 to 1000000", p.Variants)
	d.want(p.Skew >= 0 && p.Skew <= 10, at+".prefix.skew", "%v: want 0 (all alike) to 10", p.Skew)
	d.want(slices.Contains([]string{"", RetryNone, RetryTold, RetryAtOnce, RetrySDK}, t.Retry), at+".retry", "%q: want none, told, at-once or sdk", t.Retry)
	d.want(t.Retries == nil || t.Retry != "" && t.Retry != RetryNone && *t.Retries >= 1 && *t.Retries <= 1000, at+".retries", "want 1 to 1000, beside retry: told, at-once or sdk")
}

func (s *Scenario) checkWho(d *decoder, at string, t *Source) {
	d.want(t.Class == "" || s.class(t.Class) != nil, at+".class", "no class is called %q: want one of %s", t.Class, s.classNames())
	d.want(t.Key == "" || s.key(t.Key) != nil, at+".key", "no key is called %q: want %s", t.Key, s.keyNames())
	if d.bad("classes") || d.bad("gateway") || len(s.Classes) == 0 {
		return
	}
	class := s.classOf(t)
	if s.class(class) == nil {
		d.want(false, "gateway.default_class", "no class is called %q: want one of %s", class, s.classNames())
		return
	}
	due := t.Deadline
	if due == 0 {
		due = s.class(class).Deadline
	}
	d.want(t.Patience == 0 || t.Patience >= due, at+".patience", "%s is shorter than the deadline, %s: want at least that", t.Patience, due)
}

func (s *Scenario) checkWhen(d *decoder, at string, t *Source) {
	positive := func(x float64) bool { return x > 0 && x <= 1e6 }
	for key, v := range map[string]time.Duration{"from": t.From, "until": t.Until, "think": t.Think, "every": t.Every, "deadline": t.Deadline, "patience": t.Patience} {
		d.want(v < endOfTime, at+"."+key, "%s: want less than %s", v, endOfTime)
	}
	switch t.Kind {
	case "poisson", "burst":
		d.want(positive(t.Rate), at+".rate", "%v: want requests per second above 0, at most 1000000", t.Rate)
		d.want(t.Requests >= 0 && t.Requests <= mostRequests, at+".requests", "%d: want 1 to %d", t.Requests, mostRequests)
		d.want(t.Requests > 0 || t.Until > t.From, at, "it never ends: want requests, or until later than from")
	case "conversations":
		d.want(t.Users >= 1 && t.Users <= mostRequests, at+".users", "%d: want 1 to %d", t.Users, mostRequests)
		d.want(t.Turns >= 1 && t.Turns <= 1000, at+".turns", "%d: want 1 to 1000", t.Turns)
		d.want(t.Rate == 0 || positive(t.Rate), at+".rate", "%v: want new conversations per second above 0, or no such key", t.Rate)
	case "trace":
		d.want(t.Format == Mooncake || t.Format == Azure, at+".format", "%q: want mooncake or azure", t.Format)
		d.want(t.Speed == 0 && !d.given(at+".speed") || positive(t.Speed), at+".speed", "%v: want a factor above 0", t.Speed)
		d.want(t.Limit >= 0, at+".limit", "%d: want 1 or more", t.Limit)
	}
	if t.Kind == "burst" {
		d.want(positive(t.Peak), at+".peak", "%v: want requests per second above 0", t.Peak)
		d.want(t.For > 0 && t.Every > t.For, at+".every", "want every, longer than for, and for: a burst of that length once in every")
	}
}

// complete fills in the defaults and makes counted replicas single.
func (s *Scenario) complete() {
	if s.Targets == nil {
		s.Targets = []string{"round-robin", "least-connections", "switchyard"}
	}
	var all []Replica
	for _, r := range s.Replicas {
		n := max(1, r.Count)
		r.Count = 1
		for i := range n {
			one := r
			if n > 1 {
				one.Name = fmt.Sprintf("%s-%d", r.Name, i+1)
			}
			all = append(all, one)
		}
	}
	s.Replicas = all
	for i := range s.Traffic {
		s.Traffic[i].complete(s)
	}
}

func (t *Source) complete(s *Scenario) {
	t.Class = s.classOf(t)
	if t.Deadline == 0 {
		t.due = s.class(t.Class).Deadline
	} else {
		t.due = t.Deadline
	}
	if t.Model == "" {
		t.Model = model.Config{Models: s.Replicas[0].Model}.WithDefaults().Models[0]
	}
	if t.PromptTokens == (Dist{}) {
		t.PromptTokens = Dist{kind: "lognormal", a: 400, b: 0.8}
	}
	if t.OutputTokens == (Dist{}) {
		t.OutputTokens = Fixed(128) // the simulator's own default
		if d, err := ParseDist(s.Replicas[0].OutputTokens); err == nil {
			t.OutputTokens = d
		}
	}
	t.Prefix.Variants = max(1, t.Prefix.Variants)
	if t.Speed == 0 {
		t.Speed = 1
	}
}

// classOf is the class of a source's requests.
func (s *Scenario) classOf(t *Source) string {
	if t.Class != "" {
		return t.Class
	}
	if k := s.key(t.Key); k != nil && k.Class != "" {
		return k.Class
	}
	return s.DefaultClass()
}
