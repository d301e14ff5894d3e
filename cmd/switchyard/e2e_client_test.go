package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tongue is how a kind of client asks for a chat, and how it tells a whole
// answer from a broken one.
type tongue struct {
	name, path string
	body       func(q query) map[string]any
	terminal   string // ends a whole stream, and is nowhere else
	broken     string // begins an error event
	whole      string // is in every whole answer that is not streamed
}

// query is what is asked, whatever the tongue.
type query struct {
	prompt string
	stream bool
	tokens int
}

const simModel = "m"

func chatBody(q query) map[string]any {
	return map[string]any{
		"model": simModel, "stream": q.stream, "max_tokens": q.tokens,
		"messages": []map[string]string{{"role": "user", "content": q.prompt}},
	}
}

var (
	openAI    = tongue{"openai", "/v1/chat/completions", chatBody, "data: [DONE]\n\n", `data: {"error":{`, `"choices":[{`}
	anthropic = tongue{"anthropic", "/v1/messages", chatBody, "event: message_stop\n", "event: error\ndata: {\"type\":\"error\"", `"stop_reason":"`}
	ollama    = tongue{"ollama", "/api/chat", func(q query) map[string]any {
		b := chatBody(q)
		b["options"] = map[string]int{"num_predict": q.tokens}
		return b
	}, `"done":true`, `{"error":"`, `"done":true`}
	llamaCpp = tongue{"llamacpp", "/completion", func(q query) map[string]any {
		return map[string]any{"prompt": q.prompt, "stream": q.stream, "n_predict": q.tokens}
	}, `"stop":true`, `data: {"error":{`, `"stop":true`}
)

// tonguesOf lists the kinds of client that an engine can serve.
func tonguesOf(engine string) []tongue {
	switch engine {
	case "llamacpp":
		return []tongue{openAI, anthropic, llamaCpp}
	case "ollama":
		return []tongue{openAI, anthropic, ollama}
	}
	return []tongue{openAI}
}

// request builds the tongue's request for q.
func (l *tongue) request(ctx context.Context, base string, q query) *http.Request {
	body, err := json.Marshal(l.body(q))
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+l.path, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}

// reply is what a client saw.
type reply struct {
	tongue *tongue
	stream bool
	status int // 0: no answer at all
	header http.Header
	body   string
	err    error // of the connection
}

// ask sends q and reads the whole answer.
func (l *tongue) ask(ctx context.Context, c *http.Client, base string, q query) reply {
	return l.send(c, l.request(ctx, base, q), q)
}

func (l *tongue) send(c *http.Client, req *http.Request, q query) reply {
	r := reply{tongue: l, stream: q.stream}
	resp, err := c.Do(req)
	if err != nil {
		r.err = err
		return r
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	r.status, r.header, r.body, r.err = resp.StatusCode, resp.Header, string(body), err
	return r
}

// fate says in a word what became of the request for its client: "whole", a
// complete answer; "event", a stream that said that it broke; "error", an
// answer with an error status and its code; and what must never be: "cut".
func (r reply) fate() string {
	l := r.tongue
	switch {
	case r.status == 0:
		return "cut"
	case r.status >= http.StatusBadRequest:
		if r.err == nil && json.Valid([]byte(r.body)) {
			return "error"
		}
		return "cut"
	case r.stream && strings.Contains(r.body, l.broken):
		// The error event is the last word, and the end is no clean one.
		if strings.Contains(r.body, l.terminal) || r.err == nil {
			return "cut"
		}
		return "event"
	case r.err != nil:
		return "cut"
	case r.stream && strings.Contains(r.body, l.terminal):
		return "whole"
	case !r.stream && json.Valid([]byte(r.body)) && strings.Contains(r.body, l.whole):
		return "whole"
	}
	return "cut"
}

func (r reply) String() string {
	body := r.body
	if len(body) > 600 {
		body = body[:200] + " … " + body[len(body)-300:]
	}
	return fmt.Sprintf("%s stream=%t: status %d, error %v, attempts %s, replica %s, body %q", r.tongue.name, r.stream,
		r.status, r.err, r.header.Get("X-Switchyard-Attempts"), r.header.Get("X-Switchyard-Replica"), body)
}

// mustBe fails the test unless the request met that fate.
func (r reply) mustBe(t *testing.T, fate string) {
	t.Helper()
	require.Equal(t, fate, r.fate(), "%s", r)
}

// prompt makes text of about so many tokens, different for each number.
func prompt(number, tokens int) string {
	return fmt.Sprintf("%06d ", number) + strings.Repeat("word ", max(0, tokens-2)*4/5)
}

// getJSON reads an answer of the admin side.
func (r *rig) getJSON(path string, into any) {
	r.t.Helper()
	resp, err := r.client.Get(r.admin + path)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusOK, resp.StatusCode, "%s: %s", path, body)
	require.NoError(r.t, json.Unmarshal(body, into), "%s: %s", path, body)
}
