package telemetry

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"switchyard/admission"
	"switchyard/gateway"
	"switchyard/replica"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func snapshot() *admission.Snapshot {
	return &admission.Snapshot{
		Classes: []admission.ClassState{{Name: "standard", Queued: 2, QueuedBytes: 300, Running: 1, Arrived: 9, Kept: 5, Broken: 1}},
		Replicas: []admission.ReplicaState{{
			Name: "a", Up: true, Slots: admission.SlotState{Total: 4, Free: 1, Busy: 1, Zombie: 1, Foreign: 1},
			Breaker: admission.BreakerState{State: "half-open", Allowance: 0.08},
		}},
	}
}

func TestGaugesComeFromOneSnapshot(t *testing.T) {
	calls := 0
	m := NewMetrics(func() *admission.Snapshot { calls++; return snapshot() })
	want := `
# HELP switchyard_breaker_state 0 closed, 1 half-open, 2 open.
# TYPE switchyard_breaker_state gauge
switchyard_breaker_state{replica="a"} 1
# HELP switchyard_promises_total Accepted requests, by whether the first token came in time.
# TYPE switchyard_promises_total counter
switchyard_promises_total{class="standard",result="broken"} 1
switchyard_promises_total{class="standard",result="kept"} 5
# HELP switchyard_queue_requests Requests that wait.
# TYPE switchyard_queue_requests gauge
switchyard_queue_requests{class="standard"} 2
# HELP switchyard_replica_slots Slots of a replica, by who holds them.
# TYPE switchyard_replica_slots gauge
switchyard_replica_slots{replica="a",state="busy"} 1
switchyard_replica_slots{replica="a",state="foreign"} 1
switchyard_replica_slots{replica="a",state="free"} 1
switchyard_replica_slots{replica="a",state="zombie"} 1
`
	require.NoError(t, testutil.GatherAndCompare(m.Registry, strings.NewReader(want),
		"switchyard_breaker_state", "switchyard_promises_total", "switchyard_queue_requests", "switchyard_replica_slots"))
	require.Equal(t, 1, calls)
}

// R16: what a GPU does not give has no series.
func TestR16GPUGauges(t *testing.T) {
	m := NewMetrics(func() *admission.Snapshot {
		s := snapshot()
		s.Replicas[0].GPU = &replica.GPUFacts{Source: replica.SourceNVML, GPUs: []replica.GPU{
			{ID: "0", Utilization: new(0.0), MemoryUsed: 1 << 30, MemoryTotal: 4 << 30, EnergyJ: new(12.5), Throttle: replica.ThrottleHeat},
			{ID: "1", Err: "lost", PowerW: new(3.0)},
		}}
		return s
	})
	want := `
# HELP switchyard_gpu_energy_joules_total Energy the GPU has taken since its driver was loaded.
# TYPE switchyard_gpu_energy_joules_total counter
switchyard_gpu_energy_joules_total{gpu="0",replica="a"} 12.5
# HELP switchyard_gpu_memory_total_bytes Memory of the GPU.
# TYPE switchyard_gpu_memory_total_bytes gauge
switchyard_gpu_memory_total_bytes{gpu="0",replica="a"} 4.294967296e+09
# HELP switchyard_gpu_memory_used_bytes Memory in use on the GPU.
# TYPE switchyard_gpu_memory_used_bytes gauge
switchyard_gpu_memory_used_bytes{gpu="0",replica="a"} 1.073741824e+09
# HELP switchyard_gpu_throttled 1 while heat or power hold the GPU's clocks down.
# TYPE switchyard_gpu_throttled gauge
switchyard_gpu_throttled{gpu="0",replica="a"} 1
# HELP switchyard_gpu_utilization_ratio Share of the last moment in which the GPU did something.
# TYPE switchyard_gpu_utilization_ratio gauge
switchyard_gpu_utilization_ratio{gpu="0",replica="a"} 0
`
	require.NoError(t, testutil.GatherAndCompare(m.Registry, strings.NewReader(want), "switchyard_gpu_utilization_ratio",
		"switchyard_gpu_memory_used_bytes", "switchyard_gpu_memory_total_bytes", "switchyard_gpu_temperature_celsius",
		"switchyard_gpu_power_watts", "switchyard_gpu_energy_joules_total", "switchyard_gpu_throttled"))
}

