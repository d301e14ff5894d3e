package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"path"
	"time"

	"switchyard/replica"
)

// llama asks a llama.cpp llama-server. A round is GET /props (cheap, and it
// does not wake a sleeping server) and, unless the server is left to fall
// asleep, GET /slots. Builds that cannot sleep are asked for /slots alone.
// A router is another case: see router.go.
type llama struct {
	http  *client
	props *llamaProps // as last read since the contact; nil: not yet
	age   int         // rounds since then
	note  string      // what was wrong with it
	list  modelList

	noSlots   bool // started with --no-slots
	noMetrics bool // started without --metrics

	drowsy   drowsy
	loaded   string // router: the models that were loaded last round
	slots    map[string]int
	contexts map[string]int

	works    map[workID]work // by slot; nil: not looked at since the contact
	decodes  int             // the same where only /metrics tells
	looks    int             // looks since the contact
	progress int             // never falls
}

// llamaProps is what is read of /props.
type llamaProps struct {
	Slots      int    `json:"total_slots"`
	Alias      string `json:"model_alias"`
	Path       string `json:"model_path"`
	Build      string `json:"build_info"`
	Role       string `json:"role"` // "router" in router mode
	Sleeping   *bool  `json:"is_sleeping"`
	HasSlots   *bool  `json:"endpoint_slots"`
	HasMetrics *bool  `json:"endpoint_metrics"`
	Defaults   struct {
		Context int `json:"n_ctx"`
	} `json:"default_generation_settings"`
}

// llama.cpp's metric families, the source of last resort. n_decode_total grows
// with every batch, the token counters only at the end of a request.
const (
	llamaProcessing = "llamacpp:requests_processing"
	llamaDeferred   = "llamacpp:requests_deferred"
	llamaDecodes    = "llamacpp:n_decode_total"
)

func (l *llama) forget() {
	l.props, l.age, l.note = nil, 0, ""
	l.noSlots, l.noMetrics = false, false
	l.list.forget()
	l.drowsy.woke()
	l.loaded, l.slots, l.contexts = "", nil, nil
	l.works, l.looks = nil, 0
}

func (l *llama) ask(ctx context.Context, look bool) (replica.Facts, error) {
	f := up(replica.EngineLlamaCpp)
	f.Progress = l.progress // as far as seen
	if stop, err := l.readProps(ctx, &f); stop || err != nil {
		return f, err
	}
	if l.props.Role == "router" {
		return f, l.askRouter(ctx, &f, look)
	}
	f.AnyModel = true
	f.Version, f.Slots, f.Context = l.props.Build, l.props.Slots, l.props.Defaults.Context
	if l.props.Sleeping != nil && *l.props.Sleeping {
		l.asleep(&f)
		return f, nil
	}
	if l.list.due() {
		if _, err := l.list.update(ctx, l.http); err != nil && !isTimeout(err) {
			return f, err
		}
	}
	l.list.put(&f)
	if f.Context == 0 {
		f.Context = smallestContext(f.Models)
	}
	now := time.Now()
	if !look && l.props.Sleeping != nil && l.drowsy.let(now) {
		return f, nil
	}
	if err := l.work(ctx, &f); err != nil {
		return f, err
	}
	l.looks++
	l.drowsy.looked(now, f.InHand)
	return f, nil
}

// readProps asks for /props, every round of a build that can sleep. stop says
// that there is nothing more to ask.
func (l *llama) readProps(ctx context.Context, f *replica.Facts) (stop bool, err error) {
	l.age++
	if l.props != nil && l.props.Sleeping == nil && l.age < listEvery {
		f.Note = l.note
		return false, nil
	}
	a, err := l.http.get(ctx, "/props")
	if err != nil {
		if f.Note, err = alive(ctx, l.http, "/health", err); err != nil {
			return false, err
		}
		l.fill(f)
		return true, nil
	}
	l.age = 0
	var p llamaProps
	switch {
	case a.loading():
		// Whatever ran before runs no more.
		l.forget()
		f.Loading, f.InHand, f.Waiting = true, 0, 0
		return true, nil
	case a.decode(&p):
		p.Slots, p.Defaults.Context = max(0, p.Slots), max(0, p.Defaults.Context)
		l.props, l.note = &p, ""
		l.noSlots = l.noSlots || p.HasSlots != nil && !*p.HasSlots
		l.noMetrics = l.noMetrics || p.HasMetrics != nil && !*p.HasMetrics
		return false, nil
	case a.broken() != nil:
		return false, a.broken()
	case a.refused(l.http) != "":
		f.Note = a.refused(l.http)
		f.AnyModel = true
		return true, nil
	case a.hidden(), a.status == http.StatusOK: // a proxy that does not offer it
		l.props, l.note = &llamaProps{}, "GET /props is not llama.cpp's: "+a.summary()
		f.Note = l.note
		return false, nil
	default: // busy
		l.fill(f)
		return true, nil
	}
}

// fill repeats what was known, in a round that learned nothing.
func (l *llama) fill(f *replica.Facts) {
	if l.props == nil {
		f.AnyModel = true
		return
	}
	f.AnyModel = l.props.Role != "router"
	f.Version, f.Slots, f.Context = l.props.Build, l.props.Slots, l.props.Defaults.Context
	l.list.put(f)
}

