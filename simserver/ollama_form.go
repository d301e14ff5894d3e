package simserver

import (
	"fmt"
	"strconv"
	"time"
)

// ollamaForm is Ollama's own /api/chat and /api/generate.
type ollamaForm struct{ chat bool }

func (o *ollamaForm) contentType(stream bool) string {
	if stream {
		return "application/x-ndjson"
	}
	return ollamaJSON
}

func (o *ollamaForm) progress(b []byte, _ *answer, _ int) []byte { return b }
func (o *ollamaForm) first(b []byte, _ *answer) []byte           { return b }

// line appends a line's beginning up to its text.
func (o *ollamaForm) line(b []byte, name string, at time.Time) []byte {
	b = quoted(append(b, `{"model":`...), name)
	b = append(b, `,"created_at":"`...)
	b = at.UTC().AppendFormat(b, time.RFC3339Nano)
	if o.chat {
		return append(b, `","message":{"role":"assistant","content":"`...)
	}
	return append(b, `","response":"`...)
}

// rest ends what line began: thought and calls, JSON, stand beside the text.
func (o *ollamaForm) rest(b []byte, thought, calls string) []byte {
	b = append(b, '"')
	if thought != "" {
		b = append(append(append(b, `,"thinking":"`...), thought...), '"')
	}
	b = append(b, calls...)
	if o.chat {
		b = append(b, '}')
	}
	return b
}

// piece is a line. Ollama holds a tool call back until it is whole.
func (o *ollamaForm) piece(b []byte, a *answer, _ int, p piece) []byte {
	switch p.kind {
	case saysText:
		b = o.rest(append(o.line(b, a.name, a.now), p.text...), "", "")
	case saysThought:
		b = o.rest(o.line(b, a.name, a.now), p.text, "")
	default:
		return b
	}
	return append(b, `,"done":false}`+"\n"...)
}

// calls is the field with a task's tool call, if that is whole.
func (o *ollamaForm) calls(a *answer) string {
	call, whole := a.called(0)
	if !whole {
		return ""
	}
	return fmt.Sprintf(`,"tool_calls":[{"id":%q,"function":{"index":0,"name":%s,"arguments":%s}}]`, a.callID(0), quotedString(call.name), call.args)
}

func (o *ollamaForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (o *ollamaForm) last(b []byte, a *answer) []byte {
	if calls := o.calls(a); calls != "" {
		b = append(o.rest(o.line(b, a.name, a.now), "", calls), `,"done":false}`+"\n"...)
	}
	return append(o.done(b, a, ""), '\n')
}

func (o *ollamaForm) whole(b []byte, a *answer) []byte {
	if a.ask.Preload {
		return o.empty(b, a.name, "load", a.now)
	}
	return o.done(b, a, a.text(0))
}

// done is the terminal line. The prompt's count includes what was cached.
func (o *ollamaForm) done(b []byte, a *answer, text string) []byte {
	t := &a.tasks[0]
	thought, calls, reason := "", "", "stop"
	if !a.ask.Stream {
		thought, calls = a.thought(0), o.calls(a)
	}
	if t.limited {
		reason = "length"
	}
	b = o.rest(append(o.line(b, a.name, a.now), text...), thought, calls)
	b = fmt.Appendf(b, `,"done":true,"done_reason":%q`, reason)
	if !o.chat {
		b = append(b, `,"context":[`...)
		for i := range t.prompt + t.decoded {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(529+i*31), 10)
		}
		b = append(b, ']')
	}
	return fmt.Appendf(b, `,"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d,"prompt_eval_duration":%d,"eval_count":%d,"eval_duration":%d}`,
		a.now.Sub(a.arrived), max(a.load, 1), t.prompt, max(t.promptTime, 1), t.decoded, max(t.decodeTime, 1))
}

// empty is the answer to a body without a prompt.
func (o *ollamaForm) empty(b []byte, name, reason string, at time.Time) []byte {
	b = o.rest(o.line(b, name, at), "", "")
	return fmt.Appendf(b, `,"done":true,"done_reason":%q}`, reason)
}

// died is the line with which a stream ends whose runner has died.
func (o *ollamaForm) died(b []byte, _ *answer) []byte {
	return append(quoted(append(b, `{"error":`...), runnerDied), "}\n"...)
}

// runnerDied is what Ollama says when the process that holds the model is gone.
const runnerDied = "an error was encountered while running the model: unexpected EOF"

// ollamaOpenAIForm is OpenAI's chat and completions as Ollama gives it.
type ollamaOpenAIForm struct{ chat bool }

func (o *ollamaOpenAIForm) contentType(stream bool) string {
	if stream {
		return "text/event-stream"
	}
	return "application/json"
}

