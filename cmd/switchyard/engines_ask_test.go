//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// engineAsk is one request for nonsense.
type engineAsk struct {
	path   string
	stream bool
	model  string // nonsense where empty
	said   []turn // the conversation; a question of its own where nil
	tokens int    // how many the answer will have
	id     string // X-Request-ID
	header map[string]string
	began  func(replica string) // told when the answer's first byte is there
}

// engineKinds are the ways of asking: two formats, streaming and not.
func engineKinds() []engineAsk {
	return []engineAsk{
		{path: "/api/chat", stream: true},
		{path: "/v1/chat/completions", stream: true},
		{path: "/api/chat"},
		{path: "/v1/chat/completions"},
	}
}

func (a engineAsk) String() string {
	return fmt.Sprintf("%s stream=%t", a.path, a.stream)
}

func (a engineAsk) native() bool { return strings.HasPrefix(a.path, "/api/") }

func (a engineAsk) body() []byte {
	b := map[string]any{"model": a.model, "stream": a.stream}
	if a.model == "" {
		b["model"] = nonsense
	}
	switch {
	case a.path == "/api/generate" || a.path == "/v1/completions":
		b["prompt"] = "tell me about " + a.id
	case a.said != nil:
		b["messages"] = a.said
	default:
		b["messages"] = []map[string]string{{"role": "user", "content": "tell me about " + a.id}}
	}
	if a.native() {
		b["options"] = map[string]any{"num_predict": a.tokens}
	} else {
		b["max_tokens"] = a.tokens
	}
	out, err := json.Marshal(b)
	if err != nil {
		panic(err)
	}
	return out
}

// engineAnswer is what came of it.
type engineAnswer struct {
	ask    engineAsk
	status int
	header http.Header
	body   []byte
	first  time.Time // when the first byte of the body was there
	ended  time.Time
	err    error // of the transport
}

func (a engineAnswer) replica() string { return a.header.Get("X-Switchyard-Replica") }

// send asks, and reads to the end or until the context ends.
func (r *engineRig) send(ctx context.Context, a engineAsk) (got engineAnswer) {
	got = engineAnswer{ask: a, header: http.Header{}}
	defer func() { got.ended = time.Now() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.clients+a.path, bytes.NewReader(a.body()))
	if err != nil {
		got.err = err
		return got
	}
	req.Header.Set("Content-Type", "application/json")
	if a.id != "" {
		req.Header.Set("X-Request-Id", a.id)
	}
	for k, v := range a.header {
		req.Header.Set(k, v)
	}
	if host := a.header["Host"]; host != "" {
		req.Host = host
	}
	resp, err := r.http.Do(req)
	if err != nil {
		got.err = err
		return got
	}
	defer func() { _ = resp.Body.Close() }()
	got.status, got.header = resp.StatusCode, resp.Header
	buf := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 && got.first.IsZero() {
			got.first = time.Now()
			if a.began != nil {
				a.began(got.replica())
			}
		}
		got.body = append(got.body, buf[:n]...)
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			got.err = err
		}
		return got
	}
}

// enginePiece is any event or whole answer of the formats used here.
type enginePiece struct {
	Error    json.RawMessage
	Message  struct{ Content string }
	Response string
	Done     bool
	Reason   string `json:"done_reason"`
	Tokens   int    `json:"eval_count"`
	Prompt   int    `json:"prompt_eval_count"`
	Took     int64  `json:"prompt_eval_duration"` // ns, of processing what was not cached
	Load     int64  `json:"load_duration"`        // ns
	Choices  []struct {
		Delta, Message struct{ Content string }
		Text           string
		Finish         string `json:"finish_reason"`
	}
	Usage struct {
		Tokens int `json:"completion_tokens"`
	}
}

func (p enginePiece) text() string {
	var out strings.Builder
	out.WriteString(p.Message.Content + p.Response)
	for _, c := range p.Choices {
		out.WriteString(c.Delta.Content + c.Message.Content + c.Text)
	}
	return out.String()
}

