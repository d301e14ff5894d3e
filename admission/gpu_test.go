package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

func gpuReading(clock float64, why replica.Throttle) replica.GPUFacts {
	return replica.GPUFacts{Source: replica.SourceNVML, Note: "as configured", GPUs: []replica.GPU{
		{ID: "0", Utilization: new(0.9), SMClockMHz: clock, MaxSMClockMHz: 2000, Throttle: why},
	}}
}

// R16: a fatal error takes the replica out before any request fails on it.
func TestR16AFatalGPUErrorTakesTheReplicaOut(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	w.c.TakeEvents()
	f := gpuReading(2000, 0)
	f.Fault = "Xid 79 on GPU 0: it has fallen off the bus"
	w.c.ReportGPU(w.now, "a", f)
	w.c.ReportGPU(w.now, "nobody", f)
	for range 2 {
		ticket := w.accept(w.ask())
		if len(ticket.C()) > 0 {
			require.Equal(t, "b", w.granted(ticket).Replica)
		}
	}
	require.Equal(t, BreakerState{State: "open", Reason: f.Fault, NextTrialS: 5}, w.replica("a").Breaker)
	require.Equal(t, []Event{{At: w.now, Replica: "a", What: EventOpened, Detail: f.Fault}}, w.c.TakeEvents())
}

// R16: a throttled card is slower in the very next forecast, and another is
// preferred; what holds it down is told once, and its end too.
func TestR16AThrottledCardIsForecastAsSlow(t *testing.T) {
	w := newWorld(t, testConfig(rep("a", 1), rep("b", 1)))
	w.teach(time.Second)
	w.c.TakeEvents()
	w.c.ReportGPU(w.now, "a", gpuReading(200, replica.ThrottleHeat))
	for range 4 {
		ticket := w.accept(w.ask())
		a := w.granted(ticket)
		require.Equal(t, "b", a.Replica)
		w.serve(a, 100*time.Millisecond)
	}
	slow := w.replica("a")
	require.Contains(t, slow.Slow, "GPU 0 is held down by heat: its SM clock is at 10%")
	require.Equal(t, "as configured", slow.GPU.Note)
	w.c.ReportGPU(w.now, "a", gpuReading(210, replica.ThrottleHeat))
	w.c.ReportGPU(w.now, "a", gpuReading(2000, 0))
	var kinds []EventKind
	for _, e := range w.c.TakeEvents() {
		kinds = append(kinds, e.What)
	}
	require.Equal(t, []EventKind{EventSlow, EventFast}, kinds)
	require.Nil(t, w.replica("b").GPU)
	require.EqualValues(t, 40, w.c.OutputTokens("b"))
	require.Zero(t, w.c.OutputTokens("nobody"))
}
