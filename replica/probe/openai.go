package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"switchyard/replica"
)

// maxModels bounds what a broken or hostile list can make us keep.
const maxModels = 10_000

// openAIEntry is what is read of an entry of /v1/models. Servers differ in
// where they say how long a context may be.
type openAIEntry struct {
	ID      string   `json:"id"`
	Aliases []string `json:"aliases"`
	OwnedBy string   `json:"owned_by"`

	MaxModelLen   int `json:"max_model_len"`  // vLLM, SGLang
	ContextLength int `json:"context_length"` // several others
	Meta          struct {
		Context int `json:"n_ctx"` // llama.cpp
	} `json:"meta"`
	Status struct { // llama.cpp's router
		Value string   `json:"value"`
		Args  []string `json:"args"`
	} `json:"status"`

	raw json.RawMessage
}

func (e openAIEntry) context() int {
	for _, n := range []int{e.MaxModelLen, e.Meta.Context, e.ContextLength} {
		if n > 0 {
			return n
		}
	}
	return 0
}

func (e openAIEntry) model() replica.Model {
	aliases := slices.DeleteFunc(slices.Clone(e.Aliases), func(a string) bool { return a == e.ID || a == "" })
	return replica.Model{Name: e.ID, Aliases: aliases, Resident: true, Context: e.context(), OpenAI: e.raw}
}

// readOpenAIList reads an answer of /v1/models. ok is false where it is no
// such list. An entry with fields of unexpected types is kept for its id.
func readOpenAIList(a answer) (entries []openAIEntry, ok bool) {
	var list struct {
		Data json.RawMessage `json:"data"`
	}
	if !a.decode(&list) {
		return nil, false
	}
	rows, ok := readArray(list.Data)
	if !ok {
		return nil, false
	}
	seen := make(map[string]bool, len(rows))
	for _, raw := range rows {
		var e openAIEntry
		if json.Unmarshal(raw, &e) != nil {
			var id struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(raw, &id) != nil {
				continue
			}
			e = openAIEntry{ID: id.ID}
		}
		if e.ID == "" || seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		e.raw = compact(raw)
		entries = append(entries, e)
	}
	return entries, true
}

// readArray splits a JSON array; null counts as an empty one, for that is how
// some servers write it.
func readArray(raw json.RawMessage) (rows []json.RawMessage, ok bool) {
	if raw == nil || json.Unmarshal(raw, &rows) != nil {
		return nil, false
	}
	return rows[:min(len(rows), maxModels)], true
}

// compact copies an entry out of the answer it came in, in one line: lists of
// Ollama clients and event streams are read by line.
func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return bytes.Clone(raw)
	}
	return b.Bytes()
}

func models(entries []openAIEntry) []replica.Model {
	list := make([]replica.Model, 0, len(entries))
	for _, e := range entries {
		list = append(list, e.model())
	}
	return list
}

// smallestContext is the context that holds for all models; 0 if one is unknown.
func smallestContext(list []replica.Model) int {
	if len(list) == 0 {
		return 0
	}
	return slices.MinFunc(list, func(a, b replica.Model) int { return a.Context - b.Context }).Context
}

// modelList remembers a model list between the rounds that read it.
type modelList struct {
	models []replica.Model
	read   bool   // the server gave a list
	note   string // why it did not
	known  bool   // asked since the last contact
	age    int    // rounds since it was asked for
}

// due reports whether this round should ask again, and counts the round.
func (l *modelList) due() bool {
	l.age++
	return !l.known || l.age >= listEvery
}

// forget has the next round ask again; the list stays until then.
func (l *modelList) forget() { l.known = false }

// update asks for /v1/models. Only an unanswered question is an error; a busy
// server (429, 503) leaves the list as it is, to be asked again next round.
func (l *modelList) update(ctx context.Context, c *client) (answer, error) {
	a, err := c.get(ctx, "/v1/models")
	if err != nil {
		return a, err
	}
	entries, ok := readOpenAIList(a)
	switch {
	case ok:
		l.models, l.read, l.note = models(entries), true, ""
	case a.hidden():
		l.models, l.read, l.note = nil, false, a.refused(c)
		if l.note == "" {
			l.note = "its models are not listed (GET /v1/models: " + a.summary() + "): any name is sent there"
		}
	case a.status == http.StatusOK:
		l.models, l.read, l.note = nil, false, "GET /v1/models is no list of models: "+a.summary()
	default:
		return a, nil
	}
	l.known, l.age = true, 0
	return a, nil
}

func (l *modelList) put(f *replica.Facts) {
	f.Models, f.ModelsRead = l.models, l.read
	if f.Note == "" {
		f.Note = l.note
	}
}

// openAI asks any OpenAI-compatible server: its model list is all there is.
type openAI struct {
	http *client
	list modelList
}

func (o *openAI) forget() { o.list.forget() }

func (o *openAI) ask(ctx context.Context, _ bool) (replica.Facts, error) {
	f := up(replica.EngineOpenAI)
	a, err := o.list.update(ctx, o.http)
	if err != nil {
		return f, err
	}
	if err := a.broken(); err != nil {
		return f, err
	}
	f.Loading = a.loading()
	o.list.put(&f)
	f.Context = smallestContext(f.Models)
	return f, nil
}
