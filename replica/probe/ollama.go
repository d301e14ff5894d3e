package probe

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"switchyard/replica"
)

// ollama asks an Ollama server: every round what is loaded (/api/ps), now and
// then what there is. Slots are not reported, nor what it is doing.
type ollama struct {
	http    *client
	loaded  []ollamaEntry // as last said
	tags    []ollamaEntry
	tagsOK  bool
	missed  map[string]bool // loaded, but not in the list when it was last read
	list    modelList       // /v1/models, for the entries passed on
	note    string
	version string

	vram map[string]placement // by model, the best seen; survives outages
	gpu  bool                 // a model has been wholly on the GPU
}

// ollamaEntry is what is read of an entry of /api/tags and /api/ps.
type ollamaEntry struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Size     int64  `json:"size"`
	SizeVRAM int64  `json:"size_vram"`
	Context  int    `json:"context_length"` // absent before 0.7

	raw json.RawMessage
}

// placement is how much of a model was on the GPU.
type placement struct {
	share float64
	bytes int64
}

func (o *ollama) forget() {
	o.list.forget()
	o.version = ""
}

func (o *ollama) ask(ctx context.Context, _ bool) (replica.Facts, error) {
	f := up(replica.EngineOllama)
	if err := o.readLoaded(ctx, &f); err != nil {
		return f, err
	}
	if o.list.due() || o.unlisted() {
		if err := o.readLists(ctx); err != nil {
			return f, err
		}
		if o.version == "" {
			o.version = readVersion(ctx, o.http, "/api/version")
		}
	}
	f.Version = o.version
	f.Models, f.ModelsRead = o.merge(), o.tagsOK
	if f.Note == "" {
		f.Note = o.note
	}
	return f, nil
}

// readLoaded asks what is loaded. A server too busy to say is still up.
func (o *ollama) readLoaded(ctx context.Context, f *replica.Facts) error {
	a, err := o.http.get(ctx, "/api/ps")
	if err != nil {
		f.Note, err = alive(ctx, o.http, "/api/version", err)
		return err
	}
	if err := a.broken(); err != nil {
		return err
	}
	if entries, ok := readOllamaList(a); ok {
		o.loaded = entries
		return nil
	}
	if a.busy() {
		return nil
	}
	o.loaded = nil
	if f.Note = a.refused(o.http); f.Note == "" {
		f.Note = "GET /api/ps does not tell which models are loaded: " + a.summary()
	}
	return nil
}

// unlisted reports whether a model is loaded that the list does not have: it
// was pulled since. One that a fresh list does not have either (it was
// deleted) is not looked for again.
func (o *ollama) unlisted() bool {
	return o.tagsOK && slices.ContainsFunc(o.loaded, func(e ollamaEntry) bool {
		return !o.missed[e.Name] && !listed(o.tags, e.Name)
	})
}

func listed(entries []ollamaEntry, name string) bool {
	return slices.ContainsFunc(entries, func(e ollamaEntry) bool { return e.Name == name })
}

// readLists asks for the models there are, in both formats that clients ask
// for. What is not answered in time stays as it was.
func (o *ollama) readLists(ctx context.Context) error {
	a, err := o.http.get(ctx, "/api/tags")
	if err != nil {
		if isTimeout(err) && ctx.Err() == nil {
			return nil
		}
		return err
	}
	tags, ok := readOllamaList(a)
	if ok {
		o.tags, o.tagsOK, o.note = tags, true, ""
		o.missed = map[string]bool{}
		for _, e := range o.loaded {
			o.missed[e.Name] = !listed(tags, e.Name)
		}
	} else if a.hidden() || a.status == http.StatusOK {
		o.tags, o.tagsOK, o.note = nil, false, a.refused(o.http)
		if o.note == "" {
			o.note = "its models are not listed (GET /api/tags: " + a.summary() + "): any name is sent there"
		}
	}
	if _, err := o.list.update(ctx, o.http); err != nil && !isTimeout(err) {
		return err
	}
	return nil
}

