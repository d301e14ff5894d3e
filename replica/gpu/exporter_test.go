package gpu

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/replica"
)

func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return string(b)
}

// R16: the readings of dcgm-exporter, in its units; what it does not give is
// unknown, a MIG share is not taken for its card.
func TestR16DCGMExporter(t *testing.T) {
	cards := readExport(parseText([]byte(fixture(t, "dcgm.txt")), dcgmPrefix, smiPrefix))
	require.Len(t, cards, 2)
	require.Equal(t, replica.GPU{
		ID: "0", UUID: "GPU-aaaa", Name: "NVIDIA Test 80GB", Utilization: new(0.97), MemoryUsed: 59 << 30, MemoryTotal: 80 << 30,
		TemperatureC: new(88.0), PowerW: new(301.625), EnergyJ: new(5.0000123456e+07), SMClockMHz: 705, MaxSMClockMHz: 1410,
		Throttle: replica.ThrottleHardHeat | replica.ThrottleHardware, ECCUncorrected: new(int64(2)), Xid: 31,
	}, cards[0].gpu)
	require.Equal(t, replica.GPU{
		ID: "1", UUID: "GPU-bbbb", Name: "NVIDIA Test 80GB", Utilization: new(0.0), TemperatureC: new(41.0), SMClockMHz: 1410,
	}, cards[1].gpu)
	require.Same(t, cards[1], find(cards, "1"))
	require.Same(t, cards[0], find(cards, "GPU-AAAA"))
	require.Nil(t, find(cards, "2"))
}

// R16: and those of nvidia_gpu_exporter, whose UUIDs have no prefix.
func TestR16NvidiaGPUExporter(t *testing.T) {
	cards := readExport(parseText([]byte(fixture(t, "smi.txt")), dcgmPrefix, smiPrefix))
	require.Len(t, cards, 2)
	c := find(cards, "GPU-cccc")
	require.Equal(t, replica.GPU{
		ID: "1", UUID: "cccc", Name: "NVIDIA Test GeForce", Utilization: new(0.42), MemoryUsed: 706740224, MemoryTotal: 8 << 30,
		TemperatureC: new(34.0), PowerW: new(28.07), EnergyJ: new(1234.5), SMClockMHz: 300, MaxSMClockMHz: 2100,
		Throttle: replica.ThrottlePowerCap, ECCUncorrected: new(int64(0)),
	}, c.gpu)
	require.Equal(t, map[int]float64{31: 4, 79: 1}, c.xids)
	require.Equal(t, "dddd", find(cards, "0").gpu.UUID)
}

// exporter serves a text that tests change.
func exporter(t *testing.T, text string) (url string, set func(old, text string)) {
	var now atomic.Pointer[string]
	now.Store(&text)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(*now.Load()))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/metrics", func(old, text string) { now.Store(new(strings.Replace(*now.Load(), old, text, 1))) }
}

// read reads an exporter once for targets of one replica each.
func exporterFor(t *testing.T, url string, ids ...string) func() []replica.GPUFacts {
	r := newRig(t, 0)
	var targets []Target
	for _, id := range ids {
		tg := target("r"+id, "http://x", Exporter, id)
		tg.Metrics = url
		targets = append(targets, tg)
	}
	src := newExporterSource(r.reader, targets)
	t.Cleanup(src.close)
	return func() []replica.GPUFacts { return src.read(t.Context()) }
}

