package simserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"switchyard/simserver/model"
)

// control answers /sim/…: what steers and watches the simulation.
func (s *Server) control(w http.ResponseWriter, r *http.Request, path string) {
	s.front.markControl(r)
	switch r.Method + " " + path {
	case "GET stats", "HEAD stats":
		reply(w, http.StatusOK, s.Stats())
	case "POST reset":
		s.Reset()
		reply(w, http.StatusOK, s.Stats())
	case "POST fault":
		s.controlFault(w, r)
	case "GET fault":
		var f Fault
		s.do(func(now time.Time) { f = s.model.Fault(now) })
		reply(w, http.StatusOK, map[string]any{"kind": f.Kind})
	default:
		reply(w, http.StatusNotFound, map[string]string{"error": fmt.Sprintf("%s %s: want GET /sim/stats, GET or POST /sim/fault, or POST /sim/reset", r.Method, r.URL.Path)})
	}
}

func (s *Server) controlFault(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f, err := parseFault(body)
	if err == nil {
		err = s.SetFault(f)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	if f.Kind == model.FaultCrash || f.Kind == model.FaultRefuse {
		w.Header().Set("Connection", "close")
	}
	reply(w, http.StatusOK, map[string]any{"kind": f.Kind})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// wireFault is a fault as JSON and YAML say it.
type wireFault struct {
	Kind        string   `json:"kind" yaml:"kind"`
	For         duration `json:"for" yaml:"for"`
	Status      int      `json:"status" yaml:"status"`
	Rate        float64  `json:"rate" yaml:"rate"`
	RetryAfter  duration `json:"retry_after" yaml:"retry_after"`
	Factor      float64  `json:"factor" yaml:"factor"`
	AfterTokens int      `json:"after_tokens" yaml:"after_tokens"`
	Reset       bool     `json:"reset" yaml:"reset"`
}

func (f wireFault) fault() Fault {
	return Fault{
		Kind: model.FaultKind(f.Kind), For: time.Duration(f.For), Status: f.Status, Rate: f.Rate,
		RetryAfter: time.Duration(f.RetryAfter), Factor: f.Factor, AfterTokens: f.AfterTokens, Reset: f.Reset,
	}
}

// duration reads a Go duration; in JSON also a number of seconds.
type duration time.Duration

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q: want a duration such as 500ms or 10s", b)
	}
	*d = duration(v)
	return nil
}

func (d *duration) UnmarshalJSON(b []byte) error {
	var seconds float64
	if json.Unmarshal(b, &seconds) == nil {
		*d = duration(seconds * float64(time.Second))
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s: want a duration such as \"500ms\" or \"10s\"", b)
	}
	return d.UnmarshalText([]byte(text))
}

// parseFault reads the body of POST /sim/fault.
func parseFault(body []byte) (Fault, error) {
	var wire wireFault
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&wire); err != nil {
		return Fault{}, fmt.Errorf(`reading the fault: %w: want {"kind": …} and as it needs them for, status, rate, retry_after, factor, after_tokens, reset`, err)
	}
	return wire.fault(), nil
}
