//go:build linux && cgo

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
	"switchyard/simserver"
)

// R16: the program finds NVML where the dynamic linker finds it, binds replicas
// by configuration and by process, shows what it reads, and a fatal Xid opens
// the breaker before any request has failed.
func TestE2ER16NVML(t *testing.T) {
	bin := binary(t)
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc): no stand-in for NVML")
	}
	dir := t.TempDir()
	out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "../../replica/gpu/testdata/nvml.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	mode := filepath.Join(dir, "mode")
	behave := func(as string) {
		require.NoError(t, os.WriteFile(mode+".new", []byte(as), 0o600))
		require.NoError(t, os.Rename(mode+".new", mode))
	}
	behave("ok")
	t.Setenv("LD_LIBRARY_PATH", dir)
	t.Setenv("NVML_STUB", mode)
	t.Setenv("NVML_STUB_PID", fmt.Sprint(os.Getpid())) // the simulated replicas live here
	fleet, err := simserver.StartFleet([]simserver.Options{{Name: "a", Engine: "llamacpp", Slots: 2}, {Name: "b", Engine: "llamacpp", Slots: 2}})
	require.NoError(t, err)
	t.Cleanup(fleet.Close)
	c := startChild(t, bin, fleet, "a", "b")
	c.writeText(strings.Replace(c.configuration("a", "b"), "engine: llamacpp}", "engine: llamacpp, gpu: {nvml: 1}}", 1))
	of := func(name string) admission.ReplicaState { return namedReplica(t, c.snapshot(), name) }
	eventually(t, "both to be bound", func() bool {
		a, b := of("a"), of("b")
		return a.GPU != nil && len(a.GPU.GPUs) == 1 && a.GPU.GPUs[0].ID == "1" && b.GPU != nil && len(b.GPU.GPUs) == 1
	})
	text := c.log.text()
	require.Contains(t, text, `msg="replica's GPU" replica=a found="gpu: 1 Stub Card GPU-99999999-8888-7777-6666-555555555555, by NVML, as configured"`)
	require.Contains(t, text, `msg="replica's GPU" replica=b found="gpu: 0 Stub Card GPU-00000000-1111-2222-3333-444444444444, by NVML, since its process`)
	g := of("b").GPU.GPUs[0]
	require.Equal(t, "heat and its power limit", g.Throttle.String())
	require.InDelta(t, 212.5, *g.PowerW, 0)
	require.Contains(t, of("b").Slow, "GPU 0 is held down by heat and its power limit: its SM clock is at 50% (990 of 1980 MHz)")
	metrics := string(c.do("GET", "/metrics").body)
	for _, line := range []string{
		`switchyard_gpu_utilization_ratio{gpu="1",replica="a"} 0.42`, `switchyard_gpu_energy_joules_total{gpu="0",replica="b"} 1234.567`,
		`switchyard_gpu_throttled{gpu="0",replica="b"} 1`, `switchyard_gpu_memory_total_bytes{gpu="1",replica="a"} 2.5769803776e+10`,
	} {
		require.Contains(t, metrics, line)
	}

	behave("xid 79")
	eventually(t, "the breaker of b to open", func() bool { return of("b").Breaker.State == "open" })
	require.Equal(t, "Xid 79 on GPU 0: it has fallen off the bus", of("b").Breaker.Reason)
	require.Equal(t, "closed", of("a").Breaker.State)
	behave("lost")
	eventually(t, "the breaker of a to open", func() bool { return of("a").Breaker.State == "open" })
	require.Equal(t, "GPU 1: lost: the driver no longer reaches it", of("a").Breaker.Reason)
}

func namedReplica(t *testing.T, s *admission.Snapshot, name string) admission.ReplicaState {
	t.Helper()
	for _, r := range s.Replicas {
		if r.Name == name {
			return r
		}
	}
	require.Fail(t, "no replica "+name)
	return admission.ReplicaState{}
}

// R16: readings of another host come from its exporter; without NVIDIA's
// library the same binary says gpu: none.
func TestE2ER16ExporterAndNone(t *testing.T) {
	var xid atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "DCGM_FI_DEV_GPU_UTIL{gpu=\"3\",UUID=\"GPU-x\",modelName=\"Card\"} 91\nDCGM_FI_DEV_XID_ERRORS{gpu=\"3\",UUID=\"GPU-x\"} %d\n", xid.Load())
	}))
	defer s.Close()
	fleet, err := simserver.StartFleet([]simserver.Options{{Name: "a", Engine: "llamacpp", Slots: 2}, {Name: "b", Engine: "llamacpp", Slots: 2}})
	require.NoError(t, err)
	t.Cleanup(fleet.Close)
	c := startChild(t, binary(t), fleet, "a", "b")
	c.writeText(strings.Replace(c.configuration("a", "b"), "engine: llamacpp}", fmt.Sprintf("engine: llamacpp, gpu: {exporter: %q, gpu: 3}}", s.URL), 1))
	of := func(name string) admission.ReplicaState { return namedReplica(t, c.snapshot(), name) }
	eventually(t, "a to be bound", func() bool { g := of("a").GPU; return g != nil && g.Source == "exporter" })
	require.InDelta(t, 0.91, *of("a").GPU.GPUs[0].Utilization, 0)
	eventually(t, "b to say what it has", func() bool { return strings.Contains(c.log.text(), `replica=b found="gpu: none (`) })
	require.Equal(t, "none", of("b").GPU.Source)
	require.Empty(t, of("b").GPU.GPUs)
	require.Contains(t, string(c.do("GET", "/metrics").body), `switchyard_gpu_utilization_ratio{gpu="3",replica="a"} 0.91`)
	xid.Store(79)
	eventually(t, "the breaker of a to open", func() bool { return of("a").Breaker.State == "open" })
	require.Equal(t, "Xid 79 on GPU 3: it has fallen off the bus", of("a").Breaker.Reason)
	require.NotContains(t, c.log.text(), "not in force")
}