func (o *ollamaOpenAIForm) names(stream bool) (id, object string) {
	switch {
	case !o.chat:
		return "cmpl-", "text_completion"
	case stream:
		return "chatcmpl-", "chat.completion.chunk"
	}
	return "chatcmpl-", "chat.completion"
}

// head appends what each event begins with, up to the choices.
func (o *ollamaOpenAIForm) head(b []byte, a *answer) []byte {
	if a.pre == nil {
		a.pre = o.headOf(nil, a, a.name)
	}
	return append(b, a.pre...)
}

func (o *ollamaOpenAIForm) headOf(b []byte, a *answer, name string) []byte {
	id, object := o.names(true)
	b = fmt.Appendf(b, `data: {"id":"%s%s","object":%q,"created":%d,"model":`, id, a.id, object, a.created)
	return append(quoted(b, name), `,"system_fingerprint":"fp_ollama","choices":[`...)
}

func (o *ollamaOpenAIForm) progress(b []byte, _ *answer, _ int) []byte { return b }
func (o *ollamaOpenAIForm) first(b []byte, _ *answer) []byte           { return b }

const ollamaDelta = `{"index":0,"delta":{"role":"assistant","content":"`

func (o *ollamaOpenAIForm) piece(b []byte, a *answer, _ int, p piece) []byte {
	switch {
	case !o.chat:
		b = append(append(append(o.head(b, a), `{"text":"`...), p.text...), `","index":0`...)
	case p.kind == saysText:
		b = append(append(append(o.head(b, a), ollamaDelta...), p.text...), `"}`...)
	case p.kind == saysThought:
		b = append(append(append(o.head(b, a), ollamaDelta+`","reasoning":"`...), p.text...), `"}`...)
	default: // held back until it is whole
		return b
	}
	return append(b, `,"finish_reason":null}]}`+"\n\n"...)
}

func (o *ollamaOpenAIForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (o *ollamaOpenAIForm) calls(a *answer, call *toolCall) string {
	return fmt.Sprintf(`"tool_calls":[{"id":%q,"index":0,"type":"function","function":{"name":%s,"arguments":%s}}]`,
		a.callID(0), quotedString(call.name), quotedString(call.args))
}

// empty is an event that says nothing, or why the answer has ended.
func (o *ollamaOpenAIForm) empty(b []byte, reason string) []byte {
	if o.chat {
		b = append(b, ollamaDelta+`"}`...)
	} else {
		b = append(b, `{"text":"","index":0`...)
	}
	return append(append(append(b, `,"finish_reason":`...), reason...), `}]}`+"\n\n"...)
}

func (o *ollamaOpenAIForm) last(b []byte, a *answer) []byte {
	if call, whole := a.called(0); whole {
		b = append(append(o.head(b, a), ollamaDelta+`",`...), o.calls(a, call)...)
		b = append(b, `},"finish_reason":null}]}`+"\n\n"...)
	}
	b = o.empty(o.head(b, a), strconv.Quote(a.reason(0)))
	if a.ask.includeUsage {
		b = append(o.usage(append(o.head(b, a), ']', ','), a), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// died is what Ollama makes of a runner's death here: an empty event that names
// no model, and a clean end.
func (o *ollamaOpenAIForm) died(b []byte, a *answer) []byte {
	return o.empty(o.headOf(b, a, ""), "null")
}

func (o *ollamaOpenAIForm) usage(b []byte, a *answer) []byte {
	p, _, n := a.totals()
	return fmt.Appendf(b, `"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, p, n, p+n)
}

func (o *ollamaOpenAIForm) whole(b []byte, a *answer) []byte {
	id, object := o.names(false)
	b = fmt.Appendf(b, `{"id":"%s%s","object":%q,"created":%d,"model":`, id, a.id, object, a.created)
	b = append(quoted(b, a.name), `,"system_fingerprint":"fp_ollama","choices":[`...)
	if o.chat {
		b = fmt.Appendf(b, `{"index":0,"message":{"role":"assistant","content":%q`, a.text(0))
		if t := a.thought(0); t != "" {
			b = fmt.Appendf(b, `,"reasoning":%q`, t)
		}
		if call, whole := a.called(0); whole {
			b = append(append(b, ','), o.calls(a, call)...)
		}
		b = fmt.Appendf(b, `},"finish_reason":%q}],`, a.reason(0))
	} else {
		b = fmt.Appendf(b, `{"text":%q,"index":0,"finish_reason":%q}],`, a.text(0), a.reason(0))
	}
	return append(o.usage(b, a), "}\n"...)
}
