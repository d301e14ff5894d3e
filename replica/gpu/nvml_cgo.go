//go:build linux && cgo

package gpu

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"switchyard/replica"
)

// defaultLibrary is found by the dynamic linker; the driver installs it.
const defaultLibrary = "libnvidia-ml.so.1"

var errNoEvents = errors.New("no events here")

// nvmlLibrary is NVML as go-nvml binds it.
//
// The binding resolves functions when they are called first, and a call of one
// that the library does not have ends the process. So each is looked up before:
// an older driver has not all of them, a newer one may have dropped some.
type nvmlLibrary struct {
	api     nvml.Interface
	all     []card
	symbols *symbols
	events  nvml.EventSet
	deaf    error // why there are no events
}

// symbols remembers which functions there are.
type symbols struct {
	sync.Mutex
	lookup func(name string) error
	known  map[string]bool
}

// has reports whether the library has one of the names: that of a function and
// those of its versions, among which go-nvml takes the newest there is.
func (s *symbols) has(names ...string) bool {
	s.Lock()
	defer s.Unlock()
	for _, n := range names {
		there, asked := s.known[n]
		if !asked {
			there = s.lookup(n) == nil
			s.known[n] = there
		}
		if there {
			return true
		}
	}
	return false
}

// openLibrary loads NVML and begins to use it. The file stays loaded for the
// life of the process: functions once resolved point into it.
func openLibrary(path string) (library, error) {
	if path == "" {
		path = defaultLibrary
	}
	file := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := file.Open(); err != nil {
		return nil, fmt.Errorf("no NVIDIA library: %w", err)
	}
	s := &symbols{lookup: file.Lookup, known: map[string]bool{}}
	for _, need := range [][]string{
		{"nvmlInit_v2"},
		{"nvmlShutdown"},
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
		{"nvmlDeviceGetUUID"},
	} {
		if !s.has(need...) {
			return nil, fmt.Errorf("%s has no %s: it is no NVML, or too old", path, need[0])
		}
	}
	l := &nvmlLibrary{api: nvml.New(nvml.WithLibraryPath(path)), symbols: s}
	if ret := l.api.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not start: %s", said(ret))
	}
	n, ret := l.api.DeviceGetCount()
	if ret != nvml.SUCCESS || n == 0 {
		l.api.Shutdown()
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("NVML does not count its GPUs: %s", said(ret))
		}
		return nil, errors.New("NVML sees no GPU here")
	}
	for i := range n {
		d, ret := l.api.DeviceGetHandleByIndex(i)
		l.all = append(l.all, newCard(l.symbols, d, i, ret))
	}
	l.register()
	return l, nil
}

// register asks for the error events of every card.
func (l *nvmlLibrary) register() {
	l.deaf = errNoEvents
	for _, f := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"} {
		if !l.symbols.has(f) {
			return
		}
	}
	if !l.symbols.has("nvmlEventSetWait_v2", "nvmlEventSetWait") {
		return
	}
	set, ret := l.api.EventSetCreate()
	if ret != nvml.SUCCESS {
		return
	}
	l.events = set
	for _, c := range l.all {
		c := c.(*nvmlCard)
		if c.broken != nvml.SUCCESS {
			continue
		}
		if can, ret := c.device.GetSupportedEventTypes(); ret == nvml.SUCCESS && can&nvml.EventTypeXidCriticalError != 0 &&
			c.device.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			l.deaf = nil
		}
	}
}

func (l *nvmlLibrary) cards() []card { return l.all }

func (l *nvmlLibrary) byUUID(uuid string) (card, error) {
	for _, c := range l.all {
		if c.(*nvmlCard).uuid == uuid {
			return c, nil
		}
	}
	if !l.symbols.has("nvmlDeviceGetHandleByUUID") {
		return nil, errors.New("the library is too old to look it up")
	}
	d, ret := l.api.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, errors.New(said(ret))
	}
	return &nvmlCard{symbols: l.symbols, device: d, name: uuid, uuid: uuid, broken: ret}, nil
}

