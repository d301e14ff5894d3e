package simserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"switchyard/simserver/model"
)

// anthropicRequest is the body of /v1/messages.
type anthropicRequest struct {
	Model      string     `json:"model"`
	MaxTokens  *int       `json:"max_tokens"`
	System     content    `json:"system"`
	Messages   []message  `json:"messages"`
	Tools      tools      `json:"tools"`
	ToolChoice toolChoice `json:"tool_choice"`
	Thinking   struct {
		Type string `json:"type"` // enabled, adaptive, disabled
	} `json:"thinking"`
	Stream bool `json:"stream"`
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
	think := q.Thinking.Type == "enabled" || q.Thinking.Type == "adaptive"
	a.wants(think, q.Tools, q.ToolChoice, lastOf(q.Messages))
	return a, nil
}

// anthropicForm is the answer of /v1/messages as the engine gives it: llama.cpp
// tells what it found in its cache, has ids of its own and closes its blocks
// only at the end; Ollama leaves null fields out; vLLM adds OpenAI's [DONE].
type anthropicForm struct{ kind model.Kind }

func (f *anthropicForm) contentType(stream bool) string {
	switch {
	case stream:
		return "text/event-stream"
	case f.kind == model.LlamaCpp:
		return llamaJSON
	}
	return openAIJSON
}

func (f *anthropicForm) progress(b []byte, _ *answer, _ int) []byte { return b }

// event appends an event's beginning up to its own fields.
func (f *anthropicForm) event(b []byte, kind string) []byte {
	b = append(append(append(b, "event: "...), kind...), "\ndata: {\"type\":\""...)
	return append(append(b, kind...), '"')
}

func (f *anthropicForm) id(b []byte, a *answer) []byte {
	if f.kind == model.LlamaCpp {
		return fmt.Appendf(b, `"id":"chatcmpl-%s"`, a.id)
	}
	return fmt.Appendf(b, `"id":"msg_%s"`, a.id)
}

// usage counts as Anthropic does: input tokens are those not read from the cache.
func (f *anthropicForm) usage(b []byte, a *answer, output int) []byte {
	t := &a.tasks[0]
	if f.kind == model.LlamaCpp {
		return fmt.Appendf(b, `{"cache_read_input_tokens":%d,"input_tokens":%d,"output_tokens":%d}`, t.cached, t.prompt-t.cached, output)
	}
	return fmt.Appendf(b, `{"input_tokens":%d,"output_tokens":%d}`, t.prompt, output)
}

// stop is why it ended, as fields.
func (f *anthropicForm) stop(b []byte, a *answer) []byte {
	reason := "end_turn"
	switch {
	case a.tasks[0].limited:
		reason = "max_tokens"
	case a.ask.call != nil:
		reason = "tool_use"
	}
	b = fmt.Appendf(b, `"stop_reason":%q`, reason)
	if f.kind != model.Ollama {
		b = append(b, `,"stop_sequence":null`...)
	}
	return b
}

func (f *anthropicForm) first(b []byte, a *answer) []byte {
	b = f.id(append(f.event(b, "message_start"), `,"message":{`...), a)
	b = quoted(append(b, `,"type":"message","role":"assistant","content":[],"model":`...), a.name)
	if f.kind != model.Ollama {
		b = append(b, `,"stop_reason":null,"stop_sequence":null`...)
	}
	return append(f.usage(append(b, `,"usage":`...), a, 0), "}}\n\n"...)
}

// block appends an event that concerns the block of the given number.
func (f *anthropicForm) block(b []byte, kind string, number int) []byte {
	return strconv.AppendInt(append(f.event(b, kind), `,"index":`...), int64(number), 10)
}

func (f *anthropicForm) piece(b []byte, a *answer, _ int, p piece) []byte {
	if p.kind >= callsTool && f.kind == model.Ollama {
		return b // held back until it is whole
	}
	if a.turns(p.kind) {
		if a.items > 0 && f.kind != model.LlamaCpp {
			b = f.close(b, a.items-1)
		}
		b = f.open(b, a, p)
	}
	if p.kind == callsTool {
		return b
	}
	b = append(f.block(b, "content_block_delta", a.items-1), `,"delta":{"type":"`...)
	switch p.kind {
	case saysThought:
		b = append(append(b, `thinking_delta","thinking":"`...), p.text...)
	case callsWith:
		b = quoted(append(b, `input_json_delta","partial_json":`...), p.text)
		return append(b, "}}\n\n"...)
	default:
		b = append(append(b, `text_delta","text":"`...), p.text...)
	}
	return append(b, "\"}}\n\n"...)
}

