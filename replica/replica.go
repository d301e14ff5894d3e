package replica

import (
	"slices"
	"strings"
	"time"

	"switchyard/affinity"
	"switchyard/breaker"
)

// Config is what the operator said about a replica.
type Config struct {
	Name   string
	URL    string         // base URL, for people and for the data plane
	Engine Engine         // EngineAuto: the first probe tells
	Slots  map[string]int // per model, "*" for any; nil: as reported or learned
	Models []string       // nil: as reported; "*": any name
	Tier   int            // a higher tier serves only when no lower one can meet the deadline

	CacheTokens int  // tokens its prompt cache holds, of each model where there is one per model; 0: as reported or assumed
	PinSlots    bool // llama.cpp: it is told which slot to use, so that a conversation keeps its slot
}

// Slots assumed where neither the operator nor the engine says (R11).
const (
	unknownSlots   = 1
	vllmFirstSlots = 16
	vllmMaxSlots   = 256
)

// downAfter failed rounds of probes a replica that does not answer is taken
// for down; one that refuses connections is down at once. A busy server may
// miss a probe (busy is not dead).
const downAfter = 3

// Replica is the state of one replica. It is not safe for concurrent use: the
// admission controller's mutex guards it.
type Replica struct {
	Config   Config
	Facts    Facts // last good word; model lists survive an outage
	Probed   bool  // at least one round has ended
	Up       bool
	Err      string // why it is not up
	Draining bool
	Flagged  string // misconfigured: its answer to its own key or model
	Slow     string // why forecasts take it for slower than it was or could be
	Breaker  *breaker.Breaker
	GPU      GPUFacts // last reading of its GPUs

	Index int // its owner's number for it

	HoldUntil time.Time // held off (429, 503) until then
	Trials    int       // slots held by attempts begun while half-open

	Attempts, Failed int64 // attempts ended, and those that counted as failures
	OutputTokens     int64 // that those attempts made
	PromptTokens     int64 // that they were given, as far as their answers said
	CachedTokens     int64 // of those, taken from its prompt cache

	pause     time.Duration // next hold-off when the replica names none
	failed    int           // failed rounds in a row
	learned   int           // vLLM: slots found so far
	pools     map[string]*pool
	speeds    map[string]*Speed
	gpu       gpuState
	cleanPass bool // a success since the last poison request
	poisoned  bool // a poison request was seen

	prompts *affinity.Index    // nil: no account is kept of prompt caches
	caches  map[string]*Caches // in prompts
}

// New makes a replica that has not been probed.
func New(cfg Config, b *breaker.Breaker) *Replica {
	return &Replica{
		Config: cfg, Breaker: b, learned: vllmFirstSlots,
		Facts: Facts{Engine: cfg.Engine, InHand: -1, Waiting: -1, Progress: -1},
		pools: map[string]*pool{}, speeds: map[string]*Speed{},
	}
}

// Engine is what the replica is, as far as known.
func (r *Replica) Engine() Engine {
	if r.Config.Engine != EngineAuto && r.Config.Engine != "" {
		return r.Config.Engine
	}
	return r.Facts.Engine
}

// PerModel reports whether slots are counted per model.
func (r *Replica) PerModel() bool { return r.Engine() == EngineOllama }

// Pool is the slot ledger that a request for model draws on. Names of one
// digest share it, since Ollama runs them in one runner.
func (r *Replica) Pool(model string) *Slots {
	key := r.poolKey(model)
	p := r.pools[key]
	if p == nil {
		p = &pool{}
		if r.PerModel() {
			p.model = canonical(r.Engine(), model)
		}
		p.Total = r.total(p.model)
		r.pools[key] = p
	}
	return &p.Slots
}

// poolKey is what the ledger and the prompt cache of a model are filed under.
func (r *Replica) poolKey(model string) string {
	if !r.PerModel() {
		return ""
	}
	if m := r.find(model); m != nil && m.Digest != "" {
		return "digest " + m.Digest
	}
	return canonical(r.Engine(), model)
}

// pool is a ledger with the name of the model it was opened for.
type pool struct {
	Slots
	model string
}

// resize brings the ledgers up to date with what is said of slots.
func (r *Replica) resize() {
	for _, p := range r.pools {
		p.Total = r.total(p.model)
	}
}

// Reconfigure takes a new configuration of the same replica in.
func (r *Replica) Reconfigure(c Config) {
	if r.Config.Engine != c.Engine {
		r.Facts.Engine = c.Engine
	}
	r.Config = c
	r.resize()
	r.follow(Facts{}, false)
}