// asleep fills the facts of a sleeping server from what is known without
// waking it. A server that was never seen awake is known by its alias.
func (l *llama) asleep(f *replica.Facts) {
	l.drowsy.slept()
	f.Sleeping, f.InHand, f.Waiting = true, 0, 0
	l.list.put(f)
	if name := cmp.Or(l.props.Alias, path.Base(l.props.Path)); !f.ModelsRead && name != "." {
		entry, _ := json.Marshal(map[string]any{"id": name, "object": "model", "created": 0, "owned_by": "llamacpp"})
		f.Models = []replica.Model{{Name: name, Context: f.Context, OpenAI: entry}}
		f.ModelsRead, f.Note = true, ""
	}
	f.Models = notResident(f.Models)
}

func notResident(models []replica.Model) []replica.Model {
	out := make([]replica.Model, len(models))
	for i, m := range models {
		m.Resident = false
		out[i] = m
	}
	return out
}

// work reads what the server is doing: from /slots, and where that is switched
// off or does not tell all, from /metrics.
func (l *llama) work(ctx context.Context, f *replica.Facts) error {
	if !l.noSlots {
		slots, err := l.readSlots(ctx, "", f)
		if err != nil {
			f.Note, err = alive(ctx, l.http, "/health", err)
			return err
		}
		if f.Loading {
			return nil
		}
		if len(slots) > 0 {
			l.countSlots(f, "", slots)
		}
	}
	if f.InHand >= 0 && f.InHand < f.Slots {
		f.Waiting = 0 // with a slot free nothing waits
		return nil
	}
	return l.readMetrics(ctx, f)
}

// readSlots asks for one list of slots; none where the server does not give it.
func (l *llama) readSlots(ctx context.Context, query string, f *replica.Facts) ([]llamaSlot, error) {
	a, err := l.http.get(ctx, "/slots"+query)
	if err != nil {
		return nil, err
	}
	var slots []llamaSlot
	switch {
	case a.decode(&slots):
		return slots, nil
	case a.loading():
		l.forget()
		f.Loading, f.InHand, f.Waiting = true, 0, 0
		return nil, nil
	case a.broken() != nil:
		return nil, a.broken()
	case a.hidden():
		l.noSlots = true
	}
	return nil, nil
}

// countSlots adds one list of slots to the facts.
func (l *llama) countSlots(f *replica.Facts, model string, slots []llamaSlot) {
	if f.Slots == 0 || model == "" {
		f.Slots = len(slots)
	} else {
		f.Slots = min(f.Slots, len(slots))
	}
	f.InHand = max(0, f.InHand)
	for _, s := range slots {
		if s.Processing {
			f.InHand++
		}
	}
	if model == "" && f.Context == 0 {
		f.Context = max(0, slots[0].Context)
	}
	f.Progress = l.advance(model, slots)
}

// readMetrics asks for /metrics. Without it a full server's queue, or with
// --no-slots everything, stays unknown.
func (l *llama) readMetrics(ctx context.Context, f *replica.Facts) error {
	if !l.noMetrics {
		a, err := l.http.get(ctx, "/metrics")
		if err != nil {
			f.Note, err = alive(ctx, l.http, "/health", err)
			return err
		}
		l.noMetrics = a.hidden()
		if a.status == http.StatusOK {
			sums := readMetrics(a.body, llamaProcessing, llamaDeferred, llamaDecodes)
			f.Waiting = count(sums, llamaDeferred)
			if f.InHand < 0 {
				f.InHand = count(sums, llamaProcessing)
				decodes := count(sums, llamaDecodes)
				if l.looks > 0 {
					l.progress += max(0, decodes-l.decodes)
				}
				l.decodes, f.Progress = decodes, l.progress
			}
		}
	}
	if f.InHand < 0 && f.Note == "" && l.noSlots && l.noMetrics {
		f.Note = "what it is doing is unknown: start it without --no-slots, or with --metrics"
	}
	return nil
}

// llamaSlot is what is read of an entry of /slots.
type llamaSlot struct {
	ID         int             `json:"id"`
	Context    int             `json:"n_ctx"`
	Processing bool            `json:"is_processing"`
	Task       int             `json:"id_task"`
	Processed  int             `json:"n_prompt_tokens_processed"`
	Next       json.RawMessage `json:"next_token"`
}

// done is how many tokens the slot has processed and decoded for its task.
func (s llamaSlot) done() int {
	type next struct {
		Decoded int `json:"n_decoded"`
	}
	var n []next
	if bytes.HasPrefix(s.Next, []byte("{")) { // older builds: no list
		n = make([]next, 1)
		_ = json.Unmarshal(s.Next, &n[0])
	} else {
		_ = json.Unmarshal(s.Next, &n)
	}
	sum := tokens(s.Processed)
	if len(n) > 0 {
		sum += tokens(n[0].Decoded)
	}
	return sum
}

// tokens keeps a nonsensical number of tokens from upsetting sums.
func tokens(n int) int { return min(max(0, n), 1<<32) }

type workID struct {
	model string
	slot  int
}

// work is what a slot had done for a task when last seen.
type work struct {
	task, done int
}

// advance adds what the slots have done since they were last looked at to the
// progress so far. It is counted by task, so that it does not fall when a task
// ends; what was done before the first look is not progress seen.
func (l *llama) advance(model string, slots []llamaSlot) int {
	if l.works == nil {
		l.works = map[workID]work{}
	}
	for _, s := range slots {
		id := workID{model, s.ID}
		if !s.Processing {
			delete(l.works, id)
			continue
		}
		is, was := work{s.Task, s.done()}, l.works[id]
		if was.task != is.task {
			was.done = 0
		}
		if l.looks > 0 {
			l.progress += max(0, is.done-was.done)
		}
		l.works[id] = is
	}
	return l.progress
}
