package simserver

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// anthropicRequest is the body of /v1/messages.
type anthropicRequest struct {
	Model     string          `json:"model"`
	MaxTokens *int            `json:"max_tokens"`
	System    content         `json:"system"`
	Messages  []message       `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	Stream    bool            `json:"stream"`
}

func parseAnthropic(body []byte) (*ask, error) {
	var q anthropicRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	if len(q.Messages) == 0 {
		return nil, errNoMessages
	}
	a := &ask{name: q.Model, messages: true}
	a.Model, a.Stream = q.Model, q.Stream
	a.Max = maxTokens(q.MaxTokens)
	a.Prompts = append(a.Prompts, promptOf(q.System.text, q.Tools, q.Messages))
	return a, nil
}

// anthropicForm is the answer of /v1/messages. llama.cpp reports what it found
// in its cache, and gives its own ids.
type anthropicForm struct {
	prefix      string // of the id
	cache       bool   // report cached tokens
	contentJSON string // content type of an answer that is whole
}

func (f *anthropicForm) contentType(stream bool) string {
	if stream {
		return "text/event-stream"
	}
	return f.contentJSON
}

func (f *anthropicForm) progress(b []byte, _ *answer) []byte { return b }

// usage counts as Anthropic does: input tokens are those not read from the cache.
func (f *anthropicForm) usage(b []byte, a *answer, output int) []byte {
	t := &a.tasks[0]
	if f.cache {
		return fmt.Appendf(b, `{"cache_read_input_tokens":%d,"input_tokens":%d,"output_tokens":%d}`, t.cached, t.prompt-t.cached, output)
	}
	return fmt.Appendf(b, `{"input_tokens":%d,"output_tokens":%d}`, t.prompt, output)
}

func (f *anthropicForm) first(b []byte, a *answer) []byte {
	b = fmt.Appendf(b, "event: message_start\ndata: "+`{"type":"message_start","message":{"id":"%s%s","type":"message","role":"assistant","content":[],"model":`, f.prefix, a.id)
	b = append(quoted(b, a.name), `,"stop_reason":null,"stop_sequence":null,"usage":`...)
	b = append(f.usage(b, a, 0), "}}\n\n"...)
	return append(b, "event: content_block_start\ndata: "+`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`+"\n\n"...)
}

func (f *anthropicForm) token(b []byte, _ *answer, _ int, text string) []byte {
	b = append(b, "event: content_block_delta\ndata: "+`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"`...)
	return append(append(b, text...), `"}}`+"\n\n"...)
}

func (f *anthropicForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (f *anthropicForm) reason(a *answer) string {
	if a.tasks[0].limited {
		return "max_tokens"
	}
	return "end_turn"
}

func (f *anthropicForm) last(b []byte, a *answer) []byte {
	b = append(b, "event: content_block_stop\ndata: "+`{"type":"content_block_stop","index":0}`+"\n\n"...)
	b = fmt.Appendf(b, "event: message_delta\ndata: "+`{"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":%d}}`+"\n\n", f.reason(a), a.tasks[0].decoded)
	return append(b, "event: message_stop\ndata: "+`{"type":"message_stop"}`+"\n\n"...)
}

func (f *anthropicForm) whole(b []byte, a *answer) []byte {
	b = fmt.Appendf(b, `{"id":"%s%s","type":"message","role":"assistant","content":[{"type":"text","text":%q}],"model":`, f.prefix, a.id, a.text(0))
	b = fmt.Appendf(quoted(b, a.name), `,"stop_reason":%q,"stop_sequence":null,"usage":`, f.reason(a))
	return append(f.usage(b, a, a.tasks[0].decoded), '}')
}

// isAnthropic tells a path that speaks Anthropic's format.
func isAnthropic(r *http.Request) bool { return r.URL.Path == "/v1/messages" }

// anthropicError is the body of an error in Anthropic's format.
func anthropicError(p problem) []byte {
	kind := "api_error"
	switch {
	case p.status == http.StatusNotFound:
		kind = "not_found_error"
	case p.status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case p.status == http.StatusServiceUnavailable:
		kind = "overloaded_error"
	case p.status < 500:
		kind = "invalid_request_error"
	}
	b := fmt.Appendf(nil, `{"type":"error","error":{"type":%q,"message":`, kind)
	return append(quoted(b, p.message), "}}"...)
}
