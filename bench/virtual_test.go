package bench

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/breaker"
	"switchyard/config"
	"switchyard/replica"
	"switchyard/simserver"
)

// wire is what the command does between a configuration file and the controller.
func wire(file []byte) (admission.Config, error) {
	c, err := config.Parse("gateway.yaml", file)
	if err != nil {
		return admission.Config{}, err
	}
	out := admission.Config{
		DefaultClass: c.DefaultClass, Enabled: c.Admission.Enabled, Keep: c.Admission.Keep, Observe: c.Admission.Mode == config.Observe,
		Affinity: c.Affinity.Enabled,
		Queue:    admission.QueueLimits{MaxRequests: c.Queue.MaxRequests, MaxBytes: int64(c.Queue.MaxBytes)},
		Breaker:  breaker.Config(c.Breaker), ProbeEvery: c.Health.Interval, Weights: map[string]float64{},
		Retry: admission.Retry{
			MaxAttempts: c.Retry.MaxAttempts, Budget: c.Retry.Budget, FirstTokenFloor: c.Retry.FirstTokenFloor,
			FirstTokenFactor: c.Retry.FirstTokenFactor, LoadTimeout: c.Retry.LoadTimeout,
		},
	}
	for _, k := range c.Classes {
		out.Classes = append(out.Classes, admission.Class(k))
	}
	out.Limits = map[string]admission.Limits{}
	for _, k := range c.Keys.List {
		out.Weights[k.Name] = k.Weight
		out.Limits[k.Name] = admission.Limits{
			RequestsPerMinute: k.RequestsPerMinute, TokensPerMinute: k.TokensPerMinute, MaxRunning: k.MaxRunning, MaxQueued: k.MaxQueued,
		}
	}
	for _, r := range c.Replicas {
		out.Replicas = append(out.Replicas, replica.Config{Name: r.Name, URL: r.URL, Engine: replica.Engine(r.Engine), Slots: r.Slots, Models: r.Models, Tier: r.Tier, CacheTokens: r.CacheTokens})
	}
	return out, nil
}

// script is traffic that a test writes down.
type script struct {
	list  []*Request
	given int
	open  int
	ended []Record
}

func newScript(list ...*Request) *script {
	slices.SortStableFunc(list, func(a, b *Request) int { return cmp.Compare(a.At, b.At) })
	return &script{list: list}
}

func (s *script) Peek() (time.Duration, bool) {
	if s.given == len(s.list) {
		return 0, false
	}
	return s.list[s.given].At, true
}

func (s *script) Next() *Request {
	s.given, s.open = s.given+1, s.open+1
	return s.list[s.given-1]
}

func (s *script) Ended(_ *Request, r *Record) { s.open--; s.ended = append(s.ended, *r) }
func (s *script) Open() int                   { return s.open }
func (s *script) Total() int                  { return len(s.list) }

// request asks for out tokens on a prompt of 100 that nobody else has.
func request(id string, at time.Duration, out int) *Request {
	return &Request{
		ID: id, At: at, Model: "m", Stream: true, Deadline: 10 * time.Second, PromptTokens: 100, MaxTokens: out, OutputTokens: out,
		Prompt: []Part{{Role: RoleUser, Seed: xxhash.Sum64String(id), Tokens: 100}},
	}
}

// spec is a replica with simple numbers: a prompt of 100 tokens takes 100 ms, a
// token of output 10 ms.
func spec(name, engine string, slots int) Replica {
	return Replica{Spec: simserver.Spec{Name: name, Engine: engine, Model: []string{"m"}, Slots: slots, Prefill: 1000, Decode: 100}}
}

func small(replicas ...Replica) *Scenario {
	return &Scenario{
		Name: "small", Seed: 1, Replicas: replicas,
		Classes: []Class{{Name: "standard", Deadline: 10 * time.Second}},
	}
}

// try runs a target on written traffic.
func try(t *testing.T, s *Scenario, target string, from traffic) *Trial {
	t.Helper()
	to, err := ParseTarget(target)
	require.NoError(t, err)
	trial, err := runVirtual(t.Context(), s, to, from, VirtualOptions{Wire: wire})
	require.NoError(t, err)
	return trial
}

func TestVirtualPlainProxiesByHand(t *testing.T) {
	s := small(spec("a", "openai", 1), spec("b", "openai", 1))
	// Each takes 100 ms of prompt and 10 ms for each token but the first, so the
	// first one 1.09 s. The third comes when only b is idle: round robin sends it
	// to a, where it waits.
	list := func() *script {
		return newScript(request("1", 0, 100), request("2", 0, 11), request("3", 500*time.Millisecond, 11))
	}
	type line struct {
		replica    string
		first, end float64
	}
	for target, want := range map[string][]line{
		"round-robin":       {{"a", 0.1, 1.09}, {"b", 0.1, 0.2}, {"a", 1.19, 1.29}},
		"least-connections": {{"a", 0.1, 1.09}, {"b", 0.1, 0.2}, {"b", 0.6, 0.7}},
	} {
		trial := try(t, s, target, list())
		require.Empty(t, trial.Violations)
		require.Len(t, trial.Records, len(want), target)
		for i, r := range trial.Records {
			require.Equal(t, want[i].replica, r.Replica, "%s %s", target, r.ID)
			require.InDelta(t, want[i].first, *r.FirstTokenS, 1e-6, "%s %s", target, r.ID)
			require.InDelta(t, want[i].end, r.EndS, 1e-6, "%s %s", target, r.ID)
			require.Equal(t, 200, r.Status)
			require.True(t, r.OnTime)
		}
	}
}

func TestVirtualGatewayQueues(t *testing.T) {
	for _, engine := range []string{"openai", "vllm", "llamacpp", "ollama"} {
		trial := try(t, small(spec("a", engine, 1)), "switchyard", newScript(request("1", 0, 100), request("2", 0, 11)))
		require.Empty(t, trial.Violations, engine)
		require.InDelta(t, 1.19, *trial.Records[1].FirstTokenS, 1e-6, engine)
		require.Equal(t, 1, trial.Replicas[0].Stats.MaxInHand, engine)
	}
}
