package simserver

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func quick(engine string) Options {
	return Options{Engine: engine, Models: []string{"tiny"}, Slots: 2, Prefill: 1e5, Decode: 2000, OutputTokens: "fixed:20"}
}

// fault sets a fault as a user does.
func fault(t *testing.T, s *Server, body string) {
	resp, b := send(t, s, "POST", "/sim/fault", body)
	require.Equal(t, http.StatusOK, resp.StatusCode, b)
}

// attempt is what became of one request.
type attempt struct {
	err     error // no answer
	status  int
	header  http.Header
	body    string
	readErr error
}

func try(t *testing.T, s *Server, body string) (a attempt) {
	resp, err := open(client(t), s, "POST", chatPath, body)
	if err != nil {
		return attempt{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return attempt{status: resp.StatusCode, header: resp.Header, body: string(b), readErr: err}
}

func TestEachFault(t *testing.T) {
	streams := map[string]string{"stream": helloS, "whole": hello}
	for _, engine := range engines {
		for how, body := range streams {
			stream := how == "stream"
			t.Run(engine+"/"+how, func(t *testing.T) {
				t.Parallel()
				s := start(t, quick(engine))
				good := func() {
					a := try(t, s, body)
					require.NoError(t, a.err)
					require.NoError(t, a.readErr)
					require.Equal(t, 200, a.status)
					require.Contains(t, a.body, `"finish_reason":"stop"`)
				}
				good()

				fault(t, s, `{"kind":"error","status":502}`)
				a := try(t, s, body)
				require.Equal(t, 502, a.status)
				require.Contains(t, a.body, `"error"`)

				fault(t, s, `{"kind":"busy","status":429,"retry_after":"2500ms"}`)
				a = try(t, s, body)
				require.Equal(t, 429, a.status)
				require.Equal(t, "3", a.header.Get("Retry-After"))

				fault(t, s, `{"kind":"loading"}`)
				require.Equal(t, 503, try(t, s, body).status)

				fault(t, s, `{"kind":"reset"}`)
				a = try(t, s, body)
				require.ErrorIs(t, a.err, syscall.ECONNRESET)

				fault(t, s, `{"kind":"empty"}`)
				a = try(t, s, body)
				require.NoError(t, a.err)
				require.NoError(t, a.readErr)
				require.Equal(t, 200, a.status)
				require.Empty(t, a.body)

				fault(t, s, `{"kind":"cut","after_tokens":3}`)
				a = try(t, s, body)
				require.NoError(t, a.err)
				if stream {
					require.NoError(t, a.readErr, "a clean end")
					require.Equal(t, 3, strings.Count(a.body, `"content":"`)-strings.Count(a.body, `"content":""`))
				} else {
					require.ErrorIs(t, a.readErr, io.ErrUnexpectedEOF)
				}
				require.NotContains(t, a.body, "[DONE]")
				require.False(t, stream && strings.Contains(a.body, `"finish_reason":"`))

				fault(t, s, `{"kind":"cut","after_tokens":3,"reset":true}`)
				a = try(t, s, body)
				require.True(t, errors.Is(a.err, syscall.ECONNRESET) || errors.Is(a.readErr, syscall.ECONNRESET), "%v %v", a.err, a.readErr)

				fault(t, s, `{"kind":"garbage"}`)
				require.Equal(t, 200, try(t, s, body).status)

				fault(t, s, `{"kind":"none"}`)
				good()
				st := s.Stats()
				require.Zero(t, st.InHand)
				require.Equal(t, 10, st.Requests)
				require.LessOrEqual(t, st.MaxInHand, 2)
			})
		}
	}
}

func TestFaultsInWhichNothingComes(t *testing.T) {
	for _, engine := range engines {
		for kind, head := range map[string]bool{"hang": false, "hang-after-headers": true, "stall": true} {
			t.Run(engine+"/"+kind, func(t *testing.T) {
				t.Parallel()
				s := start(t, quick(engine))
				fault(t, s, `{"kind":"`+kind+`","after_tokens":2}`)
				tr := client(t)
				answered := make(chan *http.Response, 1)
				failed := make(chan error, 1)
				go func() {
					resp, err := open(tr, s, "POST", chatPath, helloS)
					if err != nil {
						failed <- err
						return
					}
					answered <- resp
				}()
				until(t, "it is in hand", func() bool { return s.Stats().InHand == 1 })
				resp, body := send(t, s, "GET", "/sim/stats", "")
				require.Equal(t, 200, resp.StatusCode, "/sim/ is answered during the fault")
				var st Stats
				require.NoError(t, json.Unmarshal([]byte(body), &st))
				require.Equal(t, 1, st.InHand)
				if head {
					r := <-answered
					require.Equal(t, 200, r.StatusCode)
					answered <- r
				} else {
					select {
					case <-answered:
						require.Fail(t, "a hanging server does not answer")
					case <-time.After(50 * time.Millisecond):
					}
				}
				fault(t, s, `{"kind":"none"}`)
				select {
				case r := <-answered:
					b, err := io.ReadAll(r.Body)
					require.NoError(t, err)
					require.NoError(t, r.Body.Close())
					require.Contains(t, string(b), "[DONE]", "it goes on when the fault is over")
				case err := <-failed:
					require.NoError(t, err)
				}
			})
		}
	}
}

// A server that hangs answers no probe either; one that answers inference with
// errors does.
func TestFaultsAndProbes(t *testing.T) {
	probe := map[string]string{"llamacpp": "/health", "ollama": "/api/version", "vllm": "/health", "openai": "/v1/models"}
	for _, engine := range engines {
		s := start(t, quick(engine))
		for _, f := range []string{`{"kind":"error"}`, `{"kind":"busy"}`, `{"kind":"stall"}`, `{"kind":"empty"}`} {
			fault(t, s, f)
			resp, _ := send(t, s, "GET", probe[engine], "")
			require.Equal(t, 200, resp.StatusCode, f)
		}
		fault(t, s, `{"kind":"reset"}`)
		_, err := open(client(t), s, "GET", probe[engine], "")
		require.Error(t, err)
		fault(t, s, `{"kind":"hang"}`)
		hung := make(chan int)
		c := client(t)
		go func() {
			resp, err := open(c, s, "GET", probe[engine], "")
			if err != nil {
				close(hung)
				return
			}
			_ = resp.Body.Close()
			hung <- resp.StatusCode
		}()
		select {
		case <-hung:
			require.Fail(t, "a probe got through to a hanging server")
		case <-time.After(50 * time.Millisecond):
		}
		fault(t, s, `{"kind":"none"}`)
		require.Equal(t, 200, <-hung, "it goes on when the fault is over")
		if engine != "ollama" {
			fault(t, s, `{"kind":"loading"}`)
			resp, _ := send(t, s, "GET", probe[engine], "")
			require.Equal(t, 503, resp.StatusCode)
		}
		require.Zero(t, s.Stats().Requests, "probes are no work")
	}
}

func TestFaultRefuse(t *testing.T) {
	s := start(t, quick("llamacpp"))
	kept := client(t)
	resp, _ := sendWith(t, kept, s, "POST", chatPath, hello)
	require.Equal(t, 200, resp.StatusCode)
	fault(t, s, `{"kind":"refuse"}`)
	_, err := open(kept, s, "POST", chatPath, hello)
	require.Error(t, err, "a connection from before is of no use")
	_, err = open(kept, s, "POST", chatPath, hello)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, s.SetFault(Fault{Kind: "none"}))
	resp, _ = sendWith(t, kept, s, "POST", chatPath, hello)
	require.Equal(t, 200, resp.StatusCode, "back at the same address")
}

func TestFaultRefuseLetsRunningAnswersEnd(t *testing.T) {
	s := start(t, Options{Engine: "llamacpp", Slots: 1, OutputTokens: "fixed:100", Decode: 500})
	resp, err := open(client(t), s, "POST", chatPath, helloS)
	require.NoError(t, err)
	require.NoError(t, s.SetFault(Fault{Kind: "refuse"}))
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Contains(t, string(b), "[DONE]")
	require.NoError(t, s.SetFault(Fault{Kind: "none"}))
	r, _ := send(t, s, "GET", "/health", "")
	require.Equal(t, 200, r.StatusCode)
}

func TestFaultCrash(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			o := quick(engine)
			o.OutputTokens, o.Slots = "fixed:8000", 1
			s := start(t, o)
			running, err := open(client(t), s, "POST", chatPath, helloS)
			require.NoError(t, err)
			queued := make(chan error, 1)
			tr := client(t)
			go func() {
				r, err := open(tr, s, "POST", chatPath, hello)
				if err == nil {
					_ = r.Body.Close()
				}
				queued <- err
			}()
			until(t, "both in hand", func() bool { return s.Stats().InHand == 2 })
			fault(t, s, `{"kind":"crash"}`)
			_, err = io.ReadAll(running.Body)
			require.Error(t, err, "the running stream is cut")
			_ = running.Body.Close()
			require.Error(t, <-queued)
			_, err = open(client(t), s, "GET", "/sim/stats", "")
			require.ErrorIs(t, err, syscall.ECONNREFUSED, "gone: not even /sim/ answers")
			st := s.Stats()
			require.Zero(t, st.InHand)
			require.Equal(t, 2, st.MaxInHand)
			require.NoError(t, s.SetFault(Fault{Kind: "crash", For: 10 * time.Millisecond}))
			until(t, "back at the same address, by itself", func() bool {
				r, err := open(tr, s, "GET", "/sim/stats", "")
				if err == nil {
					_ = r.Body.Close()
				}
				return err == nil
			})
			require.Zero(t, s.Stats().CutByClient, "nobody had left")
		})
	}
}