// open begins the next block, with a piece of which only a tool's name matters.
func (f *anthropicForm) open(b []byte, a *answer, p piece) []byte {
	b = append(f.block(b, "content_block_start", a.items), `,"content_block":`...)
	switch p.kind {
	case saysThought:
		b = append(b, `{"type":"thinking","thinking":""}`...)
	case callsTool:
		b = fmt.Appendf(b, `{"type":"tool_use","id":%q,"name":%s`, a.callID(0), quotedString(p.text))
		if f.kind != model.LlamaCpp {
			b = append(b, `,"input":{}`...)
		}
		b = append(b, '}')
	default:
		b = append(b, `{"type":"text","text":""}`...)
	}
	a.items++
	a.saying = p.kind
	return append(b, "}\n\n"...)
}

func (f *anthropicForm) close(b []byte, number int) []byte {
	return append(f.block(b, "content_block_stop", number), "}\n\n"...)
}

func (f *anthropicForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (f *anthropicForm) last(b []byte, a *answer) []byte {
	if call, whole := a.called(0); whole && f.kind == model.Ollama {
		if a.items > 0 {
			b = f.close(b, a.items-1)
		}
		b = f.open(b, a, piece{kind: callsTool, text: call.name})
		b = append(f.block(b, "content_block_delta", a.items-1), `,"delta":{"type":"input_json_delta","partial_json":`...)
		b = append(quoted(b, call.args), "}}\n\n"...)
	}
	for i := range a.items {
		if f.kind == model.LlamaCpp {
			if i == 0 && a.thoughts(0) > 0 {
				b = append(f.block(b, "content_block_delta", 0), `,"delta":{"type":"signature_delta","signature":""}}`+"\n\n"...)
			}
			b = f.close(b, i)
		} else if i == a.items-1 {
			b = f.close(b, i)
		}
	}
	b = append(f.stop(append(f.event(b, "message_delta"), `,"delta":{`...), a), `},"usage":`...)
	if f.kind == model.LlamaCpp {
		b = fmt.Appendf(b, `{"output_tokens":%d}`, a.tasks[0].decoded)
	} else {
		b = f.usage(b, a, a.tasks[0].decoded)
	}
	b = append(f.event(append(b, "}\n\n"...), "message_stop"), "}\n\n"...)
	if f.kind == model.VLLM {
		b = append(b, "data: [DONE]\n\n"...)
	}
	return b
}

func (f *anthropicForm) whole(b []byte, a *answer) []byte {
	b = append(f.id(append(b, '{'), a), `,"type":"message","role":"assistant","content":[`...)
	from := len(b)
	block := func(format string, args ...any) {
		if len(b) > from {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, format, args...)
	}
	if t := a.thought(0); t != "" {
		signature := `,"signature":""`
		if f.kind == model.Ollama {
			signature = ""
		}
		block(`{"type":"thinking","thinking":%q%s}`, t, signature)
	}
	if t := a.text(0); t != "" {
		block(`{"type":"text","text":%q}`, t)
	}
	call, whole := a.called(0)
	if call != nil && !whole {
		call.args = "{}" // not to be read as JSON
	}
	if call != nil && (whole || f.kind != model.Ollama) {
		block(`{"type":"tool_use","id":%q,"name":%s,"input":%s}`, a.callID(0), quotedString(call.name), call.args)
	}
	b = append(f.stop(append(quoted(append(b, `],"model":`...), a.name), ','), a), `,"usage":`...)
	b = append(f.usage(b, a, a.tasks[0].decoded), '}')
	if f.kind == model.Ollama {
		b = append(b, '\n')
	}
	return b
}

// isAnthropic tells a path that speaks Anthropic's format.
func isAnthropic(r *http.Request) bool {
	return r.URL.Path == "/v1/messages" || r.URL.Path == "/v1/messages/count_tokens"
}

// anthropicError is the body of an error in Anthropic's format.
func anthropicError(p problem) []byte {
	kind := "api_error"
	switch {
	case p.status == http.StatusUnauthorized:
		kind = "authentication_error"
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