func (l *nvmlLibrary) wait(d time.Duration) (event, error) {
	if l.deaf != nil {
		return event{}, l.deaf
	}
	data, ret := l.events.Wait(uint32(d.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_TIMEOUT:
		return event{}, errNoEvent
	default:
		return event{}, errors.New(said(ret))
	}
	uuid, ret := data.Device.GetUUID()
	if ret != nvml.SUCCESS { // it is lost: what the handle was is still known
		for _, c := range l.all {
			if c.(*nvmlCard).device == data.Device {
				uuid = c.(*nvmlCard).uuid
			}
		}
	}
	return event{uuid: uuid, xid: int(data.EventData)}, nil
}

func (l *nvmlLibrary) close() {
	if l.events != nil {
		l.events.Free()
	}
	l.api.Shutdown()
}

// nvmlCard is one GPU, or a share of one (MIG), which gives less.
type nvmlCard struct {
	symbols *symbols
	device  nvml.Device
	name    string // index or UUID
	uuid    string
	model   string
	broken  nvml.Return // it had no handle from the beginning
}

func newCard(s *symbols, d nvml.Device, index int, ret nvml.Return) *nvmlCard {
	c := &nvmlCard{symbols: s, device: d, name: fmt.Sprint(index), broken: ret}
	if ret == nvml.SUCCESS {
		c.uuid, _ = d.GetUUID()
		if s.has("nvmlDeviceGetName") {
			c.model, _ = d.GetName()
		}
	}
	return c
}

func (c *nvmlCard) id() string { return c.name }

// asking is one reading of a card, and what it says about the card as a whole.
type asking struct {
	c    *nvmlCard
	dead nvml.Return // lost, or NVML has ended
}

// ok reports whether a call gave a value. Not supported, not permitted and the
// like leave one reading out, and nothing else.
func (r *asking) ok(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_GPU_NOT_FOUND, nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED:
		r.dead = ret
	}
	return ret == nvml.SUCCESS
}

func (c *nvmlCard) read() (replica.GPU, error) {
	g := replica.GPU{ID: c.name, UUID: c.uuid, Name: c.model}
	r := &asking{c: c, dead: nvml.SUCCESS}
	if !r.ok(c.broken) {
		return c.failed(g, c.broken)
	}
	r.load(&g)
	r.power(&g)
	r.clocks(&g)
	if r.dead != nvml.SUCCESS {
		return c.failed(replica.GPU{ID: c.name, UUID: c.uuid, Name: c.model}, r.dead)
	}
	return g, nil
}

func (c *nvmlCard) failed(g replica.GPU, ret nvml.Return) (replica.GPU, error) {
	g.Err = said(ret)
	switch ret {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED:
		return g, fmt.Errorf("%w: %s", errGone, g.Err)
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_GPU_NOT_FOUND:
		return g, fmt.Errorf("%w: %s", errLost, g.Err)
	}
	return g, errors.New(g.Err)
}

func (r *asking) load(g *replica.GPU) {
	c, d := r.c.symbols, r.c.device
	if c.has("nvmlDeviceGetUtilizationRates") {
		if u, ret := d.GetUtilizationRates(); r.ok(ret) {
			g.Utilization = new(float64(u.Gpu) / 100)
		}
	}
	r.memory(g)
	if c.has("nvmlDeviceGetTotalEccErrors") {
		if n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); r.ok(ret) {
			g.ECCUncorrected = new(int64(n))
		}
	}
}

// memory asks for the second version first: it leaves out what the driver
// reserves for itself, as nvidia-smi does.
func (r *asking) memory(g *replica.GPU) {
	c, d := r.c.symbols, r.c.device
	if c.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := d.GetMemoryInfo_v2(); r.ok(ret) {
			g.MemoryUsed, g.MemoryTotal = int64(m.Used), int64(m.Total)
			return
		}
	}
	if c.has("nvmlDeviceGetMemoryInfo") {
		if m, ret := d.GetMemoryInfo(); r.ok(ret) {
			g.MemoryUsed, g.MemoryTotal = int64(m.Used), int64(m.Total)
		}
	}
}