// R16: an old Xid or error count is history; a new one is a fault, once.
func TestR16ExporterFaults(t *testing.T) {
	url, set := exporter(t, strings.Replace(fixture(t, "dcgm.txt"), `page fault"} 31`, `page fault"} 79`, 1))
	read := exporterFor(t, url, "0", "1", "5")
	f := read()
	require.Empty(t, f[0].Fault, "it may be of last year")
	require.Equal(t, "gpu: 0 NVIDIA Test 80GB GPU-aaaa, by "+url, Describe(f[0]))
	require.Equal(t, "gpu: none ("+url+" has no GPU 5, but 0, 1)", Describe(f[2]))
	require.InDelta(t, 1410, f[1].GPUs[0].MaxSMClockMHz, 0, "the highest seen, where it is not given")
	set(`page fault"} 79`, `page fault"} 13`)
	require.Empty(t, read()[0].Fault)
	set(`page fault"} 13`, `page fault"} 48`)
	require.Equal(t, "Xid 48 on GPU 0: an uncorrectable memory error", read()[0].Fault)
	require.Empty(t, read()[0].Fault)
	set("Hostname=\"box\"} 2\n", "Hostname=\"box\"} 3\n")
	f = read()
	require.Equal(t, "uncorrectable memory errors on GPU 0: 3, 2 before", f[0].Fault)
	require.Empty(t, f[1].Fault)
	set(`DCGM_FI_DEV_SM_CLOCK{gpu="1"`, `DCGM_FI_DEV_OTHER{gpu="1"`)
	require.InDelta(t, 1410, read()[1].GPUs[0].MaxSMClockMHz, 0)

	url, set = exporter(t, fixture(t, "smi.txt"))
	read = exporterFor(t, url, "1")
	require.Empty(t, read()[0].Fault)
	set(`xid="31"} 4`, `xid="31"} 5`)
	require.Empty(t, read()[0].Fault, "an application's own mistake")
	set(`xid="79"} 1`, `xid="79"} 2`)
	require.Equal(t, "Xid 79 on GPU 1: it has fallen off the bus", read()[0].Fault)
	set(`nvidia_smi_last`, "nvidia_smi_xid_errors_total{uuid=\"cccc\",xid=\"119\"} 1\nnvidia_smi_last")
	require.Equal(t, "Xid 119 on GPU 1: its system processor (GSP) does not answer", read()[0].Fault, "a series that is new")
}

// What an exporter says is bounded and cleaned: it is logged and remembered.
func TestR16ExporterThatSaysTooMuch(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "nvidia_smi_gpu_info{uuid=\"u%d\\n\",name=%q,index=\"%d\"} 1\n", i, "\x1b[2J"+strings.Repeat("x", 1000), i)
	}
	cards := readExport(parseText([]byte(b.String()), smiPrefix))
	require.Len(t, cards, maxCards)
	require.Equal(t, "u0?", cards[0].gpu.UUID)
	require.Len(t, cards[0].gpu.Name, 100)
	require.NotContains(t, cards[0].gpu.Name, "\x1b")
}

func TestR16ExporterThatIsNone(t *testing.T) {
	url, _ := exporter(t, "# HELP go_goroutines x\ngo_goroutines 7\n")
	require.Contains(t, Describe(exporterFor(t, url, "0")()[0]), "has no DCGM_FI_DEV_ and no nvidia_smi_ metrics of a GPU")
	s := httptest.NewServer(http.NotFoundHandler())
	require.Contains(t, Describe(exporterFor(t, s.URL, "0")()[0]), "answers 404 Not Found: want the metrics of")
	s.Close()
	require.Contains(t, Describe(exporterFor(t, s.URL, "0")()[0]), "connection refused")
	require.NotContains(t, Describe(exporterFor(t, "http://u:geheim@127.0.0.1:1/metrics", "0")()[0]), "geheim")
}

// R16: one exporter is asked once for all its replicas, again and again.
func TestR16ExporterLoop(t *testing.T) {
	var asked atomic.Int64
	text := fixture(t, "dcgm.txt")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(text))
	}))
	defer s.Close()
	got := make(chan string, 100)
	r := New(Options{
		Sink:  func(name string, f replica.GPUFacts) { got <- name + " " + f.Source },
		Works: func(string) bool { return false }, Tokens: func(string) int64 { return 0 },
	})
	a, b := target("a", "http://x", Exporter, "0"), target("b", "http://x", Exporter, "1")
	a.Metrics, b.Metrics = s.URL, s.URL
	r.Reconfigure(10*time.Millisecond, time.Second, []Target{a, b})
	for range 3 {
		require.Equal(t, "a exporter", <-got)
		require.Equal(t, "b exporter", <-got)
	}
	r.Close()
	require.LessOrEqual(t, asked.Load(), int64(len(got)/2+4))
}

func FuzzParseText(f *testing.F) {
	f.Add(fixture(f, "dcgm.txt"))
	f.Add(fixture(f, "smi.txt"))
	f.Add(`DCGM_FI_DEV_X{a="\\",b="\"}\n",} 1e9 7`)
	f.Add("nvidia_smi_index{uuid=\"x\"} 9e18\nnvidia_smi_{")
	f.Fuzz(func(t *testing.T, text string) {
		samples := parseText([]byte(text), dcgmPrefix, smiPrefix)
		for _, s := range samples {
			require.True(t, strings.HasPrefix(s.name, dcgmPrefix) || strings.HasPrefix(s.name, smiPrefix))
			require.NotContains(t, s.name, "{")
		}
		for _, c := range readExport(samples) {
			require.NotEmpty(t, c.gpu.ID)
		}
	})
}