// total is the number of slots for a pool's key.
func (r *Replica) total(model string) int {
	if n, ok := r.Config.Slots[model]; ok {
		return n
	}
	for name, n := range r.Config.Slots {
		if name != "*" && SameModel(r.Engine(), name, model) {
			return n
		}
	}
	if n, ok := r.Config.Slots["*"]; ok {
		return n
	}
	switch r.Engine() {
	case EngineLlamaCpp:
		if r.Facts.Slots > 0 {
			return r.Facts.Slots
		}
	case EngineVLLM:
		return r.learned
	}
	return unknownSlots
}

// Pools calls f for each ledger there is, in no order; model is "" where slots
// are not per model.
func (r *Replica) Pools(f func(model string, s *Slots)) {
	for _, p := range r.pools {
		f(p.model, &p.Slots)
	}
}

// Held is the number of slots our work holds there, over all models.
func (r *Replica) Held() (n int) {
	for _, p := range r.pools {
		n += p.Held()
	}
	return n
}

// Speed is what has been learned of model on this replica.
func (r *Replica) Speed(model string) *Speed {
	key := model
	if r.Facts.AnyModel {
		key = ""
	} else {
		key = canonical(r.Engine(), model)
	}
	s := r.speeds[key]
	if s == nil {
		s = &Speed{pace: r.gpu.pace}
		r.speeds[key] = s
		r.place()
	}
	return s
}

// Speeds calls f for each model something has been learned of.
func (r *Replica) Speeds(f func(model string, s *Speed)) {
	for k, s := range r.speeds {
		f(k, s)
	}
}

// LoadTime predicts how long loading model takes: as it did, or as the longest of
// the others did here. known is false before any load was seen.
func (r *Replica) LoadTime(model string) (d time.Duration, known bool) {
	if d, known = r.Speed(model).Load(); known {
		return d, true
	}
	for _, s := range r.speeds {
		if other, seen := s.Load(); seen {
			d, known = max(d, other), true
		}
	}
	return d, known
}

// Available reports whether new work may be sent there at all: not whether a
// slot is free now. A replica that loads its model is available: it will serve.
func (r *Replica) Available(now time.Time) bool {
	return r.Up && !r.Draining && r.Breaker.State(now) != breaker.Open
}

// FreeFor is the number of slots that a request for model could take now.
func (r *Replica) FreeFor(now time.Time, model string) int { return r.FreeIn(now, r.Pool(model)) }

// FreeIn is the number of slots of one of the replica's pools that could be
// taken now: free in the ledger, allowed by the breaker, not held off.
func (r *Replica) FreeIn(now time.Time, p *Slots) int {
	free := p.Free()
	if free == 0 || !r.Up || r.Draining || r.Facts.Loading || now.Before(r.HoldUntil) {
		return 0
	}
	switch r.Breaker.State(now) {
	case breaker.Open:
		return 0
	case breaker.HalfOpen:
		return min(free, max(0, r.Breaker.Allowance(now, p.Total)-r.Trials))
	default:
		return free
	}
}

// HoldOff takes a 429 or 503 in: no new work for asked, or, if the replica
// named no time, for a pause that grows from 250 ms to 30 s.
func (r *Replica) HoldOff(now time.Time, asked time.Duration) {
	const first, most = 250 * time.Millisecond, 30 * time.Second
	d := min(asked, most)
	if asked <= 0 {
		r.pause = min(max(first, 2*r.pause), most)
		d = r.pause
	}
	if until := now.Add(d); until.After(r.HoldUntil) {
		r.HoldUntil = until
	}
}

// Succeeded notes a good answer: pauses start small again.
func (r *Replica) Succeeded() {
	r.pause = 0
	r.Flagged = ""
	r.cleanPass = true
}

// Poisoned notes a request that made two replicas fail alike, and reports
// whether it is to be taken for the replica's own failure: so it is when no
// answer has succeeded since the last such request.
func (r *Replica) Poisoned() (itself bool) {
	itself = r.poisoned && !r.cleanPass
	r.poisoned, r.cleanPass = true, false
	return itself
}

// Observe takes the findings of a probe in. It reports whether what the
// replica serves may have changed by it.
func (r *Replica) Observe(now time.Time, f Facts) (changed bool) {
	if !r.Probed || r.Up != f.Up {
		changed = true
	}
	was := r.Up
	r.Probed = true
	if !f.Up {
		r.fail(now, f)
		return changed
	}
	before := r.Facts
	r.failed, r.Err, r.Up = 0, "", true
	r.merge(f)
	r.learnSlots(f)
	r.resize()
	r.place()
	r.follow(f, before.Version != "" && f.Version != "" && before.Version != f.Version)
	r.Breaker.ProbeOK(now)
	if !f.Loading && (!was || f.InHand >= 0 && f.InHand < r.total("")) {
		r.HoldUntil = time.Time{} // it says itself that it has room
	}
	if !r.PerModel() {
		r.Pool("").Observe(f.At, f.InHand)
	}
	return changed || !sameService(before, r.Facts)
}

