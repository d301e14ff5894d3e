package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"switchyard/admission"
	"switchyard/replica"
)

// health answers the paths that need no key: whether the process lives,
// whether it takes work, and what Ollama's clients ask first.
func (q *visit) health() {
	switch q.ep.Path {
	case "/readyz":
		switch {
		case q.g.draining.Load() != nil:
			q.text(http.StatusServiceUnavailable, "draining\n")
		case !q.g.controller.Snapshot(q.at).Serving:
			q.text(http.StatusServiceUnavailable, "no replica is available\n")
		default:
			q.text(http.StatusOK, "ok\n")
		}
	case "/healthz":
		q.text(http.StatusOK, "ok\n")
	default:
		q.text(http.StatusOK, "Ollama is running")
	}
}

func (q *visit) text(status int, body string) {
	q.send(status, "text/plain; charset=utf-8", []byte(body))
}

func (q *visit) json(body []byte) {
	q.send(http.StatusOK, "application/json; charset=utf-8", body)
}

func (q *visit) send(status int, contentType string, body []byte) {
	h := q.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	q.writable()
	q.w.WriteHeader(status)
	q.w.Write(body) // a client that is gone needs no answer
}

// list answers for the whole fleet what each replica answers for itself.
func (q *visit) list() {
	switch q.ep.Path {
	case "/v1/models":
		q.json(union(`{"object":"list","data":[`, q.openAIEntries()))
	case "/v1/models/":
		q.oneModel()
	case "/api/tags":
		q.json(union(`{"models":[`, q.tagEntries()))
	case "/api/ps":
		q.json(union(`{"models":[`, q.residentEntries()))
	case "/api/version":
		q.version()
	}
}

// entry is one line of a list.
type entry struct {
	name string
	raw  []byte
}

func union(open string, entries []entry) []byte {
	b := bytes.NewBufferString(open)
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(e.raw)
	}
	b.WriteString("]}")
	return b.Bytes()
}

// listed are the models that the key may see, each once, in the replicas'
// order; of several replicas with the model one that is up speaks for it. An
// alias hides a model of its name.
func (q *visit) listed() []admission.ListedModel {
	all := q.g.controller.ListModels(q.at)
	slices.SortStableFunc(all, func(a, b admission.ListedModel) int {
		return cmp.Compare(out(a), out(b))
	})
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(m admission.ListedModel) bool {
		gone := seen[m.Name] || q.v.aliases[m.Name] != nil || !q.key.mayUse(m.Name)
		seen[m.Name] = true
		return gone
	})
}

// out sorts replicas that are up before those that are not.
func out(m admission.ListedModel) int {
	if m.Up {
		return 0
	}
	return 1
}

// goesBy reports whether the listed model is meant by the name.
func goesBy(m admission.ListedModel, name string) bool {
	return m.Name == name || slices.Contains(m.Aliases, name) ||
		m.Engine == replica.EngineOllama && sameModel(m.Name, name)
}

// openAIEntries are the lines of /v1/models.
func (q *visit) openAIEntries() (entries []entry) {
	models := q.listed()
	for _, m := range models {
		entries = append(entries, entry{m.Name, openAIEntry(m)})
	}
	for _, a := range q.v.Aliases {
		if !q.key.mayUse(a.Name) {
			continue
		}
		raw := newOpenAIEntry(a.Name, 0, "switchyard")
		if m := q.behind(a); m != nil {
			raw = renamed(openAIEntry(*m), a.Name, "id")
		}
		entries = append(entries, entry{a.Name, raw})
	}
	return entries
}

// behind is the first candidate of an alias that there is.
func (q *visit) behind(a Alias) *admission.ListedModel {
	all := q.g.controller.ListModels(q.at)
	for _, c := range a.Candidates {
		if i := slices.IndexFunc(all, func(m admission.ListedModel) bool { return goesBy(m, c) }); i >= 0 {
			return &all[i]
		}
	}
	return nil
}

