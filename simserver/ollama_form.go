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

func (o *ollamaForm) progress(b []byte, _ *answer) []byte { return b }
func (o *ollamaForm) first(b []byte, _ *answer) []byte    { return b }

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

func (o *ollamaForm) textEnd(b []byte) []byte {
	if o.chat {
		return append(b, `"}`...)
	}
	return append(b, '"')
}

func (o *ollamaForm) token(b []byte, a *answer, _ int, text string) []byte {
	b = append(o.line(b, a.name, a.now), text...)
	return append(o.textEnd(b), `,"done":false}`+"\n"...)
}

func (o *ollamaForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (o *ollamaForm) last(b []byte, a *answer) []byte {
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
	b = o.textEnd(append(o.line(b, a.name, a.now), text...))
	b = fmt.Appendf(b, `,"done":true,"done_reason":%q`, a.reason(0))
	if !o.chat {
		b = append(b, `,"context":[`...)
		for i := range min(t.prompt+t.decoded, 64) {
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
	b = o.textEnd(o.line(b, name, at))
	return fmt.Appendf(b, `,"done":true,"done_reason":%q}`, reason)
}

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

func (o *ollamaOpenAIForm) head(b []byte, a *answer) []byte {
	if a.pre == nil {
		id, object := o.names(true)
		a.pre = fmt.Appendf(nil, `data: {"id":"%s%s","object":%q,"created":%d,"model":`, id, a.id, object, a.created)
		a.pre = append(quoted(a.pre, a.name), `,"system_fingerprint":"fp_ollama","choices":[`...)
	}
	return append(b, a.pre...)
}

func (o *ollamaOpenAIForm) progress(b []byte, _ *answer) []byte { return b }
func (o *ollamaOpenAIForm) first(b []byte, _ *answer) []byte    { return b }

func (o *ollamaOpenAIForm) token(b []byte, a *answer, _ int, text string) []byte {
	b = o.head(b, a)
	if o.chat {
		b = append(append(append(b, `{"index":0,"delta":{"role":"assistant","content":"`...), text...), `"}`...)
	} else {
		b = append(append(append(b, `{"text":"`...), text...), `","index":0`...)
	}
	return append(b, `,"finish_reason":null}]}`+"\n\n"...)
}

func (o *ollamaOpenAIForm) ended(b []byte, _ *answer, _ int) []byte { return b }

func (o *ollamaOpenAIForm) last(b []byte, a *answer) []byte {
	b = o.head(b, a)
	if o.chat {
		b = append(b, `{"index":0,"delta":{"role":"assistant","content":""}`...)
	} else {
		b = append(b, `{"text":"","index":0`...)
	}
	b = fmt.Appendf(b, `,"finish_reason":%q}]}`+"\n\n", a.reason(0))
	if a.ask.includeUsage {
		b = append(o.usage(append(o.head(b, a), ']', ','), a), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
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
		b = fmt.Appendf(b, `{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":%q}],`, a.text(0), a.reason(0))
	} else {
		b = fmt.Appendf(b, `{"text":%q,"index":0,"finish_reason":%q}],`, a.text(0), a.reason(0))
	}
	return append(o.usage(b, a), "}\n"...)
}
