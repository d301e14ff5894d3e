package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// the scenario of the interface, word for word
const interfaceScenario = `name: small
seed: 7
trials: 1
replicas:            # simulated ones with the fleet file's options, or {name, url, slots} of real ones
  - {name: a, engine: llamacpp, model: m, slots: 2, prefill: 2000, decode: 100, output_tokens: "fixed:40", faults: [{at: 20s, kind: crash, for: 10s}]}
classes: [{name: standard, deadline: 10s}]
keys: []             # as in the configuration
traffic:             # one or several sources, open loop
  - {kind: poisson, rate: 1.0, requests: 212, class: standard, key: "", prompt_tokens: "lognormal:400,0.8", max_tokens: 512}
  # kind: burst {rate, peak, every, for} | conversations {users, turns, think: 5s, …} | trace {file, format: mooncake|azure, speed: 1.0, limit: N}
gateway: {}          # any part of the configuration
targets: [round-robin, least-connections, switchyard]
`

func parse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("x.yaml", []byte(text))
	require.NoError(t, err)
	return s
}

func TestInterfaceScenarioIsRead(t *testing.T) {
	s := parse(t, interfaceScenario)
	require.Equal(t, "small", s.Name)
	require.EqualValues(t, 7, s.Seed)
	require.Equal(t, []string{"round-robin", "least-connections", "switchyard"}, s.Targets)
	require.Len(t, s.Replicas, 1)
	o := s.Replicas[0].Options()
	require.Equal(t, 2, o.Slots)
	require.Equal(t, 20*time.Second, o.Faults[0].At)
	require.Equal(t, 10*time.Second, o.Faults[0].Fault.For)
	require.Equal(t, 212, s.Traffic[0].Requests)
	require.Equal(t, 10*time.Second, s.Traffic[0].due)
	require.Equal(t, "m", s.Traffic[0].Model)
	require.Equal(t, Fixed(40), s.Traffic[0].OutputTokens, "the true answers are as long as the replica's")
}

func TestDefaultsOfAScenario(t *testing.T) {
	s, err := Parse("dir/few.yaml", []byte("replicas: [{}, {count: 3, name: r}]\ntraffic: [{kind: poisson, rate: 1, requests: 1}]"))
	require.NoError(t, err)
	require.Equal(t, "few", s.Name)
	require.Equal(t, 1, s.Trials)
	var names []string
	for _, r := range s.Replicas {
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"replica-1", "r-1", "r-2", "r-3"}, names)
	require.Equal(t, "standard", s.Traffic[0].Class)
	require.Equal(t, time.Minute, s.Traffic[0].due, "the configuration's own classes")
	require.Equal(t, Fixed(128), s.Traffic[0].OutputTokens, "the simulator's default")
}

func TestClassOfARequest(t *testing.T) {
	const rest = "\nreplicas: [{}]\ntraffic: [{kind: poisson, rate: 1, requests: 1, key: k}]"
	for name, c := range map[string]struct{ text, want string }{
		"the first":           {"classes: [{name: a, deadline: 1s}, {name: b, deadline: 2s}]\nkeys: [{name: k}]", "a"},
		"standard":            {"classes: [{name: a, deadline: 1s}, {name: standard, deadline: 2s}]\nkeys: [{name: k}]", "standard"},
		"the configuration's": {"classes: [{name: a, deadline: 1s}, {name: b, deadline: 2s}]\ngateway: {default_class: b}\nkeys: [{name: k}]", "b"},
		"the key's":           {"classes: [{name: a, deadline: 1s}, {name: b, deadline: 2s}]\nkeys: {required: true, list: [{name: k, class: b}]}", "b"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, parse(t, c.text+rest).Traffic[0].Class) })
	}
}

