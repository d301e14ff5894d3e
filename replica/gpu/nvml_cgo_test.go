//go:build linux && cgo

package gpu

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

// stub compiles the stand-in library.
func stub(t *testing.T, flags ...string) (path string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc): the NVML binding is not driven")
	}
	path = filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	out, err := exec.Command(cc, append(flags, "-shared", "-fPIC", "-o", path, "testdata/nvml.c")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// seen is what a child process saw of a library.
type seen struct {
	Open  string
	Cards []seenCard
	Share string // of byUUID
	Wait  string
}

type seenCard struct {
	GPU       replica.GPU
	Err       string
	Lost      bool
	Gone      bool
	Processes []int
}

// child opens the library and tells what it sees as JSON.
func child() int {
	var s seen
	defer func() { _ = json.NewEncoder(os.Stdout).Encode(s) }()
	l, err := openLibrary(os.Getenv("NVML_STUB_LIBRARY"))
	if err != nil {
		s.Open = err.Error()
		return 0
	}
	defer l.close()
	for _, c := range l.cards() {
		g, err := c.read()
		sc := seenCard{GPU: g, Lost: errors.Is(err, errLost), Gone: errors.Is(err, errGone), Processes: c.processes()}
		if err != nil {
			sc.Err = err.Error()
		}
		s.Cards = append(s.Cards, sc)
	}
	if c, err := l.byUUID("MIG-abc"); err == nil {
		s.Share = c.id()
	}
	e, err := l.wait(10 * time.Millisecond)
	s.Wait = fmt.Sprint(err, " ", e.uuid, " ", e.xid)
	return 0
}

// inspect runs a child on a library that behaves as mode says.
func inspect(t *testing.T, library, mode string) (s seen) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "mode")
	require.NoError(t, os.WriteFile(state, []byte(mode), 0o600))
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), "NVML_STUB_LIBRARY="+library, "NVML_STUB="+state, "NVML_STUB_PID=4711")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", stderr.String())
	require.NoError(t, json.Unmarshal(out, &s), "%s", out)
	return s
}

// R16: each reading comes through the real binding in its unit.
func TestR16NVMLReadings(t *testing.T) {
	s := inspect(t, stub(t), "ok")
	require.Empty(t, s.Open)
	require.Len(t, s.Cards, 2)
	require.Equal(t, seenCard{
		GPU: replica.GPU{
			ID: "0", UUID: "GPU-00000000-1111-2222-3333-444444444444", Name: "Stub Card", Utilization: new(0.42),
			MemoryUsed: 16 << 30, MemoryTotal: 24 << 30, TemperatureC: new(62.0), PowerW: new(212.5), EnergyJ: new(1234.567),
			SMClockMHz: 990, MaxSMClockMHz: 1980, Throttle: replica.ThrottleHeat | replica.ThrottlePowerCap, ECCUncorrected: new(int64(3)),
		},
		Processes: []int{1, 4711},
	}, s.Cards[0])
	require.Equal(t, "1", s.Cards[1].GPU.ID)
	require.Empty(t, s.Cards[1].Processes)
	require.Equal(t, "MIG-abc", s.Share)
	require.Equal(t, "no event in time  0", s.Wait)
}

// R16: functions that an older driver does not have are not called: each
// would end the process. Their readings are left out or come from older ones.
func TestR16NVMLWithoutNewerFunctions(t *testing.T) {
	s := inspect(t, stub(t, "-DOLD"), "ok")
	require.Len(t, s.Cards, 2, s.Open)
	g := s.Cards[0].GPU
	require.Nil(t, g.EnergyJ)
	require.EqualValues(t, 17<<30, g.MemoryUsed)
	require.Equal(t, new(61.0), g.TemperatureC)
	require.Equal(t, "heat and its power limit", g.Throttle.String())
	require.Equal(t, []int{1, 4711}, s.Cards[0].Processes)
	require.Equal(t, "no events here  0", s.Wait)

	s = inspect(t, stub(t, "-DNOINIT"), "ok")
	require.Contains(t, s.Open, "has no nvmlInit_v2: it is no NVML, or too old")
}

func TestR16NVMLSaysNothingOrFails(t *testing.T) {
	lib := stub(t)
	s := inspect(t, lib, "unsupported")
	require.Equal(t, seenCard{
		GPU:       replica.GPU{ID: "0", UUID: "GPU-00000000-1111-2222-3333-444444444444", Name: "Stub Card"},
		Processes: []int{1, 4711},
	}, s.Cards[0])

	s = inspect(t, lib, "lost")
	require.Empty(t, s.Cards[0].Err)
	require.True(t, s.Cards[1].Lost)
	require.Equal(t, "lost: the driver no longer reaches it", s.Cards[1].GPU.Err)
	require.Zero(t, s.Cards[1].GPU.MemoryTotal)

	require.True(t, inspect(t, lib, "ended").Cards[0].Gone)
	require.Equal(t, "<nil> GPU-00000000-1111-2222-3333-444444444444 79", inspect(t, lib, "xid 79").Wait)
	require.Equal(t, "NVML does not start: no permission: the user of this process may not open /dev/nvidiactl", inspect(t, lib, "denied").Open)
	require.Equal(t, "NVML does not start: the NVIDIA driver is not loaded", inspect(t, lib, "nodriver").Open)
	require.Equal(t, "NVML sees no GPU here", inspect(t, lib, "empty").Open)
}

// R16: the library is looked for when the program runs. A host without it has
// the same binary.
func TestR16NoLibraryIsNeeded(t *testing.T) {
	_, err := openLibrary("libnvidia-ml.so.0.not.there")
	require.ErrorContains(t, err, "no NVIDIA library: libnvidia-ml.so.0.not.there: cannot open shared object file")

	self, err := os.Executable()
	require.NoError(t, err)
	f, err := elf.Open(self)
	require.NoError(t, err)
	defer f.Close()
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.NotContains(t, strings.Join(libs, " "), "nvidia")
}
