// Package simserver is a simulated inference server: the HTTP face of
// llama.cpp, Ollama, vLLM or a plain OpenAI-compatible server over the pure
// model in simserver/model. It never computes anything; words come from a small
// vocabulary, times from the model.
//
// The model is driven by one timer per replica, set to the moment at which the
// model next has something to do, and by what clients do. A request's handler
// sleeps until the model has something for it. What is counted is counted in
// the model, so it does not depend on sockets or on how late a timer fires.
package simserver

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"switchyard/simserver/model"
)

// Server is one simulated replica. It listens until Close.
type Server struct {
	opts   Options
	config model.Config
	face   face
	front  front
	table  map[string]route // of the face, by method and path
	words  vocabulary
	born   time.Time

	share  *share // guards what follows
	model  *model.Engine
	timer  *time.Timer
	next   time.Time       // what the timer is set to; zero: nothing
	fault  model.FaultKind // as the front is to follow it
	ended  bool
	turned chan struct{} // closed and replaced when the fault changes
	done   chan struct{} // closed when ended
}

// share is what the replicas on one device have in common: the device, and so
// the lock, because each one's speed depends on what the others do.
type share struct {
	sync.Mutex
	device model.Device
}

// Start makes a replica and listens.
func Start(opts Options) (*Server, error) {
	s := &Server{opts: opts, born: time.Now(), share: opts.share}
	s.turned, s.done = make(chan struct{}), make(chan struct{})
	if s.share == nil {
		s.share = &share{}
	}
	wrong := func(err error) error {
		if opts.Name == "" {
			return fmt.Errorf("simulated replica: %w", err)
		}
		return fmt.Errorf("simulated replica %q: %w", opts.Name, err)
	}
	config, err := s.opts.config()
	if err != nil {
		return nil, wrong(err)
	}
	script, err := s.opts.faults()
	if err != nil {
		return nil, wrong(err)
	}
	config.Device = &s.share.device
	s.config = config
	s.words = vocabulary{seed: config.Seed}
	s.face = newFace(s)
	if err := s.front.open(s, s.opts.listenAddress()); err != nil {
		return nil, wrong(err)
	}
	if s.opts.Name == "" {
		s.opts.Name = s.front.addr
	}
	s.share.Lock()
	s.model = model.New(config, script, s.born)
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.share.Unlock()
	s.do(func(time.Time) {})
	s.front.serve()
	return s, nil
}

// Name is the replica's name: its address if none was given.
func (s *Server) Name() string { return s.opts.Name }

// URL is where the replica listens, as http://host:port.
func (s *Server) URL() string { return "http://" + s.front.addr }

// Slots is the number of slots (Ollama: per model).
func (s *Server) Slots() int { return s.config.Slots }

// Stats gives what the model has counted.
func (s *Server) Stats() Stats {
	var st Stats
	s.do(func(now time.Time) { st = s.model.Stats(now) })
	return st
}

// SetFault replaces the active fault; FaultNone clears it. When it returns the
// fault is in force.
func (s *Server) SetFault(f Fault) error {
	f, err := s.opts.check(f)
	if err != nil {
		return err
	}
	f.For = s.opts.scaled(f.For)
	s.do(func(now time.Time) { s.model.SetFault(now, f) })
	return nil
}

// Reset begins a new trial: counters at zero, no fault, an empty prompt cache.
func (s *Server) Reset() {
	s.do(func(now time.Time) { s.model.Reset(now) })
}

// Close ends the replica: clients are cut off, nothing is left behind.
func (s *Server) Close() {
	s.share.Lock()
	if s.ended {
		s.share.Unlock()
		return
	}
	s.ended = true
	s.timer.Stop()
	s.share.Unlock()
	close(s.done)
	s.front.close()
}

// do runs f under the lock at the present moment, hands out what happened and
// sets the timer.
func (s *Server) do(f func(now time.Time)) {
	s.share.Lock()
	now := time.Now()
	f(now)
	turned := s.pump(now)
	s.share.Unlock()
	if turned {
		s.front.follow()
	}
}

// wait holds a request up until a moment.
func (s *Server) wait(r *http.Request, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	case <-s.done:
		panic(http.ErrAbortHandler)
	}
}

// tick is the timer.
func (s *Server) tick() { s.do(func(time.Time) { s.next = time.Time{} }) }

// pump hands out the model's events and sets the timer for the next; it
// reports whether the fault has changed.
func (s *Server) pump(now time.Time) (turned bool) {
	for _, ev := range s.model.Advance(now) {
		if ev.Kind == model.FaultChanged {
			turned = true
			s.fault = ev.Fault
			close(s.turned)
			s.turned = make(chan struct{})
			continue
		}
		if c, ok := ev.Work.User.(*call); ok {
			c.happened(ev)
		}
	}
	if s.ended {
		return false
	}
	next, ok := s.model.Next()
	switch {
	case !ok:
		next = time.Time{}
		s.timer.Stop()
	case !next.Equal(s.next):
		s.timer.Reset(time.Until(next))
	}
	s.next = next
	return turned
}
