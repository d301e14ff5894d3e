package simserver

import (
	"fmt"
	"strconv"
)

// openAIForm is OpenAI's chat and completions as vLLM and plain servers give it.
type openAIForm struct {
	f    *openAIFace
	chat bool
}

func (o *openAIForm) contentType(stream bool) string {
	if stream {
		return "text/event-stream; charset=utf-8"
	}
	return "application/json"
}

func (o *openAIForm) object(stream bool) string {
	switch {
	case !o.chat:
		return "text_completion"
	case stream:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func (o *openAIForm) id(a *answer) string {
	if o.chat {
		return "chatcmpl-" + a.id
	}
	return "cmpl-" + a.id
}

// head appends what each event begins with, up to the choices.
func (o *openAIForm) head(b []byte, a *answer) []byte {
	if a.pre == nil {
		a.pre = fmt.Appendf(nil, `data: {"id":%q,"object":%q,"created":%d,"model":`, o.id(a), o.object(true), a.created)
		a.pre = append(quoted(a.pre, a.name), `,"choices":[`...)
	}
	return append(b, a.pre...)
}

func (o *openAIForm) progress(b []byte, _ *answer, _ int) []byte { return b }

func (o *openAIForm) first(b []byte, a *answer) []byte {
	if !o.chat {
		return b
	}
	for i := range a.tasks {
		b = append(append(o.head(b, a), `{"index":`...), strconv.Itoa(i)...)
		b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
	}
	return b
}

func (o *openAIForm) piece(b []byte, a *answer, task int, p piece) []byte {
	b = append(strconv.AppendInt(append(o.head(b, a), `{"index":`...), int64(task), 10), ',')
	if o.chat {
		b = a.delta(append(b, `"delta":`...), task, p, openThought)
	} else {
		b = append(append(append(b, `"text":"`...), p.text...), '"')
	}
	return append(b, `,"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

func (o *openAIForm) ended(b []byte, a *answer, task int) []byte {
	b = append(strconv.AppendInt(append(o.head(b, a), `{"index":`...), int64(task), 10), ',')
	if o.chat {
		b = append(b, `"delta":{}`...)
	} else {
		b = append(b, `"text":""`...)
	}
	return fmt.Appendf(b, `,"logprobs":null,"finish_reason":%q}]}`+"\n\n", a.reason(task))
}

func (o *openAIForm) last(b []byte, a *answer) []byte {
	if a.ask.includeUsage {
		b = append(o.usage(append(o.head(b, a), ']', ','), a), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

func (o *openAIForm) usage(b []byte, a *answer) []byte {
	p, c, n := a.totals()
	return fmt.Appendf(b, `"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, p, p+n, n, c)
}

func (o *openAIForm) whole(b []byte, a *answer) []byte {
	b = fmt.Appendf(b, `{"id":%q,"object":%q,"created":%d,"model":`, o.id(a), o.object(false), a.created)
	b = append(quoted(b, a.name), `,"choices":[`...)
	for i := range a.tasks {
		if i > 0 {
			b = append(b, ',')
		}
		if o.chat {
			b = a.message(fmt.Appendf(b, `{"index":%d,"message":`, i), i, openThought, "null")
			b = fmt.Appendf(b, `,"logprobs":null,"finish_reason":%q}`, a.reason(i))
		} else {
			b = fmt.Appendf(b, `{"index":%d,"text":%q,"logprobs":null,"finish_reason":%q}`, i, a.text(i), a.reason(i))
		}
	}
	return append(o.usage(append(b, ']', ','), a), '}')
}
