package bench

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"switchyard/admission"
)

// scenario reads the part of a scenario that a test needs.
func scenario(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text))
	require.NoError(t, err)
	return s
}

// steady is a request every gap, with answers of out tokens.
func steady(n int, gap time.Duration, out int) []*Request {
	var list []*Request
	for i := range n {
		list = append(list, request(fmt.Sprint("r", i), time.Duration(i)*gap, out))
	}
	return list
}

// howMany counts the records for which is is true.
func howMany(records []Record, is func(*Record) bool) int {
	n := 0
	for i := range records {
		if is(&records[i]) {
			n++
		}
	}
	return n
}

const threeWithFault = `
replicas:
  - {name: a, engine: llamacpp, model: m, slots: 2, prefill: 1000, decode: 100, faults: [%s]}
  - {name: b, engine: ollama, model: m, slots: 2, prefill: 1000, decode: 100}
  - {name: c, engine: vllm, model: m, slots: 2, prefill: 1000, decode: 100}
classes: [{name: standard, deadline: 10s}]
traffic: [{kind: poisson, rate: 1, requests: 1}]
`

// R7, R8: whoever had no byte of an answer sees nothing of a killed replica, and
// a stream that was under way ends in an error event. Behind a plain proxy both
// see it.
func TestVirtualKill(t *testing.T) {
	s := scenario(t, fmt.Sprintf(threeWithFault, "{at: 3s, kind: crash, for: 5s}"))
	list := func() *script { return newScript(steady(80, 250*time.Millisecond, 60)...) }
	trial := try(t, s, "switchyard", list())
	require.Empty(t, trial.Violations)
	broken := howMany(trial.Records, func(r *Record) bool { return r.Error != "" })
	require.Positive(t, broken)
	for _, r := range trial.Records {
		if r.Error != "" || r.Status != 200 {
			require.NotNil(t, r.FirstTokenS, "%+v", r)
			require.Equal(t, string(admission.ReasonUpstreamFailed), r.Code)
		}
	}
	trial = try(t, s, "round-robin", list())
	require.Positive(t, howMany(trial.Records, func(r *Record) bool { return r.Status == 502 }))
}

// R1, R7: a replica that hangs holds its slots until it is known to have
// stopped, and its requests move on.
func TestVirtualHang(t *testing.T) {
	for _, kind := range []string{"hang", "hang-after-headers"} {
		s := scenario(t, fmt.Sprintf(threeWithFault, "{at: 3s, kind: "+kind+", for: 20s}"))
		trial := try(t, s, "switchyard", newScript(steady(100, 250*time.Millisecond, 60)...))
		require.Empty(t, trial.Violations, kind)
		require.Equal(t, len(trial.Records), howMany(trial.Records, func(r *Record) bool { return r.OnTime }), kind)
		require.Positive(t, howMany(trial.Records, func(r *Record) bool { return r.Attempts > 1 }), kind)
		require.Positive(t, trial.Replicas[0].Stats.CutByClient, kind)
		require.Equal(t, trial.Replicas[0].Stats.Requests+trial.Replicas[1].Stats.Requests+trial.Replicas[2].Stats.Requests,
			total(trial.Records), "%s: every attempt is on record", kind)
	}
}

// total is how many attempts the records tell of.
func total(records []Record) (n int) {
	for i := range records {
		n += records[i].Attempts
	}
	return n
}

// R8: silence in the middle of a stream ends it after stall_timeout.
func TestVirtualStall(t *testing.T) {
	s := scenario(t, fmt.Sprintf(threeWithFault, "{at: 0s, kind: stall, after_tokens: 5}"))
	require.NoError(t, yaml.Load([]byte("retry: {stall_timeout: 8s}"), &s.Gateway))
	trial := try(t, s, "switchyard", newScript(steady(3, time.Second, 60)...))
	require.Empty(t, trial.Violations)
	stalled := slices.IndexFunc(trial.Records, func(r Record) bool { return r.Code == string(admission.ReasonUpstreamTimeout) })
	require.GreaterOrEqual(t, stalled, 0)
	r := trial.Records[stalled]
	require.InDelta(t, 8, r.EndS-*r.FirstTokenS, 1.1)
	require.Equal(t, 5, r.OutputTokens)
	require.False(t, r.OnTime)
}

