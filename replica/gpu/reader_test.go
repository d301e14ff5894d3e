package gpu

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// after lets time pass in a bubble until everything waits.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// R16: replicas are bound to the cards that the configuration names, by index
// or UUID; what cannot be bound says why.
func TestR16BindingByConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		defer r.reader.Close()
		r.start(
			target("a", "http://10.9.8.7", NVML, "1"),
			target("b", "http://10.9.8.7", NVML, "GPU-0"),
			target("c", "http://10.9.8.7", NVML, "2"),
			target("d", "http://10.9.8.7", NVML, "GPU-9"),
			target("e", "http://127.0.0.1", None, ""),
			target("f", "http://192.0.2.1:80", Auto, ""),
		)
		synctest.Wait()
		require.Equal(t, "gpu: 1 Card GPU-1, by NVML, as configured", r.says("a"))
		require.Equal(t, "gpu: 0 Card GPU-0, by NVML, as configured", r.says("b"))
		require.Equal(t, "gpu: none (NVML knows 2 GPUs, and no GPU 2)", r.says("c"))
		require.Equal(t, "gpu: none (NVML knows no GPU-9: no such GPU)", r.says("d"))
		require.Equal(t, "gpu: none (switched off by the configuration)", r.says("e"))
		require.Contains(t, r.says("f"), "gpu: none (192.0.2.1 is not this host")
		require.InDelta(t, 0.5, *r.facts("a").GPUs[0].Utilization, 0)
		require.Equal(t, replica.SourceNVML, r.facts("a").Source)
	})
}

// R16: a replica of this host is found on the card that its process, or a
// child of its, computes on.
func TestR16BindingByProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		defer r.reader.Close()
		r.process(50, 1, "ollama) S 7 (", 11434) // a name may hold anything
		r.process(60, 50, "runner", 0)
		r.process(70, 1, "llama-server", 8080)
		r.lib.all[0].pids = []int{1, 70}
		r.lib.all[2].pids = []int{70}
		r.start(
			target("ollama", "http://127.0.0.1:11434", Auto, ""),
			target("llama", "http://localhost:8080", Auto, ""),
			target("nobody", "http://127.0.0.1:9", Auto, ""),
		)
		synctest.Wait()
		require.Equal(t, "gpu: 0 Card GPU-0 and 2 Card GPU-2, by NVML, since its process 70 (llama-server) runs there", r.says("llama"))
		require.Equal(t, "gpu: none (its process 50 (ollama) S 7 () is on no GPU that NVML shows, so far)", r.says("ollama"))
		require.Equal(t, "gpu: none (nothing on this host is seen to listen on port 9)", r.says("nobody"))

		r.lib.all[1].set(func(c *fakeCard) { c.pids = []int{60} }) // a model is loaded
		after(2 * time.Second)
		require.Contains(t, r.says("ollama"), "gpu: 1 Card GPU-1, by NVML")
		r.lib.all[1].set(func(c *fakeCard) { c.pids = nil }) // and unloaded
		after(2 * time.Second)
		require.Contains(t, r.says("ollama"), "gpu: 1 Card GPU-1, by NVML", "it stays bound")
		require.True(t, r.facts("ollama").Off)
		require.False(t, r.facts("llama").Off)
	})
}

// R16: a restart on the same port is followed; one that comes back without a
// GPU is off it, and one that is gone is nothing.
func TestR16ARestartIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.reader.Close()
		r.process(70, 1, "llama-server", 8080)
		r.lib.all[0].pids = []int{70}
		r.start(target("a", "http://127.0.0.1:8080", Auto, ""))
		synctest.Wait()
		require.Contains(t, r.says("a"), "process 70")
		r.kill(70)
		r.lib.all[0].set(func(c *fakeCard) { c.pids = nil })
		after(2 * time.Second)
		require.Contains(t, r.says("a"), "process 70")
		require.False(t, r.facts("a").Off, "it is gone: its probes tell")
		r.process(71, 1, "llama-server", 8080)
		after(2 * lookEvery)
		require.True(t, r.facts("a").Off, "it is back, and on no GPU")
		r.lib.all[0].set(func(c *fakeCard) { c.pids = []int{71} })
		after(2 * time.Second)
		require.Contains(t, r.says("a"), "process 71")
		require.False(t, r.facts("a").Off)
	})
}

// R16: without the library, the driver or permission the reason is told, and
// it is tried again now and then.
func TestR16WithoutNVML(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.reader.Close()
		r.err = errors.New("no NVIDIA library: libnvidia-ml.so.1: not found")
		r.start(target("a", "http://10.0.0.1", NVML, "0"))
		synctest.Wait()
		require.Equal(t, "gpu: none (no NVIDIA library: libnvidia-ml.so.1: not found)", r.says("a"))
		after(28 * time.Second)
		require.Equal(t, 1, r.opens)
		r.edit(func() { r.err = nil })
		after(2 * time.Second)
		require.Equal(t, "gpu: 0 Card GPU-0, by NVML, as configured", r.says("a"))
		require.Equal(t, 2, r.opens)
	})
}

// Nothing is loaded where nothing needs it.
func TestR16TheLibraryIsOpenedOnlyWhereNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.reader.Close()
		r.start(target("a", "http://192.0.2.1", Auto, ""), target("b", "http://127.0.0.1", None, ""))
		after(time.Minute)
		require.Zero(t, r.opens)
	})
}

