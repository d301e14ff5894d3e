package replica

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// GPUFacts is what one round of reading learned about the GPUs that a replica
// runs on. Its JSON is the gpu of /admin/state.
type GPUFacts struct {
	At     time.Time `json:"time"`
	Source string    `json:"source"` // where readings come from: SourceNVML, SourceExporter, SourceNone
	Note   string    `json:"note"`   // in words: how the GPUs were found, or why there are no readings
	GPUs   []GPU     `json:"devices"`
	Fault  string    `json:"-"`                    // a fatal error since the facts before these, in words; empty: none
	Off    bool      `json:"off_gpu,omitempty"`    // its process is alive and on no GPU, but was on one before
	Joules float64   `json:"joules_per_1k_tokens"` // energy its GPUs took for 1,000 output tokens of late; 0 unknown
	Busy   float64   `json:"gpu_s_per_1k_tokens"`  // likewise, seconds of full utilisation
}

// Where readings come from.
const (
	SourceNone     = "none"
	SourceNVML     = "nvml"
	SourceExporter = "exporter"
)

// GPU is one reading of one GPU. What its source does not give is nil or zero.
type GPU struct {
	ID             string   `json:"id"` // index, or the UUID of a MIG instance
	UUID           string   `json:"uuid,omitempty"`
	Name           string   `json:"name,omitempty"`
	Err            string   `json:"error,omitempty"`       // why it gives no readings, in words
	Utilization    *float64 `json:"utilization,omitempty"` // share of the last moment in which it did something, 0…1
	MemoryUsed     int64    `json:"memory_used_bytes,omitempty"`
	MemoryTotal    int64    `json:"memory_total_bytes,omitempty"`
	TemperatureC   *float64 `json:"temperature_c,omitempty"`
	PowerW         *float64 `json:"power_w,omitempty"`
	EnergyJ        *float64 `json:"energy_j,omitempty"` // since its driver was loaded
	SMClockMHz     float64  `json:"sm_clock_mhz,omitempty"`
	MaxSMClockMHz  float64  `json:"max_sm_clock_mhz,omitempty"`
	Throttle       Throttle `json:"throttle,omitempty"`
	ECCUncorrected *int64   `json:"ecc_uncorrected,omitempty"` // since its driver was loaded
	Xid            int      `json:"xid,omitempty"`             // the last one seen
}

// Throttle is why a GPU's clocks are held down: the bits that NVML calls
// clocks event reasons, and DCGM and nvidia-smi use too.
type Throttle uint64

// The reasons that say something about speed.
const (
	ThrottleIdle       Throttle = 0x01 // nothing runs
	ThrottlePowerCap   Throttle = 0x04 // the power limit
	ThrottleHardware   Throttle = 0x08 // heat, power brake or too high a draw: halved or worse
	ThrottleHeat       Throttle = 0x20 // the driver's thermal limit
	ThrottleHardHeat   Throttle = 0x40 // the hardware's own thermal limit
	ThrottlePowerBrake Throttle = 0x80 // the power supply asks for less
)

// slowing are the reasons by which a card at work is slower than it could be.
const slowing = ThrottlePowerCap | ThrottleHardware | ThrottleHeat | ThrottleHardHeat | ThrottlePowerBrake

// Slowing reports whether the clocks are held down by heat or power.
func (t Throttle) Slowing() bool { return t&slowing != 0 }

// String names what holds the clocks down; empty: nothing that slows.
func (t Throttle) String() string {
	var words []string
	if t&(ThrottleHeat|ThrottleHardHeat) != 0 {
		words = append(words, "heat")
	}
	if t&ThrottlePowerCap != 0 {
		words = append(words, "its power limit")
	}
	if t&ThrottlePowerBrake != 0 {
		words = append(words, "a power brake")
	}
	if len(words) == 0 && t&ThrottleHardware != 0 {
		words = append(words, "a hardware slowdown")
	}
	return strings.Join(words, " and ")
}

// MarshalText gives the words.
func (t Throttle) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText takes the words back as far as they go.
func (t *Throttle) UnmarshalText(b []byte) error {
	*t = 0
	for words, bit := range map[string]Throttle{
		"heat": ThrottleHeat, "power limit": ThrottlePowerCap, "power brake": ThrottlePowerBrake, "hardware": ThrottleHardware,
	} {
		if strings.Contains(string(b), words) {
			*t |= bit
		}
	}
	return nil
}

// fullClock is the share of its highest clock from which on a card counts as
// running freely: the power limit shaves a few percent off most cards at work.
const fullClock = 0.9

// clock is the share of the full SM clock at which the card works; known is
// false while it does not work, since the clock of an idle card says nothing.
func (g *GPU) clock() (share float64, known bool) {
	idle := g.Throttle&ThrottleIdle != 0 || g.Utilization != nil && *g.Utilization == 0
	if idle || g.SMClockMHz <= 0 || g.MaxSMClockMHz <= 0 {
		return 0, false
	}
	share = g.SMClockMHz / g.MaxSMClockMHz
	if !g.Throttle.Slowing() || share >= fullClock {
		return 1, true
	}
	return max(share, 0.05), true
}

// gpuState is what a replica has made of the readings of its GPUs.
type gpuState struct {
	pace  float64 // share of the full clock when last seen at work; 0 like 1: full
	why   string  // what holds it down, while pace is below 1
	off   int     // readings in a row in which its process was on no GPU
	used  bool    // its GPUs have been seen at work for it
	idle  int     // readings in a row in which it had work and its GPUs had none
	since int64   // OutputTokens at the first of those
}

