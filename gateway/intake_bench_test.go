package gateway

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"switchyard/admission"
	"switchyard/replica"
)

// deaf is an Observer that does nothing.
type deaf struct{}

func (deaf) RequestEnded(Record)                      {}
func (deaf) Refused(string, string, time.Duration)    {}
func (deaf) AttemptEnded(string, string)              {}
func (deaf) Retried(string)                           {}
func (deaf) ReplicaChanged(admission.Event)           {}
func (deaf) StreamBroken(string, string)              {}
func (deaf) FirstToken(string, string, time.Duration) {}

// BenchmarkRefusal is the whole intake of a request that is refused on arrival:
// headers, a body of 1 KiB or 256 KiB, parsing, admission, the answer. What is
// left out is net/http's own work.
func BenchmarkRefusal(b *testing.B) {
	for name, size := range map[string]int{"1KiB": 1 << 10, "256KiB": 256 << 10} {
		b.Run(name, func(b *testing.B) {
			u, _ := url.Parse("http://127.0.0.1:1")
			cfg := admission.Config{
				Classes: []admission.Class{{Name: "standard", Deadline: time.Minute}}, DefaultClass: "standard", Enabled: true,
				Replicas: []replica.Config{{Name: "a", URL: u.String(), Engine: replica.EngineOpenAI, Slots: map[string]int{"*": 1}}},
			}
			ctl := admission.New(cfg, time.Now())
			ctl.Report(time.Now(), "a", replica.Facts{Up: true, Engine: replica.EngineOpenAI, ModelsRead: true, Models: []replica.Model{{Name: "other"}}})
			g := New(Settings{
				Classes: []Class{{"standard", time.Minute}}, Replicas: []Replica{{Name: "a", URL: u}},
				Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			}, ctl, deaf{})
			body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", size-60) + `"}]}`)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, chat, bytes.NewReader(body))
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				if w.Code != http.StatusNotFound {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
