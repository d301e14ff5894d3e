// Package dashboard is the admin side: the page, its live stream, and the API
// under /admin/. It renders snapshots and passes operators' wishes on; it
// holds no state of its own but the charts' past and never touches the data
// plane.
package dashboard

import (
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"switchyard/admission"
	"switchyard/telemetry"
)

//go:embed page
var page embed.FS

// Admin serves the admin listener.
type Admin struct {
	Controller *admission.Controller
	Decisions  *telemetry.Decisions
	Registry   *prometheus.Registry
	Token      string       // bearer token; empty: none is needed
	Reload     func() error // reads the configuration again
	Ready      func() bool  // whether the data plane takes requests

	feed feed
}

// Handler returns the routes. Run feeds the live streams it serves, Close ends
// them.
func (a *Admin) Handler() http.Handler {
	a.feed.init()
	a.Decisions.OnEnd(a.feed.ended)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	static, _ := fs.Sub(page, "page")
	files := secure(http.FileServerFS(static))
	mux.Handle("GET /{$}", files)
	mux.Handle("GET /dashboard/", http.StripPrefix("/dashboard", files))
	locked := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, a.locked(h)) }
	metrics := promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{})
	locked("GET /metrics", metrics.ServeHTTP)
	locked("GET /admin/state", a.state)
	locked("GET /admin/events", a.events)
	locked("GET /admin/history", a.history)
	locked("GET /admin/decisions", a.decisions)
	locked("GET /admin/decisions/{id}", a.decision)
	locked("POST /admin/replicas/{name}/drain", a.drain(true))
	locked("POST /admin/replicas/{name}/resume", a.drain(false))
	locked("POST /admin/reload", a.reload)
	// A page of another site must not drain replicas through the operator's
	// browser.
	return a.named(http.NewCrossOriginProtection().Handler(mux))
}

// named refuses names that are not this host's where there is no token: a web
// page whose name was made to point here (DNS rebinding) is of the same origin
// as far as the browser knows.
func (a *Admin) named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if a.Token == "" && host != "localhost" && net.ParseIP(strings.Trim(host, "[]")) == nil {
			writeText(w, http.StatusForbidden, "the admin side answers to localhost and addresses only, unless admin.token_env is set")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Close ends the live streams.
func (a *Admin) Close() { a.feed.close() }

// locked asks for the token where there is one.
func (a *Admin) locked(h http.HandlerFunc) http.Handler {
	want := sha256.Sum256([]byte(a.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.Token != "" {
			got := sha256.Sum256([]byte(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
			if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
				w.Header().Set("WWW-Authenticate", `Bearer realm="switchyard admin"`)
				writeText(w, http.StatusUnauthorized, "the admin token is missing or wrong: send Authorization: Bearer TOKEN")
				return
			}
		}
		w.Header().Set("Cache-Control", "no-store")
		h(w, r)
	})
}

// secure adds the headers of a page that needs nothing from anywhere else.
func secure(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		h.ServeHTTP(w, r)
	})
}

func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if !a.Ready() {
		writeText(w, http.StatusServiceUnavailable, "not ready: no replica can serve, or the gateway is stopping")
		return
	}
	writeText(w, http.StatusOK, "ok")
}

func (a *Admin) state(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.Controller.Watch(time.Now()))
}

// defaultDecisions is how many decisions a request without a limit gets.
const defaultDecisions = 100

func (a *Admin) decisions(w http.ResponseWriter, r *http.Request) {
	n := defaultDecisions
	if s := r.FormValue("limit"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			writeJSON(w, http.StatusBadRequest, failure{"limit is " + strconv.Quote(s) + ": want a number from 1"})
			return
		}
	}
	writeJSON(w, http.StatusOK, a.Decisions.Last(n))
}

func (a *Admin) decision(w http.ResponseWriter, r *http.Request) {
	d, ok := a.Decisions.ByID(r.PathValue("id"))
	if !ok {
		writeJSON(w, http.StatusNotFound, failure{"no decision on request " + strconv.Quote(r.PathValue("id")) + " is remembered"})
		return
	}
	d.Explain()
	writeJSON(w, http.StatusOK, d)
}

func (a *Admin) drain(on bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		if !a.Controller.DrainReplica(time.Now(), name, on) {
			writeJSON(w, http.StatusNotFound, failure{"there is no replica " + strconv.Quote(name)})
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"replica": name, "draining": on})
	}
}

func (a *Admin) reload(w http.ResponseWriter, _ *http.Request) {
	if err := a.Reload(); err != nil {
		writeJSON(w, http.StatusUnprocessableEntity, failure{err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"reloaded": true})
}

type failure struct {
	Error string `json:"error"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client has left; nothing is lost
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// NewServer returns the HTTP server of the admin listener.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
}