func TestFaultRequestsAreChecked(t *testing.T) {
	s := start(t, quick("openai"))
	for _, body := range []string{``, `{}`, `{"kind":"explode"}`, `{"kind":"error","status":200}`, `{"kind":"slow","for":"soon"}`, `{"kind":"slow","factr":2}`, `[]`} {
		resp, b := send(t, s, "POST", "/sim/fault", body)
		require.Equal(t, 400, resp.StatusCode, body)
		require.Contains(t, b, "want ", body)
	}
	resp, b := send(t, s, "GET", "/sim/nothing", "")
	require.Equal(t, 404, resp.StatusCode)
	require.Contains(t, b, "/sim/stats")
}

func TestFaultCPUShowsInPs(t *testing.T) {
	s := start(t, quick("ollama"))
	send(t, s, "POST", chatPath, hello)
	_, b := send(t, s, "GET", "/api/ps", "")
	require.NotContains(t, b, `"size_vram":0`)
	fault(t, s, `{"kind":"cpu"}`)
	_, b = send(t, s, "GET", "/api/ps", "")
	require.Contains(t, b, `"size_vram":0`)
}

func TestFaultScriptRuns(t *testing.T) {
	o := quick("openai")
	o.TimeScale = 10
	o.Faults = []TimedFault{{At: 500 * time.Millisecond, Fault: Fault{Kind: "error", Status: 503, For: time.Second}}}
	s := start(t, o)
	until(t, "the fault", func() bool { return try(t, s, hello).status == 503 })
	until(t, "its end", func() bool { return try(t, s, hello).status == 200 })
}
