package simserver

import (
	"fmt"
	"net/http"
	"time"

	"switchyard/simserver/model"
)

// llama.cpp as a router is one server in front of a process for each model. It
// is one here when it has several models, all of them loaded: each has slots of
// its own, and what is asked must say which is meant.

func (f *llamaCppFace) router() bool { return len(f.s.config.Models) > 1 }

// asked finds the model that a request means; without a router there is only
// one, whatever the client calls it. false: it has been refused.
func (f *llamaCppFace) asked(w http.ResponseWriter, r *http.Request, name string) (string, bool) {
	if !f.router() {
		return f.s.config.Models[0], true
	}
	for _, m := range f.s.config.Models {
		if m == name {
			return m, true
		}
	}
	p := problem{status: http.StatusBadRequest, message: fmt.Sprintf("model '%s' not found", name)}
	if name == "" {
		p.message = "model name is missing from the request"
	}
	f.fail(w, r, p)
	return "", false
}

// ofModel makes the handler of a GET path that is about one model.
func (f *llamaCppFace) ofModel(serve func(w http.ResponseWriter, r *http.Request, name string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if name, ok := f.asked(w, r, r.URL.Query().Get("model")); ok {
			serve(w, r, name)
		}
	}
}

func (f *llamaCppFace) routerProps(w http.ResponseWriter, r *http.Request) {
	f.s.writeJSON(w, r, http.StatusOK, []byte(`{"role":"router","max_instances":4,"models_autoload":true,"model_alias":"llama-server","model_path":"none","default_generation_settings":{"params":{},"n_ctx":0},"ui_settings":{},"build_info":"`+llamaBuild+`","cors_proxy_enabled":false}`))
}

func (f *llamaCppFace) routerModels(w http.ResponseWriter, r *http.Request) {
	var views []model.ModelView
	f.s.do(func(now time.Time) { views = f.s.model.Models(now) })
	args := ""
	if d := f.s.opts.SleepIdle; d > 0 {
		args = fmt.Sprintf(`,"--sleep-idle-seconds","%d"`, int(d.Seconds()))
	}
	b := []byte(`{"data":[`)
	for i, v := range views {
		if i > 0 {
			b = append(b, ',')
		}
		status, n := "loaded", quotedString(v.Name)
		if !v.Resident {
			status = "sleeping"
		}
		b = fmt.Appendf(b, `{"id":%s,"aliases":[],"tags":[],"object":"model","owned_by":"llamacpp","created":%d,"status":{"value":%q,"args":["llama-server","--alias",%s,"--parallel","%d"%s]},"architecture":{"input_modalities":["text"],"output_modalities":["text"]},"source":"preset","can_remove":false}`,
			n, time.Now().Unix(), status, n, f.s.config.Slots, args)
	}
	f.s.writeJSON(w, r, http.StatusOK, append(b, `],"object":"list"}`...))
}
