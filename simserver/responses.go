package simserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"switchyard/simserver/model"
)

// responsesRequest is the body of /v1/responses.
type responsesRequest struct {
	Model              string          `json:"model"`
	Input              input           `json:"input"`
	Instructions       string          `json:"instructions"`
	Tools              json.RawMessage `json:"tools"`
	Stream             bool            `json:"stream"`
	MaxOutputTokens    *int            `json:"max_output_tokens"`
	Store              *bool           `json:"store"`
	PreviousResponseID string          `json:"previous_response_id"`
}

// input is a string or a list of messages; other items count for nothing.
type input struct{ list []message }

func (i *input) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		i.list = []message{{Role: "user", Content: content{text: text}}}
		return nil
	}
	return json.Unmarshal(b, &i.list)
}

func parseResponses(body []byte) (*ask, error) {
	var q responsesRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	if len(q.Input.list) == 0 {
		return nil, errNoInput
	}
	a := &ask{name: q.Model, messages: true, store: q.Store == nil || *q.Store, previous: q.PreviousResponseID}
	a.Model, a.Stream = q.Model, q.Stream
	a.Max = maxTokens(q.MaxOutputTokens)
	a.Prompts = append(a.Prompts, promptOf(q.Instructions, q.Tools, q.Input.list))
	a.turn = q.Input.list
	return a, nil
}

// responsesForm is the answer of /v1/responses.
type responsesForm struct {
	contentJSON string
	keep        *responseStore // nil: the engine keeps none
}

func (f *responsesForm) contentType(stream bool) string {
	if stream {
		return "text/event-stream"
	}
	return f.contentJSON
}

func (f *responsesForm) progress(b []byte, _ *answer) []byte { return b }

// event appends an event's beginning up to its own fields.
func (f *responsesForm) event(b []byte, a *answer, kind string) []byte {
	b = fmt.Appendf(b, "event: %s\ndata: {\"type\":%q,\"sequence_number\":%d", kind, kind, a.events)
	a.events++
	return b
}

// object is the response as a whole; with text it is complete.
func (f *responsesForm) object(b []byte, a *answer, status, text string) []byte {
	b = fmt.Appendf(b, `{"id":"resp_%s","object":"response","created_at":%d,"status":%q,"error":null,"incomplete_details":`, a.id, a.created, status)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = append(quoted(append(b, `,"model":`...), a.name), `,"output":[`...)
	if status != "in_progress" {
		b = f.item(b, a, "completed", text)
	}
	b = fmt.Appendf(b, `],"parallel_tool_calls":true,"store":%t,"tools":[],"usage":`, a.ask.store)
	if status == "in_progress" {
		return append(b, "null}"...)
	}
	p, c, n := a.totals()
	return fmt.Appendf(b, `{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}}`, p, c, n, p+n)
}

// item is the one message of the output.
func (f *responsesForm) item(b []byte, a *answer, status, text string) []byte {
	b = fmt.Appendf(b, `{"id":"msg_%s","type":"message","role":"assistant","status":%q,"content":[`, a.id, status)
	if status == "completed" {
		b = f.part(b, text)
	}
	return append(b, "]}"...)
}

func (f *responsesForm) part(b []byte, text string) []byte {
	return append(quoted(append(b, `{"type":"output_text","text":`...), text), `,"annotations":[]}`...)
}

func (f *responsesForm) place(b []byte, a *answer) []byte {
	return fmt.Appendf(b, `,"item_id":"msg_%s","output_index":0,"content_index":0`, a.id)
}

func (f *responsesForm) first(b []byte, a *answer) []byte {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		b = append(f.event(b, a, kind), `,"response":`...)
		b = append(f.object(b, a, "in_progress", ""), "}\n\n"...)
	}
	b = append(f.event(b, a, "response.output_item.added"), `,"output_index":0,"item":`...)
	b = append(f.item(b, a, "in_progress", ""), "}\n\n"...)
	b = append(f.place(f.event(b, a, "response.content_part.added"), a), `,"part":`...)
	return append(f.part(b, ""), "}\n\n"...)
}

func (f *responsesForm) token(b []byte, a *answer, _ int, text string) []byte {
	b = append(f.place(f.event(b, a, "response.output_text.delta"), a), `,"delta":"`...)
	return append(append(b, text...), `"}`+"\n\n"...)
}

func (f *responsesForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (f *responsesForm) status(a *answer) string {
	if a.tasks[0].limited {
		return "incomplete"
	}
	return "completed"
}

func (f *responsesForm) last(b []byte, a *answer) []byte {
	text := a.text(0)
	b = append(f.place(f.event(b, a, "response.output_text.done"), a), `,"text":`...)
	b = append(quoted(b, text), "}\n\n"...)
	b = append(f.place(f.event(b, a, "response.content_part.done"), a), `,"part":`...)
	b = append(f.part(b, text), "}\n\n"...)
	b = append(f.event(b, a, "response.output_item.done"), `,"output_index":0,"item":`...)
	b = append(f.item(b, a, "completed", text), "}\n\n"...)
	b = append(f.event(b, a, "response."+f.status(a)), `,"response":`...)
	whole := f.whole(nil, a)
	return append(append(b, whole...), "}\n\n"...)
}

func (f *responsesForm) whole(b []byte, a *answer) []byte {
	text := a.text(0)
	b = f.object(b, a, f.status(a), text)
	if f.keep != nil && a.ask.store {
		f.keep.put("resp_"+a.id, stored{
			body:  b[:len(b):len(b)],
			parts: chain(append([]model.Part(nil), a.ask.Prompts[0]...), "assistant", text, messageTokens),
		})
	}
	return b
}

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
