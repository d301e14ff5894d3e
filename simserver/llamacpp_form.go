package simserver

import (
	"fmt"
	"strconv"
	"time"
)

// timings is what llama.cpp tells of a task's tokens and times.
func timings(b []byte, t *taskView) []byte {
	rate := func(n int, ms float64) (per, second float64) {
		if n > 0 && ms > 0 {
			return ms / float64(n), float64(n) / ms * 1000
		}
		return 0, 0
	}
	p, d := t.prompt-t.cached, t.decoded
	pms, dms := millis(t.promptTime), max(millis(t.decodeTime), 0.001)
	pp, ps := rate(p, pms)
	dp, ds := rate(d-1, dms)
	return fmt.Appendf(b, `"timings":{"cache_n":%d,"prompt_n":%d,"prompt_ms":%g,"prompt_per_token_ms":%g,"prompt_per_second":%g,"predicted_n":%d,"predicted_ms":%g,"predicted_per_token_ms":%g,"predicted_per_second":%g}`,
		t.cached, p, pms, pp, ps, d, dms, dp, ds)
}

// llamaOpenAIForm is OpenAI's chat and completions as llama.cpp gives it.
type llamaOpenAIForm struct{ chat bool }

func (l *llamaOpenAIForm) contentType(stream bool) string {
	if stream {
		return "text/event-stream"
	}
	return llamaJSON
}

// tail appends what each event ends with, but for the closing brace.
func (l *llamaOpenAIForm) tail(b []byte, a *answer) []byte {
	if a.post == nil {
		a.post = fmt.Appendf(nil, `],"created":%d,"id":"chatcmpl-%s","model":`, a.created, a.id)
		object := "text_completion"
		if l.chat {
			object = "chat.completion.chunk"
		}
		a.post = fmt.Appendf(quoted(a.post, a.model), `,"system_fingerprint":%q,"object":%q`, llamaBuild, object)
	}
	return append(b, a.post...)
}

const llamaRole = `"delta":{"role":"assistant","content":null}}`

func (l *llamaOpenAIForm) progress(b []byte, a *answer, processed int) []byte {
	t := &a.tasks[0]
	b = l.tail(append(b, `data: {"choices":[{"finish_reason":null,"index":0,`+llamaRole...), a)
	return fmt.Appendf(b, `,"prompt_progress":{"total":%d,"cache":%d,"processed":%d,"time_ms":%d}}`+"\n\n",
		t.prompt, t.cached, processed, t.promptTime.Milliseconds())
}

func (l *llamaOpenAIForm) first(b []byte, a *answer) []byte {
	if !l.chat {
		return b
	}
	for i := range a.tasks {
		b = strconv.AppendInt(append(b, `data: {"choices":[{"finish_reason":null,"index":`...), int64(i), 10)
		b = append(l.tail(append(append(b, ','), llamaRole...), a), "}\n\n"...)
	}
	return b
}

func (l *llamaOpenAIForm) piece(b []byte, a *answer, task int, p piece) []byte {
	if l.chat {
		b = strconv.AppendInt(append(b, `data: {"choices":[{"finish_reason":null,"index":`...), int64(task), 10)
		b = append(a.delta(append(b, `,"delta":`...), task, p, openThought), '}')
	} else {
		b = append(append(append(b, `data: {"choices":[{"text":"`...), p.text...), `","index":`...)
		b = append(strconv.AppendInt(b, int64(task), 10), `,"logprobs":null,"finish_reason":null}`...)
	}
	b = l.tail(b, a)
	if a.ask.perToken {
		t := a.tasks[task]
		if t.decoded > 1 { // as it was when this token was made
			t.decodeTime = t.decodeTime * time.Duration(p.n-1) / time.Duration(t.decoded-1)
		}
		t.decoded = p.n
		b = timings(append(b, ','), &t)
	}
	return append(b, "}\n\n"...)
}

// ended is the event with the finish reason; a single choice's has the timings,
// unless the usage event follows that has them then.
func (l *llamaOpenAIForm) ended(b []byte, a *answer, task int) []byte {
	if l.chat {
		b = fmt.Appendf(b, `data: {"choices":[{"finish_reason":%q,"index":%d,"delta":{}}`, a.reason(task), task)
	} else {
		b = fmt.Appendf(b, `data: {"choices":[{"text":"","index":%d,"logprobs":null,"finish_reason":%q}`, task, a.reason(task))
	}
	b = l.tail(b, a)
	if !a.ask.includeUsage {
		b = timings(append(b, ','), &a.tasks[task])
	}
	return append(b, "}\n\n"...)
}

