package model

import "time"

// Stats is what was counted, for one model or the whole engine. Work in hand
// is counted per model; for an engine of several, InHand is their sum,
// MaxInHand and QueuedMax are the largest that any one model had, and the
// others are sums. Requests are known only for the engine.
type Stats struct {
	Slots           int     `json:"slots"`
	InHand          int     `json:"in_hand"`
	MaxInHand       int     `json:"max_in_hand"`
	OverSlotsEvents int     `json:"over_slots_events"`
	QueuedMax       int     `json:"queued_max"`
	Requests        int     `json:"requests"`
	Completed       int     `json:"completed"`
	CutByClient     int     `json:"cut_by_client"`
	TokensGenerated int     `json:"tokens_generated"`
	TokensWasted    int     `json:"tokens_wasted"`
	ZombieSeconds   float64 `json:"zombie_seconds"`
	SlotSeconds     float64 `json:"slot_seconds"` // that tasks have held slots, zombies included
	PromptTokens    int     `json:"prompt_tokens"`
	CachedTokens    int     `json:"cached_tokens"`

	Models map[string]Stats `json:"models,omitempty"` // only for the whole engine
}

// take counts work that was handed over.
func (s *Stats) take(hand int) {
	s.InHand += hand
	s.MaxInHand = max(s.MaxInHand, s.InHand)
	if s.InHand > s.Slots {
		s.OverSlotsEvents++
	}
}

// prompt counts a prompt that is done.
func (s *Stats) prompt(t *Task) {
	s.PromptTokens += t.Prompt
	s.CachedTokens += t.Cached
}

// token counts output tokens of one task.
func (s *Stats) token(t *Task, n int) {
	s.TokensGenerated += n
	if !t.work.Left.IsZero() {
		s.TokensWasted += n
	}
}

// zombie counts the time a task held its slot for a client who had left.
func (s *Stats) zombie(t *Task, at time.Time) {
	from := t.work.Left
	if t.Started.After(from) {
		from = t.Started
	}
	s.ZombieSeconds += at.Sub(from).Seconds()
}

// Stats gives the counts up to now.
func (e *Engine) Stats(now time.Time) Stats {
	e.run(now)
	sum := Stats{Slots: e.cfg.Slots, Requests: e.requests, Models: make(map[string]Stats, len(e.runners))}
	for _, r := range e.runners {
		s := r.stats
		for _, t := range r.slots {
			if t == nil {
				continue
			}
			s.SlotSeconds += e.now.Sub(t.Started).Seconds()
			if !t.work.Left.IsZero() {
				s.zombie(t, e.now)
			}
		}
		sum.Models[r.name] = s
		sum.InHand += s.InHand
		sum.MaxInHand = max(sum.MaxInHand, s.MaxInHand)
		sum.OverSlotsEvents += s.OverSlotsEvents
		sum.QueuedMax = max(sum.QueuedMax, s.QueuedMax)
		sum.Completed += s.Completed
		sum.CutByClient += s.CutByClient
		sum.TokensGenerated += s.TokensGenerated
		sum.TokensWasted += s.TokensWasted
		sum.ZombieSeconds += s.ZombieSeconds
		sum.SlotSeconds += s.SlotSeconds
		sum.PromptTokens += s.PromptTokens
		sum.CachedTokens += s.CachedTokens
	}
	return sum
}

// Reset begins a new trial: counters at zero (MaxInHand at what is in hand),
// empty prompt caches, no fault, the random numbers from their seed. Work in
// hand goes on.
func (e *Engine) Reset(now time.Time) {
	e.run(now)
	e.setFault(e.now, Fault{Kind: FaultNone})
	e.seed()
	e.requests = 0
	for _, r := range e.runners {
		r.stats = Stats{Slots: r.stats.Slots, InHand: r.stats.InHand, MaxInHand: r.stats.InHand}
		r.used = Usage{}
		r.cache = newCache(&e.cfg)
	}
	e.settle(e.now)
}

// Usage is what a model's computing came to since the last Reset. Times are
// summed over tasks, as llama.cpp does.
type Usage struct {
	Batches   int
	BusySlots int // slots that had a part in a batch, summed over batches
	Longest   int // tokens of the longest prompt with its answer
	Prompting time.Duration
	Decoding  time.Duration
}

// Usage gives a model's; "": the first's.
func (e *Engine) Usage(now time.Time, name string) Usage {
	e.run(now)
	return e.orFirst(name).used
}

// batches counts so many that are alike.
func (u *Usage) batches(n, busy int) {
	u.Batches += n
	u.BusySlots += n * busy
}

// ended counts a task that leaves its slot.
func (u *Usage) ended(t *Task) {
	u.Longest = max(u.Longest, t.Prompt+t.Decoded)
	if !t.First.IsZero() {
		u.Prompting += t.First.Sub(t.Started)
		u.Decoding += t.Ended.Sub(t.First)
	}
}

// SlotView is what a slot does.
type SlotView struct {
	Task *Task // nil: nothing
	Work *Work
}

// Slots gives the slots of a model; "": of the first.
func (e *Engine) Slots(now time.Time, name string) []SlotView {
	e.run(now)
	r := e.orFirst(name)
	views := make([]SlotView, len(r.slots))
	for i, t := range r.slots {
		if t != nil {
			views[i] = SlotView{Task: t, Work: t.work}
		}
	}
	return views
}

// orFirst is the model of a name, or the first where there is none.
func (e *Engine) orFirst(name string) *runner {
	if r := e.find(name); r != nil {
		return r
	}
	return e.runners[0]
}

// ModelView is the state of one model.
type ModelView struct {
	Name     string
	Resident bool
	Loading  bool
	Context  int
	Expires  time.Time // zero: stays
	Running  int       // tasks in slots
	Queued   int       // tasks that wait
}

// Models gives the state of each model.
func (e *Engine) Models(now time.Time) []ModelView {
	e.run(now)
	views := make([]ModelView, len(e.runners))
	for i, r := range e.runners {
		v := ModelView{Name: r.name, Resident: r.state == resident, Loading: r.state == loading, Context: r.context}
		v.Running, v.Queued = len(r.slots)-r.free, r.live+r.waits
		if v.Resident && e.cfg.Kind == Ollama {
			v.Expires = r.expires
			if r.busy() && r.keepAlive >= 0 {
				v.Expires = e.now.Add(r.keepAlive)
			}
		}
		views[i] = v
	}
	return views
}

// Known gives the whole name of a model, and whether the engine has it.
func (e *Engine) Known(name string) (string, bool) {
	r := e.find(name)
	if r == nil {
		return "", false
	}
	return r.name, true
}
