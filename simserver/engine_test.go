package simserver

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// request makes a request with headers, "name: value" each.
func request(t *testing.T, s *Server, method, path, body string, headers ...string) asked {
	return askAs(t, s.front.addr, exchange{method: method, path: path, body: body, headers: headers})
}

// A key is wanted where the engine wants it, in both ways of saying it; what
// tells that the server lives needs none.
func TestAPIKey(t *testing.T) {
	open := map[string][]string{"llamacpp": {"/health", "/v1/health"}, "vllm": {"/health", "/metrics"}, "openai": nil}
	for engine, paths := range open {
		o := quick(engine)
		o.APIKey = "sekret"
		s := start(t, o)
		for _, headers := range [][]string{nil, {"Authorization: Bearer wrong"}, {"Authorization: Bearer "}, {"X-Api-Key: secret"}} {
			a := request(t, s, "POST", chatPath, hello, headers...)
			require.Equal(t, "401", a.status, "%s %v", engine, headers)
			require.Contains(t, a.body, `"error"`)
		}
		for _, header := range []string{"Authorization: Bearer sekret", "X-Api-Key: sekret"} {
			require.Equal(t, "200", request(t, s, "POST", chatPath, hello, header).status, engine)
		}
		for _, path := range paths {
			require.Equal(t, "200", request(t, s, "GET", path, "").status, "%s %s", engine, path)
		}
		require.Equal(t, "401", request(t, s, "GET", "/v1/models", "").status, engine)
		require.Equal(t, 6, s.Stats().Requests, "refused ones, too")
		require.Equal(t, 2, s.Stats().Completed)
		require.Equal(t, "200", request(t, s, "GET", "/sim/stats", "").status, "the simulation's own needs none")
	}
}

// llama.cpp with several models is a router: each has slots of its own, and a
// request says which it means.
func TestLlamaCppRouter(t *testing.T) {
	s := start(t, Options{Engine: "llamacpp", Models: []string{"a", "b"}, Slots: 1, OutputTokens: "fixed:8000", Notice: -1, SleepIdle: time.Hour})
	require.Contains(t, request(t, s, "GET", "/props", "").body, `"role":"router"`)
	var models struct {
		Data []struct {
			ID     string
			Status struct {
				Value string
				Args  []string
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(request(t, s, "GET", "/v1/models", "").body), &models))
	require.Len(t, models.Data, 2)
	require.Equal(t, "b", models.Data[1].ID)
	require.Equal(t, "loaded", models.Data[1].Status.Value)
	require.Contains(t, models.Data[1].Status.Args, "--sleep-idle-seconds")

	for path, want := range map[string]string{
		"/slots": "model name is missing", "/slots?model=c": "model 'c' not found", "/metrics": "model name is missing", "/props?model=c": "not found",
	} {
		a := request(t, s, "GET", path, "")
		require.Equal(t, "400", a.status)
		require.Contains(t, a.body, want)
	}
	for body, want := range map[string]string{hello: "model 'tiny' not found", `{"messages":[{"role":"user","content":"x"}]}`: "model name is missing"} {
		a := request(t, s, "POST", chatPath, body)
		require.Equal(t, "400", a.status)
		require.Contains(t, a.body, want)
	}
	raw(t, s, chatPath, strings.Replace(helloS, "tiny", "b", 1))
	until(t, "b decodes", func() bool { return s.Stats().Models["b"].TokensGenerated > 0 })
	require.Contains(t, request(t, s, "GET", "/slots?model=b&autoload=false", "").body, `"is_processing":true`)
	require.NotContains(t, request(t, s, "GET", "/slots?model=a", "").body, `"is_processing":true`)
	require.Contains(t, request(t, s, "GET", "/metrics?model=b", "").body, "\nllamacpp:requests_processing 1\n")
	require.Contains(t, request(t, s, "GET", "/metrics?model=a", "").body, "\nllamacpp:requests_processing 0\n")
	require.Contains(t, request(t, s, "GET", "/props?model=a", "").body, `"model_alias":"a"`)
	a := request(t, s, "POST", chatPath, `{"model":"a","max_tokens":2,"messages":[{"role":"user","content":"x"}]}`)
	require.Equal(t, "200", a.status)
	require.Contains(t, a.body, `"model":"a"`)
}

// llama.cpp asleep: health, props, models and metrics leave it so; work and a
// look at the slots wake it, and are held up for as long as that takes.
func TestLlamaCppSleeps(t *testing.T) {
	o := quick("llamacpp")
	o.SleepIdle, o.LoadTime = 50*time.Millisecond, 30*time.Millisecond
	s := start(t, o)
	asleep := func() bool {
		return strings.Contains(request(t, s, "GET", "/props", "").body, `"is_sleeping":true`)
	}
	for range 2 {
		until(t, "it sleeps", asleep)
		for _, path := range []string{"/health", "/v1/models", "/metrics"} {
			require.Equal(t, "200", request(t, s, "GET", path, "").status)
			require.True(t, asleep(), path)
		}
		began := time.Now()
		require.Equal(t, "200", request(t, s, "GET", "/slots", "").status)
		require.GreaterOrEqual(t, time.Since(began), 30*time.Millisecond)
		until(t, "it sleeps again", asleep)
		began = time.Now()
		require.Equal(t, "200", request(t, s, "POST", chatPath, hello).status)
		require.GreaterOrEqual(t, time.Since(began), 30*time.Millisecond)
	}
}

// llama.cpp closes a connection that has been idle for five seconds, Ollama
// does not.
func TestIdleConnections(t *testing.T) {
	for engine, path := range map[string]string{"llamacpp": "/health", "ollama": "/"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := start(t, quick(engine))
			c, err := net.Dial("tcp", s.front.addr)
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			_, err = io.WriteString(c, "HEAD "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			in := bufio.NewReader(c)
			_, err = http.ReadResponse(in, &http.Request{Method: "HEAD"})
			require.NoError(t, err)
			began := time.Now()
			patience := 10 * time.Second
			if engine == "ollama" {
				patience = 5500 * time.Millisecond
			}
			require.NoError(t, c.SetReadDeadline(began.Add(patience)))
			_, err = in.ReadByte()
			if engine == "ollama" {
				require.ErrorContains(t, err, "timeout")
				return
			}
			require.ErrorIs(t, err, io.EOF)
			require.Greater(t, time.Since(began), 4900*time.Millisecond)
		})
	}
}

