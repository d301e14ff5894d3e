package bench

import (
	"fmt"
	"time"

	"switchyard/simserver/model"
)

// server is a replica of a virtual run: the model of its engine.
type server struct {
	w     *world
	name  string
	model *model.Engine
	cfg   model.Config
	alarm alarm
	open  int // requests of a plain proxy under way there

	working []*attempt // in hand, those of clients who left too

	faulty bool
	probed probed
}

// addServers builds the fleet of a scenario.
func (w *world) addServers(s *Scenario) error {
	devices := map[string]*model.Device{}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if r.URL != "" {
			return fmt.Errorf("virtual run: replica %s is a real one: want simulated ones only, or a live run", r.Name)
		}
	}
	for i := range s.Replicas {
		o := s.Replicas[i].Options()
		cfg, script, err := o.Model()
		if err != nil {
			return fmt.Errorf("replica %s: %w", o.Name, err)
		}
		cfg.Milestones = true
		sv := &server{w: w, name: o.Name, faulty: len(script) > 0}
		if o.GPUShare != "" {
			if devices[o.GPUShare] == nil {
				devices[o.GPUShare] = &model.Device{}
			}
			cfg.Device = devices[o.GPUShare]
		}
		sv.model = model.New(cfg, script, dawn)
		sv.cfg = sv.model.Config()
		sv.alarm.who = sv
		w.fleet = append(w.fleet, sv)
		w.byName[sv.name] = sv
		sv.pump()
	}
	return nil
}

// wake lets the engine do what is due.
func (s *server) wake() { s.pump() }

// pump takes what has happened in the engine and plans its next moment.
func (s *server) pump() {
	for _, ev := range s.model.Advance(s.w.now) {
		if ev.Work == nil {
			continue
		}
		a, ok := ev.Work.User.(*attempt)
		switch {
		case !ok:
		case ev.Kind == model.Token:
			if !a.begun {
				a.begun = true
				s.w.pending = append(s.w.pending, happening{a, true})
			}
		case ev.Kind == model.Finished, ev.Kind == model.Noticed:
			a.noticed = a.noticed || ev.Kind == model.Noticed
			if ev.Kind == model.Finished {
				s.drop(a)
			}
			s.w.pending = append(s.w.pending, happening{a, false})
		}
	}
	if at, ok := s.model.Next(); ok {
		s.w.plan.set(&s.alarm, at)
	} else {
		s.w.plan.drop(&s.alarm)
	}
}

// request is what an engine is asked.
func (j *journey) request() model.Request {
	if j.prompt == nil {
		j.prompt = chain(j.r.Prompt)
	}
	return model.Request{
		Model: j.r.Model, Prompts: [][]model.Part{j.prompt}, Max: j.r.MaxTokens, Output: j.r.OutputTokens, Stream: j.r.Stream,
	}
}

// firstToken foresees the first token of a request that would be sent now.
func (s *server) firstToken(j *journey) time.Time {
	at := s.model.FirstToken(s.w.now, j.request())
	s.pump()
	return at
}

// submit hands the engine a request.
func (s *server) submit(a *attempt) *model.Rejection {
	j := a.j
	work, rej := s.model.Submit(s.w.now, j.request())
	if rej == nil {
		a.work, work.User = work, a
		a.place = len(s.working)
		s.working = append(s.working, a)
		s.w.working++
	}
	s.pump()
	return rej
}

// drop takes an attempt out of those in hand.
func (s *server) drop(a *attempt) {
	last := len(s.working) - 1
	moved := s.working[last]
	s.working[a.place], moved.place = moved, a.place
	s.working[last] = nil
	s.working = s.working[:last]
	s.w.working--
}

// leave tells the engine that nobody waits for an attempt any more.
func (s *server) leave(a *attempt) {
	s.model.Leave(s.w.now, a.work)
	s.pump()
}

// headed reports whether an engine has sent the head of its answer by now: one
// that breaks off then has answered.
func (a *attempt) headed() bool {
	switch a.on.cfg.Kind {
	case model.Ollama:
		return a.begun || a.work.Struck == model.FaultHangAfterHeaders
	case model.LlamaCpp:
		return !a.work.Started.IsZero()
	}
	return a.j.r.Stream && a.work.Struck != model.FaultHang || a.begun
}

// cached is what the answer says of the prompt cache; Ollama says nothing.
func (a *attempt) cached() int {
	if a.on.cfg.Kind == model.Ollama {
		return 0
	}
	return a.work.Tasks[0].Cached
}

// remember lets the next turn of a conversation find prompt and answer in the
// engine's cache, as its HTTP face does.
func (s *server) remember(a *attempt) {
	parts := append([]model.Part(nil), a.j.prompt...)
	h := hashOf(parts)
	for left := a.work.Tasks[0].Decoded; left > 0; left -= pieceTokens {
		h = stir(h, uint64(a.work.ID))
		parts = append(parts, model.Part{Hash: h, Tokens: min(left, pieceTokens)})
	}
	s.model.Remember(s.w.now, a.work, parts)
}

func (s *server) record() ReplicaRecord {
	return ReplicaRecord{Replica: s.name, Stats: s.model.Stats(s.w.now)}
}

// pieceTokens is how much of a text the engines' caches remember as one.
const pieceTokens = 64

// messageTokens is what a message costs beside its text.
const messageTokens = 4

// chain cuts a prompt into the pieces that an engine's cache knows, as its HTTP
// face cuts the text: each message anew, by pieceTokens of text.
func chain(prompt []Part) []model.Part {
	n := 1
	for _, p := range prompt {
		n += p.Tokens/pieceTokens + 2
	}
	out := make([]model.Part, 0, n)
	h, filled, extra := uint64(0), 0, 0
	emit := func() {
		if filled+extra > 0 {
			out = append(out, model.Part{Hash: h, Tokens: filled + extra})
		}
		filled, extra = 0, 0
	}
	for _, p := range prompt {
		left := p.Tokens
		if p.Role != RoleSame {
			emit()
			h, extra = stir(h, uint64(p.Role)), min(messageTokens, left)
			left -= extra
		}
		for at := 0; left > 0; {
			n := min(left, pieceTokens-filled)
			h = stir(stir(h, p.Seed), uint64(at)<<32|uint64(n))
			filled, at, left = filled+n, at+n, left-n
			if filled == pieceTokens {
				emit()
			}
		}
	}
	emit()
	return out
}

func hashOf(parts []model.Part) uint64 {
	if len(parts) == 0 {
		return 0
	}
	return parts[len(parts)-1].Hash
}

// stir is one step of a hash over numbers (splitmix64's finaliser).
func stir(h, x uint64) uint64 {
	z := h ^ (x + 0x9e3779b97f4a7c15 + h<<6)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