// A busy replica's word is heeded: others serve, and it is asked again.
func TestVirtualBusyAndOtherFaults(t *testing.T) {
	for _, fault := range []string{
		"{at: 1s, kind: busy, retry_after: 2s, for: 5s}", "{at: 1s, kind: error, status: 500, for: 5s}",
		"{at: 1s, kind: reset, for: 5s}", "{at: 1s, kind: refuse, for: 5s}", "{at: 1s, kind: empty, for: 5s}",
		"{at: 1s, kind: loading, for: 5s}", "{at: 1s, kind: cut, for: 5s}", "{at: 1s, kind: slow, factor: 3, for: 5s}",
	} {
		s := scenario(t, fmt.Sprintf(threeWithFault, fault))
		trial := try(t, s, "switchyard", newScript(steady(60, 200*time.Millisecond, 60)...))
		require.Empty(t, trial.Violations, fault)
		for _, r := range trial.Records {
			if strings.Contains(fault, "cut") && r.FirstTokenS != nil && r.Error != "" {
				continue // it was under way when the fault began
			}
			require.True(t, r.OnTime, "%s: %+v", fault, r)
		}
	}
}

// R10: a client who leaves is off the books at once; its slot stays taken until
// the engine has noticed.
func TestVirtualPatience(t *testing.T) {
	for _, engine := range []string{"ollama", "llamacpp", "vllm"} {
		s := small(spec("a", engine, 1))
		s.Classes[0].Deadline = time.Hour
		list := steady(3, 10*time.Millisecond, 500)
		for _, r := range list {
			r.Deadline = time.Hour
		}
		list[0].PromptTokens, list[0].Prompt[0].Tokens = 4000, 4000 // four seconds to the first token
		list[0].Patience = time.Second
		list[2].Patience = 5 * time.Second // waits behind the second
		trial := try(t, s, "switchyard", newScript(list...))
		require.Empty(t, trial.Violations, engine)
		require.Equal(t, ErrLeft, trial.Records[0].Error, engine)
		require.InDelta(t, 1, trial.Records[0].EndS, 1e-9, engine)
		require.Equal(t, ErrLeft, trial.Records[2].Error, engine)
		require.Equal(t, 2, trial.Replicas[0].Stats.Requests, engine)
		require.Equal(t, 200, trial.Records[1].Status, engine)
		require.Greater(t, *trial.Records[1].FirstTokenS, 1.0, engine)
		require.Equal(t, 1, trial.Replicas[0].Stats.MaxInHand, engine)

		trial = try(t, s, "round-robin", newScript(list...))
		require.Equal(t, ErrLeft, trial.Records[0].Error, engine)
	}
}

// The same seed gives the same log, byte for byte.
func TestVirtualRunsRepeat(t *testing.T) {
	s := scenario(t, fmt.Sprintf(threeWithFault, "{at: 3s, kind: crash, for: 5s}, {at: 10s, kind: error, rate: 0.3, for: 9s}, {at: 20s, kind: hang, for: 4s}"))
	s = scenario(t, mustYAML(t, s, `
  - {kind: poisson, rate: 4, requests: 150, prompt_tokens: "lognormal:300,0.8", max_tokens: 300, retry: told}
  - {kind: conversations, users: 5, turns: 4, think: 1s, prompt_tokens: "lognormal:200,0.5", max_tokens: 100, retry: sdk}`))
	for _, target := range []string{"switchyard", "least-connections", "switchyard-oracle", "switchyard-no-slots"} {
		to, err := ParseTarget(target)
		require.NoError(t, err)
		var logs [2][]byte
		for i := range logs {
			trial, err := RunVirtual(t.Context(), s, to, 2, VirtualOptions{Wire: wire})
			require.NoError(t, err)
			require.NotEmpty(t, trial.Records)
			logs[i], err = json.Marshal(trial)
			require.NoError(t, err)
		}
		require.Equal(t, string(logs[0]), string(logs[1]), target)
	}
}

// mustYAML is the scenario's text with other traffic.
func mustYAML(t *testing.T, s *Scenario, traffic string) string {
	t.Helper()
	text, err := s.AsRun()
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, yaml.Load(text, &doc))
	delete(doc, "traffic")
	out, err := yaml.Dump(doc)
	require.NoError(t, err)
	return string(out) + "traffic:" + traffic + "\n"
}
