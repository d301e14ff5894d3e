package simserver

import (
	"fmt"
	"net/http"
	"sync"

	"switchyard/simserver/model"
)

// responseStore keeps the last responses that were to be kept.
type responseStore struct {
	mu struct {
		sync.Mutex
		byID  map[string]stored
		order []string
	}
}

type stored struct {
	body  []byte
	parts []model.Part // the conversation up to and with the response
}

const storedResponses = 1000

func (s *responseStore) put(id string, r stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.byID == nil {
		s.mu.byID = make(map[string]stored)
	}
	s.mu.byID[id] = r
	s.mu.order = append(s.mu.order, id)
	if len(s.mu.order) > storedResponses {
		delete(s.mu.byID, s.mu.order[0])
		s.mu.order = s.mu.order[1:]
	}
}

func (s *responseStore) get(id string) (stored, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.mu.byID[id]
	return r, ok
}

func (s *responseStore) remove(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.mu.byID[id]
	delete(s.mu.byID, id)
	return ok
}

// goOn puts a kept response in front of a new turn.
func (s *responseStore) goOn(a *ask) bool {
	r, ok := s.get(a.previous)
	if ok {
		parts := append([]model.Part(nil), r.parts...)
		for _, m := range a.turn {
			parts = chain(parts, m.Role, m.Content.text, messageTokens)
		}
		a.Prompts[0] = parts
	}
	return ok
}

// stored answers GET and DELETE of a kept response.
func (f *openAIFace) stored(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Path[len("/v1/responses/"):]
	kept, ok := f.kept.get(id)
	switch {
	case !ok:
		f.fail(w, r, noResponse(id))
	case r.Method == http.MethodDelete:
		f.kept.remove(id)
		f.s.writeJSON(w, r, http.StatusOK, append(quoted([]byte(`{"id":`), id), `,"object":"response.deleted","deleted":true}`...))
	default:
		f.s.writeJSON(w, r, http.StatusOK, kept.body)
	}
}

func noResponse(id string) problem {
	return problem{status: http.StatusNotFound, param: "response_id", message: fmt.Sprintf("Response with id '%s' not found.", id)}
}