// All mistakes are told at once, each with its line and what would be right.
func TestMistakesInScenarios(t *testing.T) {
	const good = "replicas: [{}]\ntraffic: [{kind: poisson, rate: 1, requests: 1}]\n"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"unknown key": {good + "trial: 3", []string{"x.yaml:3: trial: unknown key: the nearest known key is trials"}},
		"deep unknown key": {"traffic: [{kind: poisson, rate: 1, requests: 1}]\nreplicas:\n  - name: a\n    fautls: []", []string{
			"x.yaml:4: replicas[0].fautls: unknown key: the nearest known key is faults",
		}},
		"twice":          {good + "seed: 1\nseed: 2", []string{"x.yaml:3: seed: it stands here twice, the second time on line 4"}},
		"no unit":        {good + "classes: [{name: a, deadline: 10}]", []string{`x.yaml:3: classes[0].deadline: "10": want a duration`}},
		"wrong type":     {good + "trials: many", []string{`x.yaml:3: trials: "many": want a whole number`}},
		"text for list":  {good + "targets: switchyard", []string{`x.yaml:3: targets: "switchyard": want a list`}},
		"unknown target": {good + "targets:\n- switchyard\n- nginx", []string{`x.yaml:5: targets[1]: target "nginx": want round-robin`}},
		"nothing":        {good + "trials:", []string{"x.yaml:3: trials: it has no value"}},
		"alias":          {"replicas: [&r {}, *r]\ntraffic: [{kind: poisson, rate: 1, requests: 1}]", []string{"x.yaml:1: replicas[1]: anchors and aliases are not read here"}},
		"empty": {"{}", []string{
			"x.yaml: replicas: none: want a list of at least one", "x.yaml: traffic: none: want a list of at least one",
		}},
		"no scenario": {"- a", []string{"x.yaml: no scenario: want a mapping"}},
		"no YAML":     {"a: [", []string{"this is not YAML"}},
		"several": {"trials: 0\nreplicas:\n- {engine: llama}\n- {url: http://x}\ntraffic:\n- {kind: poison}\n- {kind: poisson, rate: 0, peak: 2, class: c, key: k, prompt_tokens: gauss}\n- {kind: trace}", []string{
			"x.yaml:1: trials: 0: want 1 to 1000",
			`x.yaml:3: replicas[0]: engine "llama"`,
			"x.yaml:4: replicas[1].slots: want how many requests the real replica runs at once",
			`x.yaml:6: traffic[0].kind: "poison": want poisson, burst, conversations or trace`,
			"x.yaml:7: traffic[1].peak: not for kind poisson",
			`x.yaml:7: traffic[1].class: no class is called "c": want one of interactive, standard, batch`,
			`x.yaml:7: traffic[1].key: no key is called "k"`,
			"x.yaml:7: traffic[1].rate: 0: want requests per second above 0",
			`x.yaml:7: traffic[1].prompt_tokens: "gauss": want fixed:N`,
			`x.yaml:8: traffic[2].format: "": want mooncake or azure`,
		}},
		"never ends":   {"replicas: [{}]\ntraffic: [{kind: poisson, rate: 1}]", []string{"x.yaml:2: traffic[0]: it never ends"}},
		"impatient":    {"replicas: [{}]\ntraffic: [{kind: poisson, rate: 1, requests: 1, deadline: 5s, patience: 4s}]", []string{"x.yaml:2: traffic[0].patience: 4s is shorter than the deadline, 5s"}},
		"same replica": {"replicas: [{name: a}, {name: a}]\ntraffic: [{kind: poisson, rate: 1, requests: 1}]", []string{`x.yaml:1: replicas[1].name: "a": want a name of its own`}},
		"too many":     {"replicas: [{count: 9000}, {count: 9000}]\ntraffic: [{kind: poisson, rate: 1, requests: 1}]", []string{"replicas: 18000 with all counts"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("x.yaml", []byte(c.text))
			require.Error(t, err)
			_, ok := errors.AsType[*Problem](err)
			require.True(t, ok)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestShippedScenarios(t *testing.T) {
	require.ElementsMatch(t, []string{
		"overload", "sweep", "burst", "kill", "hang", "throttle", "throttle-prompts", "cpu-fallback", "conversations", "hot-prefix",
		"noisy-neighbour", "priorities", "retry-storm", "returns", "long-prompts", "model-swap", "mooncake", "azure", "fleet",
	}, Shipped())
	for _, name := range Shipped() {
		t.Run(name, func(t *testing.T) {
			s, err := Load(name)
			require.NoError(t, err)
			require.Equal(t, name, s.Name)
			require.NotEmpty(t, s.Note)
			data, _ := shipped(name)
			require.True(t, strings.HasPrefix(string(data), "# "), "a comment says what it shows")
			require.Contains(t, s.Targets, "switchyard")
		})
	}
}

// The reference case is the published one, and is not to be tuned.
func TestOverloadIsTheReferenceCase(t *testing.T) {
	s, err := Load("overload")
	require.NoError(t, err)
	require.Len(t, s.Replicas, 2)
	require.NotEqual(t, s.Replicas[0].Engine, s.Replicas[1].Engine)
	require.NotEmpty(t, s.Replicas[0].GPUShare)
	require.Equal(t, s.Replicas[0].GPUShare, s.Replicas[1].GPUShare)
	require.Equal(t, []Source{s.Traffic[0]}, s.Traffic)
	require.EqualValues(t, 1, s.Traffic[0].Rate)
	require.Equal(t, 212, s.Traffic[0].Requests)
	require.Equal(t, 10*time.Second, s.Traffic[0].due)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.yaml")
	require.NoError(t, os.WriteFile(path, []byte("replicas: [{}]\ntraffic: [{kind: trace, format: azure, file: t.csv}]"), 0o600))
	s, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "t.csv"), s.Traffic[0].File, "beside the scenario")
	_, err = Load(filepath.Join(dir, "none.yaml"))
	require.ErrorContains(t, err, "want a path, or one of azure, burst")
}

// A scenario as it was run is the same scenario, with its comments.
func TestAsRun(t *testing.T) {
	s := parse(t, interfaceScenario)
	s.Seed, s.Trials, s.Targets = 9, 3, []string{"switchyard"}
	text, err := s.AsRun()
	require.NoError(t, err)
	require.Contains(t, string(text), "# one or several sources, open loop")
	again := parse(t, string(text))
	require.EqualValues(t, 9, again.Seed)
	require.Equal(t, 3, again.Trials)
	require.Equal(t, []string{"switchyard"}, again.Targets)
	require.Equal(t, s.Traffic, again.Traffic)

	s = parse(t, "replicas: [{}]\ntraffic: [{kind: trace, format: azure, file: /home/someone/t.csv}]")
	text, err = s.AsRun()
	require.NoError(t, err)
	require.NotContains(t, string(text), "someone", "no paths of the machine")
	require.Equal(t, "t.csv", parse(t, string(text)).Traffic[0].File)
}

func TestPointsOfAScenario(t *testing.T) {
	s := parse(t, "loads: [0.5, 2]\nreplicas: [{}]\ntraffic: [{kind: burst, rate: 3, peak: 10, every: 10s, for: 1s, until: 1m}, {kind: conversations, users: 5, turns: 2}]")
	points := s.Points()
	require.Len(t, points, 2)
	require.EqualValues(t, 2, points[1].Load)
	require.EqualValues(t, 6, points[1].Traffic[0].Rate)
	require.EqualValues(t, 20, points[1].Traffic[0].Peak)
	require.Equal(t, 10, points[1].Traffic[1].Users)
	require.Equal(t, 3, points[0].Traffic[1].Users, "rounded")
	require.EqualValues(t, 3, s.Traffic[0].Rate, "the scenario itself is as it was")
	plain := parse(t, interfaceScenario)
	require.Equal(t, []*Scenario{plain}, plain.Points())
}

func TestGatewayLine(t *testing.T) {
	s := parse(t, "replicas: [{}]\ntraffic: [{kind: poisson, rate: 1, requests: 1}]\ngateway:\n  queue:\n    max_requests: 3\n  models:\n    a: [b]")
	require.Equal(t, 5, s.GatewayLine("queue.max_requests"))
	require.Equal(t, 4, s.GatewayLine("queue.max_bytes"))
	require.Equal(t, 7, s.GatewayLine("models.a[0]"))
	require.Equal(t, 0, s.GatewayLine("classes[0].name"))
}

// The reference and the schema say the same, and its example is a scenario.
func TestDocumentedScenario(t *testing.T) {
	data, err := os.ReadFile("../docs/bench.md")
	require.NoError(t, err)
	text := string(data)
	_, example, _ := strings.Cut(text, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	documented := parse(t, example)
	require.Equal(t, []float64{0.5, 1, 2}, documented.Loads)
	for _, top := range fieldsOf(reflect.ValueOf(*documented), map[string]reflect.Value{}, nil) {
		require.Contains(t, example, top+":")
	}
	for _, key := range fieldsOf(reflect.ValueOf(Source{}), map[string]reflect.Value{}, nil) {
		require.Regexp(t, "(?m)^\\| [^|]*`"+key+"`[^|]*\\|", text, "a row of the table")
	}
	for _, m := range summary {
		head, _, _ := strings.Cut(m.head, " (")
		head = strings.TrimSuffix(head, " p50")
		if head != "p90" && head != "p99" {
			require.Contains(t, text, "| "+head+" |")
		}
	}
}

// The shipped configuration of HAProxy stands before the replicas of overload,
// with their slots and their deadline.
func TestHAProxyExampleFitsOverload(t *testing.T) {
	data, err := os.ReadFile("../docs/examples/haproxy.cfg")
	require.NoError(t, err)
	s, err := Load("overload")
	require.NoError(t, err)
	for _, r := range s.Replicas {
		require.Regexp(t, `(?m)^    server `+r.Name+` +`+regexp.QuoteMeta(r.Listen)+`$`, string(data))
		require.Contains(t, string(data), fmt.Sprintf(" maxconn %d ", r.Slots))
	}
	require.Contains(t, string(data), "timeout queue "+s.Traffic[0].due.String())
	require.Contains(t, string(data), "balance leastconn")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(interfaceScenario))
	for _, name := range Shipped() {
		data, _ := shipped(name)
		f.Add(data)
	}
	f.Add([]byte("replicas: [{count: 3}]\ntraffic: [{kind: burst, rate: 1e-300, peak: 1e300, every: 2ns, for: 1ns, until: 1ns}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("x.yaml", data)
		if err != nil {
			_, ok := errors.AsType[*Problem](err)
			require.True(t, ok, "%v", err)
			return
		}
		require.NotEmpty(t, s.Replicas)
		text, err := s.AsRun()
		require.NoError(t, err)
		again, err := Parse("x.yaml", text)
		require.NoError(t, err, "%s", text)
		require.Equal(t, s.Traffic, again.Traffic)
		traffic, last := s.NewTraffic(1), time.Duration(0)
		for range 20 {
			if r := traffic.Next(); r != nil {
				require.GreaterOrEqual(t, r.At, last)
				last = r.At
			}
		}
	})
}