func (r *asking) power(g *replica.GPU) {
	c, d := r.c.symbols, r.c.device
	if c.has("nvmlDeviceGetPowerUsage") {
		if mw, ret := d.GetPowerUsage(); r.ok(ret) {
			g.PowerW = new(float64(mw) / 1000)
		}
	}
	if c.has("nvmlDeviceGetTotalEnergyConsumption") {
		if mj, ret := d.GetTotalEnergyConsumption(); r.ok(ret) {
			g.EnergyJ = new(float64(mj) / 1000)
		}
	}
	if c.has("nvmlDeviceGetTemperatureV") {
		if t, ret := d.GetTemperatureV().V1(); r.ok(ret) {
			g.TemperatureC = new(float64(t.Temperature))
			return
		}
	}
	if c.has("nvmlDeviceGetTemperature") {
		// drivers before 570 have no other
		if t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); r.ok(ret) {
			g.TemperatureC = new(float64(t))
		}
	}
}

func (r *asking) clocks(g *replica.GPU) {
	c, d := r.c.symbols, r.c.device
	if c.has("nvmlDeviceGetClockInfo") {
		if mhz, ret := d.GetClockInfo(nvml.CLOCK_SM); r.ok(ret) {
			g.SMClockMHz = float64(mhz)
		}
	}
	if c.has("nvmlDeviceGetMaxClockInfo") {
		if mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_SM); r.ok(ret) {
			g.MaxSMClockMHz = float64(mhz)
		}
	}
	if c.has("nvmlDeviceGetCurrentClocksEventReasons") {
		if why, ret := d.GetCurrentClocksEventReasons(); r.ok(ret) {
			g.Throttle = replica.Throttle(why)
		}
	} else if c.has("nvmlDeviceGetCurrentClocksThrottleReasons") {
		// drivers before 535 have no other
		if why, ret := d.GetCurrentClocksThrottleReasons(); r.ok(ret) {
			g.Throttle = replica.Throttle(why)
		}
	}
}

// processes lists who computes on the card, or draws: Vulkan counts as that.
func (c *nvmlCard) processes() (pids []int) {
	if c.broken != nvml.SUCCESS {
		return nil
	}
	lists := []struct {
		name string
		get  func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", c.device.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", c.device.GetGraphicsRunningProcesses},
	}
	for _, l := range lists {
		if !c.symbols.has(l.name, l.name+"_v2", l.name+"_v3") {
			continue
		}
		infos, _ := l.get()
		for _, p := range infos {
			pids = append(pids, int(p.Pid))
		}
	}
	return pids
}

// said puts an answer into words. NVML has its own, but a function must not be
// called before it was looked up, and some need more words than it gives.
func said(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_UNINITIALIZED:
		return "NVML has ended"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission: the user of this process may not open /dev/nvidiactl"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA driver is not loaded"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "the library cannot be loaded"
	case nvml.ERROR_GPU_IS_LOST:
		return "lost: the driver no longer reaches it"
	case nvml.ERROR_RESET_REQUIRED:
		return "it needs a reset"
	case nvml.ERROR_GPU_NOT_FOUND, nvml.ERROR_NOT_FOUND:
		return "no such GPU"
	case nvml.ERROR_NOT_SUPPORTED:
		return "not supported"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "driver and library are of different versions: the driver was updated, reload it or restart the host"
	case nvml.ERROR_OPERATING_SYSTEM, nvml.ERROR_UNKNOWN:
		return "unknown error; in a container: its access to the GPU was taken away, restart it"
	}
	return strings.TrimSpace(fmt.Sprintf("NVML error %d", ret))
}