// merge makes one list of what there is and what is loaded.
func (o *ollama) merge() []replica.Model {
	list := make([]replica.Model, 0, len(o.tags)+len(o.loaded))
	at := make(map[string]int, len(o.tags))
	add := func(name string) *replica.Model {
		if i, ok := at[name]; ok {
			return &list[i]
		}
		at[name] = len(list)
		m := replica.Model{Name: name}
		if short, ok := strings.CutSuffix(name, ":latest"); ok {
			m.Aliases = []string{short}
		}
		list = append(list, m)
		return &list[len(list)-1]
	}
	for _, t := range o.tags {
		m := add(t.Name)
		m.Tag, m.Digest = t.raw, t.Digest
	}
	for _, r := range o.loaded {
		m := add(r.Name)
		m.Resident, m.PS = true, r.raw
		m.Context, m.Size, m.SizeVRAM = max(0, r.Context), r.Size, r.SizeVRAM
		m.OnCPU = o.fellOffGPU(r)
		if m.Digest == "" {
			m.Digest = r.Digest
		}
	}
	shareRunners(list)
	for _, e := range o.list.models {
		if i, ok := at[e.Name]; ok {
			list[i].OpenAI = e.OpenAI
		}
	}
	return list
}

// shareRunners tells the other names of a loaded model that it is loaded: Ollama
// runs names of one digest in one runner, and lists only one of them as loaded.
func shareRunners(list []replica.Model) {
	for i := range list {
		m := &list[i]
		if m.Resident || m.Digest == "" {
			continue
		}
		for _, o := range list {
			if o.PS != nil && o.Digest == m.Digest {
				m.Resident, m.Context, m.Size, m.SizeVRAM, m.OnCPU = true, o.Context, o.Size, o.SizeVRAM, o.OnCPU
			}
		}
	}
}

// fellOffGPU compares where a model is with what this replica showed before. A
// size_vram below size is no fault by itself: a host may have no GPU (and yet
// report some bytes), a model may never have fitted. So a model has fallen off
// when both its share on the GPU and its bytes there are clearly below its own
// best (a smaller context takes fewer bytes, a larger one a smaller share), or
// when nothing at all is on a GPU that has held a whole model before.
func (o *ollama) fellOffGPU(e ollamaEntry) bool {
	const clearly = 0.9
	if e.Size <= 0 || e.SizeVRAM < 0 {
		return false
	}
	if o.vram == nil {
		o.vram = map[string]placement{}
	}
	now := placement{share: float64(e.SizeVRAM) / float64(e.Size), bytes: e.SizeVRAM}
	best, seen := o.vram[e.Name]
	if seen || len(o.vram) < maxModels {
		o.vram[e.Name] = placement{max(best.share, now.share), max(best.bytes, now.bytes)}
	}
	o.gpu = o.gpu || now.share >= 1
	if now.share < clearly*best.share && float64(now.bytes) < clearly*float64(best.bytes) {
		return true
	}
	return o.gpu && !slices.ContainsFunc(o.loaded, func(e ollamaEntry) bool { return e.SizeVRAM > 0 })
}

// readOllamaList reads an answer of /api/tags or /api/ps; ok is false where it
// is none.
func readOllamaList(a answer) (entries []ollamaEntry, ok bool) {
	var list struct {
		Models json.RawMessage `json:"models"`
	}
	if !a.decode(&list) {
		return nil, false
	}
	rows, ok := readArray(list.Models)
	if !ok {
		return nil, false
	}
	seen := make(map[string]bool, len(rows))
	for _, raw := range rows {
		var e ollamaEntry
		if json.Unmarshal(raw, &e) != nil || e.Name == "" || seen[e.Name] {
			continue
		}
		seen[e.Name] = true
		e.raw = compact(raw)
		entries = append(entries, e)
	}
	return entries, true
}