// The process that holds Ollama's model dies: each format ends as recorded, the
// server lives, and the next request loads the model again.
func TestOllamaRunnerDies(t *testing.T) {
	ends := map[string]struct{ body, last string }{
		"/api/chat":      {`{"model":"tiny","messages":[{"role":"user","content":"hello"}]}`, `{"error":"an error was encountered while running the model: unexpected EOF"}` + "\n"},
		"/api/generate":  {`{"model":"tiny","prompt":"hello"}`, `{"error":"an error was encountered while running the model: unexpected EOF"}` + "\n"},
		chatPath:         {helloS, `"model":"","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"},
		"/v1/messages":   {`{"model":"tiny","stream":true,"max_tokens":5000,"messages":[{"role":"user","content":"hello"}]}`, "\"}}\n\n"},
		"/v1/embeddings": {`{"model":"tiny","input":"` + strings.Repeat("long ", 4000) + `"}`, "unexpected EOF\",\"type\":\"api_error\",\"param\":null,\"code\":null}}\n"},
	}
	for path, x := range ends {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			o := quick("ollama")
			o.OutputTokens, o.LoadTime, o.Prefill, o.Decode = "fixed:4000", 10*time.Millisecond, 2000, 200
			s := start(t, o)
			want := 200
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			answer := make(chan *http.Response, 1)
			go func() {
				defer close(answer)
				if r, err := client.Post("http://"+s.front.addr+path, "application/json", strings.NewReader(x.body)); err == nil {
					answer <- r
				}
			}()
			var r *http.Response
			begun := make([]byte, 10)
			if path == "/v1/embeddings" { // nothing comes before the end
				want, begun = 500, nil
				until(t, "it is at work", func() bool {
					return s.Stats().InHand == 1 && strings.Contains(request(t, s, "GET", "/api/ps", "").body, "tiny")
				})
				fault(t, s, `{"kind":"runner-crash"}`)
				r = <-answer
				require.NotNil(t, r)
			} else {
				r = <-answer
				require.NotNil(t, r)
				_, err := io.ReadFull(r.Body, begun)
				require.NoError(t, err)
				fault(t, s, `{"kind":"runner-crash"}`)
			}
			defer r.Body.Close()
			rest, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			body := string(begun) + string(rest)
			require.Equal(t, want, r.StatusCode)
			require.True(t, strings.HasSuffix(body, x.last), "...%s", body[max(0, len(body)-300):])
			require.NotContains(t, body, "[DONE]")
			require.Equal(t, `{"models":[]}`, request(t, s, "GET", "/api/ps", "").body)
			require.Equal(t, "200", request(t, s, "POST", "/api/generate", `{"model":"tiny","prompt":"x","stream":false,"options":{"num_predict":2}}`).status)
			require.Zero(t, s.Stats().InHand)
		})
	}
	s := start(t, quick("llamacpp"))
	resp, b := send(t, s, "POST", "/sim/fault", `{"kind":"runner-crash"}`)
	require.Equal(t, 400, resp.StatusCode)
	require.Contains(t, b, "want it of an ollama replica")
}

// What only some have: HEAD, counting tokens, one prompt at a time.
func TestSmallDifferences(t *testing.T) {
	s := start(t, quick("ollama"))
	for path, status := range map[string]string{"/": "200", "/api/version": "200", "/api/tags": "200", "/api/ps": "405", "/api/chat": "405", "/nope": "404"} {
		require.Equal(t, status, request(t, s, "HEAD", path, "").status, path)
	}
	require.Equal(t, "400", request(t, s, "POST", "/v1/completions", `{"model":"tiny","prompt":["a","b"]}`).status)
	require.Equal(t, "404", request(t, s, "POST", "/v1/messages/count_tokens", `{}`).status)
	for engine, want := range map[string]string{"llamacpp": `{"input_tokens":7}`, "vllm": `{"input_tokens":7,"context_management":{"original_input_tokens":7}}`} {
		s := start(t, quick(engine))
		require.Equal(t, want, request(t, s, "POST", "/v1/messages/count_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hello there"}]}`).body)
	}
}
