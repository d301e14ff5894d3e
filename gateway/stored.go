package gateway

import (
	"container/list"
	"sync"
)

// maxStored bounds how many response ids are remembered.
const maxStored = 16384

// stored remembers which replica gave which Responses API id, and to whom:
// such a response lives only there, and only its key may ask for it. The least
// recently used are forgotten; their ids are then unknown (404).
type stored struct {
	max int
	mu  struct {
		sync.Mutex
		byID  map[string]*list.Element
		order *list.List // of storedEntry, most recently used first
	}
}

type storedEntry struct{ id, replica, key string }

func newStored(limit int) *stored {
	s := &stored{max: limit}
	s.mu.byID = map[string]*list.Element{}
	s.mu.order = list.New()
	return s
}

// put remembers that the replica gave the id to a request of the key.
func (s *stored) put(id, replica, key string) {
	if id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.mu.byID[id]; e != nil {
		e.Value = storedEntry{id, replica, key}
		s.mu.order.MoveToFront(e)
		return
	}
	s.mu.byID[id] = s.mu.order.PushFront(storedEntry{id, replica, key})
	if s.mu.order.Len() > s.max {
		s.remove(s.mu.order.Back())
	}
}

// find returns the replica that gave the id to the key.
func (s *stored) find(id, key string) (replica string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.byID[id]
	if e == nil {
		return "", false
	}
	entry := e.Value.(storedEntry)
	if entry.key != key {
		return "", false
	}
	s.mu.order.MoveToFront(e)
	return entry.replica, true
}

// forget drops an id.
func (s *stored) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.mu.byID[id]; e != nil {
		s.remove(e)
	}
}

func (s *stored) remove(e *list.Element) {
	delete(s.mu.byID, e.Value.(storedEntry).id)
	s.mu.order.Remove(e)
}

// remember notes that the replica gave a Responses API answer its id.
func (j *job) remember(id, replica string) { j.gw.stored.put(id, replica, j.key) }
