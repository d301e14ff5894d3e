package simserver

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var engines = []string{"llamacpp", "ollama", "vllm", "openai"}

const (
	chatPath = "/v1/chat/completions"
	hello    = `{"model":"tiny","messages":[{"role":"user","content":"hello there"}]}`
	helloS   = `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello there"}]}`
)

func long(stream bool) string {
	body := `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("long ", 20000) + `"}]`
	if stream {
		body += `,"stream":true`
	}
	return body + "}"
}

// R1, R10: a client may leave in any phase and in two ways; the work counts as
// in hand until the engine has noticed, and then its slot is free. Where the
// connection ends by itself, the work had stopped before.
func TestDepartureInEachPhase(t *testing.T) {
	phases := map[string]struct {
		body  string
		busy  bool // others hold all slots
		ready func(*Server) bool
	}{
		"decoding":          {helloS, false, func(s *Server) bool { return s.Stats().TokensGenerated > 2 }},
		"decoding, whole":   {hello, false, func(s *Server) bool { return s.Stats().TokensGenerated > 2 }},
		"prompt":            {long(true), false, func(s *Server) bool { return s.Stats().InHand == 1 }},
		"prompt, whole":     {long(false), false, func(s *Server) bool { return s.Stats().InHand == 1 }},
		"queued":            {helloS, true, func(s *Server) bool { return s.Stats().InHand == 2 }},
		"queued, whole":     {hello, true, func(s *Server) bool { return s.Stats().InHand == 2 }},
		"hanging":           {helloS, false, func(s *Server) bool { return s.Stats().InHand == 1 }},
		"hanging, whole":    {hello, false, func(s *Server) bool { return s.Stats().InHand == 1 }},
		"stalled in stream": {helloS, false, func(s *Server) bool { return s.Stats().TokensGenerated == 2 }},
	}
	for _, engine := range engines {
		for name, p := range phases {
			for _, half := range []bool{false, true} {
				t.Run(engine+"/"+name+map[bool]string{true: "/half-closed", false: "/closed"}[half], func(t *testing.T) {
					t.Parallel()
					s := start(t, Options{
						Engine: engine, Models: []string{"tiny"}, Slots: 1, Notice: 60 * time.Millisecond,
						Prefill: 1000, Decode: 200, Context: 100_000, OutputTokens: "fixed:100000",
					})
					var other net.Conn
					stays := 0
					if p.busy {
						other, stays = raw(t, s, chatPath, helloS), 1
						until(t, "the slot is taken", func() bool { return s.Stats().TokensGenerated > 0 })
					}
					switch {
					case strings.HasPrefix(name, "hanging"):
						require.NoError(t, s.SetFault(Fault{Kind: "hang"}))
					case strings.HasPrefix(name, "stalled"):
						require.NoError(t, s.SetFault(Fault{Kind: "stall", AfterTokens: 2}))
					}
					c := raw(t, s, chatPath, p.body).(*net.TCPConn)
					until(t, "the phase", func() bool { return p.ready(s) })
					require.Equal(t, 1+stays, s.Stats().InHand)
					if half {
						require.NoError(t, c.CloseWrite())
						_, _ = io.Copy(io.Discard, c)
						require.Equal(t, stays, s.Stats().InHand, "the connection ended after the work")
					} else {
						require.NoError(t, c.Close())
						until(t, "noticed", func() bool { return s.Stats().InHand == stays })
					}
					st := s.Stats()
					require.Equal(t, 1, st.CutByClient)
					require.Zero(t, st.Completed)
					if !p.busy {
						require.InDelta(t, 0.06, st.ZombieSeconds, 0.02)
					}
					if other != nil {
						_ = other.Close()
					}
				})
			}
		}
	}
}

// llama.cpp by itself: a stream's departure shows within a token.
func TestDepartureAsTheEnginesNotice(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{Engine: engine, Models: []string{"tiny"}, Slots: 1, OutputTokens: "fixed:8000", Decode: 20})
			c := raw(t, s, chatPath, helloS).(*net.TCPConn)
			until(t, "it runs", func() bool { return s.Stats().TokensGenerated > 2 })
			require.NoError(t, c.CloseWrite())
			left := time.Now()
			_, _ = io.Copy(io.Discard, c)
			took := time.Since(left)
			require.Zero(t, s.Stats().InHand)
			if engine == "ollama" {
				require.Greater(t, took, 90*time.Millisecond)
			}
			require.Less(t, took, 2*time.Second)
		})
	}
}

// When the headers of a stream come: llama.cpp when the slot starts, Ollama
// with the first token, the others at once.
func TestHeadersOfAStream(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{Engine: engine, Models: []string{"tiny"}, Slots: 1, OutputTokens: "fixed:8000", Context: 100_000, Prefill: 1, Notice: -1})
			require.NoError(t, s.SetFault(Fault{Kind: "stall"})) // nothing gets beyond its start
			head := make(chan int, 2)
			get := func() {
				c := raw(t, s, chatPath, helloS)
				go func() {
					resp, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err == nil {
						head <- resp.StatusCode
					}
				}()
			}
			get()
			until(t, "one has the slot", func() bool { return s.Stats().InHand == 1 })
			get()
			until(t, "the other is queued", func() bool { return s.Stats().InHand == 2 })
			want := map[string]int{"llamacpp": 1, "ollama": 0, "vllm": 2, "openai": 2}[engine]
			for range want {
				require.Equal(t, http.StatusOK, <-head)
			}
			select {
			case <-head:
				require.Fail(t, "headers too early")
			case <-time.After(50 * time.Millisecond):
			}
		})
	}
}