// R16: a fatal Xid does not wait for the next reading; an application's own
// mistake is shown and no fault.
func TestR16AnXidIsHandedOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		defer r.reader.Close()
		r.start(target("a", "http://x", NVML, "0"), target("b", "http://x", NVML, "1"), target("c", "http://x", NVML, "1"))
		synctest.Wait()
		began := time.Now()
		r.lib.events <- event{"GPU-1", 31}
		r.lib.events <- event{"GPU-1", 79}
		synctest.Wait()
		require.Zero(t, time.Since(began))
		require.Equal(t, []string{
			"b: Xid 79 on GPU 1: it has fallen off the bus", "c: Xid 79 on GPU 1: it has fallen off the bus",
		}, r.faults)
		after(2 * time.Second)
		require.Equal(t, 79, r.facts("b").GPUs[0].Xid)
		require.Empty(t, r.facts("b").Fault, "told once")
		require.Len(t, r.faults, 2)
		require.Zero(t, r.facts("a").GPUs[0].Xid)
	})
}

// R16: a lost card and new uncorrectable memory errors are fatal; those that
// were there before are not.
func TestR16LostCardsAndMemoryErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.reader.Close()
		r.lib.all[0].gpu.ECCUncorrected = new(int64(5))
		r.start(target("a", "http://x", NVML, "0"))
		after(4 * time.Second)
		require.Empty(t, r.faults)
		r.lib.all[0].set(func(c *fakeCard) { c.gpu.ECCUncorrected = new(int64(6)) })
		after(4 * time.Second)
		require.Equal(t, []string{"a: uncorrectable memory errors on GPU 0: 6, 5 before"}, r.faults)
		r.lib.all[0].set(func(c *fakeCard) { c.err = fmt.Errorf("%w: the driver no longer reaches it", errLost) })
		after(6 * time.Second)
		require.Equal(t, "a: GPU 0: lost: the driver no longer reaches it", r.faults[1])
		require.Len(t, r.faults, 2)
		require.Equal(t, "gpu: 0 Card GPU-0 (lost: the driver no longer reaches it), by NVML, as configured", r.says("a"))
	})
}

// R16: a driver that hangs is told, keeps nobody, and is heard again.
func TestR16ADriverThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.start(target("a", "http://x", NVML, "0"))
		synctest.Wait()
		hang := make(chan struct{})
		r.lib.all[0].set(func(c *fakeCard) { c.hang = hang })
		after(2*time.Second + patience)
		require.Equal(t, "gpu: none (no answer from nvml for 10s: a driver that hangs does this)", r.says("a"))
		r.lib.all[0].set(func(c *fakeCard) { c.hang = nil })
		close(hang)
		synctest.Wait()
		require.Contains(t, r.says("a"), "gpu: 0 Card")
		hang = make(chan struct{})
		r.lib.all[0].set(func(c *fakeCard) { c.hang = hang })
		after(3 * time.Second)
		began := time.Now()
		r.reader.Close()
		require.Equal(t, grace, time.Since(began))
		require.False(t, r.lib.closed, "a call is still under way")
		close(hang)
	})
}

// A library that has ended (the driver was unloaded) is opened anew.
func TestR16AnEndedLibraryIsOpenedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.start(target("a", "http://x", NVML, "0"))
		synctest.Wait()
		r.lib.all[0].set(func(c *fakeCard) { c.err = errGone })
		after(4 * time.Second)
		require.True(t, r.lib.closed)
		require.Contains(t, r.says("a"), "gpu: none (NVML has ended")
		r.edit(func() { r.lib = newFakeLibrary(1) })
		after(retryOpen)
		require.Equal(t, "gpu: 0 Card GPU-0, by NVML, as configured", r.says("a"))
		require.Empty(t, r.faults)
		r.reader.Close()
		require.True(t, r.lib.closed)
	})
}

// A reload disturbs only sources about which something changed, and after it
// no reading comes of a replica that is gone.
func TestR15ReloadOfTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		a, b := target("a", "http://x", NVML, "0"), target("b", "http://x", None, "")
		r.start(a)
		synctest.Wait()
		r.start(a, b)
		after(2 * time.Second)
		require.Equal(t, 1, r.opens)
		r.start(target("c", "http://x", NVML, "0"), b)
		r.edit(func() { clear(r.last) })
		after(4 * time.Second)
		require.Equal(t, 2, r.opens)
		require.Zero(t, r.facts("a"))
		require.Contains(t, r.says("c"), "gpu: 0 Card")
		r.reader.Close()
		r.start(a)
		after(4 * time.Second)
		require.Equal(t, 2, r.opens, "after Close")
	})
}

// R16: energy and GPU time per 1,000 tokens, of the time in which there was work.
func TestR16EnergyPerToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.reader.Close()
		r.start(target("a", "http://x", NVML, "0"))
		synctest.Wait()
		run := func(seconds int, works bool, tokens int64, watts float64) {
			for range seconds / 2 {
				r.edit(func() { r.works, r.tokens = works, r.tokens+2*tokens })
				r.lib.all[0].set(func(c *fakeCard) { c.gpu.EnergyJ = new(*c.gpu.EnergyJ + 2*watts) })
				after(2 * time.Second)
			}
		}
		run(600, false, 0, 60)
		require.Zero(t, r.facts("a").Joules, "no token, no figure")
		run(600, true, 50, 300)
		require.InEpsilon(t, 6000, r.facts("a").Joules, 0.02, "300 W for 20 s make 1,000 tokens")
		require.InEpsilon(t, 10, r.facts("a").Busy, 0.02, "half busy for 20 s")
		run(2, false, 0, 60)
		before := r.facts("a").Joules
		run(3600, false, 0, 60)
		require.InDelta(t, before, r.facts("a").Joules, 1e-9, "an idle hour is nobody's token's")
	})
}
