package simserver

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	"switchyard/simserver/model"
)

func (f *ollamaFace) root(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		f.stray(w, r, "")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", "17")
	_, _ = w.Write([]byte("Ollama is running"))
}

func (f *ollamaFace) version(w http.ResponseWriter, r *http.Request) {
	f.s.writeJSON(w, r, http.StatusOK, []byte(`{"version":"`+ollamaVersion+`"}`))
}

func (f *ollamaFace) views() (views []model.ModelView, cpu bool) {
	f.s.do(func(now time.Time) {
		views = f.s.model.Models(now)
		cpu = f.s.model.Fault(now).Kind == model.FaultCPU
	})
	return views, cpu
}

const (
	ollamaDetails = `"details":{"parent_model":"","format":"gguf","family":"llama","families":["llama"],"parameter_size":"19.53M","quantization_level":"F16"}`
	ollamaSize    = 39795997
)

// digest is a made-up but stable digest of a model.
func digest(name string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("%x%x", h.Sum(nil), h.Sum([]byte{})[:16])
}

func (f *ollamaFace) tags(w http.ResponseWriter, r *http.Request) {
	views, _ := f.views()
	b := []byte(`{"models":[`)
	for i, v := range views {
		if i > 0 {
			b = append(b, ',')
		}
		n := quotedString(v.Name)
		b = fmt.Appendf(b, `{"name":%s,"model":%s,"modified_at":%q,"size":%d,"digest":%q,%s}`,
			n, n, f.s.born.UTC().Format(time.RFC3339Nano), ollamaSize, digest(v.Name), ollamaDetails)
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, "]}"...))
}

func (f *ollamaFace) ps(w http.ResponseWriter, r *http.Request) {
	views, cpu := f.views()
	b, n := []byte(`{"models":[`), 0
	for _, v := range views {
		if !v.Resident {
			continue
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		expires := v.Expires
		if expires.IsZero() {
			expires = f.s.born.AddDate(290, 0, 0) // kept for ever
		}
		size := ollamaSize + v.Context*f.s.config.Slots*512
		vram := size
		if cpu {
			vram = 0
		}
		name := quotedString(v.Name)
		b = fmt.Appendf(b, `{"name":%s,"model":%s,"size":%d,"digest":%q,%s,"expires_at":%q,"size_vram":%d,"context_length":%d}`,
			name, name, size, digest(v.Name), ollamaDetails, expires.UTC().Format(time.RFC3339Nano), vram, v.Context)
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, "]}"...))
}

func (f *ollamaFace) models(w http.ResponseWriter, r *http.Request) {
	views, _ := f.views()
	b := []byte(`{"object":"list","data":[`)
	for i, v := range views {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"id":%s,"object":"model","created":%d,"owned_by":"library"}`, quotedString(v.Name), f.s.born.Unix())
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, "]}\n"...))
}

func (f *ollamaFace) oneModel(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path[len("/v1/models/"):]
	var known bool
	f.s.do(func(time.Time) { _, known = f.s.model.Known(name) })
	if !known {
		f.fail(w, r, f.reject(&model.Rejection{Kind: model.RejectModel}, &ask{name: name}))
		return
	}
	f.s.writeJSON(w, r, http.StatusOK, fmt.Appendf(nil, `{"id":%s,"object":"model","created":%d,"owned_by":"library"}`+"\n", quotedString(name), f.s.born.Unix()))
}