// openAIEntry is the replica's own entry, or one made from what Ollama says.
func openAIEntry(m admission.ListedModel) []byte {
	if m.OpenAI != nil {
		return m.OpenAI
	}
	var tag struct {
		ModifiedAt time.Time `json:"modified_at"`
	}
	created := int64(0)
	if json.Unmarshal(m.Tag, &tag) == nil && !tag.ModifiedAt.IsZero() {
		created = tag.ModifiedAt.Unix()
	}
	return newOpenAIEntry(m.Name, created, "library")
}

func newOpenAIEntry(id string, created int64, owner string) []byte {
	raw, _ := json.Marshal(struct { // strings and numbers marshal always
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}{id, "model", created, owner})
	return raw
}

// renamed gives an entry another name in the given fields.
func renamed(raw []byte, name string, fields ...string) []byte {
	var e map[string]json.RawMessage
	if json.Unmarshal(raw, &e) != nil {
		return raw
	}
	quoted, _ := json.Marshal(name)
	for _, f := range fields {
		e[f] = quoted
	}
	fresh, err := json.Marshal(e)
	if err != nil {
		return raw
	}
	return fresh
}

// oneModel answers /v1/models/ID. An id may hold slashes, as they are or
// escaped.
func (q *visit) oneModel() {
	id, err := url.PathUnescape(strings.TrimPrefix(q.r.URL.EscapedPath(), q.ep.Path))
	entries := q.openAIEntries()
	if err == nil {
		for _, same := range []func(string) bool{
			func(name string) bool { return name == id },
			func(name string) bool { return sameModel(name, id) },
		} {
			if i := slices.IndexFunc(entries, func(e entry) bool { return same(e.name) }); i >= 0 {
				q.json(entries[i].raw)
				return
			}
		}
	}
	d := deny(admission.ReasonModelNotFound, "there is no model %q here", clipped(id))
	for _, e := range entries {
		d.Models = append(d.Models, e.name)
	}
	q.deny(d)
}

// tagEntries are the lines of /api/tags: what Ollama's own paths can serve.
func (q *visit) tagEntries() (entries []entry) {
	for _, m := range q.listed() {
		if m.Tag != nil {
			entries = append(entries, entry{m.Name, m.Tag})
		}
	}
	for _, a := range q.v.Aliases {
		if m := q.behind(a); m != nil && m.Tag != nil && q.key.mayUse(a.Name) {
			entries = append(entries, entry{a.Name, renamed(m.Tag, a.Name, "name", "model")})
		}
	}
	return entries
}

// residentEntries are the lines of /api/ps.
func (q *visit) residentEntries() (entries []entry) {
	for _, m := range q.g.controller.ListModels(q.at) {
		known := slices.ContainsFunc(entries, func(e entry) bool { return e.name == m.Name })
		if m.Up && m.PS != nil && !known && q.key.mayUse(m.Name) {
			entries = append(entries, entry{m.Name, m.PS})
		}
	}
	return entries
}

// version answers /api/version with the lowest of the Ollama replicas', since
// a client may use only what all of them can.
func (q *visit) version() {
	lowest := ""
	for _, r := range q.g.controller.Snapshot(q.at).Replicas {
		if r.Engine != string(replica.EngineOllama) || r.EngineVersion == "" {
			continue
		}
		if lowest == "" || compareVersions(r.EngineVersion, lowest) < 0 {
			lowest = r.EngineVersion
		}
	}
	if lowest == "" {
		q.deny(deny(admission.ReasonNoReplica, "there is no Ollama replica that has said its version"))
		return
	}
	raw, _ := json.Marshal(map[string]string{"version": lowest})
	q.json(raw)
}

// compareVersions orders versions number by number; a pre-release (0.33.0-rc2)
// comes before its release.
func compareVersions(a, b string) int {
	a, preA, _ := strings.Cut(strings.TrimPrefix(a, "v"), "-")
	b, preB, _ := strings.Cut(strings.TrimPrefix(b, "v"), "-")
	if c := slices.Compare(numbers(a), numbers(b)); c != 0 {
		return c
	}
	switch {
	case preA == preB:
		return 0
	case preA == "":
		return 1
	case preB == "":
		return -1
	}
	return strings.Compare(preA, preB)
}

func numbers(version string) (ns []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // what is no number counts as 0
		ns = append(ns, n)
	}
	return ns
}