func TestRequestsAreCountedByOutcome(t *testing.T) {
	m := NewMetrics(snapshot)
	m.RequestEnded(gateway.Record{Class: "standard", Key: "anonymous", Model: "m", Outcome: admission.Completed})
	m.RequestEnded(gateway.Record{Class: "standard", Key: "anonymous", Model: "made-up", Outcome: admission.Refused, Reason: admission.ReasonModelNotFound})
	require.InDelta(t, 1, testutil.ToFloat64(m.requests.WithLabelValues("standard", "anonymous", "m", "completed")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.requests.WithLabelValues("standard", "anonymous", "other", "refused")), 0,
		"a name that no replica serves is the client's own text")
	require.InDelta(t, 1, testutil.ToFloat64(m.refusals.WithLabelValues("standard", "model_not_found")), 0)
}

func TestLabelsAreBounded(t *testing.T) {
	l := newLabels()
	for i := range maxLabels {
		require.Equal(t, fmt.Sprint("m", i), l.bound(fmt.Sprint("m", i)))
	}
	require.Equal(t, other, l.bound("one more"))
	require.Equal(t, "m7", l.bound("m7"))
}

func TestTheLastDecisionsAreRememberedNewestFirst(t *testing.T) {
	d, err := NewDecisions("")
	require.NoError(t, err)
	defer d.Close()
	for i := range keptDecisions + 10 {
		d.Add(admission.Decision{ID: fmt.Sprint(i)})
	}
	last := d.Last(3)
	require.Equal(t, fmt.Sprint(keptDecisions+9), last[0].ID)
	require.Equal(t, fmt.Sprint(keptDecisions+7), last[2].ID)
	_, ok := d.ByID("9")
	require.False(t, ok, "forgotten")
	got, ok := d.ByID("10")
	require.True(t, ok)
	require.Equal(t, "10", got.ID)
	require.Len(t, d.Last(1_000_000), keptDecisions)
}

func TestTheDecisionLogHasOneLineARequest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	d, err := NewDecisions(file)
	require.NoError(t, err)
	o := &Observer{Metrics: NewMetrics(snapshot), Decisions: d, Log: slog.New(slog.DiscardHandler)}
	for i := range 100 {
		o.RequestEnded(gateway.Record{Decision: admission.Decision{ID: fmt.Sprint(i), Class: "standard"}, Outcome: admission.Failed, Took: time.Second})
	}
	d.Close()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	n := 0
	for sc := bufio.NewScanner(f); sc.Scan(); n++ {
		var dec admission.Decision
		require.NoError(t, json.Unmarshal(sc.Bytes(), &dec))
		require.Equal(t, fmt.Sprint(n), dec.ID)
	}
	require.Equal(t, 100, n)
}

func TestADecisionLogThatCannotBeOpenedIsAnError(t *testing.T) {
	_, err := NewDecisions(filepath.Join(t.TempDir(), "no", "such", "folder"))
	require.ErrorContains(t, err, "opening the decision log")
}

// TestObserveSaysWhatItWouldHaveRefused: admission.mode observe is there to be
// read in the log.
func TestObserveSaysWhatItWouldHaveRefused(t *testing.T) {
	d, err := NewDecisions("")
	require.NoError(t, err)
	defer d.Close()
	var out strings.Builder
	o := &Observer{Metrics: NewMetrics(snapshot), Decisions: d, Log: slog.New(slog.NewTextHandler(&out, nil))}
	o.RequestEnded(gateway.Record{ID: "quiet", Outcome: admission.Completed})
	require.Empty(t, out.String())
	o.RequestEnded(gateway.Record{ID: "r1", Outcome: admission.Completed, Decision: admission.Decision{WouldRefuse: true, ForecastS: 12}})
	require.Contains(t, out.String(), "would have refused")
	require.Contains(t, out.String(), "id=r1")
	require.Contains(t, out.String(), "then=unknown")
	for in, then := range map[bool]string{true: `then="in time"`, false: "then=late"} {
		out.Reset()
		o.RequestEnded(gateway.Record{ID: "r2", Outcome: admission.Completed, Decision: admission.Decision{WouldRefuse: true, InTime: &in}})
		require.Contains(t, out.String(), then)
	}
}
