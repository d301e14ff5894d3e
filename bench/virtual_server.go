package bench

import (
	"fmt"
	"slices"
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

	faulty bool // something may go wrong there
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
				s.w.working--
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
		j.prompt = chain(nil, j.r.Prompt...)
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
		s.w.working++
	}
	s.pump()
	return rej
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
	s.model.Remember(s.w.now, a.work, chain(slices.Clone(a.j.prompt), a.j.r.answered()))
}

func (s *server) record() ReplicaRecord {
	return ReplicaRecord{Replica: s.name, Stats: s.model.Stats(s.w.now)}
}

// pieceTokens is how much of a text the engines' caches remember as one.
const pieceTokens = 64

// messageTokens is what a message costs beside its text.
const messageTokens = 4

// chain cuts messages into the pieces that an engine's cache knows, as its HTTP
// face cuts the text: each message anew, by pieceTokens of text. They go on from
// the pieces that are there.
func chain(out []model.Part, prompt ...Part) []model.Part {
	h, filled, extra := hashOf(out), 0, 0
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
			h, extra = blend(h, uint64(p.Role)), min(messageTokens, left)
			left -= extra
		}
		for at := 0; left > 0; {
			n := min(left, pieceTokens-filled)
			h = blend(blend(h, p.Seed), uint64(at)<<32|uint64(n))
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