// Readings in a row that are believed: one may fall between a process's end
// and its successor's begin, or into a moment in which a GPU pauses.
const (
	offReadings  = 2
	idleReadings = 5
)

// ObserveGPU takes a reading of its GPUs in (R16). A fatal error opens the
// breaker. Clocks that heat or power hold down scale the speed of prompt
// processing at once, and a model that has left the GPU is forecast as one on
// the CPU.
func (r *Replica) ObserveGPU(now time.Time, f GPUFacts) {
	if f.Fault != "" {
		r.Breaker.Trip(now, f.Fault)
	}
	r.GPU = f
	if f.Source == SourceNone {
		r.gpu = gpuState{}
	}
	r.readClocks(f.GPUs)
	if r.gpu.off++; !f.Off {
		r.gpu.off = 0
	}
	r.readIdleness(f.GPUs)
	r.place()
}

// readClocks sets the pace: that of the slowest card, since the others wait
// for it. A card that does not work now is expected to work as it last did.
func (r *Replica) readClocks(gpus []GPU) {
	pace, why, seen := 1.0, "", false
	for i := range gpus {
		g := &gpus[i]
		share, known := g.clock()
		seen = seen || known
		if known && share < pace {
			pace = share
			why = fmt.Sprintf("GPU %s is held down by %v: its SM clock is at %.0f%% (%.0f of %.0f MHz), and so are prompt speeds in forecasts",
				g.ID, g.Throttle, 100*share, g.SMClockMHz, g.MaxSMClockMHz)
		}
	}
	if seen || len(gpus) == 0 {
		r.gpu.pace, r.gpu.why = pace, why
	}
	for _, s := range r.speeds {
		s.pace = r.gpu.pace
	}
}

// readIdleness looks for GPUs that do nothing while the replica makes tokens.
// Once that is found, only a GPU at work ends it.
func (r *Replica) readIdleness(gpus []GPU) {
	const nothing, something = 0.02, 0.2
	busiest := -1.0
	for i := range gpus {
		if u := gpus[i].Utilization; u != nil {
			busiest = max(busiest, *u)
		}
	}
	g := &r.gpu
	switch works := r.Held() > 0; {
	case busiest < 0 || !works && r.idleGPU():
	case !works || busiest >= nothing:
		g.idle = 0
		g.used = g.used || works && busiest >= something
	default:
		if g.idle == 0 {
			g.since = r.OutputTokens
		}
		g.idle++
	}
}

func (r *Replica) idleGPU() bool {
	return r.gpu.used && r.gpu.idle >= idleReadings && r.OutputTokens > r.gpu.since
}

// offGPU says in words why the replica's models are taken for being on the
// CPU; empty: they are not. Ollama says it itself, model by model; the others
// hold their model for as long as they live.
func (r *Replica) offGPU() string {
	if e := r.Engine(); e == EngineOllama || e == EngineAuto || r.Facts.Loading || r.Facts.Sleeping {
		return ""
	}
	switch {
	case r.gpu.off >= offReadings:
		return "its process was on a GPU and no longer is: it runs on the CPU"
	case r.idleGPU():
		return fmt.Sprintf("it made %d tokens while %s did nothing: it runs on the CPU", r.OutputTokens-r.gpu.since, gpuNames(r.GPU.GPUs))
	}
	return ""
}

func gpuNames(gpus []GPU) string {
	ids := make([]string, len(gpus))
	for i := range gpus {
		ids[i] = gpus[i].ID
	}
	if len(ids) == 1 {
		return "GPU " + ids[0]
	}
	return "GPUs " + strings.Join(ids, ", ")
}

// place tells the speeds where their models run, and says what is slow.
func (r *Replica) place() {
	off := r.offGPU() != ""
	for key, s := range r.speeds {
		s.Place(off || r.onCPU(key))
	}
	r.Slow = r.whySlow()
}

// onCPU reports whether the engine says that the model has fallen to the CPU.
func (r *Replica) onCPU(model string) bool {
	if m := r.find(model); m != nil {
		return m.OnCPU
	}
	return model == "" && len(r.Facts.Models) > 0 && r.Facts.Models[0].OnCPU
}

// whySlow says why forecasts take the replica for slower than it was or could
// be; empty: they do not.
func (r *Replica) whySlow() string {
	var why []string
	if r.gpu.pace > 0 && r.gpu.pace < 1 {
		why = append(why, r.gpu.why)
	}
	if off := r.offGPU(); off != "" {
		why = append(why, off)
	}
	for i := range r.Facts.Models {
		if m := &r.Facts.Models[i]; m.OnCPU && m.Resident {
			why = append(why, fmt.Sprintf("%s fell off the GPU: %.0f%% of it is there now", m.Name, 100*float64(m.SizeVRAM)/float64(max(m.Size, 1))))
		}
	}
	if len(why) > 0 {
		return strings.Join(why, "; ")
	}
	for model, s := range r.speeds {
		if s.Collapsed() {
			why = append(why, fmt.Sprintf("%s makes %.1f tokens a second, %.1f before: so does a model that fell to the CPU",
				cmp.Or(model, "it"), s.DecodeTokensPerS(), s.UsualTokensPerS()))
		}
	}
	slices.Sort(why)
	return strings.Join(why, "; ")
}