// fail takes a round without an answer in.
func (r *Replica) fail(now time.Time, f Facts) {
	r.failed++
	r.Err = f.Err
	if f.Gone && r.Up {
		r.Breaker.Trip(now, "its process is gone")
	}
	if f.Gone {
		r.follow(f, true)
	}
	if f.Gone || r.failed >= downAfter || !r.Up {
		r.Up = false
		r.Facts.Loading = false
		r.forgetForeign()
	}
}

// sameService reports whether two findings mean the same as to which requests
// the replica can serve.
func sameService(a, b Facts) bool {
	return a.Engine == b.Engine && a.AnyModel == b.AnyModel && a.ModelsRead == b.ModelsRead && a.Loading == b.Loading &&
		a.Context == b.Context && slices.EqualFunc(a.Models, b.Models, func(x, y Model) bool {
		return x.Name == y.Name && x.Digest == y.Digest && x.Context == y.Context && slices.Equal(x.Aliases, y.Aliases)
	})
}

// merge keeps the last known model list when a round did not read it.
func (r *Replica) merge(f Facts) {
	if f.Engine == EngineAuto || f.Engine == "" {
		f.Engine = r.Facts.Engine
	}
	if f.Models == nil && !f.ModelsRead {
		f.Models, f.ModelsRead = r.Facts.Models, r.Facts.ModelsRead
		f.AnyModel = f.AnyModel || r.Facts.AnyModel
	}
	if f.Slots == 0 {
		f.Slots = r.Facts.Slots
	}
	if f.Context == 0 {
		f.Context = r.Facts.Context
	}
	if f.CacheTokens == 0 {
		f.CacheTokens = r.Facts.CacheTokens
	}
	r.Facts = f
}

func (r *Replica) forgetForeign() {
	for _, p := range r.pools {
		p.Foreign, p.suspicious = 0, false
	}
}

// learnSlots finds vLLM's limit by touching it: one more while all are busy
// and its own queue is empty, one fewer while it is not (R11).
func (r *Replica) learnSlots(f Facts) {
	if r.Engine() != EngineVLLM || r.Config.Slots != nil || f.Waiting < 0 {
		return
	}
	switch {
	case f.Waiting > 0:
		r.learned = max(1, r.learned-1)
	case r.Pool("").Free() == 0 && r.learned < vllmMaxSlots:
		r.learned++
	}
}

// Serves reports whether the replica has model, or would take any name.
// known is false while neither configuration nor a probe has told.
func (r *Replica) Serves(model string) (serves, known bool) {
	if len(r.Config.Models) > 0 {
		return slices.ContainsFunc(r.Config.Models, func(m string) bool {
			return m == "*" || SameModel(r.Engine(), m, model)
		}), true
	}
	if r.Facts.AnyModel {
		return true, true
	}
	if !r.Facts.ModelsRead {
		// An answering replica whose list cannot be read serves any model;
		// one that has not answered yet is simply unknown.
		return r.Up && !r.Facts.Loading, r.Up && !r.Facts.Loading
	}
	return r.find(model) != nil, true
}

func (r *Replica) find(model string) *Model {
	for i := range r.Facts.Models {
		m := &r.Facts.Models[i]
		if SameModel(r.Engine(), m.Name, model) || slices.Contains(m.Aliases, model) {
			return m
		}
	}
	return nil
}

// Cold reports whether the model would have to be loaded first.
func (r *Replica) Cold(model string) bool {
	if r.Facts.Loading {
		return true
	}
	m := r.find(model)
	return m != nil && !m.Resident
}

// ContextOf is the context size for model in tokens; 0 unknown.
func (r *Replica) ContextOf(model string) int {
	if m := r.find(model); m != nil && m.Context > 0 {
		return m.Context
	}
	return r.Facts.Context
}

// canonical is the model name that a ledger or speed is filed under.
func canonical(e Engine, model string) string {
	if e == EngineOllama && model != "" && !strings.Contains(model[strings.LastIndexByte(model, '/')+1:], ":") {
		return model + ":latest"
	}
	return model
}

// SameModel compares model names as the engine would: Ollama's x is x:latest.
func SameModel(e Engine, a, b string) bool {
	return a == b || e == EngineOllama && canonical(e, a) == canonical(e, b)
}