// pieces takes an answer's body apart. done says that [DONE] came last.
func (a engineAnswer) pieces() (out []enginePiece, done bool, err error) {
	var raw []string
	switch {
	case !a.ask.stream:
		raw = []string{string(a.body)}
	case a.ask.native():
		raw = strings.SplitAfter(string(a.body), "\n")
	default:
		raw = strings.SplitAfter(string(a.body), "\n\n")
	}
	for i, text := range raw {
		if text == "" && i > 0 {
			continue // after the last one
		}
		if a.ask.stream && !a.ask.native() {
			data, ok := strings.CutPrefix(strings.TrimSuffix(text, "\n\n"), "data: ")
			if !ok || !strings.HasSuffix(text, "\n\n") {
				return nil, false, fmt.Errorf("event %d is not a whole one: %q", i, text)
			}
			if done = data == "[DONE]"; done {
				continue
			}
			text = data
		}
		var p enginePiece
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return nil, false, fmt.Errorf("event %d is %q: %w", i, text, err)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, done, errors.New("there is nothing in it")
	}
	return out, done, nil
}

// whole says what is wrong with an answer that should be whole: right status
// and type, each token there, the terminal event last.
func (a engineAnswer) whole() error {
	if a.err != nil || a.status != http.StatusOK {
		return fmt.Errorf("%s: status %d, error %v, body %s", a.ask, a.status, a.err, a.body)
	}
	pieces, done, err := a.pieces()
	if err != nil {
		return fmt.Errorf("%s: %w", a.ask, err)
	}
	text, tokens, ended := "", 0, 0
	for _, p := range pieces {
		text += p.text()
		tokens += p.Tokens + p.Usage.Tokens
		if p.Error != nil {
			return fmt.Errorf("%s: an error in an answer that should be whole: %s", a.ask, a.body)
		}
		if p.Done {
			ended++
		}
		for _, c := range p.Choices {
			if c.Finish == "length" {
				ended++
			}
		}
	}
	last := pieces[len(pieces)-1]
	if sse := a.ask.stream && !a.ask.native(); sse {
		tokens = a.ask.tokens // not said unless asked for
		if !done {
			return fmt.Errorf("%s: no [DONE] at the end: %s", a.ask, a.body)
		}
	} else if a.ask.native() && !last.Done {
		return fmt.Errorf("%s: does not end with done: %s", a.ask, a.body)
	}
	if words := len(strings.Fields(text)); ended != 1 || words != a.ask.tokens || tokens != a.ask.tokens {
		return fmt.Errorf("%s: %d ends, %d words, %d tokens said, %d wanted: %s", a.ask, ended, words, tokens, a.ask.tokens, a.body)
	}
	return nil
}

// broken says what is wrong with a stream that broke: it must have begun, end
// with one error event in its client's format, and have neither a terminal event
// nor a clean end of the transfer (R8).
func (a engineAnswer) broken() error {
	if !errors.Is(a.err, io.ErrUnexpectedEOF) || a.status != http.StatusOK || !a.ask.stream {
		return fmt.Errorf("%s: not a stream that broke with a word: status %d, error %v, body %s", a.ask, a.status, a.err, a.body)
	}
	pieces, done, err := a.pieces()
	if err != nil {
		return fmt.Errorf("%s: %w", a.ask, err)
	}
	errs := 0
	for _, p := range pieces {
		if p.Error != nil {
			errs++
		}
		if p.Done {
			return fmt.Errorf("%s: done in a stream that broke: %s", a.ask, a.body)
		}
		for _, c := range p.Choices {
			if c.Finish != "" {
				return fmt.Errorf("%s: finished, in a stream that broke: %s", a.ask, a.body)
			}
		}
	}
	last := pieces[len(pieces)-1]
	if done || errs != 1 || last.Error == nil || pieces[0].text() == "" {
		return fmt.Errorf("%s: wants text and then one error event, has [DONE] %t, %d errors: %s", a.ask, done, errs, a.body)
	}
	native := len(last.Error) > 0 && last.Error[0] == '"'
	if native != a.ask.native() {
		return fmt.Errorf("%s: the error event is in another format: %s", a.ask, last.Error)
	}
	return nil
}