func (l *llamaOpenAIForm) last(b []byte, a *answer) []byte {
	if a.ask.includeUsage {
		b = l.tail(append(b, `data: {"choices":[`...), a)
		b = timings(append(l.usage(append(b, ','), a), ','), &a.tasks[0])
		b = append(b, "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// usage counts the first choice, as llama.cpp does.
func (l *llamaOpenAIForm) usage(b []byte, a *answer) []byte {
	t := &a.tasks[0]
	return fmt.Appendf(b, `"usage":{"completion_tokens":%d,"prompt_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		t.decoded, t.prompt, t.prompt+t.decoded, t.cached)
}

func (l *llamaOpenAIForm) whole(b []byte, a *answer) []byte {
	b = append(b, `{"choices":[`...)
	for i := range a.tasks {
		if i > 0 {
			b = append(b, ',')
		}
		if l.chat {
			b = fmt.Appendf(b, `{"finish_reason":%q,"index":%d,"message":`, a.reason(i), i)
			b = append(a.message(b, i, openThought, `""`), '}')
		} else {
			b = fmt.Appendf(b, `{"text":%q,"index":%d,"logprobs":null,"finish_reason":%q}`, a.text(i), i, a.reason(i))
		}
	}
	object := "text_completion"
	if l.chat {
		object = "chat.completion"
	}
	b = fmt.Appendf(b, `],"created":%d,"model":`, a.created)
	b = fmt.Appendf(quoted(b, a.model), `,"system_fingerprint":%q,"object":%q,`, llamaBuild, object)
	b = fmt.Appendf(append(l.usage(b, a), ','), `"id":"chatcmpl-%s",`, a.id)
	return append(timings(b, &a.tasks[0]), '}')
}

// llamaNativeForm is llama.cpp's own /completion and /infill.
type llamaNativeForm struct{}

func (l llamaNativeForm) contentType(stream bool) string {
	return (&llamaOpenAIForm{}).contentType(stream)
}

func (l llamaNativeForm) progress(b []byte, _ *answer, _ int) []byte { return b }
func (l llamaNativeForm) first(b []byte, _ *answer) []byte           { return b }

func (l llamaNativeForm) piece(b []byte, a *answer, task int, p piece) []byte {
	t := &a.tasks[task]
	b = strconv.AppendInt(append(b, `data: {"index":`...), int64(task), 10)
	b = append(append(append(b, `,"content":"`...), p.text...), `","tokens":[`...)
	b = strconv.AppendInt(b, tokenize(p.text)[0], 10)
	b = append(b, `],"stop":false,"id_slot":-1,"tokens_predicted":`...)
	b = strconv.AppendInt(b, int64(p.n), 10)
	b = append(b, `,"tokens_evaluated":`...)
	return append(strconv.AppendInt(b, int64(t.prompt), 10), "}\n\n"...)
}

func (l llamaNativeForm) ended(b []byte, a *answer, task int) []byte {
	return append(l.object(append(b, "data: "...), a, task, ""), "\n\n"...)
}

func (l llamaNativeForm) last(b []byte, _ *answer) []byte { return b }

// whole is one object, or a list of them for several prompts.
func (l llamaNativeForm) whole(b []byte, a *answer) []byte {
	if len(a.tasks) == 1 {
		return l.object(b, a, 0, a.text(0))
	}
	for i := range a.tasks {
		b = l.object(append(b, "[,"[min(i, 1)]), a, i, a.text(i))
	}
	return append(b, ']')
}

func (l llamaNativeForm) object(b []byte, a *answer, task int, text string) []byte {
	t := &a.tasks[task]
	stop, limit := "eos", a.ask.Max
	if t.limited {
		stop = "limit"
	}
	if limit == 0 {
		limit = -1
	}
	b = fmt.Appendf(b, `{"index":%d,"content":%q,"tokens":[],"id_slot":%d,"stop":true,"model":`, task, text, max(t.slot, 0))
	b = fmt.Appendf(quoted(b, a.model), `,"tokens_predicted":%d,"tokens_evaluated":%d,"generation_settings":`, t.decoded, t.prompt)
	b = append(generationSettings(b, limit, a.ask.Stream), `,"prompt":`...)
	said := ""
	if task/max(a.ask.Copies, 1) < len(a.ask.said) {
		said = a.ask.said[task/max(a.ask.Copies, 1)]
	}
	b = quoted(b, "<s> "+said)
	b = fmt.Appendf(b, `,"has_new_line":false,"truncated":false,"stop_type":%q,"stopping_word":"","tokens_cached":%d,`, stop, t.prompt+t.decoded-1)
	return append(timings(b, t), '}')
}
