package gpu

import (
	"slices"
	"strconv"
	"strings"
	"unicode"

	"switchyard/replica"
)

// The two exporters' names begin with these.
const (
	dcgmPrefix = "DCGM_FI_DEV_"
	smiPrefix  = "nvidia_smi_"
)

// maxCards bounds what one exporter can make the gateway remember.
const maxCards = 256

// exported is a GPU as an exporter shows it.
type exported struct {
	gpu  replica.GPU
	free int64 // DCGM gives memory used and free
	xids map[int]float64
}

// dcgm says what a metric of dcgm-exporter sets (its default and its optional
// counters): percent, MiB, MHz, watts, millijoules.
var dcgm = map[string]func(c *exported, v float64){
	"GPU_UTIL":                 func(c *exported, v float64) { c.gpu.Utilization = new(v / 100) },
	"FB_USED":                  func(c *exported, v float64) { c.gpu.MemoryUsed = int64(v) << 20 },
	"FB_FREE":                  func(c *exported, v float64) { c.free += int64(v) << 20 },
	"FB_RESERVED":              func(c *exported, v float64) { c.free += int64(v) << 20 },
	"FB_TOTAL":                 func(c *exported, v float64) { c.gpu.MemoryTotal = int64(v) << 20 },
	"GPU_TEMP":                 func(c *exported, v float64) { c.gpu.TemperatureC = new(v) },
	"POWER_USAGE":              func(c *exported, v float64) { c.gpu.PowerW = new(v) },
	"TOTAL_ENERGY_CONSUMPTION": func(c *exported, v float64) { c.gpu.EnergyJ = new(v / 1000) },
	"SM_CLOCK":                 func(c *exported, v float64) { c.gpu.SMClockMHz = v },
	"MAX_SM_CLOCK":             func(c *exported, v float64) { c.gpu.MaxSMClockMHz = v },
	"CLOCK_THROTTLE_REASONS":   func(c *exported, v float64) { c.gpu.Throttle = replica.Throttle(v) },
	"CLOCKS_EVENT_REASONS":     func(c *exported, v float64) { c.gpu.Throttle = replica.Throttle(v) },
	"ECC_DBE_VOL_TOTAL":        func(c *exported, v float64) { c.gpu.ECCUncorrected = new(int64(v)) },
	"XID_ERRORS":               func(c *exported, v float64) { c.gpu.Xid = int(v) },
}

// smi likewise says what a metric of nvidia_gpu_exporter sets: ratios, bytes,
// hertz, watts, joules.
var smi = map[string]func(c *exported, v float64){
	"index":                                 func(c *exported, v float64) { c.gpu.ID = strconv.Itoa(int(v)) },
	"utilization_gpu_ratio":                 func(c *exported, v float64) { c.gpu.Utilization = new(v) },
	"memory_used_bytes":                     func(c *exported, v float64) { c.gpu.MemoryUsed = int64(v) },
	"memory_total_bytes":                    func(c *exported, v float64) { c.gpu.MemoryTotal = int64(v) },
	"temperature_gpu":                       func(c *exported, v float64) { c.gpu.TemperatureC = new(v) },
	"power_draw_watts":                      func(c *exported, v float64) { c.gpu.PowerW = new(v) },
	"energy_joules_total":                   func(c *exported, v float64) { c.gpu.EnergyJ = new(v) },
	"clocks_current_sm_clock_hz":            func(c *exported, v float64) { c.gpu.SMClockMHz = v / 1e6 },
	"clocks_max_sm_clock_hz":                func(c *exported, v float64) { c.gpu.MaxSMClockMHz = v / 1e6 },
	"clocks_throttle_reasons_active":        func(c *exported, v float64) { c.gpu.Throttle = replica.Throttle(v) },
	"clocks_event_reasons_active":           func(c *exported, v float64) { c.gpu.Throttle = replica.Throttle(v) },
	"ecc_errors_uncorrected_volatile_total": func(c *exported, v float64) { c.gpu.ECCUncorrected = new(int64(v)) },
}

// readExport makes GPUs of an exporter's samples, in their order. Shares of a
// card (MIG) are left out: their figures would be taken for the card's.
func readExport(samples []sample) []*exported {
	var cards []*exported
	of := func(uuid string) *exported {
		uuid = plain(uuid)
		for _, c := range cards {
			if c.gpu.UUID == uuid {
				return c
			}
		}
		c := &exported{gpu: replica.GPU{UUID: uuid}}
		if len(cards) < maxCards {
			cards = append(cards, c)
		}
		return c
	}
	for _, s := range samples {
		if s.value < 0 || s.value > 1<<62 {
			continue
		}
		if name, ok := strings.CutPrefix(s.name, dcgmPrefix); ok && s.labels["GPU_I_ID"] == "" && s.labels["gpu"] != "" {
			if set := dcgm[name]; set != nil {
				c := of(s.labels["UUID"])
				c.gpu.ID, c.gpu.Name = plain(s.labels["gpu"]), plain(s.labels["modelName"])
				set(c, s.value)
			}
		}
		if name, ok := strings.CutPrefix(s.name, smiPrefix); ok && s.labels["uuid"] != "" && s.labels["gpu_instance_id"] == "" {
			readSMI(of, name, s)
		}
	}
	for i, c := range cards {
		if c.gpu.ID == "" {
			c.gpu.ID = strconv.Itoa(i)
		}
		if c.gpu.MemoryTotal == 0 && c.free > 0 {
			c.gpu.MemoryTotal = c.gpu.MemoryUsed + c.free
		}
	}
	return cards
}

func readSMI(of func(uuid string) *exported, name string, s sample) {
	switch set := smi[name]; {
	case name == "gpu_info":
		c := of(s.labels["uuid"])
		c.gpu.Name = plain(s.labels["name"])
		if i := plain(s.labels["index"]); i != "" {
			c.gpu.ID = i
		}
	case name == "xid_errors_total":
		if xid, err := strconv.Atoi(s.labels["xid"]); err == nil {
			c := of(s.labels["uuid"])
			if c.xids == nil {
				c.xids = map[int]float64{}
			}
			c.xids[xid] = s.value
		}
	case set != nil:
		set(of(s.labels["uuid"]), s.value)
	}
}

// plain keeps what an exporter said on one line and within reason: it ends up
// on a terminal.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 100 {
		return string(r[:100])
	}
	return s
}

// find looks a GPU up by index or UUID; nvidia_gpu_exporter leaves the GPU-
// before the UUID out.
func find(cards []*exported, id string) *exported {
	i := slices.IndexFunc(cards, func(c *exported) bool {
		return c.gpu.ID == id || strings.EqualFold(strings.TrimPrefix(c.gpu.UUID, "GPU-"), strings.TrimPrefix(id, "GPU-"))
	})
	if i < 0 {
		return nil
	}
	return cards[i]
}

// known lists what there is, for whoever asked for something else.
func known(cards []*exported) string {
	var ids []string
	for _, c := range cards {
		ids = append(ids, c.gpu.ID)
	}
	return strings.Join(ids, ", ")
}
